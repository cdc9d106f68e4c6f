#include "scenarios.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALL                                                                          \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	 IBV_ACCESS_REMOTE_ATOMIC)
#define HALF (REGION_OCTETS / 2)
#define PATTERN 0x5a

/*
 * ---- data: random operations; the client keeps a copy of what the server's region must hold ----
 */

#define DATA_ROUNDS 400
#define MESSAGE_MAX 65536
#define SLOT(i) (HALF + ((i) % RECV_DEPTH) * (HALF / RECV_DEPTH))

static uint8_t shadow[REGION_OCTETS];

static uint32_t random_length(uint32_t limit)
{
	switch (lrand48() % 4) {
	case 0: return (uint32_t)(lrand48() % 128);
	case 1: return (uint32_t)(lrand48() % 2048);
	default: return (uint32_t)(lrand48() % (limit + 1));
	}
}

static void fill(uint8_t *octets, size_t count)
{
	for (size_t i = 0; i < count; i++)
		octets[i] = (uint8_t)lrand48();
}

static struct ibv_send_wr remote_wr(struct end *e, enum ibv_wr_opcode opcode, size_t offset)
{
	return (struct ibv_send_wr){
		.opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = e->peer.addr + offset, .rkey = e->peer.rkey },
	};
}

static void do_and_wait(struct end *e, struct ibv_send_wr *wr, size_t offset, uint32_t length)
{
	int error = end_send(e, wr, offset, length, e->mr->lkey);

	if (error)
		fail("ibv_post_send: %s", strerror(error));
	end_expect(e, IBV_WC_SUCCESS);
}

static void read_back(struct end *e, size_t offset, uint32_t length)
{
	struct ibv_send_wr wr = remote_wr(e, IBV_WR_RDMA_READ, offset);

	do_and_wait(e, &wr, 0, length);
	if (memcmp(e->region, shadow + offset, length))
		fail("%u octets at %zu are not what was written", length, offset);
}

static void random_write(struct end *e)
{
	uint32_t length = random_length(HALF / 2);
	size_t offset = (size_t)lrand48() % (HALF - length);
	struct ibv_send_wr wr = remote_wr(e, IBV_WR_RDMA_WRITE, offset);

	fill(e->region, length);
	memcpy(shadow + offset, e->region, length);
	do_and_wait(e, &wr, 0, length);
}

static void random_atomic(struct end *e)
{
	size_t offset = ((size_t)lrand48() % (HALF / 8)) * 8;
	uint64_t before, add = (uint64_t)mrand48();
	struct ibv_send_wr wr = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				  .send_flags = IBV_SEND_SIGNALED };

	memcpy(&before, shadow + offset, 8);
	wr.wr.atomic.remote_addr = e->peer.addr + offset;
	wr.wr.atomic.rkey = e->peer.rkey;
	wr.wr.atomic.compare_add = add;
	if (lrand48() % 2) {
		wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
		wr.wr.atomic.compare_add = before;
		wr.wr.atomic.swap = before + add;
	}
	do_and_wait(e, &wr, 0, 8);
	if (memcmp(e->region, &before, 8))
		fail("an atomic at %zu gave another old value", offset);
	before += add;
	memcpy(shadow + offset, &before, 8);
}

static void send_message(struct end *e, unsigned number, bool write)
{
	uint32_t length = random_length(HALF / RECV_DEPTH < MESSAGE_MAX ? HALF / RECV_DEPTH
									: MESSAGE_MAX);
	struct ibv_send_wr wr = remote_wr(
		e, write ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND_WITH_IMM, SLOT(number));

	wr.imm_data = htobe32(length);
	fill(e->region, length);
	memcpy(shadow + SLOT(number), e->region, length);
	do_and_wait(e, &wr, 0, length);
}

static void data_client(struct end *e)
{
	unsigned messages = 0;

	end_meet(e);
	for (int round = 0; round < DATA_ROUNDS; round++) {
		switch (lrand48() % 5) {
		case 0: case 1: random_write(e); break;
		case 2: read_back(e, (size_t)lrand48() % HALF, random_length(HALF)); break;
		case 3: random_atomic(e); break;
		default: send_message(e, messages++, lrand48() % 2); break;
		}
	}
	read_back(e, 0, HALF);
	read_back(e, HALF, HALF);
	end_meet(e);
}

