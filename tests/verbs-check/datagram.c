/*
 * Unreliable datagrams as a program sees them: two queue pairs of one process, address handles from
 * a GID and from what came in.
 */
#include "scenarios.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QKEY 0x11111111u
#define GRH 40u
#define ALL (IBV_ACCESS_LOCAL_WRITE)

static struct ibv_qp *datagram_qp(struct end *e)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = e->cq,
		.recv_cq = e->cq,
		.qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 8,
			 .max_recv_wr = 8,
			 .max_send_sge = 2,
			 .max_recv_sge = 2,
			 .max_inline_data = 64 },
	};
	struct ibv_qp_attr step = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ibv_qp *qp = ibv_create_qp(e->pd, &attr);

	if (!qp)
		fail("a datagram queue pair: %s", strerror(errno));
	if (ibv_modify_qp(qp, &step, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT) != EINVAL)
		fail("INIT without a Q_Key was allowed");
	if (ibv_modify_qp(qp, &step, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		fail("to INIT");
	step.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &step, IBV_QP_STATE))
		fail("to RTR");
	step.qp_state = IBV_QPS_RTS;
	step.sq_psn = 77;
	if (ibv_modify_qp(qp, &step, IBV_QP_STATE | IBV_QP_SQ_PSN))
		fail("to RTS");
	return qp;
}

static void expect_attributes(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	if (ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_QKEY, &init))
		fail("ibv_query_qp");
	if (attr.qp_state != IBV_QPS_RTS || attr.qkey != QKEY || attr.sq_psn != 77 ||
	    init.qp_type != IBV_QPT_UD)
		fail("ibv_query_qp says state %d, Q_Key %#x, PSN %u, type %d", attr.qp_state,
		     attr.qkey, attr.sq_psn, init.qp_type);
}

static void receive_octets(struct end *e, struct ibv_qp *qp, uint64_t id, size_t offset,
			   uint32_t octets)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)e->region + offset, .length = octets, .lkey = e->mr->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	int error = ibv_post_recv(qp, &wr, &bad);

	if (error)
		fail("ibv_post_recv: %s", strerror(error));
}

static void receive(struct end *e, struct ibv_qp *qp, uint64_t id, size_t offset)
{
	receive_octets(e, qp, id, offset, 8192);
}

static int post(struct end *e, struct ibv_qp *qp, struct ibv_ah *ah, uint32_t to, uint32_t length,
		enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { .addr = (uintptr_t)e->region,
			       .length = length,
			       .lkey = e->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htonl(0x01020304),
		.wr.ud = { .ah = ah, .remote_qpn = to, .remote_qkey = QKEY },
	}, *bad;

	return ibv_post_send(qp, &wr, &bad);
}

/*
 * Waits for the completions of a send and of its receive, in either order; returns the receive's.
 */
static struct ibv_wc exchanged(struct end *e)
{
	struct ibv_wc first = end_expect(e, IBV_WC_SUCCESS), second = end_expect(e, IBV_WC_SUCCESS);

	return first.opcode == IBV_WC_RECV ? first : second;
}

/*
 * A failed send stops the send queue, not the receive queue; the application moves the queue pair
 * out of SQE.
 */
static void send_error(struct end *e, struct ibv_qp *a, struct ibv_qp *b, struct ibv_ah *ah)
{
	struct ibv_qp_attr back = { .qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE };

	if (post(e, a, ah, b->qp_num, 4097, IBV_WR_SEND))
		fail("ibv_post_send of a long message");
	end_expect(e, IBV_WC_LOC_LEN_ERR);
	end_expect_state(a, IBV_QPS_SQE);
	if (post(e, a, ah, b->qp_num, 1, IBV_WR_SEND))
		fail("a request in SQE was refused");
	end_expect(e, IBV_WC_WR_FLUSH_ERR);
	receive(e, a, 4, 8192);
	if (post(e, b, ah, a->qp_num, 1, IBV_WR_SEND))
		fail("ibv_post_send");
	exchanged(e);
	if (ibv_modify_qp(a, &back, IBV_QP_STATE | IBV_QP_CUR_STATE))
		fail("from SQE to RTS");
	receive(e, b, 5, 8192);
	if (post(e, a, ah, b->qp_num, 1, IBV_WR_SEND))
		fail("ibv_post_send after SQE");
	exchanged(e);
}

