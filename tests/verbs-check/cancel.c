/*
 * Threads that are cancelled (pthread_cancel) in a call of verbs or rdma_cm: while it waits, or at
 * some instant of repeated calls. The cancellation ends the thread; process and device continue to
 * work. Waiting calls are cancelled while they wait, as with other devices those that read(2) or
 * write(2) a file of the kernel. A call that is cancelled at some other instant does not undo what
 * it has done, so the loops consist of calls that the device can repeat often enough.
 */
#define _GNU_SOURCE
#include "loopback.h"
#include "scenarios.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Cancellations of each loop, and the longest time that a thread runs before its cancellation, in
 * microseconds.
 */
#define ROUNDS 40
#define RUN_US 2000
/*
 * Time for a thread to begin waiting. It is cancelled in any case; the time only makes it likely
 * that it is waiting then.
 */
#define SETTLE_US 20000

static struct {
	struct end end;
	/* Of the loop that exchanges messages. */
	struct end *exchange_end;
	struct ibv_qp *a, *b;
	struct rdma_event_channel *events;
	int full_pipe[2];
	char fifo[64];
	atomic_int running;
} common;

static void waits_for_cm_event(void)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(common.events, &event);
}

static void waits_for_completion_event(void)
{
	struct ibv_cq *cq;
	void *context;

	ibv_get_cq_event(common.end.channel, &cq, &context);
}

static void waits_for_async_event(void)
{
	struct ibv_async_event event;

	ibv_get_async_event(common.end.context, &event);
}

/* Calls without verbs that pass through the stand-in. */
static void waits_in_write(void)
{
	if (write(common.full_pipe[1], "x", 1) != 1)
		fail("write: %s", strerror(errno));
}

static void waits_in_open(void)
{
	close(open(common.fifo, O_RDONLY));
}

static void polls(void)
{
	struct ibv_wc wc;

	if (ibv_poll_cq(common.end.cq, 1, &wc))
		fail("a completion");
}

static void registers(void)
{
	static char memory[1 << 20];
	struct ibv_mr *mr = ibv_reg_mr(common.end.pd, memory, sizeof(memory),
				       IBV_ACCESS_LOCAL_WRITE);

	if (!mr || ibv_dereg_mr(mr))
		fail("ibv_reg_mr: %s", strerror(errno));
}

static void creates_queue_pairs(void)
{
	if (ibv_destroy_qp(loopback_qp(&common.end, IBV_QPT_RC, NULL)))
		fail("ibv_destroy_qp");
}

static void creates_completion_queues(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(common.end.context);
	struct ibv_cq *cq = channel ? ibv_create_cq(common.end.context, 8, NULL, channel, 0)
				    : NULL;

	if (!cq || ibv_req_notify_cq(cq, 0) || ibv_destroy_cq(cq) ||
	    ibv_destroy_comp_channel(channel))
		fail("a completion queue: %s", strerror(errno));
}

static void opens(void)
{
	struct ibv_context *context = ibv_open_device(common.end.context->device);

	if (!context || ibv_close_device(context))
		fail("ibv_open_device: %s", strerror(errno));
}

static void makes_ids(void)
{
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_id *id;

	if (!events || rdma_create_id(events, &id, NULL, RDMA_PS_TCP) ||
	    rdma_destroy_id(id))
		fail("rdma_create_id: %s", strerror(errno));
	rdma_destroy_event_channel(events);
}

/* Each message raises a completion event, which is not read. */
static void exchanges(void)
{
	struct end *e = common.exchange_end;

	if (ibv_req_notify_cq(e->cq, 0))
		fail("ibv_req_notify_cq");
	loopback_receive(e, common.b);
	loopback_exchange(e, common.a);
}

struct call {
	const char *name;
	void (*body)(void);
};

static void *one_call(void *argument)
{
	const struct call *call = argument;

	atomic_fetch_add(&common.running, 1);
	call->body();
	return NULL;
}

static void *call_repeatedly(void *argument)
{
	const struct call *call = argument;

	atomic_fetch_add(&common.running, 1);
	for (;;) {
		call->body();
		pthread_testcancel();
	}
	return NULL;
}

/*
 * Starts a thread, cancels it `microseconds` after it has begun, and expects that the cancellation
 * ends it.
 */
