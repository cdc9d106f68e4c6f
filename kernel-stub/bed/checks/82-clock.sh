# A clock that is set forwards and backwards, by years, while programs connect and exchange messages
# changes nothing for them: no duration is measured by it.
. "$BED/checks/lib.sh"
add_device
start_instance

years=100000000

# Sets the clock until the process ends, and then right. `wait_until` needs the clock.
set_clock_until_end_of() {
    local now boot jumps=0
    now=$(date +%s)
    boot=$((now - $(cut -d. -f1 /proc/uptime)))
    while kill -0 "$1"; do
        date -s "@$((now + years))" >/dev/null
        sleep 0.2
        date -s "@$((now - years))" >/dev/null
        sleep 0.2
        jumps=$((jumps + 1))
    done
    date -s "@$((boot + $(cut -d. -f1 /proc/uptime)))"
    [ $jumps -ge 1 ]
}

# exchange LISTENING 'SERVER' 'CLIENT'
exchange() {
    start_server "$1" "$2"
    timeout 300 $3 >/run/client.log 2>&1 &
    client=$!
    set_clock_until_end_of $client
    wait_for_end $client /run/client.log
    wait_for_end $server /run/server.log
}

exchange listening_by_cm "rping -s -a 10.8.0.1 -C 300 -V" "rping -c -a 10.8.0.1 -C 300 -V"
exchange listening_by_cm "ucmatose -c 100" "ucmatose -s 10.8.0.1 -c 100"
# Two ends that sleep.
exchange listening_by_tcp "ibv_rc_pingpong -d urdma0 -g 1 -n 5000 -e" \
    "ibv_rc_pingpong -d urdma0 -g 1 -n 5000 -e 127.0.0.1"
stop_instance
remove_device
