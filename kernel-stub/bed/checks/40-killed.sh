# seconds: 120
# Processes killed at whatever they are doing leave nothing behind.
. "$BED/checks/lib.sh"
add_device
for round in $(seq 60); do
    "$check" hold >/run/hold.$$ &
    # From before main to after the last object.
    sleep "0.0$((round % 10))$((RANDOM % 10))"
    kill -9 $!
    wait $! || true
done
[ "$(cat $counters/cq_events)" -gt 0 ] || { "$check" hold >/run/hold.$$ & sleep 2; kill -9 $!; wait $! || true; }
remove_device
