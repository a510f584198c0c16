"""Giving up root for good, for a gateway that was started as root.

A service manager sets the user itself and this is not used. It helps where the gateway's user may not read the
program's files, as in a checkout below /root: the code is loaded first, then the rights go.
"""

from __future__ import annotations

# Two modules that the library loads at the first use, when the files may be out of reach.
import concurrent.futures.thread  # noqa: F401
import ctypes
import encodings.idna  # noqa: F401
import os
import pwd
from pathlib import Path

PR_SET_NO_NEW_PRIVS = 38


def share_directory(path: Path, user: str) -> None:
    """Make the directory that agent and gateway share, in the group of `user`, if the agent has not made it yet."""
    if not path.exists():
        path.mkdir(parents=True)
        os.chown(path, 0, pwd.getpwnam(user).pw_gid)
        path.chmod(0o2770)


def become(user: str, *, owning: Path) -> None:
    """Become `user` with its groups, after giving it the directory `owning`.

    Raises KeyError if unknown, OSError if not root.
    """
    entry = pwd.getpwnam(user)
    if os.geteuid() == entry.pw_uid:
        return
    # Only while it is root's: in a directory of the user's own, a name could stand for a file that is none of his.
    if owning.stat().st_uid == 0:
        for path in (*owning.iterdir(), owning):
            os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
    os.initgroups(user, entry.pw_gid)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
