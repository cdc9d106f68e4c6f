/* What DPDK has only as macros and inline functions, as functions. */
#ifndef URDMA_DPDK_SHIM_H
#define URDMA_DPDK_SHIM_H

#include <pthread.h>
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

/*
 * Held during bursts, start, stop and close, and by code that must not run at the same time. Null
 * in programs without such code (guard.c).
 */
extern pthread_mutex_t *urdma_control_lock;

/* rte_errno of this thread. */
int urdma_errno(void);

/* Makes this thread use the mempool caches of an lcore id. */
void urdma_lcore_adopt(unsigned int lcore_id);

uint16_t urdma_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);
uint16_t urdma_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);

/* 0, or negative when the pool has fewer buffers. */
int urdma_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count);
void urdma_mbuf_free_bulk(struct rte_mbuf **mbufs, unsigned int count);

unsigned int urdma_pool_size(const struct rte_mempool *pool);
uint16_t urdma_pool_data_room(struct rte_mempool *pool);

/*
 * Makes this process find the functions of the pool at the index that they have in the primary. A
 * pool names them by that index, which depends on the order in which the process that made the pool
 * registered its drivers. 0, or a negative errno.
 */
int urdma_pool_bind(struct rte_mempool *pool, const char *ops_name);

/*
 * Puts every buffer of a pool made with "ring_mp_mc" back into it, wherever the buffer was. The
 * pool must not be used meanwhile. 0, or a negative errno.
 */
int urdma_pool_rebuild(struct rte_mempool *pool);

/*
 * Steers the UDP datagrams for a port to a queue, or only checks whether that would work. 0, or a
 * negative errno.
 */
int urdma_flow_udp_port(uint16_t port, uint16_t udp_port, int ipv6, uint16_t queue,
			int validate_only, struct rte_flow **flow, char *message,
			size_t message_octets);

/*
 * rte_eth_dev_configure for plain queues. With a key, UDP over IPv4 is spread over the receive
 * queues by a hash of addresses and ports. The key is used until the port is configured again or
 * closed.
 */
int urdma_port_configure(uint16_t port, uint16_t rx_queues, uint16_t tx_queues, uint32_t mtu,
			 int rx_interrupts, uint8_t *key, uint8_t key_octets);

/*
 * Entries of the table by which the port spreads UDP over IPv4, and octets of its key. Both are 0
 * if the port does not spread it.
 */
int urdma_port_spreading(uint16_t port, uint16_t *entries, uint8_t *key_octets);

/* Which queue each entry of that table names. 0, or a negative errno. */
int urdma_port_redirect(uint16_t port, const uint16_t *queues, uint16_t entries);

/* rte_eth_dev_start, rte_eth_dev_stop and rte_eth_dev_close. */
int urdma_port_start(uint16_t port);
int urdma_port_stop(uint16_t port);
int urdma_port_close(uint16_t port);

/*
 * Repairs the queues of a pair after a process that used them was killed, if the driver is
 * net_virtio: every descriptor that the device does not have becomes free. The pair must not be
 * used meanwhile. 0, or -ENOTSUP if nothing was done.
 */
int urdma_virtio_mend(uint16_t port, uint16_t pair);

/* Name of the port's driver; empty when there is none. */
const char *urdma_port_driver(uint16_t port);

#endif
