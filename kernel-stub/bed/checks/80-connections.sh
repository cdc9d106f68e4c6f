# seconds: 400
# librdmacm's programs over the kernel's rdma_cm, whose iw_cm the module hands to urdmad.
. "$BED/checks/lib.sh"
add_device
start_instance

listening() { "$PROGRAMS/urdma" status --run-dir $run_dir | grep -q ^listens; }

# both 'SERVER' 'CLIENT': the client comes once, when the server listens, since none of these programs lives through a refusal.
both() {
    wait_until eval '! listening'
    start_server "$1"
    wait_until listening
    timeout 120 $2 >/run/client.log 2>&1 || said_and_failed
    wait $server || said_and_failed
}

# Nobody listens.
refused timeout 60 rping -c -a 10.8.0.1 -C 1

both "rping -s -a 10.8.0.1 -C 20 -V" "rping -c -a 10.8.0.1 -C 20 -V"
both "ucmatose" "ucmatose -s 10.8.0.1"
both "ucmatose -c 20" "ucmatose -s 10.8.0.1 -c 20"
both "rdma_server" "rdma_client -s 10.8.0.1"
endless_server_and_client "cmtime" "cmtime -s 10.8.0.1 -c 30"
both "rstream -S 1000 -I 20 -C 2" "rstream -s 10.8.0.1 -S 1000 -I 20 -C 2"
# perftest connects twice to the same port, to two listeners one after the other.
for round in 1 2 3; do
    for test in "ib_send_bw -n 200 -s 65536" "ib_send_lat -n 100 -e" "ib_write_lat -n 100" "ib_read_bw -n 100 -s 65536"; do
        both "$test -R -d urdma0" "$test -R -d urdma0 10.8.0.1"
    done
done
"$PROGRAMS/urdma" status --run-dir $run_dir
stop_instance
remove_device