static void data_server(struct end *e)
{
	struct ibv_wc wc;

	for (unsigned i = 0; i < RECV_DEPTH; i++)
		if (end_recv(e, i, SLOT(i), HALF / RECV_DEPTH))
			fail("a receive request was refused");
	end_meet(e);
	for (unsigned next = 0; !end_peer_waits(e);) {
		if (ibv_poll_cq(e->cq, 1, &wc) != 1) {
			usleep(100);
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS || wc.wr_id != next % RECV_DEPTH)
			fail("receive %u ended with '%s'", next, ibv_wc_status_str(wc.status));
		if (!(wc.wc_flags & IBV_WC_WITH_IMM) || be32toh(wc.imm_data) != wc.byte_len)
			fail("receive %u: immediate %u, length %u", next, be32toh(wc.imm_data),
			     wc.byte_len);
		if (end_recv(e, wc.wr_id, SLOT(next), HALF / RECV_DEPTH))
			fail("a receive request was refused");
		next++;
	}
	end_meet(e);
}

/* ---- access: the client does what it must not do; both ends fail and no octet changes ---- */

static void pattern_everywhere(struct end *e)
{
	memset(e->region, PATTERN, REGION_OCTETS);
	end_meet(e);
}

static void expect_untouched(struct end *e)
{
	for (size_t i = 0; i < REGION_OCTETS; i++)
		if (e->region[i] != PATTERN)
			fail("octet %zu was written", i);
}

/* One forbidden request with two more behind it, which are flushed. */
static void forbidden(struct end *e, struct ibv_send_wr wr, uint32_t length,
		      enum ibv_wc_status status)
{
	end_meet(e);
	memset(e->region, 0, REGION_OCTETS);
	for (wr.wr_id = 0; wr.wr_id < 3; wr.wr_id++)
		if (end_send(e, &wr, 0, length, e->mr->lkey))
			fail("ibv_post_send refused");
	struct ibv_wc wc = end_expect(e, status);
	if (wc.wr_id != 0)
		fail("request %lu failed instead of the first", (unsigned long)wc.wr_id);
	for (uint64_t i = 1; i < 3; i++)
		if (end_expect(e, IBV_WC_WR_FLUSH_ERR).wr_id != i)
			fail("flushed out of order");
	end_expect_state(e->qp, IBV_QPS_ERR);
	end_meet(e);
}

/* The victim's receives are flushed, its queue pair is in error, its memory as before. */
static void victim(struct end *e)
{
	if (end_recv(e, 7, 0, 64))
		fail("a receive request was refused");
	pattern_everywhere(e);
	end_expect_event(e, IBV_EVENT_QP_ACCESS_ERR);
	end_meet(e);
	if (end_expect(e, IBV_WC_WR_FLUSH_ERR).wr_id != 7)
		fail("another receive was flushed");
	end_expect_state(e->qp, IBV_QPS_ERR);
	expect_untouched(e);
}

static void wrong_rkey_client(struct end *e)
{
	struct ibv_send_wr wr = remote_wr(e, IBV_WR_RDMA_WRITE, 0);

	wr.wr.rdma.rkey ^= 1;
	forbidden(e, wr, 5000, IBV_WC_REM_ACCESS_ERR);
}

static void bounds_client(struct end *e)
{
	forbidden(e, remote_wr(e, IBV_WR_RDMA_WRITE, REGION_OCTETS - 4999), 5000,
		  IBV_WC_REM_ACCESS_ERR);
}

static void wrap_client(struct end *e)
{
	struct ibv_send_wr wr = remote_wr(e, IBV_WR_RDMA_WRITE, 0);

	wr.wr.rdma.remote_addr = UINT64_MAX - 100;
	forbidden(e, wr, 5000, IBV_WC_REM_ACCESS_ERR);
}

static void foreign_pd_client(struct end *e)
{
	struct ibv_send_wr wr = remote_wr(e, IBV_WR_RDMA_WRITE, 0);

	wr.wr.rdma.rkey = e->peer.foreign_rkey;
	forbidden(e, wr, 64, IBV_WC_REM_ACCESS_ERR);
}

static void write_client(struct end *e)
{
	forbidden(e, remote_wr(e, IBV_WR_RDMA_WRITE, 0), 64, IBV_WC_REM_ACCESS_ERR);
}

