#!/bin/sh
# Runs the demo and the tests that depend on a release of Debian (`make test-userland`) in a root
# file system of that release, which is made if it is not there, and tests the packages that are
# built there. As root.
#   test-distro.sh RELEASE FOLDER    FOLDER holds the root file systems
set -eu

[ $# = 2 ] || { echo "usage: $0 RELEASE FOLDER" >&2; exit 2; }
release=$1 root=$2/$1
cd "$(dirname "$0")/.."
scripts/root-fs.sh "$release" "$root"
# In the root file system cargo uses the registry of this machine.
cargo fetch --locked --quiet
echo "Debian $release:"
scripts/root-fs-run.sh "$root" make test-userland
scripts/root-fs-run.sh "$root" make packages
scripts/test-packages.sh "$root-target/packages" "$2" "$release"
