#!/bin/sh
# Builds the Debian packages for the release of this machine, and checks them with lintian.
#   packages.sh FOLDER    FOLDER gets the packages
set -eu

[ $# = 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(realpath "$1")
cd "$(dirname "$0")/.."
scripts/install-deps.sh packages

version=$(scripts/version.sh)
# shellcheck source=/dev/null
release=$(. /etc/os-release && echo "${VERSION_ID:-${VERSION_CODENAME%%/*}}")
# The packages of a release replace those of an older release, which have another DPDK.
version="$version~deb$release"
time_s=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)

log=$folder/build.log
rm -rf "$folder"/urdma* "$folder"/liburdma* "$folder/work" "$folder/staged"
mkdir "$folder/work"
cp -r debian "$folder/work"
scripts/licenses.py >"$folder/work/third-party-licenses"
cat >"$folder/work/debian/changelog" <<EOF
urdma ($version) unstable; urgency=medium

  * See changelog.gz in the same directory.

 -- $(sed -n 's/^Maintainer: //p' debian/control)  $(date -uRd "@$time_s")
EOF

# Packages have their settings in /usr/lib, where /etc overrides them.
export STAGED="$folder/staged" SOURCE="$PWD"
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
make --no-print-directory install-module DESTDIR="$STAGED" PREFIX=/usr SETTINGS=/usr/lib \
    LIBDIR="/usr/lib/$multiarch" >"$log"
# Exported earlier, the time would make cargo repeat what it has built.
if ! (cd "$folder/work" && SOURCE_DATE_EPOCH=$time_s dpkg-buildpackage --build=binary --no-sign) \
    >>"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
rm -r "$folder/work" "$folder/staged"
lintian --fail-on error,warning --allow-root "$folder"/*.deb
(cd "$folder" && ls -sh ./*.deb)