static void read_client(struct end *e)
{
	forbidden(e, remote_wr(e, IBV_WR_RDMA_READ, 0), 64, IBV_WC_REM_ACCESS_ERR);
}

static void atomic_client(struct end *e)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				  .send_flags = IBV_SEND_SIGNALED };

	wr.wr.atomic.remote_addr = e->peer.addr;
	wr.wr.atomic.rkey = e->peer.rkey;
	wr.wr.atomic.compare_add = 1;
	forbidden(e, wr, 8, IBV_WC_REM_ACCESS_ERR);
}

static void wrong_lkey_client(struct end *e)
{
	struct ibv_send_wr wr = remote_wr(e, IBV_WR_RDMA_WRITE, 0);

	end_meet(e);
	if (end_send(e, &wr, 0, 64, e->mr->lkey ^ 1))
		return end_meet(e);	/* refused at once is as good */
	end_expect(e, IBV_WC_LOC_PROT_ERR);
	end_expect_state(e->qp, IBV_QPS_ERR);
	end_meet(e);
}

static void bystander(struct end *e)
{
	pattern_everywhere(e);
	end_meet(e);
	expect_untouched(e);
}

/* ---- receive queues: too short, empty for a while, empty for ever ---- */

static void long_client(struct end *e)
{
	forbidden(e, remote_wr(e, IBV_WR_SEND, 0), 65, IBV_WC_REM_INV_REQ_ERR);
}

static void long_server(struct end *e)
{
	if (end_recv(e, 1, 0, 64))
		fail("a receive request was refused");
	pattern_everywhere(e);
	end_expect(e, IBV_WC_LOC_LEN_ERR);
	end_expect_state(e->qp, IBV_QPS_ERR);
	end_meet(e);
	for (size_t i = 64; i < REGION_OCTETS; i++)
		if (e->region[i] != PATTERN)
			fail("octet %zu behind the receive buffer was written", i);
}

static void rnr_client(struct end *e)
{
	struct ibv_send_wr wr = remote_wr(e, IBV_WR_SEND, 0);

	end_meet(e);
	do_and_wait(e, &wr, 0, 5000);
	end_meet(e);
}

static void rnr_late_server(struct end *e)
{
	end_meet(e);
	usleep(200 * 1000);
	if (end_recv(e, 1, 0, 8192))
		fail("a receive request was refused");
	if (end_expect(e, IBV_WC_SUCCESS).byte_len != 5000)
		fail("another length was received");
	end_meet(e);
}

static void rnr_never_client(struct end *e)
{
	struct ibv_send_wr wr = remote_wr(e, IBV_WR_SEND, 0);

	end_meet(e);
	if (end_send(e, &wr, 0, 64, e->mr->lkey))
		fail("ibv_post_send refused");
	end_expect(e, IBV_WC_RNR_RETRY_EXC_ERR);
	end_expect_state(e->qp, IBV_QPS_ERR);
	end_meet(e);
}

static void meeting_server(struct end *e)
{
	end_meet(e);
	end_meet(e);
}

/* ---- a receiver that has one request at a time, now and then ---- */

#define SLOW_MESSAGES 200
#define SLOW_OCTETS 20000

static void slow_client(struct end *e)
{
	struct ibv_send_wr wr = remote_wr(e, IBV_WR_SEND_WITH_IMM, 0);

	end_meet(e);
	for (unsigned posted = 0, done = 0; done < SLOW_MESSAGES;) {
		if (posted < SLOW_MESSAGES && posted - done < SEND_DEPTH) {
			wr.wr_id = posted;
			wr.imm_data = htobe32(posted);
			memset(e->region + (posted % SEND_DEPTH) * SLOW_OCTETS, (int)posted,
			       SLOW_OCTETS);
			if (end_send(e, &wr, (posted % SEND_DEPTH) * SLOW_OCTETS, SLOW_OCTETS,
				     e->mr->lkey))
				fail("ibv_post_send refused");
			posted++;
			continue;
		}
		if (end_expect(e, IBV_WC_SUCCESS).wr_id != done++)
			fail("sends completed out of order");
	}
	end_meet(e);
}

