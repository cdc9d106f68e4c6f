# Reserves $1 hugepages beside those that there are, until standard input ends, which it does when
# the program that started this has ended, in whatever way. Prints how many it has added and where
# hugetlbfs is mounted. Several of these may run at a time.

count=/proc/sys/vm/nr_hugepages
mount_point=/dev/hugepages

# A signal to the group of the program that started this must not end it before the pages are back.
trap '' HUP INT TERM

# Pages that are in use and not reserved any more (surplus) would count against a larger
# reservation, so the new count is on top of all that there are, and what is given back is by how
# much the count of reserved pages has grown.
exec 9<"$count" && flock 9 || exit 1
before=$(cat $count)
total=$(sed -n 's/^HugePages_Total: *//p' /proc/meminfo)
echo $((total + $1)) >$count || exit 1
added=$(($(cat $count) - before))
mounted=$(awk '$3 == "hugetlbfs" { print $2; exit }' /proc/mounts)
if [ -z "$mounted" ] && mkdir -p $mount_point && mount -t hugetlbfs hugetlbfs $mount_point; then
	mounted=$mount_point
	mounted_here=yes
fi
flock -u 9

echo "$added $mounted"
cat >/dev/null

# Busy means that another program uses it by now: it stays mounted for that one.
if [ -n "$mounted_here" ] && umount $mount_point 2>/dev/null; then
	rmdir $mount_point
fi
flock 9
left=$(($(cat $count) - added))
echo $((left > 0 ? left : 0)) >$count
