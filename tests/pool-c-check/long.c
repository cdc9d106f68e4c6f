/*
 * Two ends of a virtual queue pair that send messages of 1 octet to 16 MB to each other at the same
 * time, and compare each with what the other one has sent: `long accept OWN PEER`, `long open OWN
 * PEER`. Both say that it is done, and go on until they are killed.
 */
#include <arpa/inet.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <urdma_pool.h>

#include "../exs-c-check/require.h"

#define SERVICE 7
#define MESSAGES 40
#define MAGNITUDES 25
#define LONGEST (1U << (MAGNITUDES - 1))

static struct urdma_pool *pool;
static urdma_pool_qp_t qp;
static urdma_pool_mr_t mr;
/* What is received, what is sent, and what is expected. */
static unsigned char *memory[3];

static struct sockaddr_in port(const char *number)
{
	struct sockaddr_in at = {
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)atoi(number)),
		.sin_addr = { .s_addr = htonl(INADDR_LOOPBACK) },
	};

	return at;
}

static uint32_t mixed(uint32_t number)
{
	number = (number ^ number >> 16) * 0x7feb352d;
	number = (number ^ number >> 15) * 0x846ca68b;
	return number ^ number >> 16;
}

/* The length of a message of an end; each order of magnitude is as likely. */
static uint32_t length_of(uint32_t end, uint32_t number)
{
	uint32_t drawn = mixed(end + number);

	return 1 + mixed(drawn) % (1U << drawn % MAGNITUDES);
}

/* The octets of a message of an end. */
static void fill(unsigned char *at, uint32_t end, uint32_t number)
{
	uint32_t length = length_of(end, number);

	for (uint32_t i = 0; i < length; i++)
		at[i] = (unsigned char)mixed(end * 31 + number * 17 + i);
}

static void receive(uint32_t number)
{
	struct urdma_pool_sge sge = { .mr = mr, .addr = memory[0], .length = LONGEST };
	struct urdma_pool_recv_wr wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1 };

	REQUIRE(urdma_pool_post_recv(pool, qp, &wr) == 0);
}

/* Sends a message in two elements. */
static void send_message(uint32_t end, uint32_t number)
{
	uint32_t length = length_of(end, number);
	struct urdma_pool_sge list[2] = {
		{ .mr = mr, .addr = memory[1], .length = length / 3 },
		{ .mr = mr, .addr = memory[1] + length / 3, .length = length - length / 3 },
	};
	struct urdma_pool_send_wr wr = {
		.wr_id = number, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(number),
		.send_flags = IBV_SEND_SIGNALED, .sg_list = list, .num_sge = 2,
	};

	fill(memory[1], end, number);
	REQUIRE(urdma_pool_post_send(pool, qp, &wr) == 0);
}

static void exchange(uint32_t own, uint32_t other)
{
	uint32_t sent = 0, received = 0;
	struct urdma_pool_recv_wc come;
	struct urdma_pool_wc done;

	receive(0);
	send_message(own, 0);
	while (sent < MESSAGES || received < MESSAGES) {
		int count = urdma_pool_poll_recv(pool, qp, 1, &come);

		REQUIRE(count >= 0);
		if (count) {
			REQUIRE(come.status == IBV_WC_SUCCESS && come.wr_id == received);
			REQUIRE(come.byte_len == length_of(other, received));
			REQUIRE(come.imm_data == htonl(received));
			fill(memory[2], other, received);
			REQUIRE(memcmp(memory[0], memory[2], come.byte_len) == 0);
			if (++received < MESSAGES)
				receive(received);
		}
		count = urdma_pool_poll(pool, qp, 1, &done);
		REQUIRE(count >= 0);
		if (count) {
			REQUIRE(done.status == IBV_WC_SUCCESS && done.wr_id == sent);
			if (++sent < MESSAGES)
				send_message(own, sent);
		}
		sched_yield();
	}
}

int main(int argc, char **argv)
{
	const struct urdma_pool_depths depths = { .requests = 1, .receives = 1 };
	struct urdma_pool_message_attr messages = { .share = 0 };
	struct urdma_pool_attr attr = {
		.transport = getenv("URDMA_TEST_SENDS_MET") ? URDMA_POOL_DC : URDMA_POOL_RC,
	};
	struct sockaddr_in own, peer;
	int is_open;

	REQUIRE(argc == 4);
	own = port(argv[2]);
	peer = port(argv[3]);
	pool = urdma_pool_create((struct sockaddr *)&own, sizeof(own), &attr);
	REQUIRE(pool != NULL);
	REQUIRE(urdma_pool_offer_messages(pool, (struct sockaddr *)&own, sizeof(own),
					  &messages) == 0);
	memory[0] = calloc(3, LONGEST);
	REQUIRE(memory[0] != NULL);
	memory[1] = memory[0] + LONGEST;
	memory[2] = memory[1] + LONGEST;
	REQUIRE(urdma_pool_reg_mr(pool, 1, memory[0], 2 * (size_t)LONGEST, &mr) == 0);
	if (strcmp(argv[1], "open") == 0) {
		REQUIRE(urdma_pool_open_service(pool, 1, (struct sockaddr *)&peer, sizeof(peer),
						SERVICE, &depths, &qp) == 0);
	} else {
		REQUIRE(urdma_pool_listen(pool, SERVICE) == 0);
		puts("listens");
		fflush(stdout);
		while ((is_open = urdma_pool_accept(pool, SERVICE, 1, &depths, &qp)) == 0)
			sched_yield();
		REQUIRE(is_open == 1);
	}
	exchange(ntohs(own.sin_port), ntohs(peer.sin_port));
	/* The other end may not know yet that all has arrived. */
	puts("done");
	fflush(stdout);
	for (;;) {
		REQUIRE(urdma_pool_progress(pool) == 0);
		sched_yield();
	}
}
