# The counters of the port, which urdmad gives to the module when a program reads them.
. "$BED/checks/lib.sh"
add_device
port=/sys/class/infiniband/urdma0/ports/1

value() { cat "$port/$1"; }

# Without an urdmad they are 0; one that does not answer is not waited for each time.
[ "$(value counters/port_xmit_packets)" = 0 ]
mkdir -p /run/urdma/check
start_holder
timeout 300 grep -r . $port/counters $port/hw_counters
[ "$(value counters/port_rcv_packets)" = 0 ]
kill_holder

start_instance
exchange() {
    local command="ibv_rc_pingpong -d urdma0 -g 1 -n $1"
    over listening_by_tcp "$command" "$command 127.0.0.1"
}
exchange 100
sent=$(value counters/port_xmit_packets)
[ "$sent" -ge 200 ]
# 200 messages of 4096 octets, in units of 4.
data=$(value counters/port_xmit_data)
[ "$data" -ge 204800 ]
# A monitor that reads one file after another gets each as it is then.
exchange 100
[ "$(value counters/port_xmit_data)" -ge $((data + 204800)) ]
[ "$(value hw_counters/sent_pkts)" -ge $((sent + 200)) ]

# The same values as in the files of the instance.
files=$run_dir/sysfs/class/infiniband/urdma0/ports/1
for file in "$files"/counters/* "$files"/hw_counters/*; do
    name=${file#"$files/"}
    [ "$name" = hw_counters/lifespan ] || [ "$(cat "$file")" = "$(value "$name")" ]
done
sent=$(value counters/port_xmit_packets)
rdma statistic show link urdma0/1 | grep "sent_pkts $sent rcvd_pkts "

# An urdmad that is stopped: the last values. Then it answers again.
urdmad=$(cat $run_dir/pid)
kill -STOP "$urdmad"
[ "$(value counters/port_xmit_packets)" = "$sent" ]
[ "$(value hw_counters/sent_pkts)" = "$sent" ]
kill -CONT "$urdmad"
exchange 100
grown() { [ "$(value counters/port_xmit_packets)" -ge $((sent + 200)) ]; }
wait_until grown
stop_instance
[ "$(value counters/port_xmit_packets)" = 0 ]
remove_device
