"""What an SSH session runs inside a container: the command line and the environment of an exec.

The choice of shell, home and directory is made *inside* the container by a short script under the bundle's own
busybox. The agent is root on the host: it never opens a file the renter can replace (an /etc/passwd that is a link to
somewhere else, or a pipe). Only /proc/<pid>/environ is read from outside, which the kernel writes. It is needed
because an exec is given the image's configured environment only, while the container runtime adds more at start, such
as NVIDIA_VISIBLE_DEVICES.
"""

from __future__ import annotations

from pathlib import Path

BUNDLE_BIN = "/.lease/bin"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KINDS = ("shell", "command", "sftp", "probe")
# Given anew for each session; the container's own values would be wrong here.
REPLACED = (
    "TERM",
    "HOME",
    "USER",
    "LOGNAME",
    "SSH_CONNECTION",
    "SSH_CLIENT",
    "SSH_TTY",
    "PATH",
    "PWD",
    "OLDPWD",
    "SHLVL",
)

# Arguments: kind, rows, cols, command. The user is the container's own. The first executable of the image's $SHELL,
# the user's entry in passwd, bash and sh is the shell. A login shell often starts with a profile that sets PATH anew
# and loses the image's (/opt/conda/bin and the like), so the profile is read by a login shell that then puts the
# image's PATH back and becomes the shell.
SCRIPT = r"""
kind=$1 rows=$2 cols=$3 command=$4
box=/.lease/bin/busybox
uid=$($box id -u) name= home= login=
if [ -r /etc/passwd ]; then
  while IFS=: read -r n _ u _ _ h s; do
    if [ "$u" = "$uid" ]; then name=$n home=$h login=$s; break; fi
  done </etc/passwd
fi
[ -n "$name" ] || { name=root; [ "$uid" = 0 ] || name=user$uid; }
[ -n "$home" ] || home=/root
export HOME="$home" USER="$name" LOGNAME="$name"
for shell in "$SHELL" "$login" /bin/bash /bin/sh ""; do
  case $shell in */nologin | */false) continue ;; /*) [ -x "$shell" ] && break ;; esac
done
export SHELL="${shell:-/bin/sh}"
cd /workspace 2>/dev/null || cd "$HOME" 2>/dev/null || cd /
if [ -t 0 ]; then
  [ "$rows" = 0 ] || [ "$cols" = 0 ] || $box stty rows "$rows" cols "$cols"
  export SSH_TTY="$($box tty)"
fi
case $kind in
  probe) exec /.lease/bin/probe ;;
  sftp) exec /.lease/bin/sftp-server ;;
  command)
    case $command in
      "scp "*) command -v scp >/dev/null || {
        echo "lessor: this image has no scp; use scp in its SFTP mode (without -O), sftp or rsync" >&2; exit 127; } ;;
    esac
    [ -n "$shell" ] || exec $box sh -c "$command"
    exec "$shell" -c "$command" ;;
esac
[ -n "$shell" ] || exec $box sh -l
case ${shell##*/} in
  bash | zsh | sh | dash | ash | ksh | mksh)
    export LESSOR_PATH="$PATH"
    exec "$shell" -l -c 'case ":$PATH:" in *":$LESSOR_PATH:"*) ;; *) export PATH="$LESSOR_PATH:$PATH" ;; esac
      unset LESSOR_PATH; if [ -t 0 ]; then exec "$0" -i; else exec "$0"; fi' "$shell" ;;
esac
exec "$shell" -l
"""


def command_line(*, kind: str, command: str, rows: int, cols: int) -> list[str]:
    """The argument list of a session's first process. `command` is used by the kind "command" only."""
    return [f"{BUNDLE_BIN}/busybox", "sh", "-c", SCRIPT, "lessor", kind, str(rows), str(cols), command]


def environment(pid: int, *, term: str | None, peer: str) -> list[str]:
    """NAME=value lines: those of the container's first process, with the session's own.

    Raises OSError where it is gone.
    """
    raw = Path(f"/proc/{pid}/environ").read_bytes()
    values: dict[str, str] = {}
    for item in raw.split(b"\0"):
        name, equals, value = item.decode("utf-8", "replace").partition("=")
        if equals and name:
            values[name] = value
    path = values.get("PATH", DEFAULT_PATH)
    for name in REPLACED:
        values.pop(name, None)
    values["PATH"] = f"{path}:{BUNDLE_BIN}"
    values["SSH_CLIENT"] = f"{peer} 0 22"
    values["SSH_CONNECTION"] = f"{peer} 0 127.0.0.1 22"
    if term:
        values["TERM"] = term
    return [f"{name}={value}" for name, value in values.items()]
