/*
 * The device's place on a bus, read from sysfs in the ways of UCX, NCCL, Mooncake, libfabric, hwloc
 * and DPDK: each takes a PCI address from another path, and all must find the same.
 */
#include "scenarios.h"

#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEVICE "/sys/class/infiniband/urdma0"

static char address[PATH_MAX];

/* The last component of a path must be a PCI address, and the same for all paths. */
static void expect_address(const char *how, char *path)
{
	unsigned int domain, bus, slot, function;
	char *last = basename(path), again[32];

	if (sscanf(last, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
		fail("%s finds no PCI address in %s", how, last);
	snprintf(again, sizeof(again), "%04x:%02x:%02x.%x", domain, bus, slot, function);
	if (strcmp(again, last) || domain > 0xffff || bus > 0xff || slot > 0x1f || function > 7)
		fail("%s finds %s", how, last);
	if (!address[0])
		strcpy(address, last);
	if (strcmp(address, last))
		fail("%s finds %s instead of %s", how, last, address);
}

/* Reads the first line of a file. */
static void read_line(const char *directory, const char *name, char *line, int size)
{
	char path[2 * PATH_MAX];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	file = fopen(path, "r");
	if (!file || !fgets(line, size, file))
		fail("%s: %s", path, strerror(errno));
	fclose(file);
	line[strcspn(line, "\n")] = 0;
}

/* Reads the attributes of the bus device with this directory. */
static void check_files(const char *directory)
{
	static const char *const numbers[] = {
		"class", "vendor", "device", "subsystem_vendor", "subsystem_device",
	};
	char line[PATH_MAX], *end;

	read_line(directory, "numa_node", line, sizeof(line));
	if (strcmp(line, "-1"))
		fail("NUMA node %s", line);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		read_line(directory, numbers[i], line, sizeof(line));
		strtoul(line, &end, 0);
		if (strncmp(line, "0x", 2) || *end)
			fail("%s is %s", numbers[i], line);
	}
	read_line(directory, "local_cpulist", line, sizeof(line));
	if (strcspn(line, "0123456789"))
		fail("processors %s", line);
	read_line(directory, "local_cpus", line, sizeof(line));
	if (strspn(line, "0123456789abcdef,") != strlen(line) || strspn(line, "0,") == strlen(line))
		fail("mask of processors %s", line);
}

static void resolve(const char *path, char *resolved)
{
	if (!realpath(path, resolved))
		fail("realpath %s: %s", path, strerror(errno));
}

static void resolve_link(const char *path, char *target)
{
	ssize_t len = readlink(path, target, PATH_MAX - 1);

	if (len < 0)
		fail("readlink %s: %s", path, strerror(errno));
	target[len] = 0;
}

/* The only entry of a directory. */
static void only_entry(const char *path, char *name)
{
	DIR *directory = opendir(path);
	struct dirent *entry;

	if (!directory)
		fail("opendir %s: %s", path, strerror(errno));
	name[0] = 0;
	while ((entry = readdir(directory))) {
		if (entry->d_name[0] == '.')
			continue;
		if (name[0])
			fail("%s holds %s beside %s", path, entry->d_name, name);
		strcpy(name, entry->d_name);
	}
	closedir(directory);
	if (!name[0])
		fail("%s is empty", path);
}

/* The directory that libibverbs returns; the bus device is two levels above. */
static void check_path_of_libibverbs(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	char path[2 * PATH_MAX], resolved[PATH_MAX];
	struct stat found;

	if (!list || !list[0])
		fail("no device: %s", strerror(errno));
	resolve(list[0]->ibdev_path, resolved);
	dirname(dirname(resolved));
	snprintf(path, sizeof(path), "%s/device", resolved);
	if (stat(path, &found))
		fail("UCX: stat %s: %s", path, strerror(errno));
	check_files(resolved);
	expect_address("UCX", resolved);
	snprintf(path, sizeof(path), "%s/device", list[0]->ibdev_path);
	resolve_link(path, resolved);
	expect_address("libfabric", resolved);
	ibv_free_device_list(list);
}

/* DPDK reads the address from a line of this file. */
static void check_uevent(void)
{
	char line[PATH_MAX], *slot = NULL;
	FILE *file = fopen(DEVICE "/device/uevent", "r");

	if (!file)
		fail("no uevent: %s", strerror(errno));
	while (!slot && fgets(line, sizeof(line), file))
		slot = strstr(line, "PCI_SLOT_NAME=");
	fclose(file);
	if (!slot)
		fail("uevent names no slot");
	line[strcspn(line, "\n")] = 0;
	expect_address("DPDK", slot + strlen("PCI_SLOT_NAME="));
}

/* Shell scripts, as ibstatus, enter the directory and list it. */
static void check_entered(void)
{
	char before[PATH_MAX], name[PATH_MAX], line[PATH_MAX];

	if (!getcwd(before, sizeof(before)) || chdir("/sys/class/infiniband"))
		fail("chdir: %s", strerror(errno));
	only_entry(".", name);
	if (strcmp(name, "urdma0"))
		fail("the directory holds %s", name);
	read_line("urdma0/ports/1", "state", line, sizeof(line));
	if (strcmp(line, "4: ACTIVE"))
		fail("the port is %s", line);
	if (!chdir("/dev/infiniband/uverbs0") || errno != ENOTDIR)
		fail("a device file is entered: %s", strerror(errno));
	if (chdir(before))
		fail("chdir back: %s", strerror(errno));
}

void check_sysfs(void)
{
	char path[2 * PATH_MAX], found[PATH_MAX];
	struct stat none;

	resolve(DEVICE "/device", found);
	check_files(found);
	snprintf(path, sizeof(path), "%s/subsystem", found);
	if (!lstat(path, &none))
		fail("NCCL would look for PCI bridges");
	expect_address("NCCL", found);
	resolve(DEVICE "/../..", found);
	check_files(found);
	expect_address("Mooncake", found);
	check_path_of_libibverbs();
	resolve_link(DEVICE, found);
	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device", found);
	check_files(path);
	dirname(dirname(found));
	expect_address("hwloc", found);
	check_uevent();
	check_entered();
	/* Programs that resolve links themselves, as Python does, get a path below /sys. */
	snprintf(path, sizeof(path), "/sys/devices/urdma/%s", address);
	check_files(path);

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s", address);
	if (!access(path, F_OK))
		fail("%s is the address of a real device", address);
	only_entry("/sys/class/infiniband", found);
	only_entry(DEVICE "/device/infiniband_verbs", found);
	if (strcmp(found, "uverbs0"))
		fail("the device file is %s", found);
	only_entry(DEVICE "/device/net", found);
	resolve("/sys/class/infiniband_verbs/uverbs0/device", found);
	expect_address("libibverbs", found);
}
