# Functions of the comparisons: devices of other drivers beside urdma's, medians, and ratios.
rm -f /run/measured

# add_peer DEVICE TYPE ADDRESS
add_peer() {
    ip link add "${1}net" type dummy
    ip address add "$3/24" dev "${1}net"
    ip link set "${1}net" up
    rdma link add "$1" type "$2" netdev "${1}net"
}

remove_peer() {
    rdma link delete "$1"
    ip link delete "${1}net"
}

# Adds urdma0, rxe0, and siw0 if siw was built, and lists them in $devices.
add_all_devices() {
    modprobe -a rdma_rxe libcrc32c
    devices=(urdma0 rxe0)
    add_device
    start_instance
    add_peer rxe0 rxe 10.9.0.1
    if [ -n "$SIW" ] && { [ -d /sys/module/siw ] || insmod "$SIW"; }; then
        add_peer siw0 siw 10.10.0.1
        devices+=(siw0)
    fi
}

remove_all_devices() {
    local device
    stop_instance
    for device in "${devices[@]:1}"; do
        remove_peer "$device"
    done
    remove_device
}

address_of() {
    case $1 in urdma0) echo 10.8.0.1 ;; rxe0) echo 10.9.0.1 ;; siw0) echo 10.10.0.1 ;; esac
}

# A listener of rdma_cm listens on all devices; urdma's device is the last on which it does.
listening() { rdma resource show cm_id | grep "state LISTEN" >/dev/null && listening_by_cm; }

# note OF WHAT VALUE
note() { echo "$2|$1|$3" >>/run/measured; }

# Prints WHAT|OF|MEDIAN of what was noted.
medians() {
    sort -t '|' -k 1,2 -k 3,3n /run/measured | awk -F '|' '
        function print_median() {
            if (!n) return
            median = (value[int((n + 1) / 2)] + value[int(n / 2) + 1]) / 2
            print of "|" median
            n = 0
        }
        $1 "|" $2 != of {print_median(); of = $1 "|" $2}
        {value[++n] = $3}
        END {print_median()}'
}

# table GOAL: appends the medians of each device, and the ratios of urdma's to the peers', to
# /mnt/output. GOAL is an expression of awk that has the goal of $what.
table() {
    medians | awk -F '|' '
    $1 != what {what = $1; order[++kinds] = what}
    {median[$1, $2] = $3}
    function ratio(ours, theirs) {
        return ours == "" || theirs == "" ? "-" : sprintf("%.2f x", ours / theirs)
    }
    function shown(number) {return number == "" ? "-" : sprintf("%.1f", number)}
    END {
        print "under emulation, ratios only"
        printf "%-34s %9s %9s %9s %9s %9s  %s\n",
            "what", "urdma", "rxe", "siw", "/ rxe", "/ siw", "goal"
        for (i = 1; i <= kinds; i++) {
            what = order[i]
            ours = median[what, "urdma0"]; rxe = median[what, "rxe0"]; siw = median[what, "siw0"]
            printf "%-34s %9s %9s %9s %9s %9s  %s\n", what, shown(ours), shown(rxe), shown(siw),
                ratio(ours, rxe), ratio(ours, siw), '"$1"'
        }
    }' >>/mnt/output
}
