/*
 * Access by keys: type 2 windows with a key that the application chooses, shared receive queues of
 * another protection domain, and regions of length 0.
 */
#include "loopback.h"
#include "scenarios.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
#define ALL (IBV_ACCESS_LOCAL_WRITE | REMOTE | IBV_ACCESS_MW_BIND)
#define PAGE 4096u

static void complete(struct end *e, int count)
{
	while (count--)
		end_expect(e, IBV_WC_SUCCESS);
}

/* One signaled request without a list; returns the result of ibv_post_send. */
static int post(struct ibv_qp *qp, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;

	wr.send_flags = IBV_SEND_SIGNALED;
	return ibv_post_send(qp, &wr, &bad);
}

static struct ibv_mw_bind_info inbox(struct end *e)
{
	return (struct ibv_mw_bind_info){
		.mr = e->mr, .addr = (uintptr_t)e->region + INBOX, .length = OCTETS,
		.mw_access_flags = REMOTE,
	};
}

static struct ibv_send_wr binding(struct end *e, struct ibv_mw *mw, uint32_t rkey)
{
	return (struct ibv_send_wr){
		.opcode = IBV_WR_BIND_MW,
		.bind_mw = { .mw = mw, .rkey = rkey, .bind_info = inbox(e) },
	};
}

static void invalidate(struct end *e, struct ibv_qp *qp, uint32_t rkey, enum ibv_wc_status status)
{
	if (post(qp, (struct ibv_send_wr){ .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey }))
		fail("ibv_post_send of a local invalidation");
	end_expect(e, status);
}

/* Writes through the window that `b` has bound. */
static void write_through(struct end *e, struct ibv_qp *a, uint32_t rkey, enum ibv_wc_status status)
{
	if (loopback_post(e, a, IBV_WR_RDMA_WRITE, e->mr->lkey, rkey))
		fail("ibv_post_send of a write");
	end_expect(e, status);
}

static struct ibv_mw *window(struct end *e)
{
	struct ibv_mw *mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_2);

	if (!mw)
		fail("ibv_alloc_mw: %s", strerror(errno));
	return mw;
}

static void expect_key(const struct ibv_mw *mw, uint32_t before, uint32_t tag)
{
	if (mw->rkey != ((before & ~0xffu) | (tag & 0xff)))
		fail("the key is %#x after %#x was bound with the tag %#x", mw->rkey, before, tag);
}

/*
 * The application chooses the low eight bits; the other bits are the window's, whatever it passes,
 * and mw->rkey is the result.
 */
static void window_key(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_mw *mw = window(e);
	const uint32_t tags[] = { 0, 0x5a, 0xffffffa5, ibv_inc_rkey(mw->rkey) };

	for (size_t i = 0; i < sizeof(tags) / sizeof(*tags); i++) {
		uint32_t before = mw->rkey;

		if (post(b, binding(e, mw, tags[i])))
			fail("ibv_post_send of a binding");
		complete(e, 1);
		expect_key(mw, before, tags[i]);
		write_through(e, a, mw->rkey, IBV_WC_SUCCESS);
		invalidate(e, b, mw->rkey, IBV_WC_SUCCESS);
	}
	/* A request that is not posted changes nothing. */
	struct ibv_send_wr wr = binding(e, mw, mw->rkey + 1);
	uint32_t before = mw->rkey;

	wr.num_sge = SGES + 1;
	if (post(b, wr) != EINVAL || mw->rkey != before)
		fail("a binding that was refused changed the window's key");
	if (ibv_dealloc_mw(mw))
		fail("ibv_dealloc_mw");
}

static struct ibv_qp *extended_qp(struct end *e)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC, .pd = e->pd,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(e->context, &attr);

	if (!qp)
		fail("ibv_create_qp_ex: %s", strerror(errno));
	return qp;
}

