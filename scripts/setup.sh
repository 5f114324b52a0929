# Sourced by the other scripts, from anywhere: `use_venv EXTRA` puts the checkout's virtual environment, with that extra
# of the package installed, first on PATH. Needs Python >= 3.11 and nothing else; installs again when pyproject changes.
set -eu
caller=$PWD
cd "$(dirname "$0")/.."

# Compiled code is cached on disk; numba does not notice that a function inlined from another file has changed.
sources=$(cat numba_ckpt/*.py numba_ckpt/*/*.py | cksum | tr ' ' -)
export NUMBA_CACHE_DIR="$PWD/.numba_cache/$sources"

find_python() {
    for python in "${PYTHON:-python3}" python3.13 python3.12 python3.14 python3.11 python; do
        "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
    done
    echo "Found no Python 3.11 or newer with its venv module; install one (Debian: apt install python3-venv)," >&2
    echo "or name one: PYTHON=/path/to/python3 $0" >&2
    exit 1
}

use_venv() {
    PATH="$PWD/.venv/bin:$PATH"
    stamp=".venv/installed-$1-$(cksum <pyproject.toml | tr ' ' -)"
    [ -f "$stamp" ] && .venv/bin/python -c '' 2>/dev/null && return
    find_python
    echo "Installing numba_ckpt[$1] into .venv with $("$python" --version) ..." >&2
    .venv/bin/python -c '' 2>/dev/null || "$python" -m venv --clear .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$1]"
    touch "$stamp"
}
