// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * pool-messages echo OWN          sends each message back, until it is killed
 * pool-messages ask OWN PEER      threads, each a user, send to one that does, and compare
 * pool-messages errors OWN PEER   what is refused, and how virtual queue pairs end
 *
 * OWN and PEER are ports of 127.0.0.1. An end that is asked by one in C, too, has its memory
 * written before each message. With URDMA_TEST_SENDS_MET set, pools are over initiators.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>

#include <urdma_pool.h>

#include "../exs-c-check/require.h"

#define SERVICE 7
#define USERS 4
#define MESSAGES 200
#define LENGTH 20000
#define SLOTS 4
#define ENDS 64

/* Requires that a call fails with this errno. */
#define REFUSED(call, number) \
	do { \
		errno = 0; \
		REQUIRE((call) == -1 && errno == (number)); \
	} while (0)

static const struct urdma_pool_depths depths = { .requests = SLOTS, .receives = SLOTS };
static struct sockaddr_in own, peer;
/* What other pools write: a number for each of their users. */
static volatile uint64_t offered[ENDS];

static void say(const char *what)
{
	puts(what);
	fflush(stdout);
}

static struct urdma_pool *create(void)
{
	struct urdma_pool_attr attr = {
		.transport = getenv("URDMA_TEST_SENDS_MET") ? URDMA_POOL_DC : URDMA_POOL_RC,
	};
	struct urdma_pool *pool = urdma_pool_create((struct sockaddr *)&own, sizeof(own), &attr);

	REQUIRE(pool != NULL);
	return pool;
}

static int offer(struct urdma_pool *pool, struct sockaddr_in at, uint32_t share)
{
	struct urdma_pool_message_attr attr = {
		.share = share, .addr = (void *)offered, .length = sizeof(offered),
	};

	return urdma_pool_offer_messages(pool, (struct sockaddr *)&at, sizeof(at), &attr);
}

/* One end of two, with a buffer for each Receive and each Send that it may have. */
struct end {
	struct urdma_pool *pool;
	urdma_pool_qp_t qp;
	urdma_pool_mr_t mr;
	unsigned char received[SLOTS][LENGTH];
	unsigned char sent[SLOTS][LENGTH];
	int free[SLOTS];
	int free_count;
};

static struct urdma_pool_sge element(struct end *end, void *addr, uint32_t length)
{
	struct urdma_pool_sge sge = { .mr = end->mr, .addr = addr, .length = length };

	return sge;
}

static int receive(struct end *end, uint64_t slot, uint32_t length)
{
	struct urdma_pool_sge sge = element(end, end->received[slot], length);
	struct urdma_pool_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 };

	return urdma_pool_post_recv(end->pool, end->qp, &wr);
}

/* Sends what is in a slot, in two elements. */
static int send_slot(struct end *end, int slot, uint32_t length, int has_imm, __be32 imm)
{
	struct urdma_pool_sge list[2] = {
		element(end, end->sent[slot], length / 3),
		element(end, end->sent[slot] + length / 3, length - length / 3),
	};
	struct urdma_pool_send_wr wr = {
		.wr_id = (uint64_t)slot, .opcode = has_imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED, .sg_list = list, .num_sge = 2, .imm_data = imm,
	};

	return urdma_pool_post_send(end->pool, end->qp, &wr);
}

static void begin(struct end *end, uint32_t user)
{
	REQUIRE(urdma_pool_reg_mr(end->pool, user, end->received,
				  sizeof(end->received) + sizeof(end->sent), &end->mr) == 0);
	end->free_count = SLOTS;
	for (int slot = 0; slot < SLOTS; slot++) {
		end->free[slot] = slot;
		REQUIRE(receive(end, (uint64_t)slot, LENGTH) == 0);
	}
}

static struct end *new_end(struct urdma_pool *pool)
{
	struct end *end = calloc(1, sizeof(*end));

	REQUIRE(end != NULL);
	end->pool = pool;
	return end;
}

static int open_to(struct end *end, uint32_t user, struct sockaddr_in to, uint32_t service)
{
	return urdma_pool_open_service(end->pool, user, (struct sockaddr *)&to, sizeof(to), service,
				       &depths, &end->qp);
}

static void end_it(struct end *end)
{
	REQUIRE(urdma_pool_close(end->pool, end->qp) == 0);
	REQUIRE(urdma_pool_dereg_mr(end->pool, end->mr) == 0);
	free(end);
}

