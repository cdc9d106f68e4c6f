// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The device's objects. The engine in the process does the work. An object here records existence,
 * owner and pinned pages, so that the kernel cleans up after a process and connection management
 * finds queue pairs. Input from user space is copied once and then validated.
 */
#include <linux/module.h>
#include <net/addrconf.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/iw_cm.h>
#include <rdma/uverbs_ioctl.h>

#include "compat.h"
#include "urdma.h"

/* The supported access flags of regions. */
#define URDMA_MR_ACCESS (IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ | \
			 IB_ACCESS_REMOTE_ATOMIC | IB_ACCESS_MW_BIND | IB_ACCESS_OPTIONAL)

/* As in ibv_mtu; it does not limit what urdmad sends. */
static enum ib_mtu urdma_mtu(const struct net_device *netdev)
{
	return ib_mtu_int_to_enum(READ_ONCE(netdev->mtu));
}

static int urdma_query_device(struct ib_device *ib, struct ib_device_attr *attr,
			      struct ib_udata *udata)
{
	if (udata && (udata->inlen || udata->outlen))
		return -EINVAL;
	memset(attr, 0, sizeof(*attr));
	/* Enables `rdma link delete`. */
	attr->kernel_cap_flags = IBK_ALLOW_USER_UNREG;
	attr->sys_image_guid = ib->node_guid;
	attr->max_mr_size = U64_MAX;
	attr->page_size_cap = PAGE_SIZE;
	attr->max_qp = URDMA_QPN_MAX;
	attr->max_qp_wr = 16384;
	attr->max_send_sge = 16;
	attr->max_recv_sge = 16;
	attr->max_cq = 1 << 20;
	attr->max_cqe = 1 << 20;
	attr->max_mr = 1 << 20;
	attr->max_pd = 1 << 16;
	attr->max_srq = 1 << 16;
	attr->max_srq_wr = 16384;
	attr->max_srq_sge = 16;
	attr->max_qp_rd_atom = 128;
	attr->max_qp_init_rd_atom = 128;
	return 0;
}

static int urdma_query_port(struct ib_device *ib, u32 port, struct ib_port_attr *attr)
{
	struct urdma_dev *dev = to_urdma_dev(ib);
	bool is_up = netif_running(dev->netdev) && netif_carrier_ok(dev->netdev) &&
		     urdma_agent_is_there(dev);

	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = urdma_mtu(dev->netdev);
	attr->phys_mtu = READ_ONCE(dev->netdev->mtu);
	attr->state = is_up ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = is_up ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_DISABLED;
	attr->port_cap_flags = IB_PORT_CM_SUP | IB_PORT_DEVICE_MGMT_SUP;
	attr->gid_tbl_len = 1 + URDMA_GIDS;
	attr->max_msg_sz = U32_MAX;
	/* As other software devices report; the speed of the carrier is unknown. */
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_QDR;
	return 0;
}

static int urdma_get_port_immutable(struct ib_device *ib, u32 port,
				    struct ib_port_immutable *immutable)
{
	immutable->gid_tbl_len = 1 + URDMA_GIDS;
	immutable->core_cap_flags = RDMA_CORE_PORT_IWARP;
	return 0;
}

/* GID 0 of an RNIC is its Ethernet address, by which rdma_cm finds it. The engine's GIDs follow. */
static int urdma_query_gid(struct ib_device *ib, u32 port, int index, union ib_gid *gid)
{
	struct urdma_dev *dev = to_urdma_dev(ib);

	if (index > 0) {
		urdma_agent_gid(dev, index - 1, gid->raw);
	} else {
		memset(gid, 0, sizeof(*gid));
		memcpy(gid->raw, dev->netdev->dev_addr, ETH_ALEN);
	}
	return 0;
}

