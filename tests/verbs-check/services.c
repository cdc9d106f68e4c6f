/*
 * The requests of each service. A request that the service does not have, and one that turns out to
 * be invalid on execution, is accepted by ibv_post_send and completes with an error in order, so
 * that a program handles all such errors in one place.
 */
#include "loopback.h"
#include "scenarios.h"

#include <errno.h>
#include <string.h>

#define REMOTE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | REMOTE)
#define WORD 8u
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

struct service {
	const char *name;
	enum ibv_qp_type type;
};

static const struct service services[] = {
	{ "RC", IBV_QPT_RC },
	{ "UC", IBV_QPT_UC },
	{ "UD", IBV_QPT_UD },
};

enum { RC = 1, UC = 2, UD = 4 };

#define OPERATION(name, services, receives, octets) \
	{ #name, IBV_WR_##name, IBV_QP_EX_WITH_##name, services, receives, octets }

/* The requests of each service according to ibv_post_send(3) and ibv_wr_post(3). */
static const struct operation {
	const char *name;
	enum ibv_wr_opcode opcode;
	uint64_t call;
	int services;
	int receives;	/* at the peer */
	int octets;
} operations[] = {
	OPERATION(SEND, RC | UC | UD, 1, WORD),
	OPERATION(SEND_WITH_IMM, RC | UC | UD, 1, WORD),
	OPERATION(SEND_WITH_INV, RC | UC, 1, WORD),
	OPERATION(RDMA_WRITE, RC | UC, 0, WORD),
	OPERATION(RDMA_WRITE_WITH_IMM, RC | UC, 1, WORD),
	OPERATION(RDMA_READ, RC, 0, WORD),
	OPERATION(ATOMIC_CMP_AND_SWP, RC, 0, WORD),
	OPERATION(ATOMIC_FETCH_AND_ADD, RC, 0, WORD),
	OPERATION(LOCAL_INV, RC | UC, 0, 0),
	OPERATION(BIND_MW, RC | UC, 0, 0),
};
#undef OPERATION

/* Two queue pairs of a service, each the other's peer, and an address for datagrams. */
struct bench {
	struct end *e;
	struct ibv_qp *a, *b;
	struct ibv_ah *ah;
	struct ibv_mw *window;
	uint32_t key;		/* that the window is bound with, or is to be */
};

static struct ibv_ah *address_of(struct end *e)
{
	struct ibv_ah_attr attr = {
		.is_global = 1, .port_num = 1, .grh = { .sgid_index = 1, .hop_limit = 64 },
	};
	struct ibv_ah *ah;

	if (ibv_query_gid(e->context, 1, 1, &attr.grh.dgid))
		fail("ibv_query_gid");
	ah = ibv_create_ah(e->pd, &attr);
	if (!ah)
		fail("ibv_create_ah: %s", strerror(errno));
	return ah;
}

/* A request of `octets` with number `id`, valid for services that have it. */
static struct ibv_send_wr request(struct bench *bench, uint64_t id, enum ibv_wr_opcode opcode,
				  struct ibv_sge *sge, uint32_t octets)
{
	struct end *e = bench->e;
	uint64_t remote = (uintptr_t)e->region + INBOX;
	bool is_send = opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
	struct ibv_send_wr wr = {
		.wr_id = id, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .sg_list = sge,
		.num_sge = octets ? 1 : 0,
	};

	*sge = (struct ibv_sge){
		.addr = (uintptr_t)e->region, .length = octets, .lkey = e->mr->lkey,
	};
	if (bench->a->qp_type == IBV_QPT_UD && is_send) {
		wr.wr.ud.ah = bench->ah;
		wr.wr.ud.remote_qpn = bench->b->qp_num;
		wr.wr.ud.remote_qkey = LOOPBACK_QKEY;
	} else if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
		   opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = remote;
		wr.wr.atomic.rkey = e->mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = e->mr->rkey;
	}
	if (opcode == IBV_WR_SEND_WITH_INV || opcode == IBV_WR_LOCAL_INV)
		wr.invalidate_rkey = bench->key;
	if (opcode == IBV_WR_BIND_MW) {
		wr.bind_mw.mw = bench->window;
		wr.bind_mw.rkey = bench->key;
		wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
			.mr = e->mr, .addr = remote, .length = OCTETS,
			.mw_access_flags = IBV_ACCESS_REMOTE_WRITE,
		};
	}
	return wr;
}

