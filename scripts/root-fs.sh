#!/bin/sh
# Makes the root file system of a release of Debian, if it is not there: what debootstrap would
# install, and PACKAGES, else what install-deps.sh and mount namespaces need. As root.
#   root-fs.sh RELEASE FOLDER [PACKAGES]    PACKAGES are separated by commas
set -eu

[ $# = 2 ] || [ $# = 3 ] || { echo "usage: $0 RELEASE FOLDER [PACKAGES]" >&2; exit 2; }
release=$1 root=$2 packages=${3:-ca-certificates,make,mount}
[ ! -e "$root/made" ] || exit 0
"$(dirname "$0")/install-deps.sh" distros
echo "Making a root file system of Debian $release in $root"
rm -rf "$root"
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
touch "$root/made"
