/* SPDX-License-Identifier: GPL-2.0 OR MIT */
#ifndef URDMA_MODULE_H
#define URDMA_MODULE_H

#include <linux/completion.h>
#include <linux/list.h>
#include <linux/netdevice.h>
#include <linux/refcount.h>
#include <linux/spinlock.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/xarray.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

#include "../uapi/urdma.h"

/* Highest queue pair number. */
#define URDMA_QPN_MAX 0xffffff

/* Counters of the port are read again after this time. */
#define URDMA_LIFESPAN_MS 10

/* Counted per device and shown below its hw_counters. */
enum urdma_counter {
	URDMA_CONTEXTS,
	URDMA_PDS,
	URDMA_MRS,
	URDMA_PINNED_PAGES,
	URDMA_CQS,
	URDMA_QPS,
	URDMA_SRQS,
	URDMA_CQ_EVENTS,
	URDMA_QP_EVENTS,
	URDMA_ENDPOINTS,
	URDMA_COUNTERS,
};

struct urdma_agent;
struct urdma_ep;
struct iw_cm_conn_param;
struct iw_cm_id;

/* An RDMA device over a network device. */
struct urdma_dev {
	struct ib_device ib;
	struct net_device *netdev;
	/* Among all devices; guarded by a lock of main.c. */
	struct list_head list;
	/* Queue pairs by number. An entry holds a reference. */
	struct xarray qps;
	/* Listeners and connections by number. */
	struct xarray eps;
	u32 next_ep;
	/* Guards eps, the endpoints in it, and the ep of every queue pair. */
	spinlock_t cm_lock;
	atomic64_t counters[URDMA_COUNTERS];
	/* The agent that serves the device, or NULL; under urdma_agents_lock. */
	struct urdma_agent *agent;
	/* Woken when the agent has given the counters of the port, and when it is gone. */
	wait_queue_head_t counted;
};

struct urdma_context {
	struct ib_ucontext ib;
};

struct urdma_pd {
	struct ib_pd ib;
};

/* The unread events of an object that the module has raised (events.c). */
struct urdma_unread {
	/* Guards `raised`, and makes its check and the event one step. */
	spinlock_t lock;
	/* Of uverbs; empty if all have been read. */
	const struct list_head *list;
	/* Events since the list was found empty: at least as many as are unread. */
	unsigned int raised;
};

struct urdma_cq {
	struct ib_cq ib;
	struct urdma_unread unread;
};

struct urdma_srq {
	struct ib_srq ib;
	struct urdma_unread unread;
};

struct urdma_mr {
	struct ib_mr ib;
	struct ib_umem *umem;
};

struct urdma_qp {
	struct ib_qp ib;
	struct urdma_unread unread;
	/* Held by the entry in qps, its connection, iw_cm, and users of urdma_qp_find. */
	refcount_t refs;
	/* Completed when the last reference is dropped. */
	struct completion unused;
	/* The user of the process that created it. */
	kuid_t owner;
	/* Its connection; under cm_lock. */
	struct urdma_ep *ep;
	/* It is being destroyed and gets no connection any more; under cm_lock. */
	bool is_gone;
};

/* A message queued for urdmad. */
struct urdma_note {
	struct list_head list;
	struct urdma_cm_message message;
};

static inline struct urdma_dev *to_urdma_dev(struct ib_device *ib)
{
	return container_of(ib, struct urdma_dev, ib);
}

static inline void urdma_count(struct ib_device *ib, enum urdma_counter which, long by)
{
	atomic64_add(by, &to_urdma_dev(ib)->counters[which]);
}

/* main.c */
struct urdma_dev *urdma_dev_find(const char *name);
void urdma_dev_gone(struct urdma_dev *dev);
void urdma_dev_port_event(struct urdma_dev *dev);
void urdma_dev_gid_event(struct urdma_dev *dev);

/* verbs.c */
extern const struct ib_device_ops urdma_device_ops;
struct urdma_qp *urdma_qp_find(struct urdma_dev *dev, u32 qpn);
void urdma_qp_put(struct urdma_qp *qp);

/* events.c */
extern const struct uapi_definition urdma_uapi_definitions[];
int urdma_cq_events_init(struct urdma_cq *cq);
int urdma_srq_events_init(struct urdma_srq *srq);
int urdma_qp_events_init(struct urdma_qp *qp);

/* counters.c */
struct rdma_hw_stats *urdma_alloc_hw_device_stats(struct ib_device *ib);
struct rdma_hw_stats *urdma_alloc_hw_port_stats(struct ib_device *ib, u32 port);
int urdma_get_hw_stats(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index);
int urdma_process_mad(struct ib_device *ib, int flags, u32 port, const struct ib_wc *wc,
		      const struct ib_grh *grh, const struct ib_mad *in, struct ib_mad *out,
		      size_t *out_octets, u16 *out_pkey_index);

/* agent.c */
int urdma_agent_init(void);
void urdma_agent_exit(void);
bool urdma_agent_is_there(struct urdma_dev *dev);
int urdma_agent_run_dir(struct urdma_dev *dev, u8 run_dir[URDMA_RUN_DIR_OCTETS]);
void urdma_agent_gid(struct urdma_dev *dev, unsigned int index, u8 gid[16]);
bool urdma_agent_grants(struct urdma_dev *dev, u32 qpn);
void urdma_agent_port_counters(struct urdma_dev *dev, struct urdma_port_counters *counters);
u32 urdma_agent_pid(struct urdma_dev *dev);
int urdma_agent_send(struct urdma_dev *dev, struct urdma_note *note);
void urdma_agent_dev_gone(struct urdma_dev *dev);

/* cm.c */
int urdma_iw_connect(struct iw_cm_id *cm_id, struct iw_cm_conn_param *param);
int urdma_iw_accept(struct iw_cm_id *cm_id, struct iw_cm_conn_param *param);
int urdma_iw_reject(struct iw_cm_id *cm_id, const void *data, u8 len);
int urdma_iw_create_listen(struct iw_cm_id *cm_id, int backlog);
int urdma_iw_destroy_listen(struct iw_cm_id *cm_id);
void urdma_cm_disconnect(struct urdma_qp *qp);
void urdma_cm_qp_gone(struct urdma_qp *qp);
void urdma_cm_agent_gone(struct urdma_dev *dev);
int urdma_cm_take(struct urdma_dev *dev, const struct urdma_cm_message *message);

#endif
