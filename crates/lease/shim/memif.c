/*
 * Locates the rings of a queue pair of net_memif. The rings are public (the memif protocol). The
 * driver's private structures beside them are checked against known values before use. No rings are
 * found where memif_queue.h does not know them.
 */
#define ALLOW_EXPERIMENTAL_API
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_ethdev.h>

#include "../../dpdk-sys/shim/memif_queue.h"

#define COOKIE 0x3E31F20
#define CLIENT_TO_SERVER 0

/* The region of shared memory that the driver has mapped, with all rings and buffers. */
static struct {
	uint8_t *base;
	size_t octets;
	unsigned int changes;
} region;

/* The number of times that the region was mapped or unmapped. */
unsigned int urdma_lease_region_changes(void)
{
	return region.changes;
}

/* The driver's calls of mmap and munmap: see build.rs. */
void *urdma_lease_mmap(void *address, size_t octets, int protection, int flags, int file,
		       off_t offset)
{
	void *base = mmap(address, octets, protection, flags, file, offset);

	if (base != MAP_FAILED && (flags & MAP_SHARED) != 0) {
		/* Core dumps leave out the packets of the port, which are megabytes. */
		madvise(base, octets, MADV_DONTDUMP);
		region.base = base;
		region.octets = octets;
		region.changes++;
	}
	return base;
}

int urdma_lease_munmap(void *address, size_t octets)
{
	if (address == region.base) {
		region.base = NULL;
		region.changes++;
	}
	return munmap(address, octets);
}

/* memif.rs has the same. */
struct ring {
	uint8_t *start;
	uint16_t *last;
	uint16_t slots;
	uint16_t is_client_to_server;
};

struct rings {
	uint8_t *base;
	size_t octets;
	struct ring receive;
	struct ring transmit;
};

#if URDMA_KNOWS_MEMIF
static int find(uint16_t port, struct queue *queue, struct ring *ring)
{
	uint32_t cookie;
	size_t octets;
	uint8_t log2;

	if (queue == NULL || queue->port != port || queue->region != 0 || queue->type > 1)
		return -1;
	log2 = log2_ring_size(queue);
	if (log2 == 0)
		return -1;
	ring->slots = (uint16_t)(1u << log2);
	octets = 128 + 16 * (size_t)ring->slots;
	if (queue->ring_offset > region.octets || octets > region.octets - queue->ring_offset)
		return -1;
	ring->start = region.base + queue->ring_offset;
	ring->is_client_to_server = queue->type == CLIENT_TO_SERVER;
	ring->last = ring->is_client_to_server ? &queue->last_head : &queue->last_tail;
	memcpy(&cookie, ring->start, sizeof(cookie));
	return cookie == COOKIE ? 0 : -1;
}

/* 0 when the rings of a queue pair of a net_memif port have been found. */
int urdma_lease_memif_rings(uint16_t port, uint16_t pair, struct rings *rings)
{
	struct rte_eth_dev_info info;
	struct queue *receive, *transmit;

	if (region.base == NULL || rte_eth_dev_info_get(port, &info) != 0 ||
	    strcmp(info.driver_name, "net_memif") != 0)
		return -1;
	receive = rte_eth_fp_ops[port].rxq.data[pair];
	transmit = rte_eth_fp_ops[port].txq.data[pair];
	if (find(port, receive, &rings->receive) != 0 ||
	    find(port, transmit, &rings->transmit) != 0 ||
	    rings->receive.is_client_to_server == rings->transmit.is_client_to_server)
		return -1;
	rings->base = region.base;
	rings->octets = region.octets;
	return 0;
}
#else
int urdma_lease_memif_rings(uint16_t port, uint16_t pair, struct rings *rings)
{
	(void)port;
	(void)pair;
	(void)rings;
	return -1;
}
#endif

/*
 * Requests the descriptors of a pair's interrupts from the primary: the one that the peer writes
 * to, and the one to be written to for the peer. 0 when there are both.
 */
int urdma_lease_interrupts(uint16_t port, uint16_t pair, int descriptors[2])
{
	const struct timespec patience = { .tv_sec = 1 };
	struct interrupts_request wanted = { .pair = pair };
	struct rte_mp_msg request;
	struct rte_mp_reply reply;
	int result = -1;

	memset(&request, 0, sizeof(request));
	memset(&reply, 0, sizeof(reply));
	strcpy(request.name, INTERRUPTS_MESSAGE);
	if (rte_eth_dev_get_name_by_port(port, wanted.device) != 0)
		return -1;
	memcpy(request.param, &wanted, sizeof(wanted));
	request.len_param = sizeof(wanted);
	if (rte_mp_request_sync(&request, &reply, &patience) != 0)
		return -1;
	if (reply.nb_received == 1 && reply.msgs[0].num_fds == 2) {
		memcpy(descriptors, reply.msgs[0].fds, 2 * sizeof(*descriptors));
		for (int i = 0; i < 2; i++)
			fcntl(descriptors[i], F_SETFD, FD_CLOEXEC);
		result = 0;
	}
	free(reply.msgs);
	return result;
}
