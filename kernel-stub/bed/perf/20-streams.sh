# seconds: 3000
# Runs byte streams (urdma-stream) and rsockets (rstream) beside each other, over urdma's module and
# over rdma_rxe, in turn; appends medians and their ratios to /mnt/output. siw has no RDMA Write
# with Immediate.
. "$BED/checks/lib.sh"
. "$BED/perf/lib.sh"
stream="$PROGRAMS/urdma-stream"
modprobe rdma_rxe
devices=(urdma0 rxe0)
add_device
start_instance
add_peer rxe0 rxe 10.9.0.1

# The number that precedes some words in what the client has printed.
before() { sed -nE "s|.* ([0-9.]+) $1.*|\1|p" /run/client.log; }

# rstream's last column: microseconds of a message.
us_of_rstream() { awk '$1 == "custom" {print $NF}' /run/client.log; }

# rate DEVICE SIZE OCTETS COUNT SENDS: MB/s of messages.
rate() {
    local device=$1 size=$2 octets=$3 count=$4 sends=$5 at
    at=$(address_of "$device")
    over listening "$stream server 0.0.0.0:7471 --one" \
        "$stream blast $at:7471 --unchecked --fixed --sends $sends --recvs $((2 * sends)) \
        --max-octets $octets --octets $((octets * count))"
    note "$device stream" "rate, $size, MB/s" \
        "$(before Gbit/s | awk '{print $1 * 125}')"
    over listening "rstream -p 7471 -S $octets -I 1 -C $count" \
        "rstream -s $at -p 7471 -S $octets -I 1 -C $count"
    note "$device rstream" "rate, $size, MB/s" \
        "$(us_of_rstream | awk -v octets="$octets" '{print octets / $1}')"
}

# latency DEVICE SIZE OCTETS COUNT: half of a mean round trip.
latency() {
    local device=$1 size=$2 octets=$3 count=$4 at
    at=$(address_of "$device")
    over listening "$stream server 0.0.0.0:7471 --one" \
        "$stream ping $at:7471 --octets $octets --count $count"
    note "$device stream" "latency, $size, us" "$(before 'on average')"
    over listening "rstream -p 7471 -S $octets -I $count -C 1" \
        "rstream -s $at -p 7471 -S $octets -I $count -C 1"
    note "$device rstream" "latency, $size, us" "$(us_of_rstream)"
}

for round in $(seq "$ROUNDS"); do
    for device in "${devices[@]}"; do
        rate "$device" "64 B" 64 20000 64
        rate "$device" "4 KB" 4096 5000 64
        rate "$device" "64 KB" 65536 500 16
        rate "$device" "1 MB" 1048576 40 8
        latency "$device" "64 B" 64 2000
        latency "$device" "64 KB" 65536 200
    done
done

# Goals are those of `urdma-perf --only streams`.
medians | awk -F '|' '
    $1 != what {what = $1; order[++kinds] = what}
    {median[$1, $2] = $3}
    END {
        print "byte streams, under emulation, ratios only"
        printf "%-8s %-22s %9s %9s %9s  %s\n", "device", "what", "stream", "rstream",
            "ratio", "goal"
        split("urdma0 rxe0", devices, " ")
        for (d = 1; d <= 2; d++) for (i = 1; i <= kinds; i++) {
            what = order[i]
            ours = median[what, devices[d] " stream"]
            peer = median[what, devices[d] " rstream"]
            is_strict = what ~ / 64 B| 1 MB/
            goal = what ~ /latency/ ? (is_strict ? "<= 0.67" : "<= 1") \
                : (is_strict ? ">= 1.5" : ">= 1")
            printf "%-8s %-22s %9.1f %9.1f %7.2f x  %s\n", devices[d], what, ours, peer,
                ours / peer, goal
        }
    }' >>/mnt/output
stop_instance
remove_peer rxe0
remove_device
