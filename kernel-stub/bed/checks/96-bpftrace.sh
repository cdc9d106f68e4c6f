# The scripts of tools/bpftrace, with the programs of one host, without the module.
. "$BED/checks/lib.sh"
urdma=$PROGRAMS/urdma
export URDMA_LIBRARY=$PROGRAMS/liburdma_provider.so
mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing
"$urdma" up --run-dir $run_dir

# traces SCRIPT 'FIRST LINE' PART...: what the script prints of an rping has these parts.
traces() {
    local script=$1 first=$2 tracing part
    shift 2
    "$BED/../../tools/bpftrace/run" "$script" >/run/trace.log 2>&1 &
    tracing=$!
    wait_until eval "grep '$first' /run/trace.log || is_gone $tracing"
    over listening_by_cm "$urdma run --run-dir $run_dir -- rping -s -a 127.0.0.1 -C 5" \
        "$urdma run --run-dir $run_dir -- rping -c -a 127.0.0.1 -C 5"
    kill -INT $tracing
    wait $tracing || { cat /run/trace.log; return 1; }
    for part in "$@"; do
        grep -- "$part" /run/trace.log || { cat /run/trace.log; return 1; }
    done
}

traces timeline "TIME (us)" "sent REQ for port" "received REP" "sent RTU" "state 2 to 3" \
    "event 9, status 0"
traces slow-connections "connections that take longer" "@connect_us"
traces retransmissions "retransmissions by peer"
stop_instance