static int urdma_alloc_ucontext(struct ib_ucontext *ib, struct ib_udata *udata)
{
	struct urdma_context_answer answer = { .abi = URDMA_KERNEL_ABI };
	int ret;

	if (udata->outlen < sizeof(answer))
		return -EINVAL;
	ret = urdma_agent_run_dir(to_urdma_dev(ib->device), answer.run_dir);
	if (ret)
		return ret;
	ret = ib_copy_to_udata(udata, &answer, sizeof(answer));
	if (!ret)
		urdma_count(ib->device, URDMA_CONTEXTS, 1);
	return ret;
}

static void urdma_dealloc_ucontext(struct ib_ucontext *ib)
{
	urdma_count(ib->device, URDMA_CONTEXTS, -1);
}

/* Its existence allows the device to be removed while contexts are open. */
static void urdma_disassociate_ucontext(struct ib_ucontext *ib)
{
}

static int urdma_alloc_pd(struct ib_pd *ib, struct ib_udata *udata)
{
	urdma_count(ib->device, URDMA_PDS, 1);
	return 0;
}

static int urdma_dealloc_pd(struct ib_pd *ib, struct ib_udata *udata)
{
	urdma_count(ib->device, URDMA_PDS, -1);
	return 0;
}

/*
 * Pins the pages, so that they are present when the engine accesses them by address; ib_umem_get
 * accounts them to the process.
 */
static struct ib_mr *urdma_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 iova,
				       int access, URDMA_DMAH_ARGUMENT struct ib_udata *udata)
{
	struct urdma_reg_mr request;
	struct urdma_mr *mr;
	int ret;

	if (URDMA_DMAH_GIVEN)
		return ERR_PTR(-EOPNOTSUPP);
	if (!udata || udata->inlen < sizeof(request))
		return ERR_PTR(-EINVAL);
	ret = ib_copy_from_udata(&request, udata, sizeof(request));
	if (ret)
		return ERR_PTR(ret);
	if (request.reserved || !length || access & ~URDMA_MR_ACCESS)
		return ERR_PTR(-EINVAL);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->umem = urdma_umem_get(pd->device, start, length, access);
	if (IS_ERR(mr->umem)) {
		ret = PTR_ERR(mr->umem);
		kfree(mr);
		return ERR_PTR(ret);
	}
	mr->ib.lkey = request.key;
	mr->ib.rkey = request.key;
	urdma_count(pd->device, URDMA_MRS, 1);
	urdma_count(pd->device, URDMA_PINNED_PAGES, ib_umem_num_pages(mr->umem));
	return &mr->ib;
}

static int urdma_dereg_mr(struct ib_mr *ib, struct ib_udata *udata)
{
	struct urdma_mr *mr = container_of(ib, struct urdma_mr, ib);

	urdma_count(ib->device, URDMA_MRS, -1);
	urdma_count(ib->device, URDMA_PINNED_PAGES, -(long)ib_umem_num_pages(mr->umem));
	ib_umem_release(mr->umem);
	kfree(mr);
	return 0;
}

static int urdma_create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr,
			   struct urdma_cq_caller *caller)
{
	int ret;

	if (!caller)
		return -EOPNOTSUPP;
	if (attr->flags & ~IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN || !attr->cqe)
		return -EINVAL;
	ret = urdma_cq_events_init(container_of(ib, struct urdma_cq, ib));
	if (ret)
		return ret;
	ib->cqe = attr->cqe;
	urdma_count(ib->device, URDMA_CQS, 1);
	return 0;
}

static int urdma_destroy_cq(struct ib_cq *ib, struct ib_udata *udata)
{
	urdma_count(ib->device, URDMA_CQS, -1);
	return 0;
}

static int urdma_create_srq(struct ib_srq *ib, struct ib_srq_init_attr *attr,
			    struct ib_udata *udata)
{
	int ret;

