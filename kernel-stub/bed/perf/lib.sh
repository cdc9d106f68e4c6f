# Functions of the comparisons: devices of other drivers beside urdma's, and medians.
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
