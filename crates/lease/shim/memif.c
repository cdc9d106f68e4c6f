/*
 * Locates the rings of a queue pair of net_memif. The rings are public (the memif protocol). The
 * driver's private structures beside them are in no installed header, so they are declared here as
 * in DPDK 22.11 to 25.11, where some stable releases have a field more, and checked against known
 * values before use. No rings are found with DPDK 26.03, which was not looked at.
 */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <rte_config.h>
#include <rte_ethdev.h>
#include <rte_version.h>

#define COOKIE 0x3E31F20
#define CLIENT_TO_SERVER 0
#define MAX_LOG2_RING_SIZE 14

/* `struct memif_queue` */
struct queue {
	struct rte_mempool *pool;
	void *unused;
	uint32_t type;
	uint16_t region;
	uint16_t port;
	uint32_t ring_offset;
	uint16_t last_head;
	uint16_t last_tail;
	struct rte_mbuf **buffers;
	uint64_t packets;
	uint64_t octets;
	/* Newer stable releases count errors here. */
	union {
		struct {
			struct rte_intr_handle *interrupt;
			uint8_t log2_ring_size;
		} plain;
		struct {
			uint64_t errors;
			struct rte_intr_handle *interrupt;
			uint8_t log2_ring_size;
		} counting;
	};
};

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

#if RTE_VERSION < RTE_VERSION_NUM(26, 3, 0, 0)
/* 0 if there is none. */
static uint8_t log2_ring_size(const struct queue *queue)
{
	uint8_t size = queue->plain.log2_ring_size;

	/* In the other layout this octet is the low one of an address that is a multiple of 16. */
	if (size == 0 || size > MAX_LOG2_RING_SIZE)
		size = queue->counting.log2_ring_size;
	return size > MAX_LOG2_RING_SIZE ? 0 : size;
}

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