	if (!udata || attr->srq_type != IB_SRQT_BASIC)
		return -EOPNOTSUPP;
	ret = urdma_srq_events_init(container_of(ib, struct urdma_srq, ib));
	if (ret)
		return ret;
	urdma_count(ib->device, URDMA_SRQS, 1);
	return 0;
}

static int urdma_destroy_srq(struct ib_srq *ib, struct ib_udata *udata)
{
	urdma_count(ib->device, URDMA_SRQS, -1);
	return 0;
}

static int urdma_create_qp(struct ib_qp *ib, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	struct urdma_qp *qp = container_of(ib, struct urdma_qp, ib);
	struct urdma_create_qp request;
	int ret;

	if (!udata || attr->qp_type != IB_QPT_RC || attr->create_flags)
		return -EOPNOTSUPP;
	if (udata->inlen < sizeof(request))
		return -EINVAL;
	ret = ib_copy_from_udata(&request, udata, sizeof(request));
	if (ret)
		return ret;
	if (request.reserved || !request.qpn || request.qpn > URDMA_QPN_MAX)
		return -EINVAL;
	if (!urdma_agent_grants(to_urdma_dev(ib->device), request.qpn))
		return -EPERM;
	ret = urdma_qp_events_init(qp);
	if (ret)
		return ret;
	refcount_set(&qp->refs, 1);
	init_completion(&qp->unused);
	qp->owner = current_euid();
	ib->qp_num = request.qpn;
	/* -EBUSY if another queue pair has the number. */
	ret = xa_insert(&to_urdma_dev(ib->device)->qps, request.qpn, qp, GFP_KERNEL);
	if (!ret)
		urdma_count(ib->device, URDMA_QPS, 1);
	return ret;
}

/* The queue pair with this number, with a reference (urdma_qp_put); NULL if there is none. */
struct urdma_qp *urdma_qp_find(struct urdma_dev *dev, u32 qpn)
{
	struct urdma_qp *qp;

	/* The entry's reference lasts until urdma_destroy_qp has replaced the entry. */
	xa_lock(&dev->qps);
	qp = xa_load(&dev->qps, qpn);
	if (qp)
		refcount_inc(&qp->refs);
	xa_unlock(&dev->qps);
	return qp;
}

void urdma_qp_put(struct urdma_qp *qp)
{
	if (refcount_dec_and_test(&qp->refs))
		complete(&qp->unused);
}

/*
 * A thread that has found the queue pair before may use it and its number until it drops its
 * reference. The number is therefore free only after that; until then a look-up finds nothing.
 */
static int urdma_destroy_qp(struct ib_qp *ib, struct ib_udata *udata)
{
	struct urdma_qp *qp = container_of(ib, struct urdma_qp, ib);
	struct xarray *qps = &to_urdma_dev(ib->device)->qps;

	/* The entry exists, so this allocates nothing. */
	xa_store(qps, ib->qp_num, XA_ZERO_ENTRY, GFP_KERNEL);
	urdma_cm_qp_gone(qp);
	urdma_qp_put(qp);
	wait_for_completion(&qp->unused);
	xa_erase(qps, ib->qp_num);
	urdma_count(ib->device, URDMA_QPS, -1);
	return 0;
}

/*
 * Takes the reference that iw_cm requests with iw_add_ref right afterwards: between the two calls
 * nothing else holds the queue pair.
 */
static struct ib_qp *urdma_iw_get_qp(struct ib_device *ib, int qpn)
{
	struct urdma_qp *qp = urdma_qp_find(to_urdma_dev(ib), qpn);

	return qp ? &qp->ib : NULL;
}

static void urdma_iw_add_ref(struct ib_qp *ib)
{
}

static void urdma_iw_rem_ref(struct ib_qp *ib)
{
	urdma_qp_put(container_of(ib, struct urdma_qp, ib));
}

