/* A target that serves any number of processes, and initiators that load it until one is killed. */
#include "scenarios.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#define MESSAGE 4096u
#define BULK (64u << 10)
/* Offsets of the target's memory: of a word for atomics, and of octets for Writes and Reads. */
#define WORD (1u << 20)
#define OCTETS (2u << 20)
/* 8.6 s without an answer: a target that is killed on another host is noticed by its RESET. */
#define TIMEOUT 16

struct published {
	union ibv_gid gid;
	uint32_t number, rkey;
	uint64_t addr;
};

/* Whoever finds the file finds all of it. */
static void publish(const char *path, const struct published *name)
{
	char unfinished[256];
	FILE *file;

	if (snprintf(unfinished, sizeof(unfinished), "%s.new", path) >= (int)sizeof(unfinished))
		fail("the path is too long: %s", path);
	file = fopen(unfinished, "wb");
	if (!file || fwrite(name, sizeof(*name), 1, file) != 1 || fclose(file) ||
	    rename(unfinished, path))
		fail("%s: %s", path, strerror(errno));
}

void serve(const char *path)
{
	struct published name = { 0 };
	struct target t;
	struct end e;

	end_open(&e, DC_RIGHTS);
	t = dc_target(&e);
	dc_target_ready(&t);
	for (uint32_t n = 0; n < DC_DEPTH; n++)
		dc_receive(&e, &t, n, n * MESSAGE, MESSAGE);
	if (ibv_query_gid(e.context, 1, 1, &name.gid))
		fail("ibv_query_gid");
	name.number = t.qp->qp_num;
	name.rkey = e.mr->rkey;
	name.addr = (uintptr_t)e.region;
	publish(path, &name);
	printf("serves\n");
	for (;;) {
		struct ibv_wc wc;

		if (!ibv_poll_cq(e.cq, 1, &wc)) {
			sched_yield();
			continue;
		}
		/* A message of a process that was killed may have arrived in part. */
		if (wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_WR_FLUSH_ERR)
			fail("a receive ended with '%s'", ibv_wc_status_str(wc.status));
		dc_receive(&e, &t, wc.wr_id, wc.wr_id * MESSAGE, MESSAGE);
	}
}

static void post(struct end *e, struct initiator *i, const struct name *to, uint64_t number)
{
	static const struct {
		enum ibv_wr_opcode opcode;
		uint32_t remote, length;
	} kinds[] = {
		{ IBV_WR_SEND, 0, MESSAGE },
		{ IBV_WR_RDMA_WRITE, OCTETS, BULK },
		{ IBV_WR_RDMA_READ, OCTETS, BULK },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, WORD, 8 },
	};
	size_t kind = number % (sizeof(kinds) / sizeof(*kinds));
	struct name at = *to;
	int error;

	at.addr += kinds[kind].remote;
	error = dc_post(e, i, &at, number, kinds[kind].opcode, number % DC_DEPTH * BULK,
			kinds[kind].length);
	if (error)
		fail("request %lu: %s: %s", (unsigned long)number, strerror(error),
		     urdmadv_last_error(e->context));
}

static struct name find(struct end *e, const char *path)
{
	struct published name;
	FILE *file = fopen(path, "rb");

	if (!file || fread(&name, sizeof(name), 1, file) != 1)
		fail("%s: %s", path, strerror(errno));
	fclose(file);
	return (struct name){ .ah = dc_handle(e, &name.gid), .number = name.number,
			      .rkey = name.rkey, .key = DC_KEY, .addr = name.addr };
}

void load(const char *path, uint64_t count)
{
	uint64_t posted = 0, done = 0;
	struct initiator i;
	struct name to;
	struct end e;

	end_open(&e, DC_RIGHTS);
	to = find(&e, path);
	i = dc_initiator(&e);
	dc_initiator_ready(&i, TIMEOUT);
	for (bool is_lost = false; is_lost ? done < posted : !count || done < count;) {
		struct ibv_wc wc;

		while (!is_lost && posted < done + DC_DEPTH && (!count || posted < count))
			post(&e, &i, &to, posted++);
		wc = end_wait(&e);
		if (wc.wr_id != done++)
			fail("request %lu is out of order", (unsigned long)wc.wr_id);
		if (wc.status != (is_lost ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS)) {
			if (is_lost || count || wc.status != IBV_WC_RETRY_EXC_ERR)
				fail("request %lu ended with '%s'", (unsigned long)wc.wr_id,
				     ibv_wc_status_str(wc.status));
			is_lost = true;
		}
		if (done == DC_DEPTH)
			printf("busy\n");
	}
	if (ibv_destroy_ah(to.ah))
		fail("ibv_destroy_ah");
	dc_destroy_initiator(&i);
	end_close(&e);
}
