# seconds: 400
# librdmacm's programs over the kernel's rdma_cm, whose iw_cm the module hands to urdmad.
. "$BED/checks/lib.sh"
add_device
start_instance

both() { server_and_client "$1" "$2"; }

# Nobody listens.
refused timeout 60 rping -c -a 10.8.0.1 -C 1

both "rping -s -a 10.8.0.1 -C 20 -V" "rping -c -a 10.8.0.1 -C 20 -V"
both "ucmatose" "ucmatose -s 10.8.0.1"
both "ucmatose -c 20" "ucmatose -s 10.8.0.1 -c 20"
both "rdma_server" "rdma_client -s 10.8.0.1"
endless_server_and_client "cmtime" "cmtime -s 10.8.0.1 -c 30"
both "rstream -S 1000 -I 20 -C 2" "rstream -s 10.8.0.1 -S 1000 -I 20 -C 2"
"$PROGRAMS/urdma" status --run-dir $run_dir
stop_instance
remove_device
