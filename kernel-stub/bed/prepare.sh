#!/bin/bash
# prepare.sh DIR: installs QEMU and the packages that build the module, and stores in DIR the files
# for boot.sh: Debian's kernel (fetched, not installed under /boot), its modules, and an initramfs
# that mounts the host's root. The kernel is the one whose headers are installed. If the
# archive has headers of a newer one, they are stored in DIR/headers, and their release in
# DIR/newest, which is empty otherwise. Has no effect if DIR is complete.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=$(mkdir -p "$1" && cd "$1" && pwd)
"$here/../../scripts/install-deps.sh" kernel
release=$("$here/release.sh")

# Unpacks the kernel in a bzImage: unpacking it in the emulator takes as long as booting it.
unpack_kernel() {
    local image=$1 offset
    for offset in $(LC_ALL=C grep -aobP '\xfd7zXZ\x00' "$image" | cut -d: -f1); do
        # The data after the compressed kernel makes xz exit with an error after it has written all
        # of the kernel.
        tail -c +$((offset + 1)) "$image" | xz -dc >"$dir/vmlinux" 2>/dev/null || true
        if readelf -h "$dir/vmlinux" >/dev/null 2>&1; then
            return
        fi
    done
    echo "prepare.sh: no kernel found in $image" >&2
    return 1
}

download() { timeout 900 apt-get download -q -o Acquire::Retries=3 "$@"; }

# fetch INTO PACKAGE...: unpacks the files of the packages.
fetch() {
    local into=$1 work package
    shift
    work=$(mktemp -d "$dir/fetch.XXXXXX")
    # apt warns unless its sandbox user can write here.
    chmod 755 "$work"
    # The package lists may be missing.
    if ! (
        cd "$work" &&
            { download "$@" || { timeout 300 apt-get update -q && download "$@"; }; } >log 2>&1
    ); then
        cat "$work/log" >&2
        rm -rf "$work"
        return 1
    fi
    rm -rf "$into"
    for package in "$work"/*.deb; do
        dpkg -x "$package" "$into"
    done
    rm -rf "$work"
}

# The modules needed to mount the host's root, in the order of loading.
modules_of_the_root() {
    local module
    for module in virtio_pci 9pnet_virtio 9p overlay; do
        modprobe -d "$dir/image" -S "$release" --show-depends "$module"
    done | awk '$1 == "insmod" && !seen[$2]++ {print $2}'
}

make_initrd() {
    local root file
    root=$(mktemp -d "$dir/initrd.XXXXXX")
    mkdir -p "$root"/{bin,dev,proc,sys,modules,host,top,root}
    cp "$(command -v busybox)" "$root/bin/busybox"
    ln -s busybox "$root/bin/sh"
    modules_of_the_root | while read -r file; do
        cp "$file" "$root/modules/"
        basename "$file" >>"$root/modules/order"
    done
    install -m755 "$here/init" "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet) >"$dir/initrd"
    rm -rf "$root"
}

prepare_kernel() {
    if [ "$(cat "$dir/release" 2>/dev/null || true)" = "$release" ] &&
        [ "$dir/initrd" -nt "$here/init" ]; then
        return
    fi
    rm -f "$dir/release"
    fetch "$dir/image" "linux-image-$release"
    depmod -b "$dir/image" "$release"
    unpack_kernel "$dir/image/boot/vmlinuz-$release"
    make_initrd
    echo "$release" >"$dir/release"
}

# The newest release with headers for this machine's architecture, such as 6.12.117+deb12-amd64, but
# not of another flavour (-rt-amd64).
newest_release() {
    local release
    release="[0-9]+\.[0-9]+\.[^-]+(-[0-9]+)?-$(dpkg --print-architecture)"
    apt-cache pkgnames linux-headers- | sed -nE "s/^linux-headers-($release)\$/\1/p" | sort -V |
        tail -n 1
}

prepare_newest_headers() {
    local newest parts source
    newest=$(newest_release)
    if [ "$(printf '%s\n' "$release" "$newest" | sort -V | tail -n 1)" = "$release" ]; then
        : >"$dir/newest"
        return
    fi
    [ "$(cat "$dir/newest" 2>/dev/null || true)" != "$newest" ] || return 0
    rm -f "$dir/newest"
    parts=$(apt-cache show --no-all-versions "linux-headers-$newest" |
        sed -n 's/^Depends: //p' | grep -oE 'linux-(headers|kbuild)-[^ ,]+')
    # shellcheck disable=SC2086 # one word for each
    fetch "$dir/headers" "linux-headers-$newest" $parts
    source=$dir/headers/usr/src/linux-headers-$newest
    # The Makefile refers to the other packages by their installed paths.
    sed -i "s|/usr/src/|$dir/headers/usr/src/|" "$source/Makefile"
    # Without vmlinux the build generates no BTF, which needs another program.
    rm -f "$source/vmlinux"
    echo "$newest" >"$dir/newest"
}

prepare_kernel
prepare_newest_headers
