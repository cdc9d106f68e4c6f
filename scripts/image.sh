#!/bin/sh
# Makes a container image of a minimal Debian with the package urdma and perftest, as an archive of
# the Open Container Initiative that `podman load`, `docker load` (25 or later) and `skopeo copy
# oci-archive:FILE` take. No registry and no container engine is needed. As root.
#   image.sh PACKAGES FOLDER    PACKAGES holds what packages.sh has built
set -eu

[ $# = 2 ] || { echo "usage: $0 PACKAGES FOLDER" >&2; exit 2; }
package=$(realpath "$1"/urdma_*.deb)
mkdir -p "$2"
folder=$(realpath "$2")
cd "$(dirname "$0")/.."
scripts/install-deps.sh image
# shellcheck source=/dev/null
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
# The tag of an image has no "~".
tag=$(dpkg-deb -f "$package" Version | sed 's/~.*//')
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)
export SOURCE_DATE_EPOCH

rm -rf "$folder/image" "$folder"/*.oci.tar
log=$folder/image.log
layer=$folder/layer.tar
# As in Debian's own images, documents and translations are left out, and apt is there. The hook and
# usr-is-merged take the place of usrmerge, which needs all of Perl.
# shellcheck disable=SC2016 # expanded by mmdebstrap's shell
if ! PACKAGE=$package mmdebstrap --variant=apt \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --include=usr-is-merged \
    --aptopt='Acquire::Retries "3"' --aptopt='Acquire::Check-Valid-Until "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-include=/usr/share/doc/urdma/third-party-licenses.gz' \
    --customize-hook='cp "$PACKAGE" "$1/urdma.deb"' \
    --customize-hook='chroot "$1" apt-get install -q -y --no-install-recommends /urdma.deb \
        ibverbs-utils perftest rdmacm-utils' \
    --customize-hook='rm -r "$1/urdma.deb" "$1"/var/lib/apt/lists/* \
        "$1"/var/cache/apt "$1"/var/cache/debconf "$1"/var/log/*' \
    "$release" "$layer" http://deb.debian.org/debian >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
make_archive() {
    cd "$folder"
    time=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
    umoci init --layout image
    umoci new --image "image:$tag"
    umoci raw add-layer --image "image:$tag" --history.created "$time" \
        --history.created_by scripts/image.sh layer.tar
    umoci config --image "image:$tag" --created "$time" --history.created "$time" \
        --config.cmd urdmad --config.cmd --foreground --config.volume /run/urdma
    umoci gc --layout image
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        -cf "urdma-$tag.oci.tar" -C image .
    rm -r image layer.tar
}
trap '[ $? = 0 ] || cat "$log" >&2' EXIT
make_archive >>"$log" 2>&1
ls -sh "$folder"/*.oci.tar
