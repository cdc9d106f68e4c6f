/*
 * The driver's private structure of a queue of net_memif, which is in no installed header. It is
 * declared here as in DPDK 22.11 to 25.11, where some stable releases have a field more. DPDK 26.03
 * was not looked at.
 */
#ifndef URDMA_MEMIF_QUEUE_H
#define URDMA_MEMIF_QUEUE_H

#include <stdint.h>

#include <rte_config.h>
#include <rte_interrupts.h>
#include <rte_version.h>

#define URDMA_KNOWS_MEMIF (RTE_VERSION < RTE_VERSION_NUM(26, 3, 0, 0))
#define MAX_LOG2_RING_SIZE 14

/* The message by which a secondary requests the descriptors of a queue pair's interrupts. */
#define INTERRUPTS_MESSAGE "urdma_interrupts"

struct interrupts_request {
	char device[64];
	uint16_t pair;
};

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

/* In the other layout this octet is the low one of an address that is a multiple of 16. */
static inline int is_plain(const struct queue *queue)
{
	uint8_t size = queue->plain.log2_ring_size;

	return size != 0 && size <= MAX_LOG2_RING_SIZE;
}

/* 0 if there is none. */
static inline uint8_t log2_ring_size(const struct queue *queue)
{
	uint8_t size = is_plain(queue) ? queue->plain.log2_ring_size :
					 queue->counting.log2_ring_size;

	return size > MAX_LOG2_RING_SIZE ? 0 : size;
}

#endif