/* Posts a list, all of which must be accepted. */
static void post(struct ibv_qp *qp, struct ibv_send_wr *wr, const char *what)
{
	struct ibv_send_wr *bad = NULL;
	int error = ibv_post_send(qp, wr, &bad);

	if (error)
		fail("%s was refused: %s", what, strerror(error));
}

/* Binds the window to a queue pair. */
static void bind(struct bench *bench, struct ibv_qp *qp)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(bench, 9, IBV_WR_BIND_MW, &sge, 0);

	post(qp, &wr, "a binding");
	end_expect(bench->e, IBV_WC_SUCCESS);
}

static void done(struct bench *bench, const struct operation *op)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(bench, 1, op->opcode, &sge, (uint32_t)op->octets);

	if (op->opcode == IBV_WR_LOCAL_INV)
		bind(bench, bench->a);
	if (op->opcode == IBV_WR_SEND_WITH_INV)
		bind(bench, bench->b);
	for (int i = 0; i < op->receives; i++)
		loopback_receive(bench->e, bench->b);
	post(bench->a, &wr, op->name);
	for (int i = 0; i <= op->receives; i++)
		end_expect(bench->e, IBV_WC_SUCCESS);
	end_expect_state(bench->a, IBV_QPS_RTS);
}

/* A send of `a` that is received. */
static void exchange(struct bench *bench)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(bench, 1, IBV_WR_SEND, &sge, WORD);

	loopback_receive(bench->e, bench->b);
	post(bench->a, &wr, "a send");
	end_expect(bench->e, IBV_WC_SUCCESS);
	end_expect(bench->e, IBV_WC_SUCCESS);
}

/* Waits for the completions, in order, of a list of three whose second fails with `status`. */
static void second_fails(struct bench *bench, enum ibv_wc_status status, const char *what)
{
	const enum ibv_wc_status expected[] = { IBV_WC_SUCCESS, status, IBV_WC_WR_FLUSH_ERR };

	for (uint64_t i = 0; i < COUNT(expected); i++) {
		struct ibv_wc wc = end_wait(bench->e);

		if (wc.wr_id != i + 1 || wc.status != expected[i])
			fail("%s: request %lu ended with '%s', not request %lu with '%s'", what,
			     (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status),
			     (unsigned long)i + 1, ibv_wc_status_str(expected[i]));
	}
}

/* A request that the service does not have stops the send queue; those before it are sent. */
static void fails(struct bench *bench, const struct operation *op)
{
	struct ibv_qp_attr back = { .qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQE };
	struct ibv_sge sges[3];
	struct ibv_send_wr wr[3] = {
		request(bench, 1, IBV_WR_SEND, &sges[0], 0),
		request(bench, 2, op->opcode, &sges[1], (uint32_t)op->octets),
		request(bench, 3, IBV_WR_SEND, &sges[2], 0),
	};

	wr[0].next = &wr[1];
	wr[1].next = &wr[2];
	/* No receive is posted, so the first message is dropped. */
	post(bench->a, wr, op->name);
	second_fails(bench, IBV_WC_LOC_QP_OP_ERR, op->name);
	end_expect_state(bench->a, IBV_QPS_SQE);
	loopback_modify(bench->a, &back, IBV_QP_CUR_STATE);
	exchange(bench);
}

/* ibv_create_qp_ex refuses extended calls that the service does not have. */
static void calls(struct bench *bench, const struct service *service, const struct operation *op,
		  bool has)
{
	struct end *e = bench->e;
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = e->cq, .recv_cq = e->cq, .qp_type = service->type, .pd = e->pd,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = op->call,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(e->context, &attr);

	if (!has && (qp || errno != EOPNOTSUPP))
		fail("a %s queue pair with calls for %s: %s", service->name, op->name,
		     qp ? "made" : strerror(errno));
	if (has && (!qp || !ibv_qp_to_qp_ex(qp)))
		fail("a %s queue pair with calls for %s: %s", service->name, op->name,
		     strerror(errno));
	if (qp && ibv_destroy_qp(qp))
		fail("ibv_destroy_qp");
}

