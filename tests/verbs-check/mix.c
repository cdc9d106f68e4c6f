/*
 * mix: both ends at once post random operations, many outstanding, and check every octet: of each
 * message when it is received, of each read and atomic when it completes, and of the whole memory
 * of the other end when all is done.
 *
 * The region's quarters: TARGET, where the other end writes, reads and counts; INBOX, receive
 * buffers; SOURCE and SINK, a slot for each operation under way. What the target of the other end
 * must hold is kept in `shadow`, which follows the order of posting; verbs promise that order, with
 * a fence where an operation overlaps an earlier read or atomic.
 *
 * steady: the same until SIGUSR1; prints every 50 ms how many operations have completed.
 */
#include "scenarios.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define QUARTER (REGION_OCTETS / 4)
#define TARGET 0u
#define INBOX QUARTER
#define SOURCE (2 * QUARTER)
#define SINK (3 * QUARTER)
#define UNDER_WAY_MAX 32u
#define SLOT_OCTETS (QUARTER / UNDER_WAY_MAX)
#define BUFFER_OCTETS (QUARTER / RECV_DEPTH)
#define INLINE_MAX 64u
#define SGES_MAX 3
/* Unsuccessful polls before the program waits in its completion channel. */
#define POLLS_BEFORE_SLEEP 300
#define LOOK_MS 1000
#define UNTOUCHED 0xa5
/* Operations of a program that ends on SIGUSR1. */
#define UNTIL_TOLD UINT32_MAX
#define REPORT_S 0.05

enum kind { WRITE, READ, FETCH_ADD, COMPARE_SWAP, SEND, WRITE_IMM };

struct operation {
	enum kind kind;
	uint32_t offset, length;	/* in the target */
	uint8_t expected[SLOT_OCTETS];	/* of a read or an atomic */
};

struct mix {
	struct end *e;
	uint64_t random, seed;
	uint32_t posted, completed, unsignaled;
	uint32_t messages_sent, messages_received, messages_expected;
	bool said, told;		/* how many messages there were: by us, to us */
	uint8_t shadow[QUARTER];
	struct operation under_way[UNDER_WAY_MAX];
};

static volatile sig_atomic_t is_to_end;

static void on_signal(int number)
{
	(void)number;
	is_to_end = 1;
}

