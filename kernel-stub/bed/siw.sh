#!/bin/bash
# siw.sh DIR: builds the kernel's siw, which Debian does not switch on, from Debian's own source package for the kernel whose headers are installed:
# DIR/siw.ko. Fails with a sentence if the archive does not give the sources.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=$(mkdir -p "$1" && cd "$1" && pwd)
release=$("$here/release.sh")
[ -e "$dir/siw.ko" ] && exit 0

series=$(echo "$release" | cut -d. -f1-2)
version=$(dpkg-query -W -f '${Version}' "linux-headers-$release")
work=$(mktemp -d "$dir/source.XXXXXX")
trap 'rm -rf "$work"' EXIT
# The sandbox user of apt must be able to write here, else it warns.
chmod 755 "$work"
if ! (cd "$work" && timeout 300 apt-get download -q "linux-source-$series=$version" >log 2>&1); then
    echo "siw.sh: no linux-source-$series of version $version in the archive" >&2
    exit 1
fi
dpkg-deb --fsys-tarfile "$work"/linux-source-*.deb | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' |
    tar -xJ -C "$work" --strip-components=4 --wildcards '*/drivers/infiniband/sw/siw'
make -s -C "/lib/modules/$release/build" M="$work/siw" CONFIG_RDMA_SIW=m modules >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
mv "$work/siw/siw.ko" "$dir/siw.ko"
