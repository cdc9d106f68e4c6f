// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * exs-hostile ADDRESS PORT STEP...
 *
 * Connects to an end of a byte stream (doc/streams.md), executes the steps, and waits for the end
 * of the connection. It knows no rule of the protocol. Numbers are decimal, octets hexadecimal.
 *
 * hello=OCTETS             the greeting, in place of a correct one
 * secret                   waits for a transfer of 8 octets: an address of the other end
 * advert                   waits for an advert
 * file=PATH                waits for a file
 * send=OCTETS              a SEND
 * write=AT:PLUS:FROM:COUNT:IMMEDIATE
 *                          an RDMA Write of COUNT octets to AT (ring, advert, or secret, whose key
 *                          is that of the ring), FROM octets after its start, with PLUS added to
 *                          the key, and with IMMEDIATE unless that is -
 * read                     an RDMA READ of the ring
 */
#include <endian.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "../exs-c-check/require.h"

#define LIMIT_S 30
#define SLOTS 64
#define SLOT_OCTETS 64
#define RING_OCTETS 4096
#define HELLO_OCTETS 32
#define MEMORY_OCTETS 16384
/* What an RDMA Write carries. */
#define MARK 0xbd
#define TYPE_ADVERT 2
#define TYPE_ABORT 7

struct place {
	uint64_t addr;
	uint32_t key;
};

/* Received SENDs, then the ring of this end, then what is sent. */
static struct {
	uint8_t slots[SLOTS][SLOT_OCTETS];
	uint8_t ring[RING_OCTETS];
	uint8_t sent[MEMORY_OCTETS];
} memory __attribute__((aligned(4096)));

static struct rdma_cm_id *id;
static struct ibv_mr *region;
static struct place ring, advert, secret;
static bool has_secret, has_advert, aborted, gone;
static uint32_t abort_code;
static enum ibv_wc_status failure = IBV_WC_SUCCESS;

static time_t now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

static uint64_t big_endian_64(const uint8_t *at)
{
	uint64_t word;

	memcpy(&word, at, sizeof(word));
	return be64toh(word);
}

static uint32_t big_endian_32(const uint8_t *at)
{
	uint32_t word;

	memcpy(&word, at, sizeof(word));
	return be32toh(word);
}

static size_t octets_of(const char *text, uint8_t *to, size_t room)
{
	size_t count = strlen(text) / 2;

	REQUIRE(count <= room);
	for (size_t i = 0; i < count; i++)
		REQUIRE(sscanf(text + 2 * i, "%2hhx", &to[i]) == 1);
	return count;
}

static void post_slot(uint64_t slot)
{
	struct ibv_sge element = {
		.addr = (uintptr_t)memory.slots[slot],
		.length = SLOT_OCTETS,
		.lkey = region->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &element, .num_sge = 1 }, *bad;

	REQUIRE(ibv_post_recv(id->qp, &wr, &bad) == 0);
}

static void take_message(const uint8_t *message, uint32_t count)
{
	if (message[0] == TYPE_ADVERT && count == 64) {
		advert.addr = big_endian_64(message + 40);
		advert.key = big_endian_32(message + 56);
		has_advert = true;
	}
	if (message[0] == TYPE_ABORT && count == 24) {
		aborted = true;
		abort_code = big_endian_32(message + 20);
	}
}

/* Takes completions of receives, and the end of the connection. */
static void take_news(void)
{
	struct pollfd readable = { .fd = id->channel->fd, .events = POLLIN };
	struct ibv_wc done;

	while (ibv_poll_cq(id->recv_cq, 1, &done) > 0) {
		if (done.status != IBV_WC_SUCCESS)
			continue;
		if (done.wc_flags & IBV_WC_WITH_IMM) {
			secret.addr = big_endian_64(memory.ring);
			has_secret = true;
		} else {
			take_message(memory.slots[done.wr_id], done.byte_len);
		}
		post_slot(done.wr_id);
	}
	if (!gone && poll(&readable, 1, 0) > 0) {
		struct rdma_cm_event *event;

		REQUIRE(rdma_get_cm_event(id->channel, &event) == 0);
		gone = event->event == RDMA_CM_EVENT_DISCONNECTED;
		rdma_ack_cm_event(event);
	}
}

static void await(const bool *what, const char *name)
{
	time_t until = now_s() + LIMIT_S;

	while (!*what) {
		take_news();
		sched_yield();
		if (now_s() > until) {
			fprintf(stderr, "no %s\n", name);
			exit(1);
		}
	}
}

static void await_file(const char *path)
{
	time_t until = now_s() + LIMIT_S;

	while (access(path, F_OK)) {
		take_news();
		sched_yield();
		REQUIRE(now_s() <= until);
	}
}

/* Posts a work request and waits for its end. Nothing is posted after one that has failed. */
static void execute(struct ibv_send_wr *wr)
{
	time_t until = now_s() + LIMIT_S;
	struct ibv_send_wr *bad;
	struct ibv_wc done;
	int count;

	if (failure != IBV_WC_SUCCESS)
		return;
	wr->send_flags = IBV_SEND_SIGNALED;
	REQUIRE(ibv_post_send(id->qp, wr, &bad) == 0);
	while ((count = ibv_poll_cq(id->send_cq, 1, &done)) == 0) {
		sched_yield();
		REQUIRE(now_s() <= until);
	}
	REQUIRE(count == 1);
	failure = done.status;
}

