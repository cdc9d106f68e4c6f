/* Asynchronous events, the states SQD and SQE and fork as a program sees them: queue pairs of one process, connected to one another. */
#include "scenarios.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
#define OCTETS 4096u
/* Where messages arrive. */
#define INBOX 8192u
/* Polls after which a completion that must not come would have come. */
#define VAIN_POLLS 1000

static struct ibv_qp *queue_pair(struct end *e, enum ibv_qp_type type, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = e->cq, .recv_cq = e->cq, .srq = srq, .qp_type = type,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(e->pd, &attr);

	if (!qp)
		fail("ibv_create_qp: %s", strerror(errno));
	return qp;
}

static void modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int error = ibv_modify_qp(qp, attr, mask | IBV_QP_STATE);

	if (error)
		fail("ibv_modify_qp to state %d: %s", attr->qp_state, strerror(error));
}

static void refuse(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (ibv_modify_qp(qp, attr, mask | IBV_QP_STATE) != EINVAL)
		fail("a step to state %d was taken", attr->qp_state);
}

static void go(struct ibv_qp *qp, enum ibv_qp_state state)
{
	modify(qp, &(struct ibv_qp_attr){ .qp_state = state }, 0);
}

/* From whatever state to RTS, its peer being of this process. */
static void point_at(struct end *e, struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL };
	bool reliable = qp->qp_type == IBV_QPT_RC;

	go(qp, IBV_QPS_RESET);
	modify(qp, &attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1, .hop_limit = 4 } },
	};
	if (ibv_query_gid(e->context, 1, 1, &attr.ah_attr.grh.dgid))
		fail("ibv_query_gid");
	modify(qp, &attr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			  (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	modify(qp, &attr, IBV_QP_SQ_PSN | (reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0));
}

static void link_up(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	point_at(e, a, b);
	point_at(e, b, a);
}

static struct ibv_recv_wr inbox(struct end *e, struct ibv_sge *sge)
{
	*sge = (struct ibv_sge){ .addr = (uintptr_t)e->region + INBOX, .length = OCTETS, .lkey = e->mr->lkey };
	return (struct ibv_recv_wr){ .wr_id = 2, .sg_list = sge, .num_sge = 1 };
}

static void receive(struct end *e, struct ibv_qp *qp)
{
	struct ibv_sge sge;
	struct ibv_recv_wr wr = inbox(e, &sge), *bad;

	if (ibv_post_recv(qp, &wr, &bad))
		fail("ibv_post_recv");
}

static int post_with(struct end *e, struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t lkey, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)e->region, .length = OCTETS, .lkey = lkey };
	struct ibv_send_wr wr = {
		.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)e->region + INBOX, .rkey = rkey },
	}, *bad;

	return ibv_post_send(qp, &wr, &bad);
}

static int post(struct end *e, struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t rkey)
{
	return post_with(e, qp, opcode, e->mr->lkey, rkey);
}

/* A send of `a` completes, and at its peer a receive. */
static void exchange(struct end *e, struct ibv_qp *a)
{
	if (post(e, a, IBV_WR_SEND, 0))
		fail("ibv_post_send");
	end_expect(e, IBV_WC_SUCCESS);
	end_expect(e, IBV_WC_SUCCESS);
}

static void nothing_completes(struct end *e, const char *when)
{
	struct ibv_wc wc;

	for (int i = 0; i < VAIN_POLLS; i++)
		if (ibv_poll_cq(e->cq, 1, &wc))
			fail("a completion %s", when);
}

/* The limit of a shared receive queue tells once, the end of its last user tells too. */
static void shared_queue(struct end *e)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq_attr attr = { .srq_limit = 3 };
	struct ibv_srq *srq = ibv_create_srq(e->pd, &init);
	struct ibv_sge sge;
	struct ibv_recv_wr wr = inbox(e, &sge), *bad;
	struct ibv_qp *a, *b;

	if (!srq)
		fail("ibv_create_srq: %s", strerror(errno));
	a = queue_pair(e, IBV_QPT_RC, NULL);
	b = queue_pair(e, IBV_QPT_RC, srq);
	link_up(e, a, b);
	for (int i = 0; i < 5; i++)
		if (ibv_post_srq_recv(srq, &wr, &bad))
			fail("ibv_post_srq_recv");
	if (ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT))
		fail("ibv_modify_srq");
	for (int i = 0; i < 4; i++)
		exchange(e, a);
	end_expect_event(e, IBV_EVENT_SRQ_LIMIT_REACHED);
	if (ibv_query_srq(srq, &attr) || attr.srq_limit)
		fail("the limit is still armed");
	/* The next event is this one: the limit has told once. */
	go(b, IBV_QPS_ERR);
	end_expect_event(e, IBV_EVENT_QP_LAST_WQE_REACHED);
	if (ibv_destroy_qp(a) || ibv_destroy_qp(b) || ibv_destroy_srq(srq))
		fail("ibv_destroy_srq");
}

