# shellcheck shell=bash
# Brings a Debian or Ubuntu machine to where Lessor runs. Sourced by scripts/demo and scripts/test, which call the setup_*
# functions they need. Every function does nothing, quickly, when there is nothing to do; what takes longer is printed as
# a step with its time. The caller has `set -euo pipefail` and is in the repository's root.

SETUP_LOG=${SETUP_LOG:-var/log/setup.log}

setup_fail() {
    printf '\n%s\n' "$*" >&2
    exit 1
}

# step LABEL COMMAND...: runs the command quietly and prints the label with the time; a failure shows the log's end
step() {
    local label=$1 began=$EPOCHREALTIME status=0 start
    shift
    mkdir -p "$(dirname "$SETUP_LOG")"
    start=$(wc -l 2>/dev/null <"$SETUP_LOG" || echo 0)
    printf -- '--- %s\n' "$label" >>"$SETUP_LOG"
    "$@" >>"$SETUP_LOG" 2>&1 </dev/null || status=$?
    printf '%-58s %7.1f s%s\n' "$label" "$(seconds_since "$began")" "$([ "$status" = 0 ] || echo '  FAILED')"
    if [ "$status" != 0 ]; then
        tail -n "+$((start + 2))" "$SETUP_LOG" | tail -n 40 >&2
        return "$status"
    fi
}

seconds_since() {
    awk -v from="${1/,/.}" -v to="${EPOCHREALTIME/,/.}" 'BEGIN { printf "%.3f", to - from }'
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

setup_check_machine() {
    local id_like
    # shellcheck disable=SC1091
    id_like=" $(. /etc/os-release 2>/dev/null && echo "${ID:-} ${ID_LIKE:-}") "
    case $id_like in
        *" debian "* | *" ubuntu "*) ;;
        *) setup_fail "This needs Debian 12 or newer, or Ubuntu 22.04 or newer: it installs packages with apt-get." ;;
    esac
    [ "$(uname -m)" = x86_64 ] || setup_fail "This needs an x86-64 machine, and this is $(uname -m)."
    if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
        setup_fail "This needs root, or sudo without a password (try: sudo -v), to install packages and to run a GPU node."
    fi
}

# --- packages ---------------------------------------------------------------------------------------------------------

