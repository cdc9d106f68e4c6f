#!/bin/sh
# Builds libuv with its own tests, for `make test-all`: libuv.sh DIRECTORY
set -eu

directory=${1:?usage: libuv.sh DIRECTORY}
tests="$directory/build/uv_run_tests_a"
[ -x "$tests" ] && exit 0

echo "Building libuv's tests from the source of Debian bookworm"
"$(dirname "$0")/debian-source.sh" bookworm libuv1 "$directory"
log="$directory.apt/log"
{
    cmake -S "$directory" -B "$directory/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=ON &&
        cmake --build "$directory/build" -j"$(nproc)" --target uv_run_tests_a
} >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    rm -rf "$directory"
    exit 1
}
rm -rf "$directory.apt"
