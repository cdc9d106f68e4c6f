// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Counters of the device (objects, counted here) and of its port (traffic, which urdmad knows), as
 * the core shows them in sysfs and by RDMA netlink.
 */
#include <rdma/ib_mad.h>
#include <rdma/ib_pma.h>

#include "urdma.h"

/* Where the attribute begins in the data of a PerfMgt MAD: after the reserved octets. */
#define URDMA_PMA_OFFSET 40

static const struct rdma_stat_desc urdma_device_descs[URDMA_COUNTERS] = {
	[URDMA_CONTEXTS] = { .name = "contexts" },
	[URDMA_PDS] = { .name = "pds" },
	[URDMA_MRS] = { .name = "mrs" },
	[URDMA_PINNED_PAGES] = { .name = "pinned_pages" },
	[URDMA_CQS] = { .name = "cqs" },
	[URDMA_QPS] = { .name = "qps" },
	[URDMA_SRQS] = { .name = "srqs" },
	[URDMA_CQ_EVENTS] = { .name = "cq_events" },
	[URDMA_QP_EVENTS] = { .name = "qp_events" },
	[URDMA_ENDPOINTS] = { .name = "cm_endpoints" },
};

/* Shown below hw_counters of the port, by rdma_rxe's names. */
enum urdma_port_stat {
	URDMA_SENT_PKTS,
	URDMA_RCVD_PKTS,
	URDMA_DUPLICATE_REQUEST,
	URDMA_OUT_OF_SEQ_REQUEST,
	URDMA_SEND_RNR_ERR,
	URDMA_RCVD_RNR_ERR,
	URDMA_PORT_STATS,
};

static const struct rdma_stat_desc urdma_port_descs[URDMA_PORT_STATS] = {
	[URDMA_SENT_PKTS] = { .name = "sent_pkts" },
	[URDMA_RCVD_PKTS] = { .name = "rcvd_pkts" },
	[URDMA_DUPLICATE_REQUEST] = { .name = "duplicate_request" },
	[URDMA_OUT_OF_SEQ_REQUEST] = { .name = "out_of_seq_request" },
	[URDMA_SEND_RNR_ERR] = { .name = "send_rnr_err" },
	[URDMA_RCVD_RNR_ERR] = { .name = "rcvd_rnr_err" },
};

struct rdma_hw_stats *urdma_alloc_hw_device_stats(struct ib_device *ib)
{
	/* No minimum time between two readings. */
	return rdma_alloc_hw_stats_struct(urdma_device_descs, URDMA_COUNTERS, 0);
}

struct rdma_hw_stats *urdma_alloc_hw_port_stats(struct ib_device *ib, u32 port)
{
	return rdma_alloc_hw_stats_struct(urdma_port_descs, URDMA_PORT_STATS, URDMA_LIFESPAN_MS);
}

static int urdma_get_device_stats(struct urdma_dev *dev, u64 *value)
{
	int i;

	for (i = 0; i < URDMA_COUNTERS; i++)
		value[i] = atomic64_read(&dev->counters[i]);
	return URDMA_COUNTERS;
}

static int urdma_get_port_stats(struct urdma_dev *dev, u64 *value)
{
	struct urdma_port_counters counters;

	urdma_agent_port_counters(dev, &counters);
	value[URDMA_SENT_PKTS] = counters.port_xmit_packets;
	value[URDMA_RCVD_PKTS] = counters.port_rcv_packets;
	value[URDMA_DUPLICATE_REQUEST] = counters.duplicate_request;
	value[URDMA_OUT_OF_SEQ_REQUEST] = counters.out_of_seq_request;
	value[URDMA_SEND_RNR_ERR] = counters.send_rnr_err;
	value[URDMA_RCVD_RNR_ERR] = counters.rcvd_rnr_err;
	return URDMA_PORT_STATS;
}

/* Those of the device for port 0. */
int urdma_get_hw_stats(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index)
{
	if (port)
		return urdma_get_port_stats(to_urdma_dev(ib), stats->value);
	return urdma_get_device_stats(to_urdma_dev(ib), stats->value);
}

/* The attribute has 16 bits for each, in which it stays at the highest value. */
static __be16 urdma_pma_be16(u64 value)
{
	return cpu_to_be16(min_t(u64, value, U16_MAX));
}

/* The counters of traffic are in the extended attribute, as its presence says. */
static void urdma_pma_counters(struct urdma_dev *dev, struct ib_pma_portcounters *to)
{
	struct urdma_port_counters counters;

	urdma_agent_port_counters(dev, &counters);
	to->port_rcv_errors = urdma_pma_be16(counters.port_rcv_errors);
	to->port_xmit_discards = urdma_pma_be16(counters.port_xmit_discards);
}

static void urdma_pma_counters_ext(struct urdma_dev *dev, struct ib_pma_portcounters_ext *to)
{
	struct urdma_port_counters counters;

	urdma_agent_port_counters(dev, &counters);
	to->port_xmit_data = cpu_to_be64(counters.port_xmit_data);
	to->port_rcv_data = cpu_to_be64(counters.port_rcv_data);
	to->port_xmit_packets = cpu_to_be64(counters.port_xmit_packets);
	to->port_rcv_packets = cpu_to_be64(counters.port_rcv_packets);
	to->port_unicast_xmit_packets = cpu_to_be64(counters.unicast_xmit_packets);
	to->port_unicast_rcv_packets = cpu_to_be64(counters.unicast_rcv_packets);
	to->port_multicast_xmit_packets = cpu_to_be64(counters.multicast_xmit_packets);
	to->port_multicast_rcv_packets = cpu_to_be64(counters.multicast_rcv_packets);
}

/*
 * Answers the PerfMgt queries from which the core makes the files in `counters`, the only queries
 * that it has for a port without MADs. `out` is zero.
 */
int urdma_process_mad(struct ib_device *ib, int flags, u32 port, const struct ib_wc *wc,
		      const struct ib_grh *grh, const struct ib_mad *in, struct ib_mad *out,
		      size_t *out_octets, u16 *out_pkey_index)
{
	struct urdma_dev *dev = to_urdma_dev(ib);
	void *attribute = out->data + URDMA_PMA_OFFSET;
	struct ib_class_port_info *info;

	if (in->mad_hdr.mgmt_class != IB_MGMT_CLASS_PERF_MGMT ||
	    in->mad_hdr.method != IB_MGMT_METHOD_GET)
		return IB_MAD_RESULT_FAILURE;
	switch (in->mad_hdr.attr_id) {
	case IB_PMA_CLASS_PORT_INFO:
		info = attribute;
		info->capability_mask = IB_PMA_CLASS_CAP_EXT_WIDTH;
		break;
	case IB_PMA_PORT_COUNTERS:
		urdma_pma_counters(dev, attribute);
		break;
	case IB_PMA_PORT_COUNTERS_EXT:
		urdma_pma_counters_ext(dev, attribute);
		break;
	default:
		return IB_MAD_RESULT_FAILURE;
	}
	return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
}
