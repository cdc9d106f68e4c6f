# The unit urdmad@ under systemd: its sandbox leaves urdmad what a port of each kind needs, and
# urdmad is started again after it was killed.
. "$BED/checks/lib.sh"
units=/usr/lib/systemd/system
modprobe -a bridge tun veth

# The files as `make install` installs them. The directory of the build may be in root's home, which
# the unit does not see.
install -D -t /usr/local/bin "$PROGRAMS"/{urdma,urdmad}
install -D -m644 -t /usr/local/lib/urdma "$PROGRAMS"/liburdma_*.so
install -D -m644 -t /etc/systemd/system "$BED/../../urdmad/systemd/urdmad@.service"
mkdir -p /etc/urdma /etc/systemd/system/urdmad@.service.d
printf '[Service]\nStandardError=append:/run/unit.log\nStandardOutput=append:/run/unit.log\n' \
    >/etc/systemd/system/urdmad@.service.d/log.conf
printf '[Unit]\nDefaultDependencies=no\n' >/etc/systemd/system/bed.target

# systemd as the first process of a PID namespace. It starts no services but those it is told to.
cat >/run/first <<SCRIPT
#!/bin/sh -eu
for wants in $units/*.wants /etc/systemd/system/*.wants; do
    mount -t tmpfs none "\$wants"
done
exec env container=bed /usr/lib/systemd/systemd --unit=bed.target
SCRIPT
chmod +x /run/first
unshare --pid --fork --kill-child --mount --mount-proc /run/first >/run/systemd.log 2>&1 &
wait_until [ -S /run/systemd/private ]
cat >/run/inside <<SCRIPT
#!/bin/sh
exec nsenter --target $(pgrep -P $!) --mount --pid "\$@"
SCRIPT
chmod +x /run/inside

# control VERB INSTANCE: prints what systemd and the instance have said if the command fails.
control() {
    /run/inside systemctl "$1" "urdmad@$2" && return
    /run/inside systemctl --no-pager status "urdmad@$2" || true
    cat /run/unit.log /run/systemd.log
    return 1
}
# property INSTANCE NAME VALUE
has_property() { [ "$(/run/inside systemctl show --value -p "$2" "urdmad@$1")" = "$3" ]; }

# configure INSTANCE ADDRESS [LINE...]
configure() {
    local instance=$1 address=$2
    shift 2
    printf '%s\n' "address = [\"$address\"]" "$@" >"/etc/urdma/$instance.toml"
}

# exchange SERVER-INSTANCE CLIENT-INSTANCE
exchange() {
    local run="/run/inside urdma run --run-dir /run/urdma"
    local program="ibv_rc_pingpong -d urdma0 -g 1 -n 100"
    over listening_by_tcp "$run/$1 -- $program" "$run/$2 -- $program 127.0.0.1"
}

# Without a port; killed; stopped.
configure plain 127.0.0.1
control start plain
exchange plain plain
/run/inside systemctl kill --signal=KILL --kill-who=main urdmad@plain
wait_until has_property plain NRestarts 1
wait_until has_property plain ActiveState active
exchange plain plain
control stop plain
has_property plain Result success
[ ! -e /run/urdma/plain/control.sock ]

# With a wrong configuration urdmad is started once, and the log says what is wrong.
configure wrong 127.0.0.1 "slots = 0"
refused /run/inside systemctl start urdmad@wrong
has_property wrong ActiveState failed
has_property wrong NRestarts 0
grep '/etc/urdma/wrong.toml, line 2, key "slots": must be 1 to 253' /run/unit.log
/run/inside systemctl stop urdmad@wrong

# between KIND: two instances of that name, whose ports are connected, exchange messages.
between() {
    control start "${1}0"
    control start "${1}1"
    connect_$1
    exchange "${1}0" "${1}1"
    control stop "${1}1"
    control stop "${1}0"
}

connect_udp() { :; }
configure udp0 127.0.0.2 "[port]" 'kind = "udp"'
configure udp1 127.0.0.3 "[port]" 'kind = "udp"'
between udp

connect_memif() { :; }
wire='socket = "/run/urdma/wire.sock"'
configure memif0 192.0.2.1 "[port]" 'kind = "memif"' 'role = "server"' "$wire"
configure memif1 192.0.2.2 "[port]" 'kind = "memif"' 'role = "client"' "$wire"
between memif

ip link add bridge type bridge
ip link set bridge up
connect_tap() {
    local tap
    for tap in tap0 tap1; do
        ip link set $tap master bridge
        ip link set $tap up
    done
}
configure tap0 192.0.2.1 "[port]" 'kind = "tap"' 'netdev = "tap0"'
configure tap1 192.0.2.2 "[port]" 'kind = "tap"' 'netdev = "tap1"'
between tap
ip link delete bridge

# The second host is in a network namespace, whose file is mounted where systemd is.
connect_xdp() { :; }
/run/inside ip netns add far
/run/inside ip link add xdp0 type veth peer name xdp1 netns far
ip address add 192.0.2.1/24 dev xdp0
ip link set xdp0 up
/run/inside ip -n far address add 192.0.2.2/24 dev xdp1
/run/inside ip -n far link set xdp1 up
mkdir -p /etc/systemd/system/urdmad@xdp1.service.d
printf '[Service]\nNetworkNamespacePath=/run/netns/far\n' \
    >/etc/systemd/system/urdmad@xdp1.service.d/far.conf
configure xdp0 192.0.2.1 "[port]" 'kind = "af_xdp"' 'netdev = "xdp0"'
configure xdp1 192.0.2.2 "[port]" 'kind = "af_xdp"' 'netdev = "xdp1"'
between xdp
/run/inside ip netns delete far