/* User space changes states itself; only iw_cm calls this, to end a connection. */
static int urdma_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
			   struct ib_udata *udata)
{
	if (udata)
		return -EOPNOTSUPP;
	if (mask & IB_QP_STATE && (attr->qp_state == IB_QPS_SQD || attr->qp_state == IB_QPS_ERR))
		urdma_cm_disconnect(container_of(ib, struct urdma_qp, ib));
	return 0;
}

/*
 * There are no kernel users. The core requires the operations before it lets rdma_cm use a device.
 */
static struct ib_mr *urdma_get_dma_mr(struct ib_pd *pd, int access)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static int urdma_poll_cq(struct ib_cq *ib, int count, struct ib_wc *wc)
{
	return 0;
}

static int urdma_req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags flags)
{
	return -EOPNOTSUPP;
}

static int urdma_post_send(struct ib_qp *ib, const struct ib_send_wr *wr,
			   const struct ib_send_wr **bad)
{
	*bad = wr;
	return -EOPNOTSUPP;
}

static int urdma_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr,
			   const struct ib_recv_wr **bad)
{
	*bad = wr;
	return -EOPNOTSUPP;
}

static void urdma_dealloc_driver(struct ib_device *ib)
{
	struct urdma_dev *dev = to_urdma_dev(ib);

	urdma_dev_gone(dev);
	urdma_agent_dev_gone(dev);
	WARN_ON(!xa_empty(&dev->qps));
	xa_destroy(&dev->qps);
	WARN_ON(!xa_empty(&dev->eps));
	xa_destroy(&dev->eps);
}

const struct ib_device_ops urdma_device_ops = {
	.owner = THIS_MODULE,
	.driver_id = URDMA_DRIVER_ID,
	.uverbs_abi_ver = URDMA_KERNEL_ABI,

	.alloc_hw_device_stats = urdma_alloc_hw_device_stats,
	.alloc_hw_port_stats = urdma_alloc_hw_port_stats,
	.alloc_pd = urdma_alloc_pd,
	.alloc_ucontext = urdma_alloc_ucontext,
	.create_cq = urdma_create_cq,
	.create_qp = urdma_create_qp,
	.create_srq = urdma_create_srq,
	.dealloc_driver = urdma_dealloc_driver,
	.dealloc_pd = urdma_dealloc_pd,
	.dealloc_ucontext = urdma_dealloc_ucontext,
	.dereg_mr = urdma_dereg_mr,
	.destroy_cq = urdma_destroy_cq,
	.destroy_qp = urdma_destroy_qp,
	.destroy_srq = urdma_destroy_srq,
	.disassociate_ucontext = urdma_disassociate_ucontext,
	.get_dma_mr = urdma_get_dma_mr,
	.get_hw_stats = urdma_get_hw_stats,
	.get_port_immutable = urdma_get_port_immutable,
	.iw_accept = urdma_iw_accept,
	.iw_add_ref = urdma_iw_add_ref,
	.iw_connect = urdma_iw_connect,
	.iw_create_listen = urdma_iw_create_listen,
	.iw_destroy_listen = urdma_iw_destroy_listen,
	.iw_get_qp = urdma_iw_get_qp,
	.iw_reject = urdma_iw_reject,
	.iw_rem_ref = urdma_iw_rem_ref,
	.modify_qp = urdma_modify_qp,
	.poll_cq = urdma_poll_cq,
	.post_recv = urdma_post_recv,
	.post_send = urdma_post_send,
	.process_mad = urdma_process_mad,
	.query_device = urdma_query_device,
	.query_gid = urdma_query_gid,
	.query_port = urdma_query_port,
	.reg_user_mr = urdma_reg_user_mr,
	.req_notify_cq = urdma_req_notify_cq,
	URDMA_CREATE_USER_CQ(urdma_create_cq)

	INIT_RDMA_OBJ_SIZE(ib_cq, urdma_cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, urdma_pd, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, urdma_qp, ib),
	INIT_RDMA_OBJ_SIZE(ib_srq, urdma_srq, ib),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, urdma_context, ib),
};
