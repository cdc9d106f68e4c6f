#include "dc.h"

#include <errno.h>
#include <string.h>

struct ibv_qp_init_attr_ex dc_attributes(struct end *e, enum urdmadv_dc_type type,
					 struct ibv_srq *srq)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = e->cq, .recv_cq = e->cq, .srq = srq, .qp_type = IBV_QPT_DRIVER,
		.pd = e->pd, .comp_mask = IBV_QP_INIT_ATTR_PD,
		.cap = { .max_send_wr = DC_DEPTH, .max_send_sge = 2, .max_inline_data = 64 },
	};

	if (type == URDMADV_DCTYPE_DCI) {
		attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		attr.send_ops_flags = DC_CALLS;
	}
	return attr;
}

struct urdmadv_qp_init_attr dc_role(enum urdmadv_dc_type type)
{
	return (struct urdmadv_qp_init_attr){
		.comp_mask = URDMADV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = type, .dct_access_key = DC_KEY },
	};
}

static struct ibv_qp *create(struct end *e, enum urdmadv_dc_type type, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr_ex attr = dc_attributes(e, type, srq);
	struct urdmadv_qp_init_attr role = dc_role(type);
	struct ibv_qp *qp = urdmadv_create_qp(e->context, &attr, &role);

	if (!qp)
		fail("urdmadv_create_qp: %s: %s", strerror(errno), urdmadv_last_error(e->context));
	if (urdmadv_last_error(e->context))
		fail("a reason for a success: %s", urdmadv_last_error(e->context));
	return qp;
}

void dc_go(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	int error = ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE);

	if (error)
		fail("ibv_modify_qp to state %d: %s: %s", attr.qp_state, strerror(error),
		     urdmadv_last_error(qp->context));
	end_expect_state(qp, attr.qp_state);
}

void dc_refuse(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	if (ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE) != EINVAL)
		fail("a step to state %d was taken", attr.qp_state);
	if (!urdmadv_last_error(qp->context))
		fail("no reason why a step to state %d was refused", attr.qp_state);
}

struct target dc_target(struct end *e)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = DC_DEPTH, .max_sge = 1 } };
	struct target t = { .srq = ibv_create_srq(e->pd, &attr) };

	if (!t.srq)
		fail("ibv_create_srq: %s", strerror(errno));
	t.qp = create(e, URDMADV_DCTYPE_DCT, t.srq);
	return t;
}

void dc_target_ready(struct target *t)
{
	dc_go(t->qp,
	      (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = DC_RIGHTS },
	      IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	/* As programs of mlx5dv do: the address vector names no peer. */
	dc_go(t->qp,
	      (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
				    .min_rnr_timer = 12,
				    .ah_attr = { .is_global = 1, .port_num = 1,
						 .grh = { .sgid_index = 1, .hop_limit = 64 } } },
	      IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV);
}

struct initiator dc_initiator(struct end *e)
{
	struct initiator i = { .qp = create(e, URDMADV_DCTYPE_DCI, NULL) };

	i.ex = ibv_qp_to_qp_ex(i.qp);
	if (!i.ex)
		fail("an initiator without extended calls");
	i.dv = urdmadv_qp_ex_from_ibv_qp_ex(i.ex);
	if (!i.dv)
		fail("an initiator without calls of urdmadv");
	return i;
}

void dc_initiator_ready(struct initiator *i, uint8_t timeout)
{
	dc_go(i->qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 },
	      IBV_QP_PKEY_INDEX | IBV_QP_PORT);
	dc_go(i->qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024 },
	      IBV_QP_PATH_MTU);
	dc_go(i->qp,
	      (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = timeout, .retry_cnt = 7,
				    .rnr_retry = 7, .max_rd_atomic = 4 },
	      IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		      IBV_QP_MAX_QP_RD_ATOMIC);
}

void dc_destroy_target(struct target *t)
{
	if (ibv_destroy_srq(t->srq) != EBUSY)
		fail("a shared receive queue was destroyed before its target");
	if (ibv_destroy_qp(t->qp) || ibv_destroy_srq(t->srq))
		fail("a target could not be destroyed: %s", strerror(errno));
}

void dc_destroy_initiator(struct initiator *i)
{
	if (ibv_destroy_qp(i->qp))
		fail("an initiator could not be destroyed: %s", strerror(errno));
}

struct ibv_ah *dc_handle(struct end *e, const union ibv_gid *gid)
{
	struct ibv_ah_attr attr = {
		.is_global = 1, .port_num = 1,
		.grh = { .dgid = *gid, .sgid_index = 1, .hop_limit = 64 },
	};
	struct ibv_ah *ah = ibv_create_ah(e->pd, &attr);

	if (!ah)
		fail("ibv_create_ah: %s", strerror(errno));
	return ah;
}

void dc_receive(struct end *e, struct target *t, uint64_t wr_id, size_t offset, uint32_t length)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)e->region + offset, .length = length, .lkey = e->mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	int error = ibv_post_srq_recv(t->srq, &wr, &bad);

	if (error)
		fail("ibv_post_srq_recv: %s", strerror(error));
}

int dc_post(struct end *e, struct initiator *i, const struct name *to, uint64_t wr_id,
	    enum ibv_wr_opcode opcode, size_t offset, uint32_t length)
{
	ibv_wr_start(i->ex);
	i->ex->wr_id = wr_id;
	i->ex->wr_flags = IBV_SEND_SIGNALED;
	if (opcode == IBV_WR_SEND)
		ibv_wr_send(i->ex);
	else if (opcode == IBV_WR_SEND_WITH_IMM)
		ibv_wr_send_imm(i->ex, htobe32(0x01020304));
	else if (opcode == IBV_WR_RDMA_WRITE)
		ibv_wr_rdma_write(i->ex, to->rkey, to->addr);
	else if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		ibv_wr_rdma_write_imm(i->ex, to->rkey, to->addr, htobe32(0x01020304));
	else if (opcode == IBV_WR_RDMA_READ)
		ibv_wr_rdma_read(i->ex, to->rkey, to->addr);
	else if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
		ibv_wr_atomic_cmp_swp(i->ex, to->rkey, to->addr, 7, 9);
	else if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		ibv_wr_atomic_fetch_add(i->ex, to->rkey, to->addr, 7);
	else if (opcode == IBV_WR_SEND_WITH_INV)
		ibv_wr_send_inv(i->ex, 1);
	else
		fail("opcode %d is not for initiators", opcode);
	if (to->ah)
		urdmadv_wr_set_dc_addr(i->dv, to->ah, to->number, to->key);
	ibv_wr_set_sge(i->ex, e->mr->lkey, (uintptr_t)e->region + offset, length);
	return ibv_wr_complete(i->ex);
}
