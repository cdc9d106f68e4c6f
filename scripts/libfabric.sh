#!/bin/sh
# Builds libfabric and its own tests, for `make test-all`: libfabric.sh DIRECTORY
#
# Debian's packages have none of the tests, and the only program with which two ends of libfabric
# can be measured there, fi_pingpong, always polls. Those of the next release need its library.
set -eu

directory=${1:?usage: libfabric.sh DIRECTORY}
[ -x "$directory/installed/bin/fi_msg_pingpong" ] && exit 0

echo "Building libfabric and its tests from the source of Debian forky"
"$(dirname "$0")/debian-source.sh" forky libfabric "$directory"
directory=$(cd "$directory" && pwd)
log="$directory.apt/log"
installed="$directory/installed"
build() {
    cd "$directory"
    ./autogen.sh
    ./configure --prefix="$installed" --enable-verbs=yes --enable-tcp=yes --enable-rxm=yes \
        --disable-efa --disable-opx --disable-psm2 --disable-psm3 --disable-usnic --disable-ucx \
        --disable-cxi --disable-lpp --disable-sm2 --disable-shm --disable-sockets --disable-udp \
        --disable-rxd
    make -j"$(nproc)" install
    cd fabtests
    ./autogen.sh
    ./configure --prefix="$installed" --with-libfabric="$installed"
    make -j"$(nproc)" install
}
(build) >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    rm -rf "$directory"
    exit 1
}
rm -rf "$directory.apt"
