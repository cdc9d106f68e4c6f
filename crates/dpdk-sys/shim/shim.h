/* Functions for DPDK's macros and inline functions. */
#ifndef URDMA_DPDK_SHIM_H
#define URDMA_DPDK_SHIM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <rte_config.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>
#include <rte_version.h>

/*
 * Held during bursts, start, stop and close, and by code that must not run at the same time. Null
 * in programs without such code (guard.c).
 */
extern pthread_mutex_t *urdma_control_lock;

/*
 * Where the fields of a buffer are. Newer versions of DPDK have them in anonymous unions and
 * structures, to which bindgen gives names of its own.
 */
enum urdma_mbuf_offsets {
	URDMA_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	URDMA_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	URDMA_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	URDMA_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	URDMA_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	URDMA_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
};

/* rte_errno of this thread. */
int urdma_errno(void);

/* Makes this thread use the mempool caches of an lcore id. */
void urdma_lcore_adopt(unsigned int lcore_id);

uint16_t urdma_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);
uint16_t urdma_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);

/* 0, or negative if the pool has fewer buffers. */
int urdma_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count);
void urdma_mbuf_free_bulk(struct rte_mbuf **mbufs, unsigned int count);

/*
 * A pool whose buffers, with the pool's header of each, are whole pages, one after another from the
 * start of a page. A buffer has at least "room" octets. NULL and rte_errno if it cannot be had.
 */
struct rte_mempool *urdma_pool_create_in_pages(const char *name, unsigned int buffers,
					       unsigned int cache, uint16_t room,
					       const char *ops_name);

unsigned int urdma_pool_size(const struct rte_mempool *pool);
uint16_t urdma_pool_data_room(struct rte_mempool *pool);

/*
 * Registers the functions of the pool at the index that they have in the primary. A pool refers to
 * its functions by index, which depends on the order in which the process that created the pool
 * registered its drivers. 0, or a negative errno.
 */
int urdma_pool_bind(struct rte_mempool *pool, const char *ops_name);

/*
 * Returns every buffer of a pool with "ring_mp_mc" to the pool, regardless of its last use. The
 * pool must not be in use. 0, or a negative errno.
 */
int urdma_pool_rebuild(struct rte_mempool *pool);

/*
 * Creates a rule that steers the UDP datagrams for a port to a queue, or only validates it. 0, or a
 * negative errno.
 */
int urdma_flow_udp_port(uint16_t port, uint16_t udp_port, int ipv6, uint16_t queue,
			int validate_only, struct rte_flow **flow, char *message,
			size_t message_octets);

/*
 * rte_eth_dev_configure. With a key, RSS distributes UDP over IPv4 over the receive queues by a
 * hash of addresses and ports. The key is used until the port is configured again or closed.
 */
int urdma_port_configure(uint16_t port, uint16_t rx_queues, uint16_t tx_queues, uint32_t mtu,
			 int rx_interrupts, uint8_t *key, uint8_t key_octets);

/*
 * Entries of the port's redirection table, and octets of its hash key. Both are 0 if the port has
 * no RSS for UDP over IPv4.
 */
int urdma_port_spreading(uint16_t port, uint16_t *entries, uint8_t *key_octets);

/* Sets the queue of each entry of the redirection table. 0, or a negative errno. */
int urdma_port_redirect(uint16_t port, const uint16_t *queues, uint16_t entries);

/* rte_eth_dev_start, rte_eth_dev_stop and rte_eth_dev_close. */
int urdma_port_start(uint16_t port);
int urdma_port_stop(uint16_t port);
int urdma_port_close(uint16_t port);

/*
 * Repairs the queues of a pair after a process that used them was killed, if the driver is
 * net_virtio: frees every descriptor that the device does not own. The pair must not be in use. 0,
 * or -ENOTSUP if nothing was done.
 */
int urdma_virtio_mend(uint16_t port, uint16_t pair);

/*
 * Whether the link is up, without waiting for it, and its speed in Mbit/s, RTE_ETH_SPEED_NUM_NONE
 * or RTE_ETH_SPEED_NUM_UNKNOWN. 0, or a negative errno.
 */
int urdma_port_link(uint16_t port, bool *up, uint32_t *megabits);

/*
 * In a primary: answers secondaries that request the descriptors of a leased pair's interrupts. 0,
 * or a negative errno.
 */
int urdma_interrupts_offer(void);

/* Name of the port's driver; empty if the port does not exist. */
const char *urdma_port_driver(uint16_t port);

#endif
