#!/bin/bash
# boot.sh DIR SHARE SECONDS [QEMU ARGUMENTS]: boots the kernel that prepare.sh stored in DIR, with
# the host's root read-only and SHARE as /mnt, and runs guest.sh in it. Ends with the guest, or
# after SECONDS. QEMU emulates in software, which works in all containers and VMs, at a tenth of the
# speed.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=$(cd "$1" && pwd)
share=$(cd "$2" && pwd)
seconds=$3
shift 3

# slub_debug=FZPU: the kernel records the caller of each allocation, and reports what is written
# beyond its end or after it was freed. The watchdogs are off or slow, since the emulator may wait
# for a processor of the host. norandmaps: the emulator caches translated code by its address, and
# would translate all code of a program, some 20,000 blocks, again for each process with other
# addresses.
options="console=ttyS0 quiet loglevel=4 panic=-1 oops=panic mitigations=off nokaslr norandmaps"
options+=" tsc=reliable no_timer_check nowatchdog rcupdate.rcu_cpu_stall_timeout=300 audit=0"
options+=" apparmor=0 cryptomgr.notests slub_debug=FZPU,kmalloc-*"
# NICs of four queue pairs each, with receive-side scaling, on the TAP interfaces of network.sh.
nics=()
for nic in nic0 nic1; do
    nics+=(-netdev "tap,id=$nic,ifname=$nic,script=no,downscript=no,vhost=off,queues=4")
    device="virtio-net-pci,netdev=$nic,mac=02:00:00:00:00:0${nic#nic}"
    nics+=(-device "$device,mq=on,rss=on,vectors=10,romfile=")
done

# -erms: the C library and the kernel copy by `rep movsb` if the processor reports that it is fast;
# the emulator executes it octet by octet.
exec "$here/network.sh" timeout --foreground --kill-after=5 "$seconds" qemu-system-x86_64 \
    -M q35 -accel tcg,thread=multi -cpu max,-erms -smp 2 -m 3072 \
    -nodefaults -no-user-config -display none -no-reboot -serial stdio \
    -kernel "$dir/vmlinux" -initrd "$dir/initrd" \
    -append "$options bed.guest=$here/guest.sh bed.image=$dir/image" \
    -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=root,mount_tag=root \
    -fsdev local,id=share,path="$share",security_model=none \
    -device virtio-9p-pci,fsdev=share,mount_tag=share \
    "${nics[@]}" "$@" </dev/null