static void cancel(void *(*run)(void *), const struct call *call, useconds_t microseconds)
{
	int before = atomic_load(&common.running);
	pthread_t thread;
	void *result;

	if (pthread_create(&thread, NULL, run, (void *)call))
		fail("a thread cannot be started");
	while (atomic_load(&common.running) == before)
		usleep(100);
	usleep(microseconds);
	if (pthread_cancel(thread) || pthread_join(thread, &result))
		fail("%s: the thread cannot be joined", call->name);
	if (result != PTHREAD_CANCELED)
		fail("%s: the thread was not cancelled", call->name);
}

/* The device continues to serve the process. */
static void device_goes_on(void)
{
	struct ibv_qp *a = loopback_qp(&common.end, IBV_QPT_RC, NULL),
		      *b = loopback_qp(&common.end, IBV_QPT_RC, NULL);

	loopback_connect(&common.end, a, b);
	loopback_receive(&common.end, b);
	loopback_exchange(&common.end, a);
	loopback_destroy(a, b);
}

static void cancel_those_that_wait(void)
{
	static const struct call waits[] = {
		{ "rdma_get_cm_event", waits_for_cm_event },
		{ "ibv_get_cq_event", waits_for_completion_event },
		{ "ibv_get_async_event", waits_for_async_event },
		{ "write", waits_in_write },
		{ "open", waits_in_open },
	};

	for (size_t i = 0; i < sizeof(waits) / sizeof(*waits); i++)
		cancel(one_call, &waits[i], SETTLE_US);
	device_goes_on();
}

static void cancel_those_that_repeat(void)
{
	static const struct call loops[] = {
		{ "ibv_poll_cq", polls },
		{ "ibv_reg_mr", registers },
		{ "ibv_create_qp", creates_queue_pairs },
		{ "ibv_create_cq", creates_completion_queues },
		{ "ibv_open_device", opens },
		{ "rdma_create_id", makes_ids },
	};

	for (size_t i = 0; i < sizeof(loops) / sizeof(*loops); i++) {
		for (int round = 0; round < ROUNDS; round++)
			cancel(call_repeatedly, &loops[i], (useconds_t)(lrand48() % RUN_US));
		device_goes_on();
	}
}

/*
 * Queue pairs, completion queue and channel of each round are new, because the previous thread has
 * left completions and events behind.
 */
static void cancel_those_that_exchange(void)
{
	static const struct call exchange = { "ibv_post_send", exchanges };

	for (int round = 0; round < ROUNDS; round++) {
		struct end e = common.end;

		e.channel = ibv_create_comp_channel(e.context);
		e.cq = e.channel ? ibv_create_cq(e.context, 64, NULL, e.channel, 0) : NULL;
		if (!e.cq)
			fail("a completion queue: %s", strerror(errno));
		common.a = loopback_qp(&e, IBV_QPT_RC, NULL);
		common.b = loopback_qp(&e, IBV_QPT_RC, NULL);
		loopback_connect(&e, common.a, common.b);
		common.exchange_end = &e;
		cancel(call_repeatedly, &exchange, (useconds_t)(lrand48() % RUN_US));
		loopback_destroy(common.a, common.b);
		if (ibv_destroy_cq(e.cq) || ibv_destroy_comp_channel(e.channel))
			fail("ibv_destroy_cq");
	}
	device_goes_on();
}

void check_cancel(void)
{
	char nothing[4096] = { 0 };
	struct rdma_cm_id *id;

	end_open(&common.end, IBV_ACCESS_LOCAL_WRITE);
	common.events = rdma_create_event_channel();
	/* librdmacm reads its list of devices once, under a lock. */
	if (!common.events || rdma_create_id(common.events, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id: %s", strerror(errno));
	if (pipe2(common.full_pipe, O_NONBLOCK))
		fail("pipe2: %s", strerror(errno));
	while (write(common.full_pipe[1], nothing, sizeof(nothing)) > 0)
		;
	fcntl(common.full_pipe[1], F_SETFL, 0);
	snprintf(common.fifo, sizeof(common.fifo), "/tmp/verbs-check-%d", getpid());
	if (mkfifo(common.fifo, 0600))
		fail("mkfifo: %s", strerror(errno));
	cancel_those_that_wait();
	unlink(common.fifo);
	cancel_those_that_repeat();
	cancel_those_that_exchange();
	rdma_destroy_id(id);
	rdma_destroy_event_channel(common.events);
	end_close(&common.end);
}
