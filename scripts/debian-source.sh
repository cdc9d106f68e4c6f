#!/bin/sh
# Fetches and unpacks the source of a package of a release of Debian:
# debian-source.sh RELEASE PACKAGE DIRECTORY
#
# apt fetches and verifies it, with package lists of its own, which it keeps in DIRECTORY.apt with
# its log; the caller removes them.
set -eu

usage="usage: debian-source.sh RELEASE PACKAGE DIRECTORY"
release=${1:?$usage}
package=${2:?$usage}
directory=${3:?$usage}
apt="$directory.apt"
rm -rf "$directory" "$apt"
mkdir -p "$directory" "$apt/lists/partial" "$apt/cache/archives/partial"
apt=$(cd "$apt" && pwd)
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb-src [signed-by=$keys] http://deb.debian.org/debian $release main" >"$apt/sources.list"
own_lists="-o Dir::Etc::SourceList=$apt/sources.list -o Dir::Etc::SourceParts=- \
    -o Dir::State::Lists=$apt/lists -o Dir::Cache=$apt/cache -o Acquire::Retries=3 \
    -o APT::Sandbox::User=root"
# shellcheck disable=SC2086 # the options are meant to be split
(cd "$apt" && apt-get -q $own_lists update &&
    apt-get -q $own_lists source --download-only --tar-only "$package") >"$apt/log" 2>&1 || {
    cat "$apt/log" >&2
    exit 1
}
tar -xf "$apt/${package}"_*.orig.tar.* -C "$directory" --strip-components=1