static struct urdma_pool_recv_wc wait_for_message(struct end *end)
{
	struct urdma_pool_recv_wc wc;
	int count;

	while ((count = urdma_pool_poll_recv(end->pool, end->qp, 1, &wc)) == 0)
		sched_yield();
	REQUIRE(count == 1);
	return wc;
}

static struct urdma_pool_wc wait_for_request(struct end *end)
{
	struct urdma_pool_wc wc;
	int count;

	while ((count = urdma_pool_poll(end->pool, end->qp, 1, &wc)) == 0)
		sched_yield();
	REQUIRE(count == 1);
	return wc;
}

/* Takes what has come to one end, and sends it back; whether the other end is there. */
static int echo_once(struct end *end, int number)
{
	struct urdma_pool_wc done[SLOTS];
	struct urdma_pool_recv_wc come[SLOTS];
	int count = urdma_pool_poll(end->pool, end->qp, SLOTS, done);

	REQUIRE(count >= 0);
	for (int i = 0; i < count; i++)
		end->free[end->free_count++] = (int)done[i].wr_id;
	count = urdma_pool_poll_recv(end->pool, end->qp, SLOTS, come);
	REQUIRE(count >= 0);
	for (int i = 0; i < count; i++) {
		int slot;

		if (come[i].status != IBV_WC_SUCCESS)
			return 0;
		REQUIRE(come[i].wc_flags == IBV_WC_WITH_IMM);
		/* A Write of the other end is there before the Send behind it. */
		REQUIRE(!offered[number] || offered[number] == ntohl(come[i].imm_data) + 1);
		REQUIRE(end->free_count > 0);
		slot = end->free[--end->free_count];
		memcpy(end->sent[slot], end->received[come[i].wr_id], come[i].byte_len);
		REQUIRE(receive(end, come[i].wr_id, LENGTH) == 0);
		REQUIRE(send_slot(end, slot, come[i].byte_len, 1, come[i].imm_data) == 0);
	}
	return 1;
}

static void echo(void)
{
	static struct end *ends[ENDS];
	struct urdma_pool *pool = create();
	int count = 0;

	REQUIRE(offer(pool, own, 0) == 0);
	REQUIRE(urdma_pool_listen(pool, SERVICE) == 0);
	say("listens");
	for (;;) {
		struct end *end = new_end(pool);
		int accepted = urdma_pool_accept(pool, SERVICE, (uint32_t)count, &depths, &end->qp);

		REQUIRE(accepted >= 0);
		if (accepted) {
			REQUIRE(count < ENDS);
			begin(end, (uint32_t)count);
			ends[count++] = end;
		} else {
			free(end);
		}
		for (int i = 0; i < count; i++) {
			if (ends[i] && !echo_once(ends[i], i)) {
				end_it(ends[i]);
				ends[i] = NULL;
				say("ended");
			}
		}
		sched_yield();
	}
}

/* Writes a number to the memory of the other end, if it offers some. */
static void write_number(struct end *end, uint32_t user, uint64_t number)
{
	struct urdma_pool_remote remote;
	struct urdma_pool_sge sge = element(end, end->sent[SLOTS - 1], sizeof(number));
	struct urdma_pool_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1 };
	int known;

	while ((known = urdma_pool_peer_memory(end->pool, end->qp, &remote)) == 0)
		REQUIRE(urdma_pool_progress(end->pool) == 0);
	REQUIRE(known == 1);
	if (remote.length == 0)
		return;
	REQUIRE(remote.length == sizeof(offered));
	memcpy(end->sent[SLOTS - 1], &number, sizeof(number));
	wr.remote = remote.id;
	wr.remote_addr = remote.addr + sizeof(number) * user;
	REQUIRE(urdma_pool_post(end->pool, end->qp, &wr) == 0);
}

static struct end *ends_of_users[USERS];

/* Octets of which each segment of a message has others. */
static void fill(unsigned char *at, uint32_t seed, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++)
		at[i] = (unsigned char)(seed + i + (i >> 8) * 3);
}