/* The same through the extended calls. */
static void window_key_by_calls(struct end *e)
{
	struct ibv_qp *a = loopback_qp(e, IBV_QPT_RC, NULL), *b = extended_qp(e);
	struct ibv_qp_ex *calls = ibv_qp_to_qp_ex(b);
	struct ibv_mw *mw = window(e);
	struct ibv_mw_bind_info info = inbox(e);
	uint32_t before = mw->rkey;

	loopback_connect(e, a, b);
	ibv_wr_start(calls);
	calls->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_bind_mw(calls, mw, 0x77, &info);
	if (ibv_wr_complete(calls))
		fail("ibv_wr_complete of a binding");
	complete(e, 1);
	expect_key(mw, before, 0x77);
	write_through(e, a, mw->rkey, IBV_WC_SUCCESS);
	ibv_wr_start(calls);
	ibv_wr_local_inv(calls, mw->rkey);
	ibv_wr_bind_mw(calls, mw, 0x78, &info);
	if (ibv_wr_complete(calls))
		fail("ibv_wr_complete of an invalidation and a binding");
	complete(e, 2);
	expect_key(mw, before, 0x78);
	write_through(e, a, (mw->rkey & ~0xffu) | 0x77, IBV_WC_REM_ACCESS_ERR);
	loopback_destroy(a, b);
	if (ibv_dealloc_mw(mw))
		fail("ibv_dealloc_mw");
}

/* Only the queue pair that bound a window can invalidate it, and regions cannot be invalidated. */
static void foreign_window(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_mw *mw = window(e);

	if (post(b, binding(e, mw, 1)))
		fail("ibv_post_send of a binding");
	complete(e, 1);
	invalidate(e, a, mw->rkey, IBV_WC_MW_BIND_ERR);
	loopback_connect(e, a, b);
	invalidate(e, a, e->mr->rkey, IBV_WC_MW_BIND_ERR);
	loopback_connect(e, a, b);
	if (ibv_dealloc_mw(mw))
		fail("ibv_dealloc_mw");
}

static struct ibv_srq *queue_of(struct ibv_pd *pd)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 2 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);

	if (!srq)
		fail("ibv_create_srq: %s", strerror(errno));
	return srq;
}

static void receive_with(struct end *e, struct ibv_srq *srq, const struct ibv_mr *mr)
{
	struct ibv_sge sge;
	struct ibv_recv_wr wr = loopback_inbox(e, &sge), *bad;

	sge.lkey = mr->lkey;
	if (ibv_post_srq_recv(srq, &wr, &bad))
		fail("ibv_post_srq_recv");
}

/*
 * Waits until the inbox is equal to the first octets of the region; a write of an unreliable
 * connection completes earlier.
 */
static void arrived(struct end *e)
{
	double deadline = end_deadline();
	struct ibv_wc wc;

	for (; memcmp(e->region, e->region + INBOX, OCTETS); end_check_deadline(deadline))
		if (ibv_poll_cq(e->cq, 1, &wc))
			fail("a completion before a message was placed");
}

/* Checks both ends of a connection after a receive of `b` and its message have failed. */
static void failed(struct end *e, enum ibv_wc_status sender)
{
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = end_wait(e);
		enum ibv_wc_status expected = wc.wr_id == 2 ? IBV_WC_LOC_PROT_ERR : sender;

		if (wc.status != expected)
			fail("request %lu ended with '%s' instead of '%s'", (unsigned long)wc.wr_id,
			     ibv_wc_status_str(wc.status), ibv_wc_status_str(expected));
	}
}

/*
 * A shared receive queue of another protection domain than the queue pair's: the keys in its
 * requests belong to the queue's domain, those in send requests and from peers to the queue pair's.
 */
