/*
 * Replacements of functions by which DPDK would affect its host program. The linker puts them in
 * place of the originals, inside the library only.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <rte_config.h>
#include <rte_dev.h>
#include <rte_eal.h>

static const char *runtime_directory;

/* The runtime directory, which DPDK reads from the environment. */
void urdma_lease_set_runtime_directory(const char *directory)
{
	runtime_directory = directory;
}

char *__wrap_getenv(const char *name)
{
	size_t octets = strlen(name);
	char **variable;

	if (strcmp(name, "RUNTIME_DIRECTORY") == 0)
		return (char *)runtime_directory;
	if (environ == NULL)
		return NULL;
	for (variable = environ; *variable != NULL; variable++)
		if (strncmp(*variable, name, octets) == 0 && (*variable)[octets] == '=')
			return *variable + octets + 1;
	return NULL;
}

/*
 * All drivers are linked statically. In a host program that has loaded the shared DPDK, the
 * library's DPDK would also load the drivers of the shared one.
 */
void *__wrap_dlopen(const char *file, int mode)
{
	(void)file;
	(void)mode;
	return NULL;
}

/*
 * DPDK writes the reason of a failed initialisation to standard error in addition to its log, which
 * the caller reads.
 */
int __wrap___fprintf_chk(FILE *stream, int flag, const char *format, ...)
{
	va_list arguments;
	int result;

	(void)flag;
	if (stream == stderr)
		return 0;
	va_start(arguments, format);
	result = vfprintf(stream, format, arguments);
	va_end(arguments);
	return result;
}

/* DPDK must not change the host program's connection to the system log. */
void __wrap_openlog(const char *identity, int option, int facility)
{
	(void)identity;
	(void)option;
	(void)facility;
}

void __wrap_closelog(void)
{
}

/*
 * Services run on lcores of their own, and a lease has none. Their tables would stay in the shared
 * heap, 156 KB for each process that is killed.
 */
int32_t __wrap_rte_service_init(void)
{
	return 0;
}

int32_t __wrap_rte_service_start_with_defaults(void)
{
	return 0;
}

/* net_memif's request to the primary: one region of shared memory. */
struct region_request {
	char port_name[RTE_DEV_NAME_MAX_LEN];
	uint16_t index;
	uint64_t octets;
};

int __real_rte_mp_request_sync(struct rte_mp_msg *request, struct rte_mp_reply *reply,
			       const struct timespec *patience);

/*
 * net_memif requests each of the 256 possible regions in turn, of which one exists. Regions are
 * numbered without gaps, so none exists after the first that does not. The remaining requests,
 * which would take 10 ms and more, are answered without the primary.
 */
int __wrap_rte_mp_request_sync(struct rte_mp_msg *request, struct rte_mp_reply *reply,
			       const struct timespec *patience)
{
	static bool none_left;
	struct region_request region;
	int result;

	if (strcmp(request->name, "memif_mp_send_region") != 0 ||
	    request->len_param != (int)sizeof(region))
		return __real_rte_mp_request_sync(request, reply, patience);
	memcpy(&region, request->param, sizeof(region));
	if (region.index == 0)
		none_left = false;
	if (none_left) {
		reply->msgs = calloc(1, sizeof(*reply->msgs));
		if (reply->msgs == NULL)
			return -1;
		*reply->msgs = *request;
		region.octets = 0;
		memcpy(reply->msgs->param, &region, sizeof(region));
		reply->nb_sent = 1;
		reply->nb_received = 1;
		return 0;
	}
	result = __real_rte_mp_request_sync(request, reply, patience);
	none_left = result == 0 && reply->nb_received == 1 && reply->msgs[0].num_fds == 0;
	return result;
}

/* net_memif's doorbells: see build.rs. */
ssize_t urdma_lease_no_read(int descriptor, void *octets, size_t count)
{
	(void)descriptor;
	(void)octets;
	return (ssize_t)count;
}

ssize_t urdma_lease_no_write(int descriptor, const void *octets, size_t count)
{
	(void)descriptor;
	(void)octets;
	return (ssize_t)count;
}

/*
 * Opens files for the PCI bus. When a process that has opened the file of a NIC bound to uio closes
 * it or exits, the kernel disables the NIC's access to memory, for the primary and all lessees too.
 * The file is for interrupts, which secondaries do not receive: they open /dev/null instead.
 */
int urdma_lease_open(const char *path, int flags, ...)
{
	if (strncmp(path, "/dev/uio", strlen("/dev/uio")) == 0)
		path = "/dev/null";
	return open(path, flags);
}
