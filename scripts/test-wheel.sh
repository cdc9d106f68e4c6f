#!/bin/sh
# Makes a wheel of programs, installs it in a virtual environment, and checks and tests the Python
# package there, and the commands of doc/ci.md. As root.
#   test-wheel.sh FOLDER    FOLDER has the programs: target/release, or what tarball.sh has written
set -eu

[ $# = 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
programs=$(realpath "$1")
cd "$(dirname "$0")/.."
tools="pytest==8.4.2 ruff==0.14.6 mypy==1.18.2 pyyaml==6.0.3 types-PyYAML==6.0.12.20250915"
environment=target/python
wheels=target/wheel
rm -rf "$wheels"
mkdir -p "$wheels"
wheels=$(realpath "$wheels")
wheel=$(scripts/wheel.py "$programs" "$wheels" "linux_$(uname -m)")
if [ "$(cat "$environment/installed" 2>/dev/null)" != "$tools" ]; then
    rm -rf "$environment"
    /usr/bin/python3 -m venv "$environment"
    # shellcheck disable=SC2086 # the list is meant to be split
    "$environment/bin/pip" install --quiet --disable-pip-version-check $tools
    # For the virtual environments of the page, which have no network.
    "$environment/bin/pip" download --quiet --disable-pip-version-check \
        --dest "$environment/wheels" pytest
    echo "$tools" >"$environment/installed"
fi
bin=$(realpath "$environment")/bin
"$bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"
cd python
"$bin/ruff" check --quiet .
"$bin/ruff" format --quiet --check .
"$bin/mypy" --no-error-summary urdma tests
# The package that is installed, not the sources beside the tests; without another network than
# loopback, of which every port is free.
cd tests
PIP_NO_INDEX=1 PIP_FIND_LINKS="$wheels $(dirname "$bin")/wheels" \
    timeout -k 10 300 unshare --net --pid --fork --kill-child --mount-proc \
    sh -c 'ip link set lo up && exec "$@"' sh \
    "$bin/pytest" --quiet -p no:cacheprovider --rootdir=.. -c ../pyproject.toml .