static void slow_server(struct end *e)
{
	end_meet(e);
	for (unsigned i = 0; i < SLOW_MESSAGES; i++) {
		if (i % 8 == 0)
			usleep(5000);
		if (end_recv(e, i, 0, SLOW_OCTETS))
			fail("a receive request was refused");
		struct ibv_wc wc = end_expect(e, IBV_WC_SUCCESS);
		if (wc.byte_len != SLOW_OCTETS || be32toh(wc.imm_data) != i)
			fail("message %u came as %u with %u octets", i, be32toh(wc.imm_data),
			     wc.byte_len);
		for (unsigned at = 0; at < SLOW_OCTETS; at++)
			if (e->region[at] != (uint8_t)i)
				fail("message %u arrived with other octets", i);
	}
	end_meet(e);
}

/* ---- queues that are full: the post is refused, names its request, and nothing is lost ---- */

static void full_client(struct end *e)
{
	struct ibv_send_wr wr = remote_wr(e, IBV_WR_RDMA_WRITE, 0);
	uint64_t accepted = 0;
	int error;

	end_meet(e);
	for (; !(error = end_send(e, &wr, 0, 64, e->mr->lkey)); accepted++, wr.wr_id++)
		if (accepted > 100000)
			fail("a queue of %d takes any number of requests without a poll",
			     SEND_DEPTH);
	if (error != ENOMEM || accepted < SEND_DEPTH)
		fail("after %lu requests: %s", (unsigned long)accepted, strerror(error));
	usleep(50 * 1000);
	for (uint64_t i = 0; i < accepted; i++)
		if (end_expect(e, IBV_WC_SUCCESS).wr_id != i)
			fail("completion %lu was lost", (unsigned long)i);
	wr.wr_id = 0;
	do_and_wait(e, &wr, 0, 64);
	end_meet(e);
}

/* ---- life and death: run until the other end or urdmad is gone ---- */

/* Writes after which a stream is in full swing. */
#define UNDER_WAY 1000

static void stream_client(struct end *e)
{
	struct ibv_send_wr wr = remote_wr(e, IBV_WR_RDMA_WRITE, 0);
	struct ibv_wc wc;

	end_meet(e);
	for (unsigned outstanding = 0, completed = 0;;) {
		while (outstanding < SEND_DEPTH && !end_send(e, &wr, 0, 65536, e->mr->lkey))
			outstanding++;
		wc = end_wait(e);
		outstanding--;
		if (wc.status == IBV_WC_SUCCESS) {
			if (++completed == UNDER_WAY)
				printf("streaming\n");
			continue;
		}
		for (; outstanding; outstanding--)
			end_expect(e, IBV_WC_WR_FLUSH_ERR);
		printf("stream ended: %s\n", ibv_wc_status_str(wc.status));
		return;
	}
}

/*
 * Has one receive posted and sleeps until that ends, or until its peer's process does, which it
 * then notices when it sends. If urdmad is killed, the peer may notice and end first; the queue
 * pair may already be in the error state by then, in which a request is accepted and flushed.
 */
static void stream_server(struct end *e)
{
	struct ibv_send_wr wr = remote_wr(e, IBV_WR_RDMA_WRITE, 0);
	struct pollfd ends[] = { { .fd = e->channel->fd, .events = POLLIN },
				 { .fd = e->socket, .events = POLLIN } };
	struct ibv_cq *cq;
	void *context;

	if (end_recv(e, 1, 0, 64) || ibv_req_notify_cq(e->cq, 0))
		fail("a receive request was refused");
	end_meet(e);
	printf("waiting\n");
	if (poll(ends, 2, -1) < 0)
		fail("poll: %s", strerror(errno));
	if (ends[0].revents) {
		if (ibv_get_cq_event(e->channel, &cq, &context))
			fail("ibv_get_cq_event: %s", strerror(errno));
		ibv_ack_cq_events(cq, 1);
	} else if (end_send(e, &wr, 0, 64, e->mr->lkey)) {
		fail("a request was refused");
	}
	printf("stream ended: %s\n", ibv_wc_status_str(end_wait(e).status));
}

/* Closes eventfds that it does not own, as programs do that close every descriptor. */
static void close_eventfds(void)
{
	char path[32], target[32];

	for (int fd = 3; fd < 1024; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		memset(target, 0, sizeof(target));
		if (readlink(path, target, sizeof(target) - 1) > 0 && strstr(target, "[eventfd]"))
			close(fd);
	}
}

