#include "loopback.h"

#include <errno.h>
#include <string.h>

#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define ALL (IBV_ACCESS_LOCAL_WRITE | REMOTE)

struct ibv_qp *loopback_qp(struct end *e, enum ibv_qp_type type, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = e->cq,
		.recv_cq = e->cq,
		.srq = srq,
		.qp_type = type,
		.cap = { .max_send_wr = 4,
			 .max_recv_wr = 4,
			 .max_send_sge = SGES,
			 .max_recv_sge = SGES,
			 .max_inline_data = INLINE },
	};
	struct ibv_qp *qp = ibv_create_qp(e->pd, &attr);

	if (!qp)
		fail("ibv_create_qp: %s", strerror(errno));
	return qp;
}

void loopback_modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int error = ibv_modify_qp(qp, attr, mask | IBV_QP_STATE);

	if (error)
		fail("ibv_modify_qp to state %d: %s", attr->qp_state, strerror(error));
}

void loopback_go(struct ibv_qp *qp, enum ibv_qp_state state)
{
	loopback_modify(qp, &(struct ibv_qp_attr){ .qp_state = state }, 0);
}

void loopback_refuse(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (ibv_modify_qp(qp, attr, mask | IBV_QP_STATE) != EINVAL)
		fail("a step to state %d was taken", attr->qp_state);
}

static void start_datagrams(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qkey = LOOPBACK_QKEY };

	loopback_go(qp, IBV_QPS_RESET);
	loopback_modify(qp, &attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	loopback_go(qp, IBV_QPS_RTR);
	attr.qp_state = IBV_QPS_RTS;
	loopback_modify(qp, &attr, IBV_QP_SQ_PSN);
}

static void point_at(struct end *e, struct ibv_qp *qp, struct ibv_qp *peer, uint32_t psn)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = ALL };
	bool reliable = qp->qp_type == IBV_QPT_RC;

	if (qp->qp_type == IBV_QPT_UD) {
		start_datagrams(qp);
		return;
	}
	loopback_go(qp, IBV_QPS_RESET);
	loopback_modify(qp, &attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.rq_psn = psn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .sgid_index = 1, .hop_limit = 4 } },
	};
	if (ibv_query_gid(e->context, 1, 1, &attr.ah_attr.grh.dgid))
		fail("ibv_query_gid");
	loopback_modify(qp, &attr,
			IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				(reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 18, .retry_cnt = 7,
		.rnr_retry = 7, .max_rd_atomic = 1,
	};
	loopback_modify(qp, &attr,
			IBV_QP_SQ_PSN |
				(reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						    IBV_QP_MAX_QP_RD_ATOMIC
					  : 0));
}

void loopback_connect(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	/* Packets of the previous connection do not belong to this one. */
	static uint32_t psn;

	psn += 1000;
	point_at(e, a, b, psn);
	point_at(e, b, a, psn);
}

void loopback_open(struct end *e, int access, struct ibv_qp **a, struct ibv_qp **b)
{
	end_open(e, access);
	*a = loopback_qp(e, IBV_QPT_RC, NULL);
	*b = loopback_qp(e, IBV_QPT_RC, NULL);
	loopback_connect(e, *a, *b);
}

void loopback_close(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	loopback_destroy(a, b);
	end_close(e);
}

void loopback_destroy(struct ibv_qp *a, struct ibv_qp *b)
{
	if (ibv_destroy_qp(a) || ibv_destroy_qp(b))
		fail("ibv_destroy_qp");
}

struct ibv_recv_wr loopback_inbox(struct end *e, struct ibv_sge *sge)
{
	*sge = (struct ibv_sge){ .addr = (uintptr_t)e->region + INBOX,
				 .length = OCTETS,
				 .lkey = e->mr->lkey };
	return (struct ibv_recv_wr){ .wr_id = 2, .sg_list = sge, .num_sge = 1 };
}

void loopback_receive(struct end *e, struct ibv_qp *qp)
{
	struct ibv_sge sge;
	struct ibv_recv_wr wr = loopback_inbox(e, &sge), *bad;

	if (ibv_post_recv(qp, &wr, &bad))
		fail("ibv_post_recv");
}

int loopback_post(struct end *e, struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t lkey,
		  uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)e->region, .length = OCTETS, .lkey = lkey };
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)e->region + INBOX, .rkey = rkey },
	}, *bad;

	return ibv_post_send(qp, &wr, &bad);
}

void loopback_exchange(struct end *e, struct ibv_qp *a)
{
	if (loopback_post(e, a, IBV_WR_SEND, e->mr->lkey, 0))
		fail("ibv_post_send");
	end_expect(e, IBV_WC_SUCCESS);
	end_expect(e, IBV_WC_SUCCESS);
}

void loopback_raise(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	if (ibv_req_notify_cq(e->cq, 0))
		fail("ibv_req_notify_cq");
	loopback_receive(e, b);
	loopback_exchange(e, a);
}

bool loopback_take(struct end *e)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(e->channel, &cq, &context))
		return false;
	ibv_ack_cq_events(cq, 1);
	return true;
}
