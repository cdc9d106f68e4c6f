/*
 * Asynchronous events, the states SQD and SQE, and fork, with queue pairs of one process that are
 * connected to one another.
 */
#include "loopback.h"
#include "scenarios.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
/* Polls after which a completion that must not occur would have occurred. */
#define VAIN_POLLS 1000

static void nothing_completes(struct end *e, const char *when)
{
	struct ibv_wc wc;

	for (int i = 0; i < VAIN_POLLS; i++)
		if (ibv_poll_cq(e->cq, 1, &wc))
			fail("a completion %s", when);
}

/* The limit of a shared receive queue is reported once, and so is the end of its last user. */
static void shared_queue(struct end *e)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq_attr attr = { .srq_limit = 3 };
	struct ibv_srq *srq = ibv_create_srq(e->pd, &init);
	struct ibv_sge sge;
	struct ibv_recv_wr wr = loopback_inbox(e, &sge), *bad;
	struct ibv_qp *a, *b;

	if (!srq)
		fail("ibv_create_srq: %s", strerror(errno));
	a = loopback_qp(e, IBV_QPT_RC, NULL);
	b = loopback_qp(e, IBV_QPT_RC, srq);
	loopback_connect(e, a, b);
	for (int i = 0; i < 5; i++)
		if (ibv_post_srq_recv(srq, &wr, &bad))
			fail("ibv_post_srq_recv");
	if (ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT))
		fail("ibv_modify_srq");
	for (int i = 0; i < 4; i++)
		loopback_exchange(e, a);
	end_expect_event(e, IBV_EVENT_SRQ_LIMIT_REACHED);
	if (ibv_query_srq(srq, &attr) || attr.srq_limit)
		fail("the limit is still armed");
	/* The next event is this one: the limit was reported once. */
	loopback_go(b, IBV_QPS_ERR);
	end_expect_event(e, IBV_EVENT_QP_LAST_WQE_REACHED);
	if (ibv_destroy_qp(a) || ibv_destroy_qp(b) || ibv_destroy_srq(srq))
		fail("ibv_destroy_srq");
}

/* In SQD requests wait; the application chooses whether the drain raises an event. */
static void drain(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_qp_attr sqd = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };

	loopback_connect(e, a, b);
	loopback_receive(e, b);
	loopback_go(a, IBV_QPS_SQD);
	if (loopback_post(e, a, IBV_WR_SEND, e->mr->lkey, 0))
		fail("a request in SQD was refused");
	nothing_completes(e, "in SQD");
	loopback_go(a, IBV_QPS_RTS);
	end_expect(e, IBV_WC_SUCCESS);
	end_expect(e, IBV_WC_SUCCESS);

	/* This is the first event: none was requested for the previous drain. */
	if (loopback_post(e, a, IBV_WR_RDMA_WRITE, e->mr->lkey, e->mr->rkey ^ 1))
		fail("ibv_post_send");
	end_expect(e, IBV_WC_REM_ACCESS_ERR);
	end_expect_event(e, IBV_EVENT_QP_ACCESS_ERR);

	loopback_connect(e, a, b);
	loopback_receive(e, b);
	loopback_modify(a, &sqd, IBV_QP_EN_SQD_ASYNC_NOTIFY);
	end_expect_event(e, IBV_EVENT_SQ_DRAINED);
	loopback_go(a, IBV_QPS_RTS);
	loopback_exchange(e, a);
}

/* A send from memory that is not registered, which moves the queue pair to `state`. */
static void fail_send(struct end *e, struct ibv_qp *qp, enum ibv_qp_state state)
{
	if (loopback_post(e, qp, IBV_WR_SEND, e->mr->lkey ^ 1, 0))
		fail("ibv_post_send");
	end_expect(e, IBV_WC_LOC_PROT_ERR);
	end_expect_state(qp, state);
}

/*
 * A failed send of an unreliable connection stops its send queue only, in SQE, and the application
 * moves it out; a reliable connection is in ERR.
 */
static void send_errors(struct end *e)
{
	struct ibv_qp *a = loopback_qp(e, IBV_QPT_UC, NULL), *b = loopback_qp(e, IBV_QPT_UC, NULL);
	struct ibv_qp_attr back = { .qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE };
	struct ibv_qp_attr sqd = { .qp_state = IBV_QPS_SQD }, sqe = { .qp_state = IBV_QPS_SQE };

	loopback_connect(e, a, b);
	loopback_refuse(a, &sqe, 0);
	fail_send(e, a, IBV_QPS_SQE);
	if (loopback_post(e, a, IBV_WR_SEND, e->mr->lkey, 0))
		fail("a request in SQE was refused");
	end_expect(e, IBV_WC_WR_FLUSH_ERR);
	loopback_receive(e, a);
	loopback_exchange(e, b);
	loopback_refuse(a, &sqd, 0);
	loopback_refuse(a, &back, IBV_QP_CUR_STATE | IBV_QP_SQ_PSN);
	loopback_modify(a, &back, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS);
	loopback_receive(e, b);
	loopback_exchange(e, a);
	fail_send(e, a, IBV_QPS_SQE);
	loopback_receive(e, a);
	loopback_go(a, IBV_QPS_ERR);
	end_expect(e, IBV_WC_WR_FLUSH_ERR);
	loopback_connect(e, a, b);
	fail_send(e, a, IBV_QPS_SQE);
	loopback_go(a, IBV_QPS_RESET);
	loopback_destroy(a, b);

	a = loopback_qp(e, IBV_QPT_RC, NULL);
	b = loopback_qp(e, IBV_QPT_RC, NULL);
	loopback_connect(e, a, b);
	loopback_refuse(a, &back, IBV_QP_CUR_STATE);
	fail_send(e, a, IBV_QPS_ERR);
	loopback_refuse(a, &back, IBV_QP_CUR_STATE);
	loopback_destroy(a, b);
}

/* A child has its parent's objects and may not use them; its end does not disturb the parent. */
static void forked(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_wc wc;
	int status;
	pid_t child;

	loopback_connect(e, a, b);
	loopback_receive(e, b);
	memset(e->region, 0x11, OCTETS);
	child = fork();
	if (child < 0)
		fail("fork: %s", strerror(errno));
	if (!child) {
		if (!loopback_post(e, a, IBV_WR_SEND, e->mr->lkey, 0) ||
		    ibv_poll_cq(e->cq, 1, &wc) > 0)
			fail("the child uses its parent's device");
		/* Exit handlers must not affect the parent's device. */
		exit(0);
	}
	/* From now on the parent's pages are its own, and so are the octets that it sends. */
	memset(e->region, 0x22, OCTETS);
	loopback_exchange(e, a);
	if (waitpid(child, &status, 0) != child || status)
		fail("the child ended with %#x", status);
	loopback_receive(e, b);
	memset(e->region + INBOX, 0, OCTETS);
	loopback_exchange(e, a);
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
	a = loopback_qp(&e, IBV_QPT_RC, NULL);
	b = loopback_qp(&e, IBV_QPT_RC, NULL);
	drain(&e, a, b);
	forked(&e, a, b);
	loopback_destroy(a, b);
	send_errors(&e);
	end_close(&e);
}