static void *ask_as_user(void *of)
{
	uint32_t user = (uint32_t)(uintptr_t)of;
	struct end *end = ends_of_users[user];

	for (uint32_t number = 0; number < MESSAGES; number++) {
		uint32_t length = (number * 131 + user * 17) % (LENGTH + 1);
		struct urdma_pool_recv_wc wc;

		fill(end->sent[0], number + user, length);
		write_number(end, user, number + 1);
		REQUIRE(send_slot(end, 0, length, 1, htonl(number)) == 0);
		wc = wait_for_message(end);
		REQUIRE(wc.status == IBV_WC_SUCCESS && wc.byte_len == length);
		REQUIRE(wc.wc_flags == IBV_WC_WITH_IMM && wc.imm_data == htonl(number));
		REQUIRE(memcmp(end->received[wc.wr_id], end->sent[0], length) == 0);
		REQUIRE(receive(end, wc.wr_id, LENGTH) == 0);
		REQUIRE(wait_for_request(end).opcode == IBV_WC_SEND);
	}
	REQUIRE(urdma_pool_state(end->pool, end->qp) == URDMA_POOL_OPEN);
	end_it(end);
	return NULL;
}

static void ask(void)
{
	struct urdma_pool *pool = create();
	pthread_t threads[USERS];

	REQUIRE(offer(pool, own, 0) == 0);
	for (uintptr_t user = 0; user < USERS; user++) {
		struct end *end = new_end(pool);

		REQUIRE(open_to(end, (uint32_t)user, peer, SERVICE) == 0);
		begin(end, (uint32_t)user);
		ends_of_users[user] = end;
	}
	for (uintptr_t user = 0; user < USERS; user++)
		REQUIRE(pthread_create(&threads[user], NULL, ask_as_user, (void *)user) == 0);
	for (int user = 0; user < USERS; user++)
		REQUIRE(pthread_join(threads[user], NULL) == 0);
	REQUIRE(urdma_pool_destroy(pool) == 0);
}

static void refuse_offers(struct urdma_pool *pool)
{
	struct urdma_pool_message_attr nowhere = { .length = 8 };
	struct urdma_pool_message_attr empty = { .addr = (void *)offered };
	struct sockaddr *at = (struct sockaddr *)&own;
	struct sockaddr_in no_port = own;
	struct end *end = new_end(pool);

	no_port.sin_port = 0;
	REFUSED(urdma_pool_listen(pool, SERVICE), EOPNOTSUPP);
	REFUSED(offer(pool, no_port, 0), EINVAL);
	REFUSED(offer(pool, own, 3), EINVAL);
	REFUSED(offer(pool, own, UINT16_MAX + 1), EINVAL);
	REFUSED(offer(pool, peer, 0), EADDRINUSE);
	REFUSED(urdma_pool_offer_messages(pool, NULL, 0, &empty), EFAULT);
	REFUSED(urdma_pool_offer_messages(pool, at, sizeof(own), NULL), EFAULT);
	REFUSED(urdma_pool_offer_messages(pool, at, sizeof(own), &nowhere), EFAULT);
	REFUSED(urdma_pool_offer_messages(pool, at, sizeof(own), &empty), EINVAL);
	REFUSED(urdma_pool_offer_messages(NULL, at, sizeof(own), &empty), EFAULT);
	REQUIRE(offer(pool, own, 0) == 0);
	REFUSED(offer(pool, own, 0), EINVAL);
	REFUSED(open_to(end, 1, own, SERVICE), EINVAL);
	free(end);
}

static void refuse_services(struct urdma_pool *pool)
{
	struct urdma_pool_depths none = { .receives = 1 };
	struct sockaddr *to = (struct sockaddr *)&peer;
	urdma_pool_qp_t qp;

	REFUSED(urdma_pool_accept(pool, SERVICE, 1, &depths, &qp), EINVAL);
	REFUSED(urdma_pool_refuse(pool, SERVICE), EINVAL);
	REFUSED(urdma_pool_end_service(pool, SERVICE), EINVAL);
	REQUIRE(urdma_pool_listen(pool, SERVICE) == 0);
	REFUSED(urdma_pool_listen(pool, SERVICE), EADDRINUSE);
	REQUIRE(urdma_pool_accept(pool, SERVICE, 1, &depths, &qp) == 0);
	REQUIRE(urdma_pool_refuse(pool, SERVICE) == 0);
	REFUSED(urdma_pool_accept(pool, SERVICE, 1, &none, &qp), EINVAL);
	REFUSED(urdma_pool_accept(pool, SERVICE, 1, NULL, &qp), EFAULT);
	REFUSED(urdma_pool_accept(pool, SERVICE, 1, &depths, NULL), EFAULT);
	REQUIRE(urdma_pool_end_service(pool, SERVICE) == 0);
	REFUSED(urdma_pool_open_service(pool, 1, to, sizeof(peer), SERVICE, &none, &qp), EINVAL);
	REFUSED(urdma_pool_open_service(pool, 1, to, sizeof(peer), SERVICE, NULL, &qp), EFAULT);
	REFUSED(urdma_pool_open_service(pool, 1, to, sizeof(peer), SERVICE, &depths, NULL), EFAULT);
	REFUSED(urdma_pool_open_service(pool, 1, NULL, 0, SERVICE, &depths, &qp), EFAULT);
	REFUSED(urdma_pool_open_service(NULL, 1, to, sizeof(peer), SERVICE, &depths, &qp), EFAULT);
	REFUSED(urdma_pool_progress(NULL), EFAULT);
}