/* A message that is longer than the receive request is dropped; the request serves the next one. */
static void too_long(struct end *e, struct ibv_qp *a, struct ibv_qp *b, struct ibv_ah *ah)
{
	struct ibv_wc wc;

	receive_octets(e, b, 6, 8192, GRH + 3);
	if (post(e, a, ah, b->qp_num, 4, IBV_WR_SEND))
		fail("ibv_post_send");
	end_expect(e, IBV_WC_SUCCESS);
	if (post(e, a, ah, b->qp_num, 3, IBV_WR_SEND))
		fail("ibv_post_send");
	wc = exchanged(e);
	if (wc.wr_id != 6 || wc.byte_len != GRH + 3)
		fail("receive %lu took %u octets", (unsigned long)wc.wr_id, wc.byte_len);
	end_expect_state(b, IBV_QPS_RTS);
}

void check_datagram(void)
{
	struct end e;
	struct ibv_ah_attr address = { .is_global = 1,
				       .port_num = 1,
				       .grh = { .sgid_index = 1, .hop_limit = 64 } },
			   learned;
	struct ibv_qp *a, *b;
	struct ibv_ah *ah, *back;
	struct ibv_wc wc;

	end_open(&e, ALL);
	a = datagram_qp(&e);
	b = datagram_qp(&e);
	expect_attributes(a);
	if (ibv_query_gid(e.context, 1, 1, &address.grh.dgid))
		fail("ibv_query_gid");
	ah = ibv_create_ah(e.pd, &address);
	if (!ah)
		fail("ibv_create_ah: %s", strerror(errno));
	address.is_global = 0;
	if (ibv_create_ah(e.pd, &address) || errno != EINVAL)
		fail("an address handle without a GID was made");
	memset(e.region, 0x5a, 4096);
	memset(e.region + 8192, 0, 8192);

	receive(&e, b, 2, 8192);
	if (post(&e, a, ah, b->qp_num, 4096, IBV_WR_SEND_WITH_IMM))
		fail("ibv_post_send");
	wc = exchanged(&e);
	if (wc.wr_id != 2 || wc.byte_len != GRH + 4096 || wc.src_qp != a->qp_num ||
	    wc.qp_num != b->qp_num)
		fail("received %u octets from %#x at %#x", wc.byte_len, wc.src_qp, wc.qp_num);
	if (wc.wc_flags != (IBV_WC_GRH | IBV_WC_WITH_IMM) || ntohl(wc.imm_data) != 0x01020304)
		fail("flags %#x, immediate %#x", wc.wc_flags, ntohl(wc.imm_data));
	if (memcmp(e.region + 8192 + GRH, e.region, 4096))
		fail("the message is not what was sent");

	/* A received message contains the address for an answer. */
	if (ibv_init_ah_from_wc(e.context, 1, &wc, (struct ibv_grh *)(e.region + 8192), &learned))
		fail("ibv_init_ah_from_wc: %s", strerror(errno));
	if (!learned.is_global || learned.grh.sgid_index != 1 ||
	    memcmp(&learned.grh.dgid, &address.grh.dgid, 16))
		fail("the GRH does not name its sender");
	back = ibv_create_ah_from_wc(e.pd, &wc, (struct ibv_grh *)(e.region + 8192), 1);
	if (!back)
		fail("ibv_create_ah_from_wc: %s", strerror(errno));
	receive(&e, a, 3, 8192);
	if (post(&e, b, back, wc.src_qp, 0, IBV_WR_SEND))
		fail("ibv_post_send of the answer");
	wc = exchanged(&e);
	if (wc.wr_id != 3 || wc.byte_len != GRH || wc.src_qp != b->qp_num)
		fail("the answer has %u octets from %#x", wc.byte_len, wc.src_qp);

	if (post(&e, a, NULL, b->qp_num, 1, IBV_WR_SEND) != EINVAL)
		fail("a datagram without an address was taken");
	send_error(&e, a, b, ah);
	too_long(&e, a, b, ah);

	ibv_destroy_ah(back);
	ibv_destroy_ah(ah);
	if (ibv_destroy_qp(a) || ibv_destroy_qp(b))
		fail("ibv_destroy_qp");
	end_close(&e);
}
