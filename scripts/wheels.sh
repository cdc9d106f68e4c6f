#!/bin/sh
# Creates a Python environment with the packages of PyPI for `make test-all`: wheels.sh DIRECTORY
set -eu

# Without their dependencies for GPUs (torch) and for servers that the tests do not start.
packages="nixl==1.5.1 nixl-cu12==1.5.1 mooncake-transfer-engine-non-cuda==0.3.13.post1
          numpy==2.4.6 peercache==0.8.4 dlslime==0.1.23
          infinistore==0.2.35 uvloop==0.21.0"

directory=${1:?usage: wheels.sh DIRECTORY}
mark="$directory/installed"
if [ "$(cat "$mark" 2>/dev/null)" = "$packages" ]; then
    exit 0
fi
echo "Installing from PyPI: $packages"
rm -rf "$directory"
/usr/bin/python3 -m venv "$directory"
# shellcheck disable=SC2086 # the list is meant to be split
"$directory/bin/pip" install -q --disable-pip-version-check --no-deps $packages
echo "$packages" >"$mark"
