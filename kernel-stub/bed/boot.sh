#!/bin/bash
# boot.sh DIR SHARE SECONDS [QEMU ARGUMENTS]: boots the kernel that prepare.sh put into DIR, with
# the host's root read-only and SHARE as /mnt, runs guest.sh in it, and ends when the guest does or
# after SECONDS. Software emulation: works in any container and VM, at a tenth of the speed.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=$(cd "$1" && pwd)
share=$(cd "$2" && pwd)
seconds=$3
shift 3

# slub_debug=U: who has allocated what is seen in the guest. The emulator may wait for a processor
# of the host. norandmaps: the emulator keeps translated code by its address, and would translate
# all code of a program anew, some 20,000 blocks, for each process that runs it elsewhere.
options="console=ttyS0 quiet loglevel=4 panic=-1 oops=panic mitigations=off nokaslr norandmaps"
options+=" tsc=reliable no_timer_check nowatchdog rcupdate.rcu_cpu_stall_timeout=300 audit=0"
options+=" apparmor=0 cryptomgr.notests slub_debug=U,kmalloc-*"
# NICs of four queue pairs each, with receive-side scaling; network.sh has made what they end in.
nics=()
for nic in nic0 nic1; do
    nics+=(-netdev "tap,id=$nic,ifname=$nic,script=no,downscript=no,vhost=off,queues=4")
    device="virtio-net-pci,netdev=$nic,mac=02:00:00:00:00:0${nic#nic}"
    nics+=(-device "$device,mq=on,rss=on,vectors=10,romfile=")
done

# -erms: the C library and the kernel copy by `rep movsb` where a processor says that it does that
# fast; the emulator does it octet by octet.
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
