# Processes that are killed at random points leak no objects.
. "$BED/checks/lib.sh"
add_device
for round in $(seq 60); do
    "$check" hold >/run/hold.$$ &
    # Between the start of the process and the creation of its last object.
    sleep "0.0$((round % 10))$((RANDOM % 10))"
    kill -9 $!
    wait $! || true
done
# On a slow machine, possibly only this process creates its last object.
start_holder
[ "$(cat $counters/cq_events)" -gt 0 ]
kill_holder
remove_device
