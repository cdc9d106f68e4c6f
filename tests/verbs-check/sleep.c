/*
 * Threads that sleep until a completion event: a message wakes the thread itself, and signals,
 * other threads and the end of the peer are as with read(2) of a file of the kernel.
 */
#define _GNU_SOURCE
#include "loopback.h"
#include "scenarios.h"
#include "switches.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

#define ROUND_TRIPS 3000
#define MESSAGE 64

static void arm(struct end *e)
{
	if (ibv_req_notify_cq(e->cq, 0))
		fail("ibv_req_notify_cq");
}

/* The epoll set in which threads sleep; none if they sleep in ibv_get_cq_event. */
static int set = -1;

static void use_set(struct end *e)
{
	struct epoll_event event = { .events = EPOLLIN };

	set = epoll_create1(0);
	if (epoll_ctl(set, EPOLL_CTL_ADD, e->channel->fd, &event))
		fail("epoll_ctl: %s", strerror(errno));
}

static bool polls, selects;

static int take_event(struct end *e)
{
	struct pollfd channel = { e->channel->fd, POLLIN, 0 };
	struct epoll_event event;
	struct ibv_cq *cq;
	void *context;

	if (polls && set >= 0)
		channel.fd = set;
	if (polls && poll(&channel, 1, -1) != 1)
		return errno;
	if (set >= 0 && !polls && epoll_wait(set, &event, 1, -1) != 1)
		return errno;
	if (selects) {
		fd_set input;

		FD_ZERO(&input);
		FD_SET(channel.fd, &input);
		if (select(channel.fd + 1, &input, NULL, NULL, NULL) != 1)
			return errno;
	}
	if (ibv_get_cq_event(e->channel, &cq, &context))
		return errno;
	ibv_ack_cq_events(cq, 1);
	return 0;
}

/* Sleeps until a receive request completes or any request fails; the queue is armed. */
static struct ibv_wc sleep_until_received(struct end *e)
{
	struct ibv_wc wc;

	for (;;) {
		while (ibv_poll_cq(e->cq, 1, &wc))
			if (wc.status != IBV_WC_SUCCESS || wc.opcode & IBV_WC_RECV)
				return wc;
		if (take_event(e))
			fail("ibv_get_cq_event: %s", strerror(errno));
		arm(e);
	}
}

static void receive(struct end *e)
{
	if (end_recv(e, 1, 0, MESSAGE))
		fail("a receive request was refused");
}

static void send_message(struct end *e)
{
	struct ibv_send_wr wr = { .wr_id = 2,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };

	if (end_send(e, &wr, MESSAGE, MESSAGE, e->mr->lkey))
		fail("a send request was refused");
}

/* Exchanges messages with the other end, for which the background thread must not wake. */
static void exchange(struct end *e, bool begins)
{
	struct switches since;

	receive(e);
	arm(e);
	end_meet(e);
	since = begin_count();
	for (int i = 0; i < ROUND_TRIPS; i++) {
		struct ibv_wc wc;

		if (begins)
			send_message(e);
		wc = sleep_until_received(e);
		if (wc.status != IBV_WC_SUCCESS)
			fail("message %d: %s", i, ibv_wc_status_str(wc.status));
		receive(e);
		if (!begins)
			send_message(e);
	}
	expect_few_wake_ups(since, ROUND_TRIPS);
}

void sleep_client(struct end *e)
{
	struct ibv_wc wc;

	exchange(e, true);
	/* The peer has one receive request left, and ends before it has another one. */
	send_message(e);
	send_message(e);
	end_meet(e);
	wc = sleep_until_received(e);
	if (wc.status != IBV_WC_RETRY_EXC_ERR)
		fail("the end of the peer: %s", ibv_wc_status_str(wc.status));
}

void sleep_server(struct end *e)
{
	exchange(e, false);
	end_meet(e);
	printf("sleep: ok\n");
	/* Nothing is cleaned up, as if it had been killed. */
	_exit(0);
}

void epoll_client(struct end *e)
{
	use_set(e);
	sleep_client(e);
}

void poll_client(struct end *e)
{
	polls = true;
	sleep_client(e);
}

void poll_server(struct end *e)
{
	polls = true;
	sleep_server(e);
}

static void *wait_in_vain(void *other)
{
	struct epoll_event event = { 0 };
	int count = epoll_wait(*(int *)other, &event, 1, -1);

	/* The end of the channel is not reported either: its file is closed first. */
	fail("epoll_wait returned %d with events %#x", count, event.events);
}

/*
 * As UCX does: a thread polls a set that has the channel, while another one waits on a set of its
 * own which is not to report it.
 */
