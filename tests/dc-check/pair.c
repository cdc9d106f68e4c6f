/* Two processes, of one host or of two: an initiator, and a target with memory. */
#include "scenarios.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LONG (1u << 20)
/* Where the target's memory for Writes, Reads and atomics begins. */
#define REMOTE (2u << 20)

static void fill(uint8_t *octets, size_t count, uint8_t first)
{
	for (size_t n = 0; n < count; n++)
		octets[n] = (uint8_t)(first + n * 7 + (n >> 8));
}

static void expect_filled(const uint8_t *octets, size_t count, uint8_t first, const char *what)
{
	for (size_t n = 0; n < count; n++)
		if (octets[n] != (uint8_t)(first + n * 7 + (n >> 8)))
			fail("%s: octet %zu is wrong", what, n);
}

static void post(struct end *e, struct initiator *i, struct name *to, uint64_t wr_id,
		 enum ibv_wr_opcode opcode, size_t offset, uint32_t length)
{
	int error = dc_post(e, i, to, wr_id, opcode, offset, length);

	if (error)
		fail("request %lu: %s: %s", (unsigned long)wr_id, strerror(error),
		     urdmadv_last_error(e->context));
}

/* Posts a request and waits for its completion. */
static void done(struct end *e, struct initiator *i, struct name *to, enum ibv_wr_opcode opcode,
		 enum ibv_wc_opcode completed, size_t offset, uint32_t length)
{
	static uint64_t wr_id = 100;

	post(e, i, to, ++wr_id, opcode, offset, length);
	struct ibv_wc wc = end_expect(e, IBV_WC_SUCCESS);
	if (wc.wr_id != wr_id || wc.opcode != completed || wc.qp_num != i->qp->qp_num)
		fail("the completion of opcode %d: request %lu, opcode %d, queue pair %u", opcode,
		     (unsigned long)wc.wr_id, wc.opcode, wc.qp_num);
}

static void expect_word(struct end *e, size_t offset, uint64_t expected, const char *what)
{
	uint64_t word;

	memcpy(&word, e->region + offset, sizeof(word));
	if (word != expected)
		fail("%s: %lu instead of %lu", what, (unsigned long)word, (unsigned long)expected);
}

void transfer_initiator(struct end *e, struct name *to)
{
	static const uint32_t lengths[] = { 0, 1, 64, 4096, 100001, LONG };
	struct initiator i = dc_initiator(e);

	dc_initiator_ready(&i, DC_PATIENT);
	to->addr += REMOTE;
	for (size_t n = 0; n < sizeof(lengths) / sizeof(*lengths); n++) {
		uint32_t length = lengths[n];

		fill(e->region, length, (uint8_t)n);
		done(e, &i, to, IBV_WR_SEND, IBV_WC_SEND, 0, length);
		done(e, &i, to, IBV_WR_SEND_WITH_IMM, IBV_WC_SEND, 0, length);
		done(e, &i, to, IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, 0, length);
		memset(e->region + LONG, 0, length);
		done(e, &i, to, IBV_WR_RDMA_READ, IBV_WC_RDMA_READ, LONG, length);
		expect_filled(e->region + LONG, length, (uint8_t)n, "a Read");
		done(e, &i, to, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE, 0, length);
	}
	/* The target clears the word first. */
	end_meet(e);
	end_meet(e);
	done(e, &i, to, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD, 0, 8);
	expect_word(e, 0, 0, "what was added to");
	done(e, &i, to, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WC_COMP_SWAP, 0, 8);
	expect_word(e, 0, 7, "what was swapped");
	done(e, &i, to, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WC_COMP_SWAP, 0, 8);
	expect_word(e, 0, 9, "what was not swapped");
	/* Many at once, in order. */
	for (uint64_t n = 0; n < DC_DEPTH; n++)
		post(e, &i, to, n, IBV_WR_ATOMIC_FETCH_AND_ADD, n * 8, 8);
	for (uint64_t n = 0; n < DC_DEPTH; n++) {
		if (end_expect(e, IBV_WC_SUCCESS).wr_id != n)
			fail("completions are not in order");
		expect_word(e, n * 8, 9 + 7 * n, "what was added to");
	}
	end_meet(e);
	dc_destroy_initiator(&i);
}

static void received(struct end *e, struct target *t, enum ibv_wc_opcode opcode, bool has_imm)
{
	struct ibv_wc wc = end_expect(e, IBV_WC_SUCCESS);

	if (wc.opcode != opcode || wc.qp_num != t->qp->qp_num || wc.wr_id != 2)
		fail("a receive: opcode %d, queue pair %u, request %lu", wc.opcode, wc.qp_num,
		     (unsigned long)wc.wr_id);
	if (!!(wc.wc_flags & IBV_WC_WITH_IMM) != has_imm ||
	    (has_imm && wc.imm_data != htobe32(0x01020304)))
		fail("a receive has no, other or needless immediate data");
	dc_receive(e, t, 2, 0, LONG);
}

void transfer_target(struct end *e, struct target *t)
{
	for (int n = 0; n < 6; n++) {
		received(e, t, IBV_WC_RECV, false);
		received(e, t, IBV_WC_RECV, true);
		received(e, t, IBV_WC_RECV_RDMA_WITH_IMM, true);
	}
	expect_filled(e->region, LONG, 5, "a Send");
	expect_filled(e->region + REMOTE, LONG, 5, "a Write");
	end_meet(e);
	memset(e->region + REMOTE, 0, 8);
	end_meet(e);
	end_meet(e);
	expect_word(e, REMOTE, 9 + 7 * DC_DEPTH, "the word of the atomics");
}

