# librdmacm's programs over the kernel's rdma_cm; the module forwards the operations of iw_cm to
# urdmad.
. "$BED/checks/lib.sh"
add_device
start_instance

both() { over listening_by_cm "$@"; }

# Without a listener a connection is refused.
refused timeout 300 rping -c -a 10.8.0.1 -C 1

both "rping -s -a 10.8.0.1 -C 20 -V" "rping -c -a 10.8.0.1 -C 20 -V"
# A connection waits for an end that is stopped before its queue pair is in RTS: first the server is
# stopped, until the request has been sent, then the client.
start_server listening_by_cm "rping -s -a 10.8.0.1 -C 5"
kill -STOP -- -$server
timeout 300 rping -c -a 10.8.0.1 -C 5 >/run/client.log 2>&1 &
client=$!
wait_until grep -qx 2 $counters/cm_endpoints
kill -STOP -- -$client
kill -CONT -- -$server
wait_until grep -qx 3 $counters/cm_endpoints
sleep 5
kill -CONT -- -$client
wait_for_end $client /run/client.log
wait_for_end $server /run/server.log

both "ucmatose" "ucmatose -s 10.8.0.1"
both "ucmatose -c 20" "ucmatose -s 10.8.0.1 -c 20"
both "rdma_server" "rdma_client -s 10.8.0.1"

# A program attaches before it listens, so that its first request does not wait for that.
has_slot() { "$PROGRAMS/urdma" status --run-dir $run_dir | grep "^slots *1 of" >/dev/null; }
listening_with_slot() { listening_by_cm && has_slot; }
over_endless listening_with_slot "cmtime" "cmtime -s 10.8.0.1 -c 30"

both "rstream -S 1000 -I 20 -C 2" "rstream -s 10.8.0.1 -S 1000 -I 20 -C 2"
# perftest connects twice to the same port, with a new listener each time. Without -F it fails if
# its measurement of the CPU frequency varies.
for round in 1 2 3; do
    for test in "ib_send_bw -n 200 -s 65536" "ib_send_lat -n 100 -e" \
        "ib_write_lat -n 100" "ib_read_bw -n 100 -s 65536"; do
        both "$test -F -R -d urdma0" "$test -F -R -d urdma0 10.8.0.1"
    done
done
"$PROGRAMS/urdma" status --run-dir $run_dir
stop_instance
remove_device
