/*
 * Repairs net_virtio's queues after a process that used them was killed. The driver cannot stop a
 * single pair of queues. It counts the free descriptors separately from the list of them: between
 * two instructions the count exceeds the list, and the next user then gives the device a descriptor
 * that does not exist, which breaks the device. The rings are public (the virtio specification).
 * The driver's private structures beside them are in no installed header, so they are declared here
 * as in DPDK 22.11 to 25.11 and checked against known values before use. Nothing is known of later
 * versions of DPDK, and no queues are repaired there.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <rte_common.h>
#include <rte_ethdev.h>
#include <rte_version.h>

#include "shim.h"

#if RTE_VERSION < RTE_VERSION_NUM(26, 3, 0, 0)
#define END_OF_LIST 32768
#define RING_ALIGNMENT 4096

struct descriptor {
	uint64_t address;
	uint32_t octets;
	uint16_t flags;
	uint16_t next;
};

struct available {
	uint16_t flags;
	uint16_t index;
	uint16_t ring[];
};

struct used {
	uint16_t flags;
	uint16_t index;
	struct {
		uint32_t id;
		uint32_t octets;
	} ring[];
};

/* `struct virtqueue` up to the part to which the queues of a port point. */
struct queue {
	void *hardware;
	unsigned int count;
	struct descriptor *descriptors;
	struct available *available;
	struct used *used;
	uint64_t unused;
	uint16_t consumed;
	uint16_t entries;
	uint16_t free;
	uint16_t given;
	uint16_t threshold;
	uint16_t head;
	uint16_t tail;
	uint16_t number;
	void *memory;
	unsigned int octets;
	uint16_t address_offset;
#if RTE_VERSION >= RTE_VERSION_NUM(23, 11, 0, 0)
	uint64_t address_mask;
#endif
	uint64_t user[];
};

/* The virtqueue of a queue of a port; NULL if a check of its fields fails. */
static struct queue *find(void *user)
{
	struct queue *queue;
	uintptr_t available, used;

	if (user == NULL)
		return NULL;
	queue = RTE_PTR_SUB(user, offsetof(struct queue, user));
	if (queue->count == 0 || queue->count != queue->entries ||
	    !rte_is_power_of_2(queue->count) || queue->count >= END_OF_LIST ||
	    (void *)queue->descriptors != queue->memory)
		return NULL;
	available = (uintptr_t)(queue->descriptors + queue->count);
	used = RTE_ALIGN_CEIL(available + offsetof(struct available, ring) + 2 * queue->count,
			      RING_ALIGNMENT);
	if (available != (uintptr_t)queue->available || used != (uintptr_t)queue->used)
		return NULL;
	return queue;
}

/*
 * The number of descriptors that the device owns, or has returned and the driver has not consumed;
 * -1 if it is unknown. It is known if descriptors are made available and returned in the order of
 * their numbers, as they are while each packet has one descriptor.
 */
static int outstanding(const struct queue *queue)
{
	uint16_t mask = queue->entries - 1, count = queue->given - queue->consumed, i;

	if (count > queue->entries)
		return -1;
	for (i = 0; i < count; i++) {
		uint16_t place = (queue->consumed + i) & mask;

		if (queue->available->ring[place] != place)
			return -1;
	}
	for (i = 0; i < queue->entries; i++) {
		uint32_t id = queue->used->ring[i].id;

		/* An element that the device has never written is zero. */
		if (id != i && (id != 0 || queue->used->ring[i].octets != 0))
			return -1;
	}
	return count;
}

/* Frees all descriptors that the device does not own. */
static void list_anew(struct queue *queue, uint16_t outstanding)
{
	uint16_t mask = queue->entries - 1, free = queue->entries - outstanding, i;

	for (i = 0; i < free; i++) {
		uint16_t place = (queue->given + i) & mask;

		queue->descriptors[place].next = i + 1 < free ? (place + 1) & mask : END_OF_LIST;
	}
	queue->head = free > 0 ? queue->given & mask : END_OF_LIST;
	queue->tail = free > 0 ? (queue->consumed - 1) & mask : END_OF_LIST;
	queue->free = free;
}

int urdma_virtio_mend(uint16_t port, uint16_t pair)
{
	struct queue *receive, *transmit;
	int received, sent;

	if (strcmp(urdma_port_driver(port), "net_virtio") != 0)
		return -ENOTSUP;
	receive = find(rte_eth_fp_ops[port].rxq.data[pair]);
	transmit = find(rte_eth_fp_ops[port].txq.data[pair]);
	if (receive == NULL || transmit == NULL)
		return -ENOTSUP;
	received = outstanding(receive);
	sent = outstanding(transmit);
	/* A receive queue always has some; zero indicates the packed layout. */
	if (received <= 0 || sent < 0)
		return -ENOTSUP;
	list_anew(receive, received);
	list_anew(transmit, sent);
	return 0;
}
#else
int urdma_virtio_mend(uint16_t port, uint16_t pair)
{
	(void)port;
	(void)pair;
	return -ENOTSUP;
}
#endif
