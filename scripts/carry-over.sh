#!/bin/sh
# Installs this machine's build in a root file system of a release of Debian without DPDK, which is
# made if it is not there, and runs it there: the installed programs, and tests/one_host.rs. As
# root.
#   carry-over.sh RELEASE FOLDER    FOLDER holds the root file systems
set -eu
# Ordinary users read what is installed there.
umask 022

[ $# = 2 ] || { echo "usage: $0 RELEASE FOLDER" >&2; exit 2; }
release=$1 root=$2/$1-without-dpdk
cd "$(dirname "$0")/.."
repository=$(pwd)
scripts/root-fs.sh "$release" "$root" programs
make --silent install DESTDIR="$(realpath "$root")" >/dev/null

# Runs a command there, with no network but loopback; its processes end with it.
run() {
    timeout -k 10 600 unshare --net --pid --fork --kill-child --mount-proc \
        sh -c 'ip link set lo up && exec "$@"' sh scripts/root-fs-run.sh "$root" "$@"
}

echo "Debian $release, with programs from here and without DPDK:"
run scripts/carried-over.sh

# The test is the one that `make test` runs; it and what it needs are copied to the same paths.
messages=$(mktemp)
trap 'rm -f "$messages"' EXIT
RUSTC_WORKSPACE_WRAPPER=$repository/scripts/clippy-rustc.sh cargo test --quiet --locked \
    --workspace --test one_host --no-run --message-format=json >"$messages"
source="\"src_path\":\"$repository/tests/one_host.rs\""
test=$(sed -n "s|.*$source.*\"executable\":\"\([^\"]*\)\".*|\1|p" "$messages")
checks=$(sed -n 's|.*#urdma-tests@.*"out_dir":"\([^"]*\)".*|\1/verbs-check|p' "$messages")
for file in "$test" "$checks" target/release/urdma target/release/urdmad \
    target/release/liburdma_provider.so target/release/liburdma_standin.so \
    target/release/liburdma_sockets.so; do
    install -D "$file" "$root-target/$(realpath --relative-to=target "$file")"
done
run env URDMA_BIN_DIR="$repository/target/release" "$test" >"$messages" || {
    cat "$messages" >&2
    exit 1
}
sed -n 's/^test result: ok. \([0-9]* passed\).*/ok    \1 of one_host/p' "$messages"