static void wait_for_state(struct end *end, enum urdma_pool_state state)
{
	while (urdma_pool_state(end->pool, end->qp) != (int)state)
		REQUIRE(urdma_pool_progress(end->pool) == 0);
}

/* A virtual queue pair that takes one-sided operations only. */
static void refuse_one_sided(struct urdma_pool *pool)
{
	struct end *end = new_end(pool);
	struct urdma_pool_remote remote;
	struct urdma_pool_recv_wc wc;

	REQUIRE(urdma_pool_open(pool, 1, (struct sockaddr *)&peer, sizeof(peer), 1, &end->qp,
				&remote) == 0);
	REQUIRE(remote.length == sizeof(offered));
	REFUSED(send_slot(end, 0, 0, 0, 0), EOPNOTSUPP);
	REFUSED(receive(end, 0, 0), EOPNOTSUPP);
	REFUSED(urdma_pool_state(pool, end->qp), EOPNOTSUPP);
	REFUSED(urdma_pool_poll_recv(pool, end->qp, 1, &wc), EOPNOTSUPP);
	REQUIRE(urdma_pool_peer_memory(pool, end->qp, &remote) == 1);
	REQUIRE(urdma_pool_close(pool, end->qp) == 0);
	REFUSED(urdma_pool_state(pool, end->qp), EINVAL);
	REFUSED(urdma_pool_peer_memory(pool, end->qp, &remote), EINVAL);
	REFUSED(urdma_pool_poll_recv(pool, end->qp, 1, &wc), EINVAL);
	REFUSED(send_slot(end, 0, 0, 0, 0), EINVAL);
	REFUSED(receive(end, 0, 0), EINVAL);
	free(end);
}

static void refuse_sends(struct end *end, struct end *other)
{
	struct urdma_pool_sge sge = element(end, end->sent, 1);
	struct urdma_pool_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge,
					 .num_sge = 1 };
	struct urdma_pool_recv_wr recv = { .sg_list = &sge, .num_sge = -1 };
	struct urdma_pool_remote remote;
	struct urdma_pool_recv_wc wc;

	REFUSED(urdma_pool_post_send(end->pool, end->qp, &wr), EOPNOTSUPP);
	wr.opcode = IBV_WR_SEND;
	wr.send_flags = IBV_SEND_INLINE;
	REFUSED(urdma_pool_post_send(end->pool, end->qp, &wr), EOPNOTSUPP);
	wr.send_flags = 0;
	wr.num_sge = 5;
	REFUSED(urdma_pool_post_send(end->pool, end->qp, &wr), EINVAL);
	wr.num_sge = 1;
	sge = element(other, other->sent, 1);
	REFUSED(urdma_pool_post_send(end->pool, end->qp, &wr), EINVAL);
	sge = element(end, end->sent, (1U << 30) + 1);
	REFUSED(urdma_pool_post_send(end->pool, end->qp, &wr), EINVAL);
	sge = element(end, end->sent[SLOTS - 1], LENGTH + 1);
	REFUSED(urdma_pool_post_send(end->pool, end->qp, &wr), EINVAL);
	wr.sg_list = NULL;
	REFUSED(urdma_pool_post_send(end->pool, end->qp, &wr), EFAULT);
	REFUSED(urdma_pool_post_send(end->pool, end->qp, NULL), EFAULT);
	REFUSED(urdma_pool_post_recv(end->pool, end->qp, &recv), EINVAL);
	REFUSED(urdma_pool_post_recv(end->pool, end->qp, NULL), EFAULT);
	/* Its Receives are posted. */
	recv.num_sge = 0;
	REFUSED(urdma_pool_post_recv(end->pool, end->qp, &recv), ENOMEM);
	REFUSED(urdma_pool_poll_recv(end->pool, end->qp, -1, &wc), EINVAL);
	REFUSED(urdma_pool_poll_recv(end->pool, end->qp, 1, NULL), EFAULT);
	REFUSED(urdma_pool_peer_memory(end->pool, end->qp, NULL), EFAULT);
	while (urdma_pool_peer_memory(end->pool, end->qp, &remote) == 0)
		REQUIRE(urdma_pool_progress(end->pool) == 0);
	REQUIRE(remote.length == sizeof(offered));
	REFUSED(urdma_pool_reset(end->pool, end->qp), EINVAL);
}