static void poll_a_set(struct end *e)
{
	struct epoll_event event = { .events = EPOLLIN };
	static int other;
	pthread_t thread;

	use_set(e);
	polls = true;
	other = epoll_create1(0);
	if (epoll_ctl(other, EPOLL_CTL_ADD, e->channel->fd, &event))
		fail("epoll_ctl: %s", strerror(errno));
	event.events = 0;
	if (epoll_ctl(other, EPOLL_CTL_MOD, e->channel->fd, &event))
		fail("epoll_ctl: %s", strerror(errno));
	if (pthread_create(&thread, NULL, wait_in_vain, &other))
		fail("pthread_create");
	/* It is asleep before the first message. */
	usleep(20000);
}

void poll_set_client(struct end *e)
{
	poll_a_set(e);
	sleep_client(e);
}

void poll_set_server(struct end *e)
{
	poll_a_set(e);
	sleep_server(e);
}

void select_client(struct end *e)
{
	selects = true;
	sleep_client(e);
}

void select_server(struct end *e)
{
	selects = true;
	sleep_server(e);
}

void epoll_server(struct end *e)
{
	use_set(e);
	sleep_server(e);
}

/* A thread that takes one event. */
struct sleeper {
	struct end *end;
	pthread_t thread;
	atomic_int result;
};

enum { SLEEPS = -1 };

static void *sleeps(void *argument)
{
	struct sleeper *s = argument;

	s->result = take_event(s->end);
	return NULL;
}

static void begin(struct sleeper *s, struct end *e)
{
	*s = (struct sleeper){ .end = e, .result = SLEEPS };
	if (pthread_create(&s->thread, NULL, sleeps, s))
		fail("pthread_create");
}

static void expect_result(struct sleeper *s, int expected)
{
	if (pthread_join(s->thread, NULL) || s->result != expected)
		fail("ibv_get_cq_event: %d instead of %d", s->result, expected);
}

/* Completions that raise one event. */
static atomic_int handled;

static void handle(int number)
{
	(void)number;
	handled++;
}

/* Sends signals until the handler has run some more times. */
static void disturb(struct sleeper *s, int times)
{
	double deadline = end_deadline();

	for (int until = handled + times; handled < until && s->result == SLEEPS;) {
		end_check_deadline(deadline);
		pthread_kill(s->thread, SIGUSR1);
		usleep(2000);
	}
}

static void signals(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct sigaction action = { .sa_handler = handle };
	double deadline = end_deadline();
	struct sleeper s;

	sigaction(SIGUSR1, &action, NULL);
	begin(&s, e);
	while (s.result == SLEEPS) {
		end_check_deadline(deadline);
		disturb(&s, 1);
	}
	expect_result(&s, EINTR);
	action.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &action, NULL);
	begin(&s, e);
	disturb(&s, 5);
	if (s.result != SLEEPS)
		fail("a handler with SA_RESTART ended the wait");
	loopback_raise(e, a, b);
	expect_result(&s, 0);
}

static void several_threads(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct sleeper s[3];

	for (int i = 0; i < 3; i++)
		begin(&s[i], e);
	usleep(20000);
	for (int i = 0; i < 3; i++)
		loopback_raise(e, a, b);
	for (int i = 0; i < 3; i++)
		expect_result(&s[i], 0);
}

static sigjmp_buf way_out;
static atomic_int has_way_out;

static void jump(int number)
{
	siglongjmp(way_out, number);
}

static void *jumps_and_sleeps(void *argument)
{
	struct sleeper *s = argument;

	if (!sigsetjmp(way_out, 1)) {
		has_way_out = 1;
		take_event(s->end);
	}
	s->result = EAGAIN;
	s->result = take_event(s->end);
	return NULL;
}

/* A handler leaves the wait for good, and nothing but the background thread makes progress. */
static void leaves_by_a_jump(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct sigaction action = { .sa_handler = jump };
	struct sleeper s = { .end = e, .result = SLEEPS };

	has_way_out = 0;
	sigaction(SIGUSR1, &action, NULL);
	if (pthread_create(&s.thread, NULL, jumps_and_sleeps, &s))
		fail("pthread_create");
	while (!has_way_out)
		usleep(1000);
	usleep(20000);
	pthread_kill(s.thread, SIGUSR1);
	while (s.result == SLEEPS)
		usleep(1000);
	usleep(20000);
	arm(e);
	loopback_receive(e, b);
	if (loopback_post(e, a, IBV_WR_SEND, e->mr->lkey, 0))
		fail("a send request was refused");
	expect_result(&s, 0);
	for (int i = 0; i < 2; i++)
		end_expect(e, IBV_WC_SUCCESS);
}

void check_sleeps(void)
{
	static struct sleeper last;
	static struct end end;
	struct ibv_qp *a, *b;

	loopback_open(&end, IBV_ACCESS_LOCAL_WRITE, &a, &b);
	for (int i = 0; i < 3; i++) {
		signals(&end, a, b);
		several_threads(&end, a, b);
		leaves_by_a_jump(&end, a, b);
	}
	/* The process ends while a thread sleeps. */
	begin(&last, &end);
	usleep(20000);
}
