# seconds: 3000
# Runs the same programs over urdma's module and connection management, rdma_rxe, and siw if it was
# built, in turn; writes medians to /mnt/output.
. "$BED/checks/lib.sh"
. "$BED/perf/lib.sh"
modprobe -a rdma_rxe libcrc32c
devices=(urdma0 rxe0)
add_device
start_instance
add_peer rxe0 rxe 10.9.0.1
if [ -n "$SIW" ] && insmod "$SIW"; then
    add_peer siw0 siw 10.10.0.1
    devices+=(siw0)
fi

# The value in a column of the last line of perftest.
said() {
    awk -v column="$1" '$1 ~ /^[0-9]+$/ && NF >= column {value = $column} END {print value}' \
        /run/client.log
}

# perftest DEVICE WHAT COLUMN COMMAND...
perftest() {
    local device=$1 what=$2 column=$3
    shift 3
    if over listening "$* -R -d $device" "$* -R -d $device $(address_of "$device")"; then
        note "$device" "$what" "$(said "$column")"
    fi
}

# connections DEVICE AT_A_TIME: connections per second, from the time between the first connect and
# the last event of cmtime. Each run has a new server, which opens the device for its first
# connection.
connections() {
    over_endless listening cmtime "cmtime -s $(address_of "$1") -c $2"
    if ! grep -q -e REJECTED -e UNREACHABLE /run/client.log; then
        note "$1" "connections a second, $2 at a time" \
            "$(awk -v at="$2" '$1 == "connect" {rate = at * 1000 / $3} END {print rate}' \
                /run/client.log)"
    fi
}

measure() {
    local device=$1 size at_a_time
    for size in 8 64; do
        perftest "$device" "send latency, $size B, us" 5 ib_send_lat -s $size -n 5000
        perftest "$device" "write latency, $size B, us" 5 ib_write_lat -s $size -n 5000
        perftest "$device" "read latency, $size B, us" 5 ib_read_lat -s $size -n 5000
    done
    perftest "$device" "write bandwidth, 64 KB, MiB/s" 4 ib_write_bw -F -s 65536 -n 500
    for at_a_time in 1 1 1 16 16 16; do
        connections "$device" $at_a_time
    done
}
for round in $(seq "$ROUNDS"); do
    for device in "${devices[@]}"; do
        measure "$device"
    done
done

# Medians, and the ratios of urdma to the peers. Goals are "at most" for latencies, "at least" for
# other values.
medians | awk -F '|' '
    $1 != what {what = $1; order[++kinds] = what}
    {median[$1, $2] = $3}
    function ratio(ours, theirs) {
        return ours == "" || theirs == "" ? "-" : sprintf("%.2f x", ours / theirs)
    }
    function shown(number) {return number == "" ? "-" : sprintf("%.1f", number)}
    END {
        print "under emulation, ratios only"
        printf "%-34s %9s %9s %9s %9s %9s  %s\n",
            "what", "urdma", "rxe", "siw", "/ rxe", "/ siw", "goal"
        for (i = 1; i <= kinds; i++) {
            what = order[i]
            ours = median[what, "urdma0"]; rxe = median[what, "rxe0"]; siw = median[what, "siw0"]
            goal = ">= 3 x rxe"
            if (what ~ /latency/)
                goal = "<= 0.5 x rxe"
            else if (what ~ /bandwidth/)
                goal = ">= 3 x both"
            printf "%-34s %9s %9s %9s %9s %9s  %s\n", what, shown(ours), shown(rxe), shown(siw),
                ratio(ours, rxe), ratio(ours, siw), goal
        }
    }' >/mnt/output
stop_instance
for device in "${devices[@]:1}"; do
    remove_peer "$device"
done
remove_device