static struct ibv_sge sent_octets(size_t count)
{
	REQUIRE(count <= sizeof(memory.sent));
	return (struct ibv_sge){
		.addr = (uintptr_t)memory.sent,
		.length = (uint32_t)count,
		.lkey = region->lkey,
	};
}

static void send_message(const char *octets)
{
	size_t count = octets_of(octets, memory.sent, sizeof(memory.sent));
	struct ibv_sge element = sent_octets(count);
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_SEND,
		.sg_list = &element,
		.num_sge = count ? 1 : 0,
	};

	execute(&wr);
}

static void write_octets(const char *text)
{
	char at[8], immediate[16];
	long plus, from, count;
	struct place place = ring;

	REQUIRE(sscanf(text, "%7[^:]:%ld:%ld:%ld:%15s", at, &plus, &from, &count, immediate) == 5);
	if (strcmp(at, "advert") == 0)
		place = advert;
	if (strcmp(at, "secret") == 0)
		place.addr = secret.addr;
	memset(memory.sent, MARK, sizeof(memory.sent));
	struct ibv_sge element = sent_octets((size_t)count);
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_WRITE,
		.sg_list = &element,
		.num_sge = count ? 1 : 0,
		.wr.rdma = {
			.remote_addr = place.addr + (uint64_t)from,
			.rkey = place.key + (uint32_t)plus,
		},
	};
	if (strcmp(immediate, "-") != 0) {
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = htobe32((uint32_t)strtoul(immediate, NULL, 10));
	}
	execute(&wr);
}

static void read_ring(void)
{
	struct ibv_sge element = sent_octets(8);
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_RDMA_READ,
		.sg_list = &element,
		.num_sge = 1,
		.wr.rdma = { .remote_addr = ring.addr, .rkey = ring.key },
	};

	execute(&wr);
}

/* A greeting with 8 receive slots and room for 8 adverts. */
static void correct_hello(uint8_t *hello)
{
	static const uint8_t head[] = { 'u', 'E', 'X', 'S', 2, 0, 0, 0, 0, 8, 0, 8 };
	uint32_t key = htobe32(region->rkey);
	uint64_t addr = htobe64((uintptr_t)memory.ring), count = htobe64(RING_OCTETS);

	memcpy(hello, head, sizeof(head));
	memcpy(hello + 12, &key, sizeof(key));
	memcpy(hello + 16, &addr, sizeof(addr));
	memcpy(hello + 24, &count, sizeof(count));
}

static void prepare(const char *address, const char *port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = SLOTS,
			 .max_send_sge = 1, .max_recv_sge = 1 },
	};

	REQUIRE(rdma_getaddrinfo((char *)address, (char *)port, &hints, &found) == 0);
	REQUIRE(rdma_create_ep(&id, found, NULL, &attributes) == 0);
	rdma_freeaddrinfo(found);
	region = ibv_reg_mr(id->pd, &memory, sizeof(memory),
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	REQUIRE(region);
	for (uint64_t slot = 0; slot < SLOTS; slot++)
		post_slot(slot);
}

/* Whether the other end has accepted. */
static bool connect_with(const uint8_t *hello, size_t count)
{
	struct rdma_conn_param param = {
		.private_data = hello,
		.private_data_len = (uint8_t)count,
		.responder_resources = 1,
		.initiator_depth = 1,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
	const uint8_t *answer;

	if (rdma_connect(id, &param)) {
		REQUIRE(errno == ECONNREFUSED);
		return false;
	}
	REQUIRE(id->event && id->event->param.conn.private_data_len >= HELLO_OCTETS);
	answer = id->event->param.conn.private_data;
	ring.key = big_endian_32(answer + 12);
	ring.addr = big_endian_64(answer + 16);
	secret.key = ring.key;
	return true;
}

static void step(const char *name)
{
	if (strncmp(name, "send=", 5) == 0)
		send_message(name + 5);
	else if (strncmp(name, "write=", 6) == 0)
		write_octets(name + 6);
	else if (strcmp(name, "read") == 0)
		read_ring();
	else if (strncmp(name, "file=", 5) == 0)
		await_file(name + 5);
	else if (strcmp(name, "secret") == 0)
		await(&has_secret, name);
	else if (strcmp(name, "advert") == 0)
		await(&has_advert, name);
	else
		REQUIRE(!"a step");
}

int main(int argc, char **argv)
{
	uint8_t hello[256];
	size_t count = HELLO_OCTETS;
	int first = 3;

	REQUIRE(argc >= 3);
	prepare(argv[1], argv[2]);
	correct_hello(hello);
	if (argc > 3 && strncmp(argv[3], "hello=", 6) == 0) {
		count = octets_of(argv[3] + 6, hello, sizeof(hello));
		first++;
	}
	if (!connect_with(hello, count)) {
		printf("rejected\n");
		return 0;
	}
	for (int i = first; i < argc; i++)
		step(argv[i]);
	await(&gone, "end of the connection");
	take_news();
	if (failure != IBV_WC_SUCCESS)
		printf("failed: %s\n", ibv_wc_status_str(failure));
	if (aborted)
		printf("aborted with code %u\n", abort_code);
	printf("ended\n");
	rdma_disconnect(id);
	ibv_dereg_mr(region);
	rdma_destroy_ep(id);
	return 0;
}
