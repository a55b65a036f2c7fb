# Sourced by ./run and ./test: makes `.venv` in the checkout and installs the package into it.
# PYTHON=/path/to/python chooses the interpreter; without it the first one of 3.11 or newer is taken.

say() { echo "setup: $*" >&2; }

# install_debian PACKAGE...: installs Debian packages where we may; otherwise says what to install and stops.
install_debian() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing $* with apt-get"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq </dev/null
        apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null
        return
    fi
    say "please install $* (on Debian and Ubuntu: sudo apt-get install $*), then run this again"
    exit 1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

make_venv() {
    local python
    if ! python=$(find_python); then
        say "found no Python of 3.11 or newer${PYTHON:+ at PYTHON=$PYTHON}"
        [ -z "${PYTHON:-}" ] || exit 1
        install_debian python3 python3-venv
        python=$(find_python) || { say "this system's own Python is older; set PYTHON=/path/to/python"; exit 1; }
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        say "$python has no venv module: on Debian it is the package python3-venv"
        install_debian python3-venv
    fi
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
}

# prepare_environment runtime|test: call it in the root of the checkout.
prepare_environment() {
    local kind=$1 target=. stamp have
    if [ "$kind" = test ]; then
        target='.[test]'
        # The cpu device compiles its kernels with the system's C compiler, so their tests need one.
        command -v cc >/dev/null || install_debian gcc libc6-dev
    fi
    .venv/bin/python -m pip --version >/dev/null 2>&1 || make_venv

    stamp=$({ pwd; .venv/bin/python --version; cat pyproject.toml constraints.txt tools/setup.sh; } | cksum)
    for have in "$kind" test; do # what the tests need includes what a run needs
        if [ "$(cat ".venv/stamp-$have" 2>/dev/null)" = "$stamp" ]; then
            return
        fi
    done
    say "installing sexpgpu and what it needs ($kind) into .venv; the first time takes a few minutes"
    .venv/bin/python -m pip install -qq --disable-pip-version-check -e "$target" -c constraints.txt </dev/null
    echo "$stamp" >".venv/stamp-$kind"
}