static void pairs(struct bench *bench, const struct service *service, int bit)
{
	for (const struct operation *op = operations; op < operations + COUNT(operations); op++) {
		bool has = op->services & bit;

		bench->window = ibv_alloc_mw(bench->e->pd, IBV_MW_TYPE_2);
		if (!bench->window)
			fail("ibv_alloc_mw: %s", strerror(errno));
		bench->key = ibv_inc_rkey(bench->window->rkey);
		loopback_connect(bench->e, bench->a, bench->b);
		(has ? done : fails)(bench, op);
		if (ibv_dealloc_mw(bench->window))
			fail("ibv_dealloc_mw");
		calls(bench, service, op, has);
	}
}

/* A request that no service has is refused at once. */
static void unknown(struct bench *bench)
{
	static const unsigned int opcodes[] = { IBV_WR_TSO, IBV_WR_DRIVER1, 99, UINT32_MAX };
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	loopback_connect(bench->e, bench->a, bench->b);
	for (size_t i = 0; i < COUNT(opcodes); i++) {
		wr = request(bench, 1, IBV_WR_SEND, &sge, WORD);
		wr.opcode = (enum ibv_wr_opcode)opcodes[i];
		bad = NULL;
		if (ibv_post_send(bench->a, &wr, &bad) != EINVAL || bad != &wr)
			fail("opcode %u was taken", opcodes[i]);
	}
	exchange(bench);
}

/* A list of a write, an atomic into `octets` of this end on the word `offset` octets behind an
 * aligned place, and a write. */
static void atomic(struct bench *bench, enum ibv_wr_opcode opcode, uint32_t octets, uint64_t offset,
		   enum ibv_wc_status status, const char *what)
{
	struct end *e = bench->e;
	struct ibv_sge sges[3];
	struct ibv_send_wr wr[3];
	uint8_t before[4 * WORD];

	loopback_connect(e, bench->a, bench->b);
	wr[0] = request(bench, 1, IBV_WR_RDMA_WRITE, &sges[0], 0);
	wr[1] = request(bench, 2, opcode, &sges[1], octets);
	wr[2] = request(bench, 3, IBV_WR_RDMA_WRITE, &sges[2], WORD);
	wr[1].wr.atomic.remote_addr += offset;
	wr[0].next = &wr[1];
	wr[1].next = &wr[2];
	memcpy(before, e->region + INBOX, sizeof(before));
	post(bench->a, wr, what);
	second_fails(bench, status, what);
	end_expect_state(bench->a, IBV_QPS_ERR);
	if (memcmp(before, e->region + INBOX, sizeof(before)))
		fail("%s has changed memory", what);
}

static void atomics(struct bench *bench)
{
	static const enum ibv_wr_opcode opcodes[] = {
		IBV_WR_ATOMIC_CMP_AND_SWP,
		IBV_WR_ATOMIC_FETCH_AND_ADD,
	};
	static const uint32_t lengths[] = { 0, 4, 7, 9, 16 };

	for (size_t i = 0; i < COUNT(opcodes); i++) {
		/* The responder detects the error and raises an event. */
		for (uint64_t offset = 1; offset < WORD; offset++) {
			atomic(bench, opcodes[i], WORD, offset, IBV_WC_REM_INV_REQ_ERR,
			       "an atomic on a misaligned word");
			end_expect_event(bench->e, IBV_EVENT_QP_REQ_ERR);
			end_expect_state(bench->b, IBV_QPS_ERR);
		}
	}
	for (size_t i = 0; i < COUNT(opcodes); i++)
		for (size_t length = 0; length < COUNT(lengths); length++)
			atomic(bench, opcodes[i], lengths[length], 0, IBV_WC_LOC_LEN_ERR,
			       "an atomic into a list of another length");
}

void check_services(void)
{
	struct end e;
	struct bench bench = { .e = &e };

	end_open(&e, ALL);
	bench.ah = address_of(&e);
	for (size_t i = 0; i < COUNT(services); i++) {
		bench.a = loopback_qp(&e, services[i].type, NULL);
		bench.b = loopback_qp(&e, services[i].type, NULL);
		pairs(&bench, &services[i], 1 << i);
		unknown(&bench);
		if (services[i].type == IBV_QPT_RC)
			atomics(&bench);
		loopback_destroy(bench.a, bench.b);
	}
	if (ibv_destroy_ah(bench.ah))
		fail("ibv_destroy_ah");
	end_close(&e);
}
