/*
 * Threads that are cancelled (pthread_cancel) while they rest in a call of verbs or of rdma_cm, or
 * repeat one. The thread ends, the process and the device go on.
 *
 * Calls that wait are cancelled while they wait, as those that read(2) or write(2) a file of the
 * kernel are with other devices. The others are cancelled at some instant; whatever they had done
 * then is left undone, so each loop is made of calls that the device can repeat often enough.
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
 * So long a thread is given to come to rest. It is cancelled in any case: this only makes it likely
 * that it rests then.
 */
#define SETTLE_US 20000

static struct {
	struct end end;
	struct ibv_qp *a, *b;
	struct rdma_event_channel *events;
	int full_pipe[2];
	char fifo[64];
	atomic_int running;
} common;

static void begin(void)
{
	atomic_fetch_add(&common.running, 1);
}

static void *waits_for_cm_event(void *unused)
{
	struct rdma_cm_event *event;

	(void)unused;
	begin();
	rdma_get_cm_event(common.events, &event);
	return NULL;
}

static void *waits_for_completion_event(void *unused)
{
	struct ibv_cq *cq;
	void *context;

	(void)unused;
	begin();
	ibv_get_cq_event(common.end.channel, &cq, &context);
	return NULL;
}

static void *waits_for_async_event(void *unused)
{
	struct ibv_async_event event;

	(void)unused;
	begin();
	ibv_get_async_event(common.end.context, &event);
	return NULL;
}

/* Calls that have nothing to do with verbs, but pass the stand-in. */
static void *waits_in_write(void *unused)
{
	(void)unused;
	begin();
	if (write(common.full_pipe[1], "x", 1) != 1)
		fail("write: %s", strerror(errno));
	return NULL;
}

static void *waits_in_open(void *unused)
{
	(void)unused;
	begin();
	close(open(common.fifo, O_RDONLY));
	return NULL;
}

static void *polls(void *unused)
{
	struct ibv_wc wc;

	(void)unused;
	begin();
	for (;;) {
		if (ibv_poll_cq(common.end.cq, 1, &wc))
			fail("a completion");
		pthread_testcancel();
	}
	return NULL;
}

static void *registers(void *unused)
{
	static char memory[1 << 20];

	(void)unused;
	begin();
	for (;;) {
		struct ibv_mr *mr = ibv_reg_mr(common.end.pd, memory, sizeof(memory),
					       IBV_ACCESS_LOCAL_WRITE);

		if (!mr || ibv_dereg_mr(mr))
			fail("ibv_reg_mr: %s", strerror(errno));
		pthread_testcancel();
	}
	return NULL;
}

static void *creates_queue_pairs(void *unused)
{
	(void)unused;
	begin();
	for (;;) {
		if (ibv_destroy_qp(loopback_qp(&common.end, IBV_QPT_RC, NULL)))
			fail("ibv_destroy_qp");
		pthread_testcancel();
	}
	return NULL;
}

static void *creates_completion_queues(void *unused)
{
	(void)unused;
	begin();
	for (;;) {
		struct ibv_comp_channel *channel = ibv_create_comp_channel(common.end.context);
		struct ibv_cq *cq = channel ? ibv_create_cq(common.end.context, 8, NULL, channel, 0)
					    : NULL;

		if (!cq || ibv_req_notify_cq(cq, 0) || ibv_destroy_cq(cq) ||
		    ibv_destroy_comp_channel(channel))
			fail("a completion queue: %s", strerror(errno));
		pthread_testcancel();
	}
	return NULL;
}

static void *opens(void *unused)
{
	(void)unused;
	begin();
	for (;;) {
		struct ibv_context *context = ibv_open_device(common.end.context->device);

		if (!context || ibv_close_device(context))
			fail("ibv_open_device: %s", strerror(errno));
		pthread_testcancel();
	}
	return NULL;
}

static void *makes_ids(void *unused)
{
	(void)unused;
	begin();
	for (;;) {
		struct rdma_event_channel *events = rdma_create_event_channel();
		struct rdma_cm_id *id;

		if (!events || rdma_create_id(events, &id, NULL, RDMA_PS_TCP) ||
		    rdma_destroy_id(id))
			fail("rdma_create_id: %s", strerror(errno));
		rdma_destroy_event_channel(events);
		pthread_testcancel();
	}
	return NULL;
}

/* Each message raises a completion event, which is not read. */
static void *exchanges(void *end)
{
	struct end *e = end;

	begin();
	for (;;) {
		if (ibv_req_notify_cq(e->cq, 0))
			fail("ibv_req_notify_cq");
		loopback_receive(e, common.b);
		loopback_exchange(e, common.a);
		pthread_testcancel();
	}
	return NULL;
}

/* Starts a thread, cancels it some time after it has begun, and expects that it ends by that. */
static void cancel(void *(*body)(void *), void *argument, useconds_t microseconds, const char *what)
{
	int before = atomic_load(&common.running);
	pthread_t thread;
	void *result;

	if (pthread_create(&thread, NULL, body, argument))
		fail("a thread cannot be started");
	while (atomic_load(&common.running) == before)
		usleep(100);
	usleep(microseconds);
	if (pthread_cancel(thread) || pthread_join(thread, &result))
		fail("%s: the thread cannot be joined", what);
	if (result != PTHREAD_CANCELED)
		fail("%s: the thread was not cancelled", what);
}

/* The device serves those that remain. */
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
	static const struct {
		const char *name;
		void *(*body)(void *);
	} waits[] = {
		{ "rdma_get_cm_event", waits_for_cm_event },
		{ "ibv_get_cq_event", waits_for_completion_event },
		{ "ibv_get_async_event", waits_for_async_event },
		{ "write", waits_in_write },
		{ "open", waits_in_open },
	};

	for (size_t i = 0; i < sizeof(waits) / sizeof(*waits); i++)
		cancel(waits[i].body, NULL, SETTLE_US, waits[i].name);
	device_goes_on();
}

static void cancel_those_that_repeat(void)
{
	static const struct {
		const char *name;
		void *(*body)(void *);
	} loops[] = {
		{ "ibv_poll_cq", polls },
		{ "ibv_reg_mr", registers },
		{ "ibv_create_qp", creates_queue_pairs },
		{ "ibv_create_cq", creates_completion_queues },
		{ "ibv_open_device", opens },
		{ "rdma_create_id", makes_ids },
	};

	for (size_t i = 0; i < sizeof(loops) / sizeof(*loops); i++) {
		for (int round = 0; round < ROUNDS; round++)
			cancel(loops[i].body, NULL, (useconds_t)(lrand48() % RUN_US),
			       loops[i].name);
		device_goes_on();
	}
}

/*
 * Queue pairs, completion queue and channel of each round are new: the last thread has left
 * completions and events behind.
 */
static void cancel_those_that_exchange(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		struct end e = common.end;

		e.channel = ibv_create_comp_channel(e.context);
		e.cq = e.channel ? ibv_create_cq(e.context, 64, NULL, e.channel, 0) : NULL;
		if (!e.cq)
			fail("a completion queue: %s", strerror(errno));
		common.a = loopback_qp(&e, IBV_QPT_RC, NULL);
		common.b = loopback_qp(&e, IBV_QPT_RC, NULL);
		loopback_connect(&e, common.a, common.b);
		cancel(exchanges, &e, (useconds_t)(lrand48() % RUN_US), "ibv_post_send");
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
