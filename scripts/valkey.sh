#!/bin/sh
# Builds Valkey with RDMA, its benchmark and its test client, for `make test-all` and `make perf`:
# valkey.sh DIRECTORY
#
# Debian's packages have no RDMA, and the benchmark has it since Valkey 9, which no release of
# Debian has yet.
set -eu

directory=${1:?usage: valkey.sh DIRECTORY}
[ -x "$directory/src/valkey-benchmark" ] && [ -x "$directory/tests/rdma/rdma-test" ] && exit 0

echo "Building Valkey with RDMA from the source of Debian forky"
"$(dirname "$0")/debian-source.sh" forky valkey "$directory"
log="$directory.apt/log"
make -C "$directory/src" -j"$(nproc)" BUILD_RDMA=yes MALLOC=libc valkey-server valkey-benchmark \
    >"$log" 2>&1 &&
    make -C "$directory/tests/rdma" >>"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    rm -rf "$directory"
    exit 1
}
rm -rf "$directory.apt"