static void shared_queue(struct end *e, enum ibv_qp_type type)
{
	struct ibv_srq *srq = queue_of(e->foreign_pd);
	struct ibv_qp *a = loopback_qp(e, type, NULL), *b = loopback_qp(e, type, srq);
	bool reliable = type == IBV_QPT_RC;

	loopback_connect(e, a, b);
	memset(e->region, 0x5c, OCTETS);
	memset(e->region + INBOX, 0, OCTETS);
	receive_with(e, srq, e->foreign_mr);
	loopback_exchange(e, a);
	arrived(e);
	/* Remote writes, sends and reads use the queue pair's own domain. */
	memset(e->region + INBOX, 0, OCTETS);
	write_through(e, a, e->mr->rkey, IBV_WC_SUCCESS);
	arrived(e);
	loopback_receive(e, a);
	loopback_exchange(e, b);
	if (reliable) {
		if (loopback_post(e, b, IBV_WR_RDMA_READ, e->mr->lkey, e->mr->rkey))
			fail("ibv_post_send of a read");
		complete(e, 1);
		if (loopback_post(e, b, IBV_WR_RDMA_READ, e->foreign_mr->lkey, e->mr->rkey))
			fail("ibv_post_send of a read into the queue's domain");
		end_expect(e, IBV_WC_LOC_PROT_ERR);
		loopback_connect(e, a, b);
		write_through(e, a, e->foreign_mr->rkey, IBV_WC_REM_ACCESS_ERR);
		loopback_connect(e, a, b);
	}
	memset(e->region + INBOX, 0, OCTETS);
	receive_with(e, srq, e->mr);
	if (loopback_post(e, a, IBV_WR_SEND, e->mr->lkey, 0))
		fail("ibv_post_send");
	failed(e, reliable ? IBV_WC_REM_OP_ERR : IBV_WC_SUCCESS);
	if (e->region[INBOX] || e->region[INBOX + OCTETS - 1])
		fail("a message was placed with a key of another protection domain");
	loopback_destroy(a, b);
	if (ibv_destroy_srq(srq))
		fail("ibv_destroy_srq");
}

/* The domain of a queue is in use as long as the queue exists. */
static void shared_queue_keeps_its_domain(struct end *e)
{
	struct ibv_pd *pd = ibv_alloc_pd(e->context);
	struct ibv_srq *srq;
	struct ibv_qp *qp;

	if (!pd)
		fail("ibv_alloc_pd");
	srq = queue_of(pd);
	qp = loopback_qp(e, IBV_QPT_RC, srq);
	if (ibv_dealloc_pd(pd) != EBUSY)
		fail("the protection domain of a shared receive queue was deallocated");
	if (ibv_destroy_qp(qp) || ibv_destroy_srq(srq) || ibv_dealloc_pd(pd))
		fail("a protection domain is still in use: %s", strerror(errno));
}

/* Sends a message of length 0 from `a`, with a list of one element in `list`, or without a list. */
static void nothing(struct end *e, struct ibv_qp *a, enum ibv_wr_opcode opcode,
		    const struct ibv_mr *list, uint64_t remote_addr, uint32_t rkey)
{
	struct ibv_sge sge = { 0 };
	struct ibv_send_wr wr = {
		.opcode = opcode, .sg_list = &sge, .num_sge = list ? 1 : 0,
		.wr.rdma = { .remote_addr = remote_addr, .rkey = rkey },
	};

	if (list)
		sge = (struct ibv_sge){ .addr = (uintptr_t)list->addr, .lkey = list->lkey };
	if (post(a, wr))
		fail("ibv_post_send of no octets");
	complete(e, 1);
}

/* One octet between the regions is refused. */
static void one_octet(struct end *e, struct ibv_qp *a, enum ibv_wr_opcode opcode,
		      const struct ibv_mr *local, const struct ibv_mr *remote,
		      enum ibv_wc_status status)
{
	struct ibv_sge sge = { .addr = (uintptr_t)local->addr, .length = 1, .lkey = local->lkey };
	struct ibv_send_wr wr = {
		.opcode = opcode, .sg_list = &sge, .num_sge = 1,
		.wr.rdma = { .remote_addr = (uintptr_t)remote->addr, .rkey = remote->rkey },
	};

	if (post(a, wr))
		fail("ibv_post_send of an octet");
	end_expect(e, status);
}

/*
 * Regions of length 0 at every kind of address, and messages of length 0 through them, behind them
 * and with unknown keys.
 */
