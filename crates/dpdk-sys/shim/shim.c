#include "shim.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <rte_lcore.h>
#include <rte_memzone.h>

/* Entries of the longest redirection table of any NIC. */
#define MAX_REDIRECT_ENTRIES 2048

pthread_mutex_t *urdma_control_lock;

/*
 * Stopped ports of this process. DPDK logs an error with a stack dump for a burst on such a port.
 */
static bool stopped[RTE_MAX_ETHPORTS];

static inline void enter(void)
{
	if (urdma_control_lock != NULL)
		pthread_mutex_lock(urdma_control_lock);
}

static inline void leave(void)
{
	if (urdma_control_lock != NULL)
		pthread_mutex_unlock(urdma_control_lock);
}

int urdma_errno(void)
{
	return rte_errno;
}

void urdma_lcore_adopt(unsigned int lcore_id)
{
	RTE_PER_LCORE(_lcore_id) = lcore_id;
}

uint16_t urdma_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	uint16_t received;

	enter();
	received = unlikely(stopped[port]) ? 0 : rte_eth_rx_burst(port, queue, mbufs, count);
	leave();
	return received;
}

uint16_t urdma_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	uint16_t sent;

	enter();
	sent = unlikely(stopped[port]) ? 0 : rte_eth_tx_burst(port, queue, mbufs, count);
	leave();
	return sent;
}

int urdma_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count)
{
	return rte_pktmbuf_alloc_bulk(pool, mbufs, count);
}

void urdma_mbuf_free_bulk(struct rte_mbuf **mbufs, unsigned int count)
{
	rte_pktmbuf_free_bulk(mbufs, count);
}

static void free_zone(struct rte_mempool_memhdr *chunk, void *zone)
{
	(void)chunk;
	rte_memzone_free(zone);
}

/* Reserves the memory of the buffers, and divides it. 0, or a positive errno. */
static int populate_pages(struct rte_mempool *pool, size_t page)
{
	size_t each = pool->header_size + pool->elt_size + pool->trailer_size;
	const struct rte_memzone *zone;
	char name[RTE_MEMZONE_NAMESIZE];
	int result;

	snprintf(name, sizeof(name), "PG_%s", pool->name);
	zone = rte_memzone_reserve_aligned(name, pool->size * each, SOCKET_ID_ANY, 0, page);
	if (!zone)
		return rte_errno;
	result = rte_mempool_populate_virt(pool, zone->addr, zone->len, page, free_zone,
					   (void *)(uintptr_t)zone);
	if (result < 0) {
		rte_memzone_free(zone);
		return -result;
	}
	return (unsigned int)result == pool->size ? 0 : ENOMEM;
}

struct rte_mempool *urdma_pool_create_in_pages(const char *name, unsigned int buffers,
					       unsigned int cache, uint16_t room,
					       const char *ops_name)
{
	struct rte_pktmbuf_pool_private private = { 0 };
	/* Otherwise DPDK makes each buffer larger to spread them over the channels of memory. */
	const unsigned int flags = RTE_MEMPOOL_F_NO_SPREAD;
	size_t page = sysconf(_SC_PAGESIZE);
	uint32_t element = sizeof(struct rte_mbuf) + room;
	uint32_t octets = rte_mempool_calc_obj_size(element, flags, NULL);
	struct rte_mempool *pool;
	int result;

	element += RTE_ALIGN_CEIL(octets, page) - octets;
	private.mbuf_data_room_size = element - sizeof(struct rte_mbuf);
	pool = rte_mempool_create_empty(name, buffers, element, cache, sizeof(private),
					SOCKET_ID_ANY, flags);
	if (!pool)
		return NULL;
	result = -rte_mempool_set_ops_byname(pool, ops_name, NULL);
	if (result == 0) {
		rte_pktmbuf_pool_init(pool, &private);
		result = populate_pages(pool, page);
	}
	if (result != 0) {
		rte_mempool_free(pool);
		rte_errno = result;
		return NULL;
	}
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	return pool;
}

unsigned int urdma_pool_size(const struct rte_mempool *pool)
{
	return pool->size;
}

uint16_t urdma_pool_data_room(struct rte_mempool *pool)
{
	return rte_pktmbuf_data_room_size(pool);
}

int urdma_pool_bind(struct rte_mempool *pool, const char *ops_name)
{
	struct rte_mempool_ops_table *table = &rte_mempool_ops_table;
	int32_t theirs = pool->ops_index;
	uint32_t ours;

	if (theirs < 0 || theirs >= RTE_MEMPOOL_MAX_OPS_IDX)
		return -EINVAL;
	for (ours = 0; ours < table->num_ops; ours++)
		if (strcmp(table->ops[ours].name, ops_name) == 0)
			break;
	if (ours == table->num_ops)
		return -ENOENT;
	if ((uint32_t)theirs != ours)
		table->ops[theirs] = table->ops[ours];
	/*
	 * The entries in between have no functions and are never used, since this process uses only
	 * pools of the primary.
	 */
	if ((uint32_t)theirs >= table->num_ops)
		table->num_ops = theirs + 1;
	return 0;
}

struct rebuild {
	int result;
};

static void rebuild_one(struct rte_mempool *pool, void *argument, void *object, unsigned int index)
{
	struct rebuild *rebuild = argument;
	int result;

	rte_pktmbuf_init(pool, NULL, object, index);
	result = rte_mempool_ops_enqueue_bulk(pool, &object, 1);
	if (result != 0)
		rebuild->result = result;
}