/* All Receives of an end that has ended are flushed, and it takes nothing. */
static void expect_flushed(struct end *end, int count)
{
	for (int i = 0; i < count; i++)
		REQUIRE(wait_for_message(end).status == IBV_WC_WR_FLUSH_ERR);
	REFUSED(receive(end, 0, LENGTH), EINVAL);
	REFUSED(send_slot(end, 0, 1, 0, 0), EINVAL);
}

static void refuse(void)
{
	struct urdma_pool *pool = create();
	struct end *end, *other;
	struct urdma_pool_sge sge;
	struct urdma_pool_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 };

	refuse_offers(pool);
	refuse_services(pool);
	refuse_one_sided(pool);
	/* A service that the peer does not offer. */
	end = new_end(pool);
	REQUIRE(open_to(end, 1, peer, SERVICE + 1) == 0);
	begin(end, 1);
	REQUIRE(send_slot(end, 0, 1, 0, 0) == 0);
	wait_for_state(end, URDMA_POOL_REFUSED);
	REQUIRE(wait_for_request(end).status == IBV_WC_RETRY_EXC_ERR);
	expect_flushed(end, SLOTS);
	end_it(end);
	end = new_end(pool);
	other = new_end(pool);
	REQUIRE(open_to(end, 1, peer, SERVICE) == 0);
	begin(end, 1);
	REQUIRE(open_to(other, 2, peer, SERVICE) == 0);
	begin(other, 2);
	refuse_sends(end, other);
	wait_for_state(end, URDMA_POOL_OPEN);
	end_it(end);
	/* A message that is longer than its Receive. */
	wait_for_state(other, URDMA_POOL_OPEN);
	for (int i = 0; i < SLOTS; i++) {
		REQUIRE(send_slot(other, 0, 1, 1, htonl(1)) == 0);
		REQUIRE(wait_for_message(other).status == IBV_WC_SUCCESS);
		REQUIRE(wait_for_request(other).status == IBV_WC_SUCCESS);
	}
	REQUIRE(receive(other, 0, 1) == 0);
	REQUIRE(receive(other, 1, 1) == 0);
	REQUIRE(send_slot(other, 0, 2, 1, htonl(1)) == 0);
	REQUIRE(wait_for_message(other).status == IBV_WC_LOC_LEN_ERR);
	wait_for_state(other, URDMA_POOL_CLOSED);
	expect_flushed(other, 1);
	end_it(other);
	/* One that is longer than a Receive of the other end, and than one message. */
	other = new_end(pool);
	REQUIRE(open_to(other, 2, peer, SERVICE) == 0);
	begin(other, 2);
	sge = element(other, other->sent, LENGTH + 1);
	REQUIRE(urdma_pool_post_send(pool, other->qp, &wr) == 0);
	REQUIRE(wait_for_request(other).status == IBV_WC_REM_INV_REQ_ERR);
	wait_for_state(other, URDMA_POOL_CLOSED);
	expect_flushed(other, SLOTS);
	end_it(other);
	REQUIRE(urdma_pool_destroy(pool) == 0);
}

static struct sockaddr_in port(const char *number)
{
	struct sockaddr_in at = {
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)atoi(number)),
		.sin_addr = { .s_addr = htonl(INADDR_LOOPBACK) },
	};

	return at;
}

int main(int argc, char **argv)
{
	REQUIRE(argc >= 3);
	own = port(argv[2]);
	if (strcmp(argv[1], "echo") == 0)
		echo();
	REQUIRE(argc == 4);
	peer = port(argv[3]);
	if (strcmp(argv[1], "ask") == 0)
		ask();
	else if (strcmp(argv[1], "errors") == 0)
		refuse();
	else
		REQUIRE(!"the first argument names a part");
	puts("done");
	return 0;
}