/* Sends one message when SIGUSR1 comes, and nothing before; ends when it comes again. */
static void summon_client(struct end *e)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	sigset_t wanted;
	int signal;

	sigemptyset(&wanted);
	sigaddset(&wanted, SIGUSR1);
	sigprocmask(SIG_BLOCK, &wanted, NULL);
	end_meet(e);
	close_eventfds();
	printf("ready\n");
	if (sigwait(&wanted, &signal) || end_send(e, &wr, 0, 64, e->mr->lkey))
		fail("no message was sent");
	end_expect(e, IBV_WC_SUCCESS);
	if (sigwait(&wanted, &signal))
		fail("no second signal");
	end_meet(e);
}

/* Sleeps in ibv_get_cq_event until that message comes. */
static void summon_server(struct end *e)
{
	struct ibv_cq *cq;
	void *context;

	if (end_recv(e, 1, 0, 64) || ibv_req_notify_cq(e->cq, 0))
		fail("a receive request was refused");
	end_meet(e);
	printf("waiting\n");
	if (ibv_get_cq_event(e->channel, &cq, &context))
		fail("ibv_get_cq_event: %s", strerror(errno));
	ibv_ack_cq_events(cq, 1);
	end_expect(e, IBV_WC_SUCCESS);
	printf("woken\n");
	end_meet(e);
}

/*
 * Acknowledge timeouts, 4.096 us * 2^n: a peer that is silent for two seconds is gone, or one that
 * is silent for half a minute.
 */
#define QUICK 14
#define PATIENT 18

static const struct scenario scenarios[] = {
	{ "data", { ALL, ALL }, 7, QUICK, data_client, data_server },
	{ "mix", { ALL, ALL }, 7, PATIENT, mix_client, mix_server },
	{ "steady", { ALL, ALL }, 7, PATIENT, steady_client, steady_server },
	{ "corrupted", { ALL, ALL }, 7, PATIENT, corrupted_client, corrupted_client },
	{ "wrong-rkey", { ALL, ALL }, 7, QUICK, wrong_rkey_client, victim },
	{ "bounds", { ALL, ALL }, 7, QUICK, bounds_client, victim },
	{ "wrap", { ALL, ALL }, 7, QUICK, wrap_client, victim },
	{ "foreign-pd", { ALL, ALL }, 7, QUICK, foreign_pd_client, victim },
	{ "no-remote-write",
	  { ALL, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ },
	  7,
	  QUICK,
	  write_client,
	  victim },
	{ "no-remote-read",
	  { ALL, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE },
	  7,
	  QUICK,
	  read_client,
	  victim },
	{ "no-remote-atomic",
	  { ALL, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ },
	  7,
	  QUICK,
	  atomic_client,
	  victim },
	{ "wrong-lkey", { ALL, ALL }, 7, QUICK, wrong_lkey_client, bystander },
	{ "long-message", { ALL, ALL }, 7, QUICK, long_client, long_server },
	{ "rnr-late", { ALL, ALL }, 7, QUICK, rnr_client, rnr_late_server },
	{ "rnr-never", { ALL, ALL }, 2, QUICK, rnr_never_client, meeting_server },
	{ "slow-receiver", { ALL, ALL }, 7, QUICK, slow_client, slow_server },
	{ "full", { ALL, ALL }, 7, QUICK, full_client, meeting_server },
	{ "unmapped", { ALL, ALL }, 7, PATIENT, unmapped_client, unmapped_server },
	{ "leave", { ALL, ALL }, 7, QUICK, leave_client, leave_server },
	{ "sleep", { ALL, ALL }, 7, QUICK, sleep_client, sleep_server },
	{ "epoll", { ALL, ALL }, 7, QUICK, epoll_client, epoll_server },
	{ "poll", { ALL, ALL }, 7, QUICK, poll_client, poll_server },
	{ "poll-set", { ALL, ALL }, 7, QUICK, poll_set_client, poll_set_server },
	{ "select", { ALL, ALL }, 7, QUICK, select_client, select_server },
	{ "stream", { ALL, ALL }, 7, QUICK, stream_client, stream_server },
	{ "answers", { ALL, ALL }, 7, PATIENT, answers_client, answers_server },
	{ "summon", { ALL, ALL }, 7, QUICK, summon_client, summon_server },
};

const struct scenario *scenario_find(const char *name)
{
	for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
		if (!strcmp(scenarios[i].name, name))
			return &scenarios[i];
	return NULL;
}