static uint64_t scramble(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint32_t below(struct mix *m, uint32_t limit)
{
	m->random += 0x9e3779b97f4a7c15u;
	return (uint32_t)(scramble(m->random) % limit);
}

static void pattern(uint8_t *octets, uint32_t count, uint64_t seed)
{
	for (uint32_t i = 0; i < count; i += 8) {
		uint64_t word = scramble(seed + i);

		memcpy(octets + i, &word, count - i < 8 ? count - i : 8);
	}
}

static uint32_t any_length(uint64_t random, uint32_t limit)
{
	uint32_t part = random % 4 == 0 ? 100 : random % 4 == 1 ? 3000 : limit;

	return (uint32_t)((random >> 8) % (part + 1));
}

/* What both ends derive from the number of a message: seed of its octets, kind, length. */
static uint64_t message_seed(uint64_t seed, bool to_server, uint32_t number)
{
	return scramble(seed * 4 + to_server) + ((uint64_t)number << 32);
}

static bool message_is_write(uint64_t seed)
{
	return scramble(seed ^ 1) % 3 == 0;
}

static uint32_t message_length(uint64_t seed)
{
	return any_length(scramble(seed ^ 2), BUFFER_OCTETS);
}

static struct operation *operation_at(struct mix *m, uint32_t number)
{
	return &m->under_way[number % UNDER_WAY_MAX];
}

static bool is_answered(enum kind kind)
{
	return kind == READ || kind == FETCH_ADD || kind == COMPARE_SWAP;
}

static bool overlaps_an_answered_one(struct mix *m, const struct operation *new)
{
	for (uint32_t i = m->completed; i < m->posted; i++) {
		const struct operation *old = operation_at(m, i);

		if (is_answered(old->kind) && new->offset < old->offset + old->length &&
		    old->offset < new->offset + new->length)
			return true;
	}
	return false;
}

/* One to three elements that cover `length` octets at `at`. */
static int scatter(struct mix *m, struct ibv_sge *sges, uint8_t *at, uint32_t length)
{
	int count = 0;

	while (length) {
		uint32_t part = count == SGES_MAX - 1 ? length : 1 + below(m, length);

		sges[count++] = (struct ibv_sge){ .addr = (uintptr_t)at,
						  .length = part,
						  .lkey = m->e->mr->lkey };
		at += part;
		length -= part;
	}
	return count;
}

static void plan_atomic(struct mix *m, struct operation *new, struct ibv_send_wr *wr)
{
	uint64_t before, operand = scramble(m->random);

	new->length = 8;
	new->offset = below(m, QUARTER / 8) * 8;
	memcpy(&before, m->shadow + new->offset, 8);
	memcpy(new->expected, &before, 8);
	wr->opcode = new->kind == FETCH_ADD ? IBV_WR_ATOMIC_FETCH_AND_ADD
					    : IBV_WR_ATOMIC_CMP_AND_SWP;
	wr->wr.atomic.remote_addr = m->e->peer.addr + TARGET + new->offset;
	wr->wr.atomic.rkey = m->e->peer.rkey;
	wr->wr.atomic.compare_add = operand;
	if (new->kind == FETCH_ADD) {
		before += operand;
	} else {
		/* One in four has another compare value and changes nothing. */
		wr->wr.atomic.compare_add = below(m, 4) ? before : ~before;
		wr->wr.atomic.swap = operand;
		if (wr->wr.atomic.compare_add == before)
			before = operand;
	}
	memcpy(m->shadow + new->offset, &before, 8);
}

static void plan_transfer(struct mix *m, struct operation *new, struct ibv_send_wr *wr,
			  uint8_t *source, bool to_server)
{
	new->length = any_length((uint64_t)below(m, UINT32_MAX) << 20 | below(m, 1 << 20),
				 SLOT_OCTETS);
	if (new->kind == SEND || new->kind == WRITE_IMM) {
		uint64_t seed = message_seed(m->seed, to_server, m->messages_sent);

		new->kind = message_is_write(seed) ? WRITE_IMM : SEND;
		new->length = message_length(seed);
		wr->imm_data = htobe32(m->messages_sent++);
		pattern(source, new->length, seed);
	} else if (new->kind == WRITE) {
		pattern(source, new->length, m->random);
	}
	wr->opcode = new->kind == WRITE ? IBV_WR_RDMA_WRITE : new->kind == READ ? IBV_WR_RDMA_READ :
		     new->kind == SEND ? IBV_WR_SEND_WITH_IMM : IBV_WR_RDMA_WRITE_WITH_IMM;
	new->offset = below(m, QUARTER - new->length);
	wr->wr.rdma.remote_addr = m->e->peer.addr + TARGET + new->offset;
	wr->wr.rdma.rkey = m->e->peer.rkey;
	if (new->kind == READ)
		memcpy(new->expected, m->shadow + new->offset, new->length);
	else if (new->kind != SEND)
		memcpy(m->shadow + new->offset, source, new->length);
}

static void post_one(struct mix *m, bool to_server, bool is_last)
{
	static const enum kind kinds[] = { WRITE,     WRITE,	    WRITE, READ, READ, READ,
					   FETCH_ADD, COMPARE_SWAP, SEND,  SEND, SEND };
	struct operation *new = operation_at(m, m->posted);
	uint32_t slot = m->posted % UNDER_WAY_MAX * SLOT_OCTETS;
	uint8_t *source = m->e->region + SOURCE + slot, *local = source;
	struct ibv_send_wr wr = { .wr_id = m->posted }, *bad;
	struct ibv_sge sges[SGES_MAX];

	new->kind = kinds[below(m, sizeof(kinds) / sizeof(kinds[0]))];
	if (new->kind == FETCH_ADD || new->kind == COMPARE_SWAP)
		plan_atomic(m, new, &wr);
	else
		plan_transfer(m, new, &wr, source, to_server);
	if (is_answered(new->kind)) {
		local = m->e->region + SINK + slot;
		memset(local, UNTOUCHED, SLOT_OCTETS);
	}
	wr.sg_list = sges;
	wr.num_sge = scatter(m, sges, local, new->length);
	if (new->kind != SEND && overlaps_an_answered_one(m, new))
		wr.send_flags |= IBV_SEND_FENCE;
	if (!is_answered(new->kind) && new->length <= INLINE_MAX && below(m, 2))
		wr.send_flags |= IBV_SEND_INLINE;
	if (is_last || ++m->unsignaled > UNDER_WAY_MAX / 4 || below(m, 3) == 0) {
		wr.send_flags |= IBV_SEND_SIGNALED;
		m->unsignaled = 0;
	}
	int error = ibv_post_send(m->e->qp, &wr, &bad);
	if (error)
		fail("operation %u was refused: %s", m->posted, strerror(error));
	if (wr.send_flags & IBV_SEND_INLINE)
		memset(source, UNTOUCHED, new->length);
	m->posted++;
}

/* All operations up to this one are complete. */
static void on_sent(struct mix *m, const struct ibv_wc *wc)
{
	for (; m->completed <= wc->wr_id; m->completed++) {
		const struct operation *done = operation_at(m, m->completed);
		const uint8_t *sink = m->e->region + SINK +
				      m->completed % UNDER_WAY_MAX * SLOT_OCTETS;

		if (!is_answered(done->kind))
			continue;
		if (memcmp(sink, done->expected, done->length))
			fail("operation %u, kind %d: %u octets at %u are not what they must be",
			     m->completed, done->kind, done->length, done->offset);
		if (done->length < SLOT_OCTETS && sink[done->length] != UNTOUCHED)
			fail("operation %u wrote behind its end", m->completed);
	}
}

static void post_receive(struct mix *m, uint32_t buffer)
{
	memset(m->e->region + INBOX + buffer * BUFFER_OCTETS, UNTOUCHED, BUFFER_OCTETS);
	if (end_recv(m->e, buffer, INBOX + buffer * BUFFER_OCTETS, BUFFER_OCTETS))
		fail("a receive request was refused");
}

static void on_received(struct mix *m, const struct ibv_wc *wc, bool to_server)
{
	static uint8_t expected[BUFFER_OCTETS];
	uint32_t number = m->messages_received++, buffer = number % RECV_DEPTH;
	const uint8_t *inbox = m->e->region + INBOX + buffer * BUFFER_OCTETS;
	uint64_t seed = message_seed(m->seed, to_server, number);
	uint32_t length = message_length(seed);
	bool is_write = message_is_write(seed);

	if (wc->wr_id != buffer || !(wc->wc_flags & IBV_WC_WITH_IMM) ||
	    be32toh(wc->imm_data) != number)
		fail("message %u came as %u into buffer %lu", number, be32toh(wc->imm_data),
		     (unsigned long)wc->wr_id);
	if (wc->byte_len != length ||
	    wc->opcode != (is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV))
		fail("message %u has opcode %d and %u octets instead of %u", number, wc->opcode,
		     wc->byte_len, length);
	pattern(expected, length, seed);
	if (!is_write && memcmp(inbox, expected, length))
		fail("message %u arrived with other octets", number);
	if (inbox[BUFFER_OCTETS - 1] != UNTOUCHED && (is_write || length < BUFFER_OCTETS))
		fail("message %u wrote behind its end", number);
	post_receive(m, buffer);
}

/* Once all messages are sent, exchanges their numbers with the other end. */
static void compare_notes(struct mix *m, uint32_t operations)
{
	if (!m->said && m->completed == operations) {
		if (send(m->e->socket, &m->messages_sent, sizeof(uint32_t), MSG_NOSIGNAL) !=
		    sizeof(uint32_t))
			fail("the other end is gone");
		m->said = true;
	}
	if (!m->told && end_peer_waits(m->e)) {
		if (recv(m->e->socket, &m->messages_expected, sizeof(uint32_t), MSG_WAITALL) !=
		    sizeof(uint32_t))
			fail("the other end is gone");
		m->told = true;
	}
}

/* Waits for a completion or for a message of the other end. */
static void rest(struct end *e, struct ibv_wc *wc, int *found)
{
	struct pollfd fds[2] = { { .fd = e->channel->fd, .events = POLLIN },
				 { .fd = e->socket, .events = POLLIN } };
	struct ibv_cq *cq;
	void *context;

	if (ibv_req_notify_cq(e->cq, 0))
		fail("ibv_req_notify_cq: %s", strerror(errno));
	*found = ibv_poll_cq(e->cq, 1, wc);
	if (*found)
		return;
	poll(fds, 2, LOOK_MS);
	if (!(fds[0].revents & POLLIN))
		return;
	if (ibv_get_cq_event(e->channel, &cq, &context))
		fail("ibv_get_cq_event: %s", strerror(errno));
	ibv_ack_cq_events(cq, 1);
}

/* The number of operations, once this is known. */
static uint32_t end_of(struct mix *m, uint32_t operations)
{
	return operations == UNTIL_TOLD && is_to_end ? m->posted + 1 : operations;
}

static void report(const struct mix *m, double *reported, double deadline)
{
	if (deadline < *reported + REPORT_S)
		return;
	*reported = deadline;
	printf("mixed %u\n", m->completed);
}

static void run(struct mix *m, bool server, uint32_t operations)
{
	double deadline = end_deadline(), reported = deadline;
	uint32_t in_vain = 0;

	while (!m->said || !m->told || m->messages_received < m->messages_expected) {
		struct ibv_wc wc;
		int found;

		operations = end_of(m, operations);
		if (m->posted < operations && m->posted - m->completed < UNDER_WAY_MAX)
			post_one(m, !server, m->posted + 1 == operations);
		compare_notes(m, operations);
		found = ibv_poll_cq(m->e->cq, 1, &wc);
		if (!found && ++in_vain >= POLLS_BEFORE_SLEEP)
			rest(m->e, &wc, &found);
		if (found < 0)
			fail("ibv_poll_cq gave %d", found);
		if (!found) {
			end_check_deadline(deadline);
			if (operations != UNTIL_TOLD)
				sched_yield();
			continue;
		}
		deadline = end_deadline();
		if (operations == UNTIL_TOLD)
			report(m, &reported, deadline);
		in_vain = 0;
		if (wc.status != IBV_WC_SUCCESS)
			fail("request %lu of %u sent and %u received ended with '%s'",
			     (unsigned long)wc.wr_id, m->posted, m->messages_received,
			     ibv_wc_status_str(wc.status));
		if (wc.opcode & IBV_WC_RECV)
			on_received(m, &wc, server);
		else
			on_sent(m, &wc);
	}
}

/* Reads the whole target of the other end back. */
static void read_back_all(struct mix *m)
{
	struct end *e = m->e;

	for (uint32_t offset = 0; offset < QUARTER; offset += SLOT_OCTETS) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ,
					  .send_flags = IBV_SEND_SIGNALED };

		wr.wr.rdma.remote_addr = e->peer.addr + TARGET + offset;
		wr.wr.rdma.rkey = e->peer.rkey;
		if (end_send(e, &wr, SINK, SLOT_OCTETS, e->mr->lkey))
			fail("ibv_post_send refused");
		end_expect(e, IBV_WC_SUCCESS);
		if (memcmp(e->region + SINK, m->shadow + offset, SLOT_OCTETS))
			fail("the other end's memory at %u is not what was written", offset);
	}
}

static void mix(struct end *e, bool server, uint32_t operations)
{
	struct mix *m = calloc(1, sizeof(*m));

	m->e = e;
	m->seed = e->seed;
	m->random = scramble(e->seed * 2 + server);
	for (uint32_t i = 0; i < RECV_DEPTH; i++)
		post_receive(m, i);
	end_meet(e);
	printf("mixing\n");
	run(m, server, operations);
	end_meet(e);
	read_back_all(m);
	end_meet(e);
	free(m);
}

void mix_client(struct end *e)
{
	mix(e, false, e->operations);
}

void mix_server(struct end *e)
{
	mix(e, true, e->operations);
}

static void steady(struct end *e, bool server)
{
	signal(SIGUSR1, on_signal);
	printf("connection %u:%u:%u:%u\n", e->qp->qp_num, e->peer.qpn, e->psn, e->peer.psn);
	mix(e, server, UNTIL_TOLD);
}

void steady_client(struct end *e)
{
	steady(e, false);
}

void steady_server(struct end *e)
{
	steady(e, true);
}