int urdma_pool_rebuild(struct rte_mempool *pool)
{
	struct rebuild rebuild = { .result = 0 };
	unsigned int lcore;

	if (strcmp(rte_mempool_get_ops(pool->ops_index)->name, "ring_mp_mc") != 0)
		return -EINVAL;
	if (pool->cache_size != 0)
		for (lcore = 0; lcore < RTE_MAX_LCORE; lcore++)
			pool->local_cache[lcore].len = 0;
	rte_ring_reset(pool->pool_data);
	rte_mempool_obj_iter(pool, rebuild_one, &rebuild);
	return rebuild.result;
}

int urdma_flow_udp_port(uint16_t port, uint16_t udp_port, int ipv6, uint16_t queue,
			int validate_only, struct rte_flow **flow, char *message,
			size_t message_octets)
{
	struct rte_flow_attr attributes = { .ingress = 1 };
	struct rte_flow_item_udp udp = { .hdr.dst_port = rte_cpu_to_be_16(udp_port) };
	struct rte_flow_item_udp mask = { .hdr.dst_port = RTE_BE16(0xffff) };
	struct rte_flow_item pattern[] = {
		{ .type = RTE_FLOW_ITEM_TYPE_ETH },
		{ .type = ipv6 ? RTE_FLOW_ITEM_TYPE_IPV6 : RTE_FLOW_ITEM_TYPE_IPV4 },
		{ .type = RTE_FLOW_ITEM_TYPE_UDP, .spec = &udp, .mask = &mask },
		{ .type = RTE_FLOW_ITEM_TYPE_END },
	};
	struct rte_flow_action_queue target = { .index = queue };
	struct rte_flow_action actions[] = {
		{ .type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &target },
		{ .type = RTE_FLOW_ACTION_TYPE_END },
	};
	struct rte_flow_error error = { 0 };
	int result;

	result = rte_flow_validate(port, &attributes, pattern, actions, &error);
	if (result == 0 && !validate_only) {
		*flow = rte_flow_create(port, &attributes, pattern, actions, &error);
		if (*flow == NULL)
			result = rte_errno != 0 ? -rte_errno : -EIO;
	}
	if (result != 0 && message_octets != 0)
		snprintf(message, message_octets, "%s",
			 error.message != NULL ? error.message : rte_strerror(-result));
	return result;
}

int urdma_port_configure(uint16_t port, uint16_t rx_queues, uint16_t tx_queues, uint32_t mtu,
			 int rx_interrupts, uint8_t *key, uint8_t key_octets)
{
	struct rte_eth_conf configuration;

	memset(&configuration, 0, sizeof(configuration));
	configuration.rxmode.mtu = mtu;
	configuration.intr_conf.rxq = rx_interrupts != 0;
	if (key != NULL) {
		configuration.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		configuration.rx_adv_conf.rss_conf.rss_key = key;
		configuration.rx_adv_conf.rss_conf.rss_key_len = key_octets;
		configuration.rx_adv_conf.rss_conf.rss_hf = RTE_ETH_RSS_NONFRAG_IPV4_UDP;
	}
	return rte_eth_dev_configure(port, rx_queues, tx_queues, &configuration);
}

int urdma_port_spreading(uint16_t port, uint16_t *entries, uint8_t *key_octets)
{
	struct rte_eth_dev_info info;
	int result;

	*entries = 0;
	*key_octets = 0;
	result = rte_eth_dev_info_get(port, &info);
	if (result == 0 && (info.flow_type_rss_offloads & RTE_ETH_RSS_NONFRAG_IPV4_UDP) != 0) {
		*entries = info.reta_size;
		*key_octets = info.hash_key_size;
	}
	return result;
}

int urdma_port_redirect(uint16_t port, const uint16_t *queues, uint16_t entries)
{
	struct rte_eth_rss_reta_entry64 table[MAX_REDIRECT_ENTRIES / RTE_ETH_RETA_GROUP_SIZE];
	uint16_t entry;

	if (entries > MAX_REDIRECT_ENTRIES)
		return -EINVAL;
	memset(table, 0, sizeof(table));
	for (entry = 0; entry < entries; entry++) {
		struct rte_eth_rss_reta_entry64 *group = &table[entry / RTE_ETH_RETA_GROUP_SIZE];

		group->mask |= RTE_BIT64(entry % RTE_ETH_RETA_GROUP_SIZE);
		group->reta[entry % RTE_ETH_RETA_GROUP_SIZE] = queues[entry];
	}
	return rte_eth_dev_rss_reta_update(port, table, entries);
}

int urdma_port_start(uint16_t port)
{
	int result;

	enter();
	result = rte_eth_dev_start(port);
	if (port < RTE_MAX_ETHPORTS)
		stopped[port] = result != 0;
	leave();
	return result;
}

int urdma_port_stop(uint16_t port)
{
	int result;

	enter();
	result = rte_eth_dev_stop(port);
	if (port < RTE_MAX_ETHPORTS)
		stopped[port] = true;
	leave();
	return result;
}

int urdma_port_close(uint16_t port)
{
	int result;

	enter();
	result = rte_eth_dev_close(port);
	if (port < RTE_MAX_ETHPORTS)
		stopped[port] = true;
	leave();
	return result;
}

int urdma_port_link(uint16_t port, bool *up, uint32_t *megabits)
{
	struct rte_eth_link link;
	int result;

	memset(&link, 0, sizeof(link));
	result = rte_eth_link_get_nowait(port, &link);
	*up = result == 0 && link.link_status == RTE_ETH_LINK_UP;
	*megabits = link.link_speed;
	return result;
}

const char *urdma_port_driver(uint16_t port)
{
	struct rte_eth_dev_info info;

	if (rte_eth_dev_info_get(port, &info) != 0 || info.driver_name == NULL)
		return "";
	return info.driver_name;
}