/* In SQD requests wait; whether the drain is an event is the application's choice. */
static void drain(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_qp_attr sqd = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };

	link_up(e, a, b);
	receive(e, b);
	go(a, IBV_QPS_SQD);
	if (post(e, a, IBV_WR_SEND, 0))
		fail("a request in SQD was refused");
	nothing_completes(e, "in SQD");
	go(a, IBV_QPS_RTS);
	end_expect(e, IBV_WC_SUCCESS);
	end_expect(e, IBV_WC_SUCCESS);

	/* This is the first event: that drain was not asked for. */
	if (post(e, a, IBV_WR_RDMA_WRITE, e->mr->rkey ^ 1))
		fail("ibv_post_send");
	end_expect(e, IBV_WC_REM_ACCESS_ERR);
	end_expect_event(e, IBV_EVENT_QP_ACCESS_ERR);

	link_up(e, a, b);
	receive(e, b);
	modify(a, &sqd, IBV_QP_EN_SQD_ASYNC_NOTIFY);
	end_expect_event(e, IBV_EVENT_SQ_DRAINED);
	go(a, IBV_QPS_RTS);
	exchange(e, a);
}

/* A send of memory that is not registered, which takes the queue pair to `state`. */
static void fail_send(struct end *e, struct ibv_qp *qp, enum ibv_qp_state state)
{
	if (post_with(e, qp, IBV_WR_SEND, e->mr->lkey ^ 1, 0))
		fail("ibv_post_send");
	end_expect(e, IBV_WC_LOC_PROT_ERR);
	end_expect_state(qp, state);
}

/* A failed send of an unreliable connection stops its sends alone, in SQE, and the application takes it back; a reliable one is at its end. */
static void send_errors(struct end *e)
{
	struct ibv_qp *a = queue_pair(e, IBV_QPT_UC, NULL), *b = queue_pair(e, IBV_QPT_UC, NULL);
	struct ibv_qp_attr back = { .qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE };
	struct ibv_qp_attr sqd = { .qp_state = IBV_QPS_SQD }, sqe = { .qp_state = IBV_QPS_SQE };

	link_up(e, a, b);
	refuse(a, &sqe, 0);
	fail_send(e, a, IBV_QPS_SQE);
	if (post(e, a, IBV_WR_SEND, 0))
		fail("a request in SQE was refused");
	end_expect(e, IBV_WC_WR_FLUSH_ERR);
	receive(e, a);
	exchange(e, b);
	refuse(a, &sqd, 0);
	refuse(a, &back, IBV_QP_CUR_STATE | IBV_QP_SQ_PSN);
	modify(a, &back, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS);
	receive(e, b);
	exchange(e, a);
	fail_send(e, a, IBV_QPS_SQE);
	receive(e, a);
	go(a, IBV_QPS_ERR);
	end_expect(e, IBV_WC_WR_FLUSH_ERR);
	link_up(e, a, b);
	fail_send(e, a, IBV_QPS_SQE);
	go(a, IBV_QPS_RESET);
	if (ibv_destroy_qp(a) || ibv_destroy_qp(b))
		fail("ibv_destroy_qp");

	a = queue_pair(e, IBV_QPT_RC, NULL);
	b = queue_pair(e, IBV_QPT_RC, NULL);
	link_up(e, a, b);
	refuse(a, &back, IBV_QP_CUR_STATE);
	fail_send(e, a, IBV_QPS_ERR);
	refuse(a, &back, IBV_QP_CUR_STATE);
	if (ibv_destroy_qp(a) || ibv_destroy_qp(b))
		fail("ibv_destroy_qp");
}

/* A child has its parent's objects and may not use them; its end disturbs nobody. */
static void forked(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_wc wc;
	int status;
	pid_t child;

	link_up(e, a, b);
	receive(e, b);
	memset(e->region, 0x11, OCTETS);
	child = fork();
	if (child < 0)
		fail("fork: %s", strerror(errno));
	if (!child) {
		if (!post(e, a, IBV_WR_SEND, 0) || ibv_poll_cq(e->cq, 1, &wc) > 0)
			fail("the child uses its parent's device");
		/* What runs at exit must leave the parent's device alone. */
		exit(0);
	}
	/* The parent's pages are its own from now on, and so is what it sends of them. */
	memset(e->region, 0x22, OCTETS);
	exchange(e, a);
	if (waitpid(child, &status, 0) != child || status)
		fail("the child ended with %#x", status);
	receive(e, b);
	memset(e->region + INBOX, 0, OCTETS);
	exchange(e, a);
	if (memcmp(e->region, e->region + INBOX, OCTETS) || e->region[INBOX] != 0x22)
		fail("what was sent after a fork is not what the parent has written");
}

void check_events(void)
{
	struct end e;
	struct ibv_qp *a, *b;

	if (ibv_fork_init())
		fail("ibv_fork_init");
	end_open(&e, ALL);
	shared_queue(&e);
	a = queue_pair(&e, IBV_QPT_RC, NULL);
	b = queue_pair(&e, IBV_QPT_RC, NULL);
	drain(&e, a, b);
	forked(&e, a, b);
	if (ibv_destroy_qp(a) || ibv_destroy_qp(b))
		fail("ibv_destroy_qp");
	send_errors(&e);
	end_close(&e);
}
