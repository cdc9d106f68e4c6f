// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * pool-hostile connect|listen ADDRESS PORT HELLO STEP...
 *
 * Connects to a pool that exchanges messages (doc/design/pool-sends.md), or waits for one at the
 * address, with the private data HELLO, executes the steps, and waits for the end of the connection
 * if the last one is "end". It knows no rule of the protocol. Octets are hexadecimal.
 *
 * times=COUNT              the next message is sent so many times
 * message=KIND:FLAGS:DESTINATION:SOURCE:SEQUENCE:RECEIVES:BUFFERS:IMMEDIATE:LENGTH
 *                          a message with LENGTH octets behind its header; an end, with d before
 *                          it, is relative to what the pool has named in its first open or accept;
 *                          BUFFERS is relative to the right number. Ends are hexadecimal.
 * octets=OCTETS:LENGTH     a message of these octets and so many others, LENGTH in all
 * wait=KIND                waits for a message of the pool
 * silent                   takes no further message, so that it posts no further Receive
 * write=FROM:LENGTH        an RDMA Write to the memory that the pool offers, FROM its start
 * file=PATH                waits for a file
 * say=TEXT                 prints it; d is what the pool has named
 */
#include <inttypes.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdbool.h>
#include <unistd.h>

#include "message.h"

#define LIMIT_S 30
#define BUFFER_OCTETS (HEADER_OCTETS + 4096)
#define SLOTS 32
#define SENT_OCTETS 8192

/* Received messages, then one that is sent. */
static struct {
	uint8_t slots[SLOTS][BUFFER_OCTETS];
	uint8_t sent[SENT_OCTETS];
} memory __attribute__((aligned(4096)));

static struct rdma_cm_id *id;
static struct ibv_mr *region;
static bool gone, silent;
static enum ibv_wc_status failure = IBV_WC_SUCCESS;
/* How many messages of a kind have come, and were waited for. */
static unsigned int come[KINDS], waited[KINDS];
/* The end that the pool has named first. */
static uint64_t named;
static uint16_t posted;
static uint64_t offered_addr;
static uint32_t offered_key;

static void post_slot(uint64_t slot)
{
	struct ibv_sge element = {
		.addr = (uintptr_t)memory.slots[slot],
		.length = BUFFER_OCTETS,
		.lkey = region->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &element, .num_sge = 1 }, *bad;

	if (ibv_post_recv(id->qp, &wr, &bad) == 0)
		posted++;
}

/* Takes messages of the pool, and the end of the connection. */
static void take_news(void)
{
	struct pollfd readable = { .fd = id->channel->fd, .events = POLLIN };
	struct ibv_wc done;

	while (!silent && ibv_poll_cq(id->recv_cq, 1, &done) > 0) {
		const uint8_t *message = memory.slots[done.wr_id];

		if (done.status != IBV_WC_SUCCESS || done.byte_len < HEADER_OCTETS)
			continue;
		come[message[24]]++;
		if (!named && (message[24] == OPEN || message[24] == ACCEPT))
			named = big_endian_64(message + 8);
		post_slot(done.wr_id);
	}
	if (!gone && poll(&readable, 1, 0) > 0) {
		struct rdma_cm_event *event;

		REQUIRE(rdma_get_cm_event(id->channel, &event) == 0);
		gone = event->event == RDMA_CM_EVENT_DISCONNECTED;
		rdma_ack_cm_event(event);
	}
}

/* Waits for another message of a kind, or for the end of the connection. */
static void wait_for(unsigned int kind)
{
	time_t until = now_s() + LIMIT_S;

	waited[kind]++;
	while (come[kind] < waited[kind] && !gone) {
		take_news();
		sched_yield();
		if (now_s() > until) {
			printf("no message %u\n", kind);
			exit(1);
		}
	}
}

static void wait_for_file(const char *path)
{
	time_t until = now_s() + LIMIT_S;

	while (access(path, F_OK)) {
		take_news();
		sched_yield();
		REQUIRE(now_s() <= until);
	}
}

static void wait_for_end(void)
{
	time_t until = now_s() + LIMIT_S;

	while (!gone) {
		take_news();
		sched_yield();
		REQUIRE(now_s() <= until);
	}
}

/* Posts a work request and waits for its completion. Nothing is posted after one that failed. */
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
		take_news();
		sched_yield();
		REQUIRE(now_s() <= until);
	}
	REQUIRE(count == 1);
	failure = done.status;
}

static void send_octets(size_t length)
{
	struct ibv_sge element = {
		.addr = (uintptr_t)memory.sent,
		.length = (uint32_t)length,
		.lkey = region->lkey,
	};
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_SEND,
		.sg_list = &element,
		.num_sge = length ? 1 : 0,
	};

	execute(&wr);
}

