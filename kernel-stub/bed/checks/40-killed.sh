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
# On a slow machine none of them may have come to its last object, but this one.
start_holder
[ "$(cat $counters/cq_events)" -gt 0 ]
kill_holder
remove_device
