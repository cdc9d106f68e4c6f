# seconds: 3000
# Makes connections by cmtime over urdma's module, rdma_rxe, and siw if it was built, in turn;
# appends medians to /mnt/output.
. "$BED/checks/lib.sh"
. "$BED/perf/lib.sh"
add_all_devices

# connections DEVICE AT_A_TIME: connections a second, from the time between the first connect and
# the last event of cmtime. Each run has a new server, which opens the device for its first
# connection: cmtime's refuses the connections of a second client.
connections() {
    over_endless listening cmtime "cmtime -s $(address_of "$1") -c $2"
    if ! grep -q -e REJECTED -e UNREACHABLE /run/client.log; then
        note "$1" "connections a second, $2 at a time" \
            "$(awk -v at="$2" '$1 == "connect" {print at * 1000 / $3}' /run/client.log)"
    fi
}

for round in $(seq $((3 * ROUNDS))); do
    for at_a_time in 1 16 64; do
        for device in "${devices[@]}"; do
            connections "$device" $at_a_time
        done
    done
done

table 'what ~ / 1 at a time/ ? ">= 1 x rxe" : ">= 3 x rxe"'
remove_all_devices