/* A request that fails, and one behind it. */
static void fails(struct end *e, struct initiator *i, struct name *to, const char *what)
{
	post(e, i, to, 1, IBV_WR_SEND, 0, 8);
	post(e, i, to, 2, IBV_WR_RDMA_WRITE, 0, 8);
	struct ibv_wc first = end_wait(e), second = end_wait(e);
	if (first.wr_id != 1 || first.status != IBV_WC_RETRY_EXC_ERR)
		fail("%s: request %lu ended with '%s'", what, (unsigned long)first.wr_id,
		     ibv_wc_status_str(first.status));
	if (second.wr_id != 2 || second.status != IBV_WC_WR_FLUSH_ERR)
		fail("%s: request %lu ended with '%s'", what, (unsigned long)second.wr_id,
		     ibv_wc_status_str(second.status));
	end_expect_state(i->qp, IBV_QPS_ERR);
	if (dc_post(e, i, to, 3, IBV_WR_SEND, 0, 8)) {
		/* In ERR a request is taken and flushed, or refused. */
		if (errno != EINVAL)
			fail("a request in ERR: %s", strerror(errno));
	} else {
		end_expect(e, IBV_WC_WR_FLUSH_ERR);
	}
	dc_go(i->qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, 0);
	dc_initiator_ready(i, DC_PATIENT);
}

/* The same of an initiator that begins anew. */
static void fails_soon(struct end *e, struct initiator *i, struct name *to, const char *what)
{
	dc_go(i->qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, 0);
	dc_initiator_ready(i, DC_IMPATIENT);
	fails(e, i, to, what);
}

void names_initiator(struct end *e, struct name *to)
{
	struct initiator i = dc_initiator(e);
	struct name other = *to;

	dc_initiator_ready(&i, DC_PATIENT);
	other.number = to->number | 0xff00;
	fails_soon(e, &i, &other, "an unknown number");
	other = *to;
	other.key ^= 1ull << 63;
	fails_soon(e, &i, &other, "a wrong key");
	other = *to;
	other.number = e->peer.qpn;
	fails_soon(e, &i, &other, "the number of a connection");
	done(e, &i, to, IBV_WR_SEND, IBV_WC_SEND, 0, 8);
	/* Now the target knows the initiator. */
	other = *to;
	other.key ^= 1;
	fails_soon(e, &i, &other, "another wrong key");
	done(e, &i, to, IBV_WR_SEND, IBV_WC_SEND, 0, 8);
	end_meet(e);
	dc_destroy_initiator(&i);
}

void names_target(struct end *e, struct target *t)
{
	received(e, t, IBV_WC_RECV, false);
	received(e, t, IBV_WC_RECV, false);
	end_meet(e);
}

void destroyed_initiator(struct end *e, struct name *to)
{
	struct initiator i = dc_initiator(e);

	dc_initiator_ready(&i, DC_PATIENT);
	done(e, &i, to, IBV_WR_SEND, IBV_WC_SEND, 0, 8);
	end_meet(e);
	end_meet(e);
	fails(e, &i, to, "a target that was destroyed");
	dc_destroy_initiator(&i);
}

void destroyed_target(struct end *e, struct target *t)
{
	received(e, t, IBV_WC_RECV, false);
	end_meet(e);
	dc_destroy_target(t);
	t->qp = NULL;
	end_meet(e);
}

void killed_initiator(struct end *e, struct name *to)
{
	struct initiator i = dc_initiator(e);

	dc_initiator_ready(&i, DC_PATIENT);
	done(e, &i, to, IBV_WR_SEND, IBV_WC_SEND, 0, 8);
	printf("kill it\n");
	/* The end of the connection of the two sockets. */
	end_await_peer(e);
	fails(e, &i, to, "a target whose process was killed");
	dc_destroy_initiator(&i);
}

void killed_target(struct end *e, struct target *t)
{
	received(e, t, IBV_WC_RECV, false);
	for (;;)
		pause();
}

void leave_initiator(struct end *e, struct name *to)
{
	struct initiator i = dc_initiator(e), next;

	dc_initiator_ready(&i, DC_PATIENT);
	/* More than the target has receives: the rest is neither complete nor failed. */
	for (uint64_t n = 0; n < DC_DEPTH; n++)
		post(e, &i, to, n, IBV_WR_SEND, 0, LONG);
	end_expect(e, IBV_WC_SUCCESS);
	dc_destroy_initiator(&i);
	if (ibv_poll_cq(e->cq, 1, &(struct ibv_wc){ 0 }))
		fail("a completion of a destroyed initiator");
	/* The next one is another initiator. */
	next = dc_initiator(e);
	dc_initiator_ready(&next, DC_PATIENT);
	end_meet(e);
	done(e, &next, to, IBV_WR_SEND_WITH_IMM, IBV_WC_SEND, 0, 8);
	end_meet(e);
	dc_destroy_initiator(&next);
}

void leave_target(struct end *e, struct target *t)
{
	struct ibv_wc wc;

	end_meet(e);
	/* What was sent of the first initiator's requests may have arrived. */
	do {
		dc_receive(e, t, 2, 0, LONG);
		wc = end_expect(e, IBV_WC_SUCCESS);
	} while (!(wc.wc_flags & IBV_WC_WITH_IMM));
	end_meet(e);
}
