#!/bin/sh
# Installs this machine's build in a root file system of a release of Debian without DPDK, which is
# made if it is not there, and runs it there. As root.
#   carry-over.sh RELEASE FOLDER    FOLDER holds the root file systems
set -eu

[ $# = 2 ] || { echo "usage: $0 RELEASE FOLDER" >&2; exit 2; }
release=$1 root=$2/$1-without-dpdk
cd "$(dirname "$0")/.."
scripts/root-fs.sh "$release" "$root" ibverbs-utils,mount,perftest
make --silent install DESTDIR="$(realpath "$root")" >/dev/null
echo "Debian $release, with programs from here and without DPDK:"
exec scripts/root-fs-run.sh "$root" scripts/carried-over.sh
