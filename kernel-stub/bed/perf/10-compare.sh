# seconds: 3000
# Runs perftest over urdma's module and connection management, rdma_rxe, and siw if it was built, in
# turn; appends medians to /mnt/output.
. "$BED/checks/lib.sh"
. "$BED/perf/lib.sh"
add_all_devices

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

measure() {
    local device=$1 size
    for size in 8 64; do
        perftest "$device" "send latency, $size B, us" 5 ib_send_lat -s $size -n 5000
        perftest "$device" "write latency, $size B, us" 5 ib_write_lat -s $size -n 5000
        perftest "$device" "read latency, $size B, us" 5 ib_read_lat -s $size -n 5000
    done
    perftest "$device" "write bandwidth, 64 KB, MiB/s" 4 ib_write_bw -F -s 65536 -n 500
}
for round in $(seq "$ROUNDS"); do
    for device in "${devices[@]}"; do
        measure "$device"
    done
done

table 'what ~ /latency/ ? "<= 0.5 x rxe" : ">= 3 x both"'
remove_all_devices