# what runs here: package, and the command it is wanted for, so that the same command from elsewhere counts
SETUP_PACKAGES="
redis-server redis-server   the broker and cache of the embedded default
gcc gcc                     the probe that runs in every container
libc6-dev -                 headers and the static C library for it
gettext msgfmt              compiles the translations
iproute2 ip                 networks of nodes and leases
iptables iptables           what leases may reach
util-linux nsenter          commands in a node's network
openssh-client ssh          the renter's side of SSH
rsync rsync                 copied into the SSH bundle
debootstrap debootstrap     the base of the workspace image where no registry answers
ca-certificates -           HTTPS
"
# what only the tests need
SETUP_TEST_PACKAGES="
docker.io dockerd           the engines of the rig
postgresql /usr/lib/postgresql/*/bin/initdb   the production database
chromium chromium           browser tests
procps ps                   tests look for processes left behind
"

_setup_missing() {
    local package command
    while read -r package command _; do
        [ -n "$package" ] || continue
        case $command in
            -) dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' && continue ;;
            /*) compgen -G "$command" >/dev/null && continue ;;
            *) PATH="$PATH:/usr/sbin:/sbin" command -v "$command" >/dev/null && continue ;;
        esac
        echo "$package"
    done
}

# Services of packages are not started on the way (we start our own, on free ports), except those named in $1.
_setup_apt_install() {
    local started=$1 policy=/usr/sbin/policy-rc.d status=0 own_policy=
    shift
    if [ ! -e "$policy" ]; then
        own_policy=yes
        printf '#!/bin/sh\ncase $1 in %s) exit 0 ;; esac\nexit 101\n' "${started:-none}" | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 update &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qy -o DPkg::Lock::Timeout=120 install --no-install-recommends "$@" || status=$?
    [ -z "$own_policy" ] || as_root rm -f "$policy"
    return "$status"
}

# setup_packages LIST [SERVICES]: installs what LIST (lines as above) finds missing; SERVICES as in a shell pattern
setup_packages() {
    local missing
    missing=$(_setup_missing <<<"$1")
    [ -n "$missing" ] || return 0
    # shellcheck disable=SC2086 # package names are words
    step "apt: $(echo $missing)" _setup_apt_install "${2:-}" $missing
}

# The demo's engine: none is installed where one answers already. The package's own service is let start only where a
# service manager runs: elsewhere its init script may fail and the package with it, and the demo starts an engine itself.
setup_docker() {
    local service=
    command -v docker >/dev/null && as_root docker version >/dev/null 2>&1 && return
    [ ! -d /run/systemd/system ] || service="docker|containerd"
    setup_packages "docker.io dockerd" "$service"
    command -v docker >/dev/null || setup_packages "docker-cli docker"
}

# --- Python -----------------------------------------------------------------------------------------------------------

_setup_python_fits() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# Prints the Python to make the virtual environment with.
_setup_find_python() {
    local python
    for python in ${PYTHON:-} python3.11 python3 python3.12 python3.13 python3.14; do
        if command -v "$python" >/dev/null && _setup_python_fits "$python"; then
            command -v "$python"
            return
        fi
    done
    return 1
}

_setup_venv() {
    local python=$1 lock=$2
    # --no-deps: the lock names everything, so there is nothing to resolve
    [ -x .venv/bin/python ] && _setup_python_fits .venv/bin/python || "$python" -m venv --clear .venv
    .venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r "$lock"
}

# setup_python LOCK: .venv with exactly what the lock file names
setup_python() {
    local lock=$1 python wanted stamp
    stamp=.venv/.installed-$(basename "$lock")
    wanted=$(sha256sum <"$lock")
    [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || return 0
    if ! python=$(_setup_find_python); then
        setup_packages "python3-venv -"
        python=$(_setup_find_python) || setup_packages "python3.11-venv -" || true
        python=$(_setup_find_python) || setup_fail \
            "Lessor needs Python 3.11 or newer with the venv module; this machine has $(python3 --version 2>&1). Install it, or name it: PYTHON=/path/to/python3.11"
    fi
    step "Python packages of $lock" _setup_venv "$python" "$lock"
    echo "$wanted" >"$stamp"
}

# --- the rest ---------------------------------------------------------------------------------------------------------

# setup_node_modules [dev]: the pages' style sheets and scripts, and with `dev` what the tests check pages with
setup_node_modules() {
    local stamp=node_modules/.installed wanted have
    wanted=$(sha256sum <package-lock.json)
    have=$(cat "$stamp" 2>/dev/null || true)
    # an installation with the tests' packages holds everything that one without them does
    [ "$have" != "$wanted dev" ] && [ "$have" != "$wanted ${1:-}" ] || return 0
    setup_packages $'nodejs node\nnpm npm'
    if [ "${1:-}" = dev ]; then
        step "npm packages" npm ci --ignore-scripts --no-audit --no-fund
    else
        step "npm packages" npm ci --omit=dev --ignore-scripts --no-audit --no-fund
    fi
    echo "$wanted ${1:-}" >"$stamp"
}

_setup_compile_messages() {
    local source
    for source in "$@"; do
        msgfmt --check-format --output-file="${source%.po}.mo" "$source"
    done
}

# setup_messages: compiles the translations that are newer than their compiled form
setup_messages() {
    local source stale=()
    while read -r source; do
        [ "${source%.po}.mo" -nt "$source" ] || stale+=("$source")
    done < <(find . -path ./node_modules -prune -o -path ./.venv -prune -o -path '*/LC_MESSAGES/*.po' -print)
    [ ${#stale[@]} = 0 ] || step "translations" _setup_compile_messages "${stale[@]}"
}

# setup_bundle [DIRECTORY]: the SSH bundle for containers
setup_bundle() {
    step "SSH bundle" deploy/bundle/build "${1:-var/bundle}"
}

# setup_workspace_image: lessor/workspace:1 on the engine at DOCKER_HOST
setup_workspace_image() {
    step "workspace image" as_root env DOCKER_HOST="${DOCKER_HOST:-unix:///var/run/docker.sock}" deploy/images/build-workspace
}
