#!/bin/bash
# Process 1 of the guest after the switch to the host's root: prepares the system, runs the checks
# in /mnt/checks one after the other, writes the result of each to /mnt/results and the kernel's log
# to /mnt/kernel.log, and powers off. It must never end.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root TERM=dumb LC_ALL=C

argument() { tr ' ' '\n' </proc/cmdline | sed -n "s|^bed\.$1=||p"; }

power_off() {
    sync
    echo o >/proc/sysrq-trigger
    while :; do sleep 1; done
}

prepare() {
    local release
    release=$(uname -r)
    mount -t tmpfs tmpfs /run
    mkdir -p /run/lock /dev/shm /dev/pts
    mount -t tmpfs tmpfs /dev/shm
    mount -t devpts devpts /dev/pts
    mount -t debugfs debugfs /sys/kernel/debug
    mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=512000 share /mnt
    mkdir -p "/lib/modules/$release"
    mount --bind "$(argument image)/lib/modules/$release" "/lib/modules/$release"
    ip link set lo up
    hostname guest
    # Tasks may hang for minutes while the emulator waits for a processor of the host.
    echo 600 >/proc/sys/kernel/hung_task_timeout_secs
    ulimit -l unlimited
}

# Runs one check. The time limit is ten times that of the longest check on two idle cores, unless
# the first comment line of the check states another ("# seconds: 60").
run_check() {
    local file=$1 name seconds start outcome
    name=$(basename "$file" .sh)
    seconds=$(sed -n 's/^# seconds: //p' "$file")
    start=$(cut -d' ' -f1 /proc/uptime)
    echo "bed: $name" >/dev/kmsg
    if timeout --kill-after=30 "${seconds:-1200}" bash -eux -o pipefail "$file" \
        >"/mnt/$name.log" 2>&1 </dev/null; then
        outcome=passed
    else
        outcome=failed
    fi
    awk -v name="$name" -v outcome="$outcome" -v start="$start" \
        '{printf "%s %s %.1f\n", name, outcome, $1 - start}' /proc/uptime >>/mnt/results
}

prepare
# The directories of the module and of the programs under test.
. /mnt/environment
echo "booted $(uname -r) in $(cut -d' ' -f1 /proc/uptime) s" >/mnt/booted
for file in /mnt/checks/*.sh; do
    run_check "$file"
done
dmesg >/mnt/kernel.log
power_off
