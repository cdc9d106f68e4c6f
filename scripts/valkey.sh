#!/bin/sh
# Builds Valkey with RDMA, its benchmark and its test client, for `make test-all` and `make perf`:
# valkey.sh DIRECTORY
#
# Debian's packages have no RDMA, and the benchmark has it since Valkey 9, which no release of
# Debian has yet. apt fetches and verifies the source of the next one, with package lists of its
# own.
set -eu

directory=${1:?usage: valkey.sh DIRECTORY}
[ -x "$directory/src/valkey-benchmark" ] && [ -x "$directory/tests/rdma/rdma-test" ] && exit 0

echo "Building Valkey with RDMA from the source of Debian forky"
apt="$directory.apt"
rm -rf "$directory" "$apt"
mkdir -p "$directory" "$apt/lists/partial" "$apt/cache/archives/partial"
apt=$(cd "$apt" && pwd)
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb-src [signed-by=$keys] http://deb.debian.org/debian forky main" >"$apt/sources.list"
own_lists="-o Dir::Etc::SourceList=$apt/sources.list -o Dir::Etc::SourceParts=- \
    -o Dir::State::Lists=$apt/lists -o Dir::Cache=$apt/cache -o Acquire::Retries=3 \
    -o APT::Sandbox::User=root"
# shellcheck disable=SC2086 # the options are meant to be split
(cd "$apt" && apt-get -q $own_lists update &&
    apt-get -q $own_lists source --download-only --tar-only valkey) >"$apt/log" 2>&1 || {
    cat "$apt/log" >&2
    exit 1
}
tar -xf "$apt"/valkey_*.orig.tar.* -C "$directory" --strip-components=1
make -C "$directory/src" -j"$(nproc)" BUILD_RDMA=yes MALLOC=libc valkey-server valkey-benchmark \
    >"$apt/log" 2>&1 &&
    make -C "$directory/tests/rdma" >>"$apt/log" 2>&1 || {
    tail -n 40 "$apt/log" >&2
    rm -rf "$directory"
    exit 1
}
rm -rf "$apt"
