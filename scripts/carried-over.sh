#!/bin/sh
# Runs an installed urdma on a system without DPDK: see carry-over.sh.
set -eu

directory=$(mktemp -d)
said=$directory/said
clean_up() {
    for instance in one a b; do
        urdma down --run-dir "$directory/$instance" >"$said" 2>&1 || true
    done
    rm -rf "$directory"
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

fail() {
    echo "carried-over.sh: $1" >&2
    if [ -e "$said" ]; then cat "$said" >&2; fi
    exit 1
}

# Runs a command that must succeed.
must() {
    timeout 60 "$@" >"$said" 2>&1 || fail "failed: $*"
    echo "ok    $*"
}

# Writes the configuration of an instance: its name, its address, and lines about its port.
configure() {
    printf 'instance = "%s"\naddress = ["%s"]\n[port]\n%b' "$1" "$2" "$3" >"$directory/$1.toml"
}

for library in /usr/lib/*/librte_*; do
    [ ! -e "$library" ] || fail "DPDK is installed: $library"
done

must urdma up --run-dir "$directory/one"
must urdma run --run-dir "$directory/one" -- ibv_devinfo -d urdma0
must urdma down --run-dir "$directory/one"

# A port over UDP sockets, between two instances.
for host in a:127.9.1.1 b:127.9.1.2; do
    configure "${host%:*}" "${host#*:}" 'kind = "udp"\n'
    must urdma up --run-dir "$directory/${host%:*}" --config "$directory/${host%:*}.toml"
done
set -- ib_write_bw -d urdma0 -x 1 -s 65536 -n 1000
timeout 60 urdma run --run-dir "$directory/a" -- "$@" >"$directory/server" 2>&1 &
server=$!
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    sleep 1
    if timeout 60 urdma run --run-dir "$directory/b" -- "$@" 127.0.0.1 >"$said" 2>&1; then
        break
    fi
    # The server may not listen yet.
    [ "$attempt" != 10 ] || fail "failed: $*"
done
wait "$server" || { cat "$directory/server" >&2; fail "the server failed: $*"; }
grep -q ' 65536 ' "$said" || fail "no result of $*"
echo "ok    urdma run -- $*"

# A port that needs DPDK.
configure one 127.0.0.1 'kind = "memif"\nrole = "server"\nsocket = "/run/none"\n'
if urdma up --run-dir "$directory/one" --config "$directory/one.toml" >"$said" 2>&1; then
    fail "a port that needs DPDK was opened"
fi
grep -q 'install the package urdma-dpdk, or use kind = "udp"' "$said" || fail "no advice"
echo "ok    $(cat "$said")"
must urdma doctor
grep -q 'kinds udp; not memif, tap, af_xdp, device' "$said" || fail "urdma doctor does not say so"
