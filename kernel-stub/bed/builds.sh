#!/bin/bash
# builds.sh: tests builds of the module other than the guest's: with the newest kernel headers in
# Debian's archive, which prepare.sh has fetched, and by DKMS from the files of
# `make install-module`. The results are not run. Installs nothing and leaves no files.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=$(cd "$here/../../target/kernel" && pwd)
release=$("$here/release.sh")
work=$(mktemp -d "${TMPDIR:-/tmp}/urdma-builds.XXXXXX")
trap 'rm -rf "$work"' EXIT

build_with_newest_headers() {
    local newest
    newest=$(cat "$cache/newest")
    if [ -z "$newest" ]; then
        echo "the archive has no kernel headers newer than those of $release"
        return
    fi
    "$here/compile.sh" W=1 KDIR="$cache/headers/usr/src/linux-headers-$newest" \
        OUT="$work/newest/module"
    echo "the module compiles with the headers of $newest"
}

# Runs dkms with its directories below $work: its configuration file is replaced in its own mount
# namespace.
dkms_aside() {
    cat >"$work/framework.conf" <<FRAMEWORK
source_tree=$work/root/usr/src
dkms_tree=$work/dkms
install_tree=$work/modules
mok_signing_key=$work/mok.key
mok_certificate=$work/mok.pub
FRAMEWORK
    mkdir -p "$work/dkms" "$work/modules/$release"
    unshare --mount sh -euc 'mount --bind "$1" /etc/dkms/framework.conf; shift; exec dkms "$@"' \
        - "$work/framework.conf" "$@"
}

build_by_dkms() {
    local source
    # Without the variables of an enclosing `make test`.
    env -u MAKEFLAGS -u MAKELEVEL make -s -C "$here/../.." install-module DESTDIR="$work/root" \
        >"$work/log" 2>&1 || { cat "$work/log"; return 1; }
    source=$(echo "$work"/root/usr/src/urdma-*)
    dkms_aside install "urdma/${source##*/urdma-}" -k "$release" --no-depmod >"$work/log" 2>&1 || {
        cat "$work/log" "$work"/dkms/urdma/*/build/make.log || true
        return 1
    }
    modinfo -F vermagic "$work/modules/$release/updates/dkms/urdma.ko"* |
        grep "^$release " >/dev/null
    echo "DKMS builds and installs the module for $release"
}

build_with_newest_headers
build_by_dkms