static void send_message(const char *text)
{
	send_octets(compose(text, named, posted, memory.sent, SENT_OCTETS));
}

static void send_raw(const char *text)
{
	const char *colon = strchr(text, ':');
	size_t length;

	REQUIRE(colon);
	length = strtoul(colon + 1, NULL, 10);
	REQUIRE(length <= SENT_OCTETS);
	memset(memory.sent, MARK, length);
	octets_of(text, (size_t)(colon - text), memory.sent, SENT_OCTETS);
	send_octets(length);
}

static void write_octets(const char *text)
{
	struct ibv_sge element = { .addr = (uintptr_t)memory.sent, .lkey = region->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &element, .num_sge = 1 };
	long from;

	REQUIRE(sscanf(text, "%ld:%u", &from, &element.length) == 2);
	REQUIRE(element.length <= SENT_OCTETS);
	memset(memory.sent, MARK, element.length);
	wr.wr.rdma.remote_addr = offered_addr + (uint64_t)from;
	wr.wr.rdma.rkey = offered_key;
	execute(&wr);
}

static void prepare_memory(void)
{
	region = ibv_reg_mr(id->pd, &memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	REQUIRE(region);
	for (uint64_t slot = 0; slot < SLOTS; slot++)
		post_slot(slot);
}

static void prepare(const char *address, const char *port, bool listens)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP,
				       .ai_flags = listens ? RAI_PASSIVE : 0 };
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = SLOTS,
			 .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_addrinfo *found;
	struct rdma_cm_id *made;

	REQUIRE(rdma_getaddrinfo((char *)address, (char *)port, &hints, &found) == 0);
	REQUIRE(rdma_create_ep(&made, found, NULL, &attributes) == 0);
	rdma_freeaddrinfo(found);
	id = made;
	if (listens) {
		REQUIRE(rdma_listen(made, 8) == 0);
		puts("listens");
		fflush(stdout);
		REQUIRE(rdma_get_request(made, &id) == 0);
	}
	prepare_memory();
}

/* Whether there is a connection. */
static bool connect_with(const uint8_t *hello, size_t count, bool listens)
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

	if (listens)
		return rdma_accept(id, &param) == 0;
	if (rdma_connect(id, &param)) {
		REQUIRE(errno == ECONNREFUSED);
		return false;
	}
	REQUIRE(id->event && id->event->param.conn.private_data_len >= 24);
	answer = id->event->param.conn.private_data;
	offered_key = (uint32_t)big_endian_64(answer);
	offered_addr = big_endian_64(answer + 8);
	return true;
}

static void step(const char *name, unsigned int *times)
{
	if (strncmp(name, "times=", 6) == 0) {
		*times = (unsigned int)atoi(name + 6);
		return;
	}
	if (strncmp(name, "message=", 8) == 0) {
		for (unsigned int i = 0; i < *times; i++)
			send_message(name + 8);
		*times = 1;
	} else if (strncmp(name, "octets=", 7) == 0) {
		send_raw(name + 7);
	} else if (strncmp(name, "write=", 6) == 0) {
		write_octets(name + 6);
	} else if (strncmp(name, "wait=", 5) == 0) {
		wait_for((unsigned int)atoi(name + 5));
	} else if (strncmp(name, "file=", 5) == 0) {
		wait_for_file(name + 5);
	} else if (strcmp(name, "say=d") == 0) {
		printf("named %016" PRIx64 "\n", named);
	} else if (strncmp(name, "say=", 4) == 0) {
		puts(name + 4);
	} else if (strcmp(name, "silent") == 0) {
		silent = true;
	} else if (strcmp(name, "end") == 0) {
		wait_for_end();
	} else {
		REQUIRE(!"a step");
	}
	fflush(stdout);
}

int main(int argc, char **argv)
{
	uint8_t hello[256];
	unsigned int times = 1;
	bool listens;
	size_t count;

	REQUIRE(argc >= 5);
	listens = strcmp(argv[1], "listen") == 0;
	prepare(argv[2], argv[3], listens);
	count = octets_of(argv[4], strlen(argv[4]), hello, sizeof(hello));
	if (!connect_with(hello, count, listens)) {
		puts("rejected");
		return 0;
	}
	for (int i = 5; i < argc; i++)
		step(argv[i], &times);
	take_news();
	if (failure != IBV_WC_SUCCESS)
		printf("failed: %s\n", ibv_wc_status_str(failure));
	puts(gone ? "ended" : "leaves");
	return 0;
}
