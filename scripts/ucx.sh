#!/bin/sh
# Builds UCX's own tests (gtest), for `make test-all`: ucx.sh DIRECTORY
#
# Debian's packages have none of the tests. The source is that of Debian 12, whose ucx-utils the
# other tests run: Debian's mirror did not have the sources of the packages of later releases.
set -eu

directory=${1:?usage: ucx.sh DIRECTORY}
[ -x "$directory/test/gtest/gtest" ] && exit 0

echo "Building UCX's tests from the source of Debian bookworm"
"$(dirname "$0")/debian-source.sh" bookworm ucx "$directory"
log="$directory.apt/log"
build() {
    cd "$directory"
    # Its configure script asks for upstream's files, which Debian has moved.
    cp -r debian.upstream debian
    ./autogen.sh
    ./configure --enable-gtest --with-verbs --with-rdmacm --without-java --without-go \
        --without-cuda --without-rocm --without-knem --without-xpmem --disable-doxygen-doc \
        --disable-static
    # Its flags precede these. The compiler needs twice the time to optimize the tests.
    for part in src/ucm src/ucs src/uct src/ucp src/tools/perf/lib test/gtest; do
        make -j"$(nproc)" -C "$part" CFLAGS="-O1 -g0 -Wno-error" CXXFLAGS="-O0 -g0 -Wno-error"
    done
}
(build) >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    rm -rf "$directory"
    exit 1
}
rm -rf "$directory.apt"
