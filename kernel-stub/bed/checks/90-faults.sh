# seconds: 2400
# Applications and urdmad are killed at random points: no object, page, reference or memory is
# leaked, and the module can be unloaded.
. "$BED/checks/lib.sh"
RANDOM=1
add_device
start_instance

# Programs that connect, exchange data and disconnect; each line is a server and its client.
pairs=(
    "rping -s -a 10.8.0.1 -P|rping -c -a 10.8.0.1 -C 5"
    "ucmatose|ucmatose -s 10.8.0.1"
    "ib_write_lat -n 200 -R -d urdma0|ib_write_lat -n 200 -R -d urdma0 10.8.0.1"
    "ibv_rc_pingpong -d urdma0 -g 1 -e -n 2000|ibv_rc_pingpong -d urdma0 -g 1 -e -n 2000 127.0.0.1"
)

# Sleeps a random time below $1 ms.
nap() { sleep "$(printf '0.%03d' $((RANDOM % $1)))"; }

# Kills processes of this shell, which may have ended already, and waits for them.
kill_and_wait() {
    kill -9 "$@" || true
    wait "$@" || true
}

# Kills urdmad and starts another one.
replace_urdmad() {
    local victim
    victim=$(cat $run_dir/pid)
    kill -9 "$victim"
    wait_until is_gone "$victim"
    nap 200
    "$PROGRAMS/urdma" up --run-dir $run_dir --config /run/bed.toml
    wait_until port_is_active
}

kill_at_random() {
    local round pair server client
    for round in $(seq "$1"); do
        pair=${pairs[$((round % ${#pairs[@]}))]}
        ${pair%%|*} >/dev/null 2>&1 &
        server=$!
        nap 300
        ${pair##*|} >/dev/null 2>&1 &
        client=$!
        nap 900
        case $((RANDOM % 5)) in
        0) replace_urdmad ;;
        1 | 2) kill_and_wait $server ;;
        *) kill_and_wait $client ;;
        esac
        kill_and_wait $server $client
    done
    assert_nothing_left
}

# Memory that the module has allocated and not freed, by call site; boot.sh makes the kernel record
# it.
memory_of_module() {
    cat /sys/kernel/debug/slab/kmalloc-*/alloc_traces | grep -E '^ +[0-9]+ [^ ]+ \[urdma\]' |
        sed 's/ age=.*//' | sort
}

# The objects of all of the kernel, by size.
memory() {
    echo 1 | tee /sys/kernel/slab/kmalloc-*/shrink >/dev/null
    awk '/^kmalloc-/ {print $1, $2}' /proc/slabinfo | sort
}

# Resources of killed processes may be freed some time after their end.
module_has_what_it_had() { memory_of_module | diff /run/of_module -; }

# The growth is less than one object per round, for each size.
kernel_has_what_it_had() {
    memory >/run/after
    join /run/before /run/after |
        awk -v rounds=$rounds '$3 - $2 >= rounds {print; bad = 1} END {exit bad}'
}

nothing_is_pinned() {
    awk '/^nr_foll_pin_acquired/ {n += $2} /^nr_foll_pin_released/ {n -= $2} END {exit n != 0}' \
        /proc/vmstat
}

rounds=80
kill_at_random 20
memory_of_module >/run/of_module
grep -q urdma_agent_open /run/of_module
memory >/run/before
kill_at_random $rounds
wait_until module_has_what_it_had
wait_until kernel_has_what_it_had
wait_until nothing_is_pinned

# The device still works.
over listening_by_cm "rping -s -a 10.8.0.1 -C 5" "rping -c -a 10.8.0.1 -C 5"
stop_instance
remove_device