static void no_octets(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	void *hole = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *addresses[] = { e->region, e->region + 1, e->region + PAGE, NULL, hole };

	if (hole == MAP_FAILED || munmap(hole, PAGE))
		fail("mmap");
	for (size_t i = 0; i < sizeof(addresses) / sizeof(*addresses); i++) {
		struct ibv_mr *mr = ibv_reg_mr(e->pd, addresses[i], 0, ALL);
		uint64_t at = (uintptr_t)addresses[i];

		if (!mr)
			fail("ibv_reg_mr of no octets at %p: %s", addresses[i], strerror(errno));
		if (mr->length)
			fail("a region of no octets has %zu", mr->length);
		nothing(e, a, IBV_WR_RDMA_WRITE, mr, at, mr->rkey);
		nothing(e, a, IBV_WR_RDMA_READ, mr, at, mr->rkey);
		/* No octet is touched, so nothing is checked. */
		nothing(e, a, IBV_WR_RDMA_WRITE, mr, at + 4096, mr->rkey);
		nothing(e, a, IBV_WR_RDMA_READ, NULL, UINT64_MAX, mr->rkey ^ 1);
		loopback_receive(e, b);
		nothing(e, a, IBV_WR_SEND, mr, 0, 0);
		complete(e, 1);
		loopback_receive(e, b);
		nothing(e, a, IBV_WR_RDMA_WRITE_WITH_IMM, NULL, at, mr->rkey ^ 1);
		complete(e, 1);
		one_octet(e, a, IBV_WR_RDMA_WRITE, e->mr, mr, IBV_WC_REM_ACCESS_ERR);
		loopback_connect(e, a, b);
		one_octet(e, a, IBV_WR_RDMA_READ, e->mr, mr, IBV_WC_REM_ACCESS_ERR);
		loopback_connect(e, a, b);
		one_octet(e, a, IBV_WR_RDMA_WRITE, mr, e->mr, IBV_WC_LOC_PROT_ERR);
		loopback_connect(e, a, b);
		if (ibv_dereg_mr(mr))
			fail("ibv_dereg_mr of no octets: %s", strerror(errno));
	}
}

static void no_octets_on_demand(struct end *e)
{
	const int access = IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE;
	struct ibv_mr *mr = ibv_reg_mr(e->pd, e->region, 0, access);

	if (!mr || ibv_dereg_mr(mr))
		fail("a region of no octets with on-demand paging: %s", strerror(errno));
}

/* The memory of a region without on-demand paging is resident, so all advice about it succeeds. */
static void advice(struct end *e)
{
	const enum ibv_advise_mr_advice advices[] = {
		IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
		IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
	};
	struct ibv_sge sge = {
		.addr = (uintptr_t)e->region, .length = OCTETS, .lkey = e->mr->lkey,
	};
	struct ibv_mr *read_only = ibv_reg_mr(e->pd, e->region, OCTETS, 0);

	if (!read_only)
		fail("ibv_reg_mr: %s", strerror(errno));
	for (size_t i = 0; i < sizeof(advices) / sizeof(*advices); i++)
		for (uint32_t flags = 0; flags <= IBV_ADVISE_MR_FLAG_FLUSH; flags++) {
			int error = ibv_advise_mr(e->pd, advices[i], flags, &sge, 1);

			if (error)
				fail("ibv_advise_mr %u, flags %u: %s", (unsigned)advices[i], flags,
				     strerror(error));
		}
	/* As with on-demand paging: beyond the region, without the right, of another domain. */
	sge.lkey = read_only->lkey;
	if (ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1) != EFAULT)
		fail("advice to write to a region that may not be written was taken");
	sge.length++;
	if (ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) != EFAULT)
		fail("advice about octets behind the region was taken");
	sge.length--;
	sge.lkey = e->foreign_mr->lkey;
	if (ibv_advise_mr(e->pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) != EFAULT)
		fail("advice about another protection domain's region was taken");
	if (ibv_dereg_mr(read_only))
		fail("ibv_dereg_mr");
}

void check_keys(void)
{
	struct end e;
	struct ibv_qp *a, *b;

	loopback_open(&e, ALL, &a, &b);
	window_key(&e, a, b);
	window_key_by_calls(&e);
	foreign_window(&e, a, b);
	shared_queue(&e, IBV_QPT_RC);
	shared_queue(&e, IBV_QPT_UC);
	shared_queue_keeps_its_domain(&e);
	no_octets(&e, a, b);
	no_octets_on_demand(&e);
	advice(&e);
	loopback_close(&e, a, b);
}
