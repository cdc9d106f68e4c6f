# A process that the limit of its memory cgroup ends is one that was killed: its peer is told, and
# nothing stays.
. "$BED/checks/lib.sh"
group=/sys/fs/cgroup/limited
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
cat >/run/in_group <<SCRIPT
#!/bin/sh
echo \$\$ >$group/cgroup.procs
exec "\$@"
SCRIPT
chmod +x /run/in_group
add_device
start_instance

is_empty() { [ ! -s $group/cgroup.procs ]; }

# limited 'SERVER' 'CLIENT': the limit ends the one that is in the group; the other one ends too.
limited() {
    mkdir $group
    start_server listening_by_cm "$1"
    timeout 300 $2 >/run/client.log 2>&1 &
    client=$!
    wait_until grep -q "ping data" /run/server.log
    echo 64K >$group/memory.max
    wait_until is_empty
    grep "^oom_kill [1-9]" $group/memory.events
    wait $server || true
    wait $client || true
    wait_until rmdir $group
    over listening_by_cm "rping -s -a 10.8.0.1 -C 5" "rping -c -a 10.8.0.1 -C 5"
}

serve="rping -s -a 10.8.0.1 -C 1000000 -v"
connect="rping -c -a 10.8.0.1 -C 1000000"
limited "/run/in_group $serve" "$connect"
limited "$serve" "/run/in_group $connect"
stop_instance
remove_device
