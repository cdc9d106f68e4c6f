/*
 * A thread that sleeps in ibv_get_async_event: a message that raises an event wakes this thread
 * alone, and not the background thread before it.
 */
#include "end.h"
#include "scenarios.h"
#include "switches.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 300
#define LIMIT 2
#define MESSAGE 64

static const struct wish wish = { .access = IBV_ACCESS_LOCAL_WRITE,
				  .rnr_retry = 7,
				  .min_rnr_timer = 12,
				  .timeout = 14 };

static void send_each(const char *path)
{
	struct end e;

	end_open(&e, wish.access);
	end_connect(&e, path, false, &wish);
	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };

		end_await_peer(&e);
		if (end_send(&e, &wr, 0, MESSAGE, e.mr->lkey))
			fail("a send request was refused");
		end_expect(&e, IBV_WC_SUCCESS);
	}
	end_meet(&e);
}

static void receive(struct end *e, struct ibv_srq *srq)
{
	struct ibv_sge sge = { (uintptr_t)e->region, MESSAGE, e->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	if (ibv_post_srq_recv(srq, &wr, &bad))
		fail("ibv_post_srq_recv");
}

/* Waits for the event that fewer requests than the limit are left. */
static void await_limit(struct end *e)
{
	struct ibv_async_event event;

	if (ibv_get_async_event(e->context, &event))
		fail("ibv_get_async_event: %s", strerror(errno));
	if (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED)
		fail("the event %s", ibv_event_type_str(event.event_type));
	ibv_ack_async_event(&event);
}

static void receive_each(const char *path)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = LIMIT, .max_sge = 1 } };
	struct ibv_srq_attr limit = { .srq_limit = LIMIT };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };
	struct switches since;
	struct end e;

	end_open(&e, wish.access);
	if (ibv_destroy_qp(e.qp))
		fail("ibv_destroy_qp");
	attr.send_cq = attr.recv_cq = e.cq;
	attr.srq = ibv_create_srq(e.pd, &init);
	e.qp = attr.srq ? ibv_create_qp(e.pd, &attr) : NULL;
	if (!e.qp)
		fail("a queue pair with a shared receive queue: %s", strerror(errno));
	end_connect(&e, path, true, &wish);
	for (int i = 1; i < LIMIT; i++)
		receive(&e, attr.srq);
	since = begin_count();
	for (int i = 0; i < ROUNDS; i++) {
		receive(&e, attr.srq);
		if (ibv_modify_srq(attr.srq, &limit, IBV_SRQ_LIMIT))
			fail("ibv_modify_srq");
		end_say(&e);
		await_limit(&e);
		end_expect(&e, IBV_WC_SUCCESS);
	}
	expect_few_wake_ups(since, ROUNDS);
	end_meet(&e);
}

void check_async(void)
{
	char path[64];
	pid_t client;
	int status;

	snprintf(path, sizeof(path), "/tmp/verbs-check-%d", (int)getpid());
	client = fork();
	if (client < 0)
		fail("fork: %s", strerror(errno));
	if (!client) {
		send_each(path);
		_exit(0);
	}
	receive_each(path);
	if (waitpid(client, &status, 0) != client || status)
		fail("the client: status %d", status);
}
