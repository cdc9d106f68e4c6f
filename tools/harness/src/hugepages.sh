# Reserves $1 additional hugepages until standard input is closed, at the latest when the program
# that started this ends or is killed. Prints how many it has added and where hugetlbfs is mounted.
# Several of these may run concurrently.

count=/proc/sys/vm/nr_hugepages
mount_point=/dev/hugepages

# A signal to the group of the starting program must not end this before the pages are released.
trap '' HUP INT TERM

# Pages in use that are no longer reserved (surplus) would count against a larger reservation. So
# the new count is added to all existing pages, and the number of pages to release is the growth of
# the count of reserved pages.
exec 9<"$count" && flock 9 || exit 1
before=$(cat $count)
total=$(sed -n 's/^HugePages_Total: *//p' /proc/meminfo)
# In memory that is full of cached files, as after a build, the kernel finds few pages in one piece:
# first they are moved together, then those of the files are given up.
for remedy in compact_memory drop_caches ''; do
	echo $((total + $1)) >$count || exit 1
	added=$(($(cat $count) - before))
	[ "$added" -lt "$1" ] && [ -n "$remedy" ] || break
	echo 1 2>/dev/null >/proc/sys/vm/$remedy
done
mounted=$(awk '$3 == "hugetlbfs" { print $2; exit }' /proc/mounts)
if [ -z "$mounted" ] && mkdir -p $mount_point && mount -t hugetlbfs hugetlbfs $mount_point; then
	mounted=$mount_point
	mounted_here=yes
fi
flock -u 9

echo "$added $mounted"
cat >/dev/null

# If another program uses it by now, umount reports that it is busy, and it stays mounted.
if [ -n "$mounted_here" ] && umount $mount_point 2>/dev/null; then
	rmdir $mount_point
fi
flock 9
left=$(($(cat $count) - added))
echo $((left > 0 ? left : 0)) >$count
