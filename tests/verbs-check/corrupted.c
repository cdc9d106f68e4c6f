/*
 * corrupted: the peer is no verbs program (urdma-hostile), and writes a cell that ends its channel.
 * What is connected to it fails; what is connected to others, here to this process itself, does
 * not.
 */
#include "loopback.h"
#include "scenarios.h"

#include <errno.h>
#include <string.h>

static void write_to_peer(struct end *e)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
	int error = end_send(e, &wr, 0, 64, e->mr->lkey);

	if (error)
		fail("ibv_post_send: %s", strerror(error));
}

/* A process that has broken the rules is not connected to again, and its victim stays attached. */
static void refuse_peer(struct end *e)
{
	struct ibv_qp_attr address, attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_init_attr init;
	int error;

	if (ibv_query_qp(e->qp, &address, IBV_QP_AV, &init))
		fail("ibv_query_qp");
	loopback_go(e->qp, IBV_QPS_RESET);
	loopback_modify(e->qp, &attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = e->peer.qpn,
		.rq_psn = 1,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = address.ah_attr,
	};
	error = ibv_modify_qp(e->qp, &attr,
			      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				      IBV_QP_MIN_RNR_TIMER);
	if (error != EHOSTUNREACH)
		fail("another connection to the peer: %s", strerror(error));
}

void corrupted_client(struct end *e)
{
	struct ibv_qp *a = loopback_qp(e, IBV_QPT_RC, NULL), *b = loopback_qp(e, IBV_QPT_RC, NULL);

	loopback_connect(e, a, b);
	loopback_receive(e, b);
	loopback_exchange(e, a);
	write_to_peer(e);
	end_meet(e);
	end_expect(e, IBV_WC_RETRY_EXC_ERR);
	end_expect_state(e->qp, IBV_QPS_ERR);
	end_meet(e);
	loopback_receive(e, b);
	loopback_exchange(e, a);
	refuse_peer(e);
	loopback_receive(e, b);
	loopback_exchange(e, a);
	end_meet(e);
	loopback_destroy(a, b);
}
