// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * load rc|dc|switched PORT PORT AREA FILE: reads, writes and counts at two nodes of
 * tests/pool_kills.rs, until it is killed, and writes its progress to a file.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <urdma_pool.h>

#include "../exs-c-check/require.h"

/* The memory of the nodes of tests/pool_kills.rs, and that of a request. */
#define COMMON 4096
#define AREA_LEN 256
#define BLOCK 128

struct end {
	struct sockaddr_in at;
	int is_open;
	urdma_pool_qp_t qp;
	struct urdma_pool_remote remote;
	int has_counter;
	uint64_t counter;
	struct {
		uint8_t read[BLOCK], back[BLOCK];
		uint64_t counter;
	} local;
	urdma_pool_mr_t mr;
};

static struct urdma_pool *pool;
static struct end ends[2];
static uint64_t area;
/* What tests/pool_kills.rs reads. */
static struct {
	uint64_t rounds, errors[2], switches;
} progress;
static int is_switching;

/* Ends the program when the device was removed. */
static void end_if_removed(void)
{
	if (errno != ENODEV)
		return;
	puts("ended: urdmad has ended");
	exit(1);
}

static void note_failed(int node)
{
	struct end *end = &ends[node];

	progress.errors[node]++;
	if (end->is_open)
		REQUIRE(urdma_pool_close(pool, end->qp) == 0);
	end->is_open = 0;
}

static void open_end(int node)
{
	struct end *end = &ends[node];

	if (end->is_open)
		return;
	if (urdma_pool_open(pool, 1, (struct sockaddr *)&end->at, sizeof(end->at), 4,
			    &end->qp, &end->remote) == 0) {
		end->is_open = 1;
		end->has_counter = 0;
		return;
	}
	end_if_removed();
	note_failed(node);
	usleep(1000);
}

static int post(int node, enum ibv_wr_opcode opcode, void *addr, uint64_t offset,
		uint32_t length)
{
	struct end *end = &ends[node];
	struct urdma_pool_sge sge = { .mr = end->mr, .addr = addr, .length = length };
	struct urdma_pool_wr wr = {
		.wr_id = 7, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.sg_list = &sge, .num_sge = 1,
		.remote = end->remote.id, .remote_addr = end->remote.addr + offset,
		.compare_add = 1,
	};

	if (!end->is_open)
		return 0;
	if (urdma_pool_post(pool, end->qp, &wr) == 0)
		return 1;
	end_if_removed();
	/* It has failed, or the node has begun anew. */
	note_failed(node);
	return 0;
}

static void wait_for(int node, int count)
{
	struct end *end = &ends[node];
	struct urdma_pool_wc wc;
	int polled;

	while (end->is_open && count-- > 0) {
		while ((polled = urdma_pool_poll(pool, end->qp, 1, &wc)) == 0)
			sched_yield();
		if (polled < 0)
			end_if_removed();
		if (polled < 0 || wc.status != IBV_WC_SUCCESS)
			note_failed(node);
	}
}

static void execute_round(void)
{
	uint64_t offset = progress.rounds * 64 % (COMMON - BLOCK);
	uint64_t block = area + AREA_LEN - BLOCK;
	int posted[2];

	for (int i = 0; i < 2; i++) {
		struct end *end = &ends[i];

		open_end(i);
		posted[i] = post(i, IBV_WR_RDMA_READ, end->local.read, offset, BLOCK);
		posted[i] += post(i, IBV_WR_ATOMIC_FETCH_AND_ADD, &end->local.counter, area, 8);
	}
	for (int i = 0; i < 2; i++) {
		struct end *end = &ends[i];

		wait_for(i, posted[i]);
		if (!end->is_open)
			continue;
		REQUIRE(!end->has_counter || end->local.counter == end->counter);
		end->counter = end->local.counter + 1;
		end->has_counter = 1;
	}
	for (int i = 0; i < 2; i++) {
		struct end *end = &ends[i];

		posted[i] = post(i, IBV_WR_RDMA_WRITE, end->local.read, block, BLOCK);
		posted[i] += post(i, IBV_WR_RDMA_READ, end->local.back, block, BLOCK);
	}
	for (int i = 0; i < 2; i++) {
		wait_for(i, posted[i]);
		for (uint64_t n = 0; ends[i].is_open && n < BLOCK; n++)
			REQUIRE(ends[i].local.back[n] == (offset + n) * 7 % 251);
	}
	progress.rounds += ends[0].is_open && ends[1].is_open;
}

/* Polls for a while, in which nothing is complete and windows pass, and notes what has switched. */
static void rest(void)
{
	struct urdma_pool_stats stats;
	struct urdma_pool_wc wc;
	struct timespec now, until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += 15 * 1000 * 1000;
	do {
		for (int i = 0; i < 2; i++) {
			int polled = 0;

			if (ends[i].is_open)
				polled = urdma_pool_poll(pool, ends[i].qp, 1, &wc);
			if (polled < 0)
				end_if_removed();
			REQUIRE(polled == 0);
		}
		sched_yield();
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - until.tv_sec) * 1000000000 + now.tv_nsec < until.tv_nsec);
	REQUIRE(urdma_pool_get_stats(pool, &stats) == 0);
	progress.switches = stats.switched_to_connections + stats.switched_back;
}

int main(int argc, char **argv)
{
	struct urdma_pool_attr attr = { 0 };
	int file;

	REQUIRE(argc == 6);
	setlinebuf(stdout);
	is_switching = strcmp(argv[1], "switched") == 0;
	attr.transport = strcmp(argv[1], "rc") == 0 ? URDMA_POOL_RC : URDMA_POOL_DC;
	if (is_switching) {
		attr.switch_max = 2;
		attr.switch_requests = 1;
		attr.switch_window_us = 5000;
		attr.switch_quiet = 1;
		attr.switch_retry = 1;
	}
	for (int i = 0; i < 2; i++) {
		ends[i].at.sin_family = AF_INET;
		ends[i].at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		ends[i].at.sin_port = htons((uint16_t)atoi(argv[2 + i]));
	}
	area = COMMON + strtoull(argv[4], NULL, 10) * AREA_LEN;
	file = open(argv[5], O_WRONLY);
	REQUIRE(file >= 0);
	pool = urdma_pool_create((struct sockaddr *)&ends[0].at, sizeof(ends[0].at), &attr);
	REQUIRE(pool != NULL);
	for (int i = 0; i < 2; i++)
		REQUIRE(urdma_pool_reg_mr(pool, 1, &ends[i].local, sizeof(ends[i].local),
					  &ends[i].mr) == 0);
	for (;;) {
		execute_round();
		if (is_switching && progress.rounds % 8 == 0)
			rest();
		REQUIRE(pwrite(file, &progress, sizeof(progress), 0) == sizeof(progress));
	}
}
