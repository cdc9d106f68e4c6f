#!/bin/sh
# Makes the root file system of a release of Debian, if it is not there: what debootstrap would
# install, and what install-deps.sh and mount namespaces need, or verbs programs without DPDK. As
# root.
#   root-fs.sh RELEASE FOLDER [programs]
set -eu
# Ordinary users read what is installed there.
umask 022

usage() {
    echo "usage: $0 RELEASE FOLDER [programs]" >&2
    exit 2
}
[ $# = 2 ] || [ $# = 3 ] || usage
release=$1 root=$2
case ${3:-} in
    "") packages=ca-certificates,make,mount ;;
    programs) packages=ibverbs-utils,iproute2,mount,perftest,procps,rdmacm-utils ;;
    *) usage ;;
esac
[ "$(cat "$root/made" 2>/dev/null)" != "$packages" ] || exit 0
"$(dirname "$0")/install-deps.sh" distros
echo "Making a root file system of Debian $release in $root"
rm -rf --one-file-system "$root"
mkdir -p "$root"
log=$(mktemp)
# Documents are left out, but not the tests of rdma-core, which are among them. A mirror's list of
# sid may be older than a week.
if ! mmdebstrap --variant=apt --include="$packages" \
    --aptopt='Acquire::Retries "3"' --aptopt='Acquire::Check-Valid-Until "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-include=/usr/share/doc/rdma-core/*' \
    "$release" "$root" http://deb.debian.org/debian >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    exit 1
fi
rm -f "$log"
echo "$packages" >"$root/made"
