/*
 * Completion events that are not read at once. A thread that has returned from epoll_wait raises
 * the next one itself; every call, thread and process sees it as it sees that of a kernel's file.
 */
#define _GNU_SOURCE
#include "loopback.h"
#include "scenarios.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FIRST 0x1234567800000001ull
#define SECOND 0x1234567800000002ull
#define CHANGED 0x1234567800000003ull

/* Two ends, each with a channel of its own and two connected queue pairs, and a set of both. */
static struct pair {
	struct end end;
	struct ibv_qp *a, *b;
	uint64_t data;
} first, second;
static int set;

static void control(int in, int op, struct pair *p, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.u64 = p->data };

	if (epoll_ctl(in, op, p->end.channel->fd, &event))
		fail("epoll_ctl: %s", strerror(errno));
}

/* One wait with room for `max` events, which must return those of `count` members. */
static void expect_at(int line, int in, int max, int timeout_ms, int count, uint64_t a, uint64_t b)
{
	struct epoll_event events[4];
	int found = epoll_wait(in, events, max, timeout_ms);
	uint64_t data[2] = { found > 0 ? events[0].data.u64 : 0,
			     found > 1 ? events[1].data.u64 : 0 };

	if (found != count)
		fail("line %d: %d events instead of %d", line, found, count);
	for (int i = 0; i < count; i++)
		if (events[i].events != EPOLLIN)
			fail("line %d: events 0x%x", line, events[i].events);
	if (!(data[0] == a && data[1] == b) && !(data[0] == b && data[1] == a))
		fail("line %d: events of 0x%llx and 0x%llx", line, (unsigned long long)data[0],
		     (unsigned long long)data[1]);
}

#define expect(...) expect_at(__LINE__, __VA_ARGS__)

static void raise_on(struct pair *p)
{
	loopback_raise(&p->end, p->a, p->b);
}

static void take(struct pair *p)
{
	if (!loopback_take(&p->end))
		fail("ibv_get_cq_event: %s", strerror(errno));
}

/* Nothing is left to read. */
static void expect_nothing(struct pair *p)
{
	if (loopback_take(&p->end) || errno != EAGAIN)
		fail("there is an event that was not raised");
}

/* The thread returns from a wait on the set, and then raises an event of `p`. */
static void wait_and_raise(struct pair *p)
{
	raise_on(&first);
	expect(set, 4, -1, 1, FIRST, 0);
	take(&first);
	raise_on(p);
}

static int has_input(int fd, int timeout_ms)
{
	struct timespec timeout = { timeout_ms / 1000, timeout_ms % 1000 * 1000000l };
	struct pollfd list = { fd, POLLIN, 0 };

	return syscall(SYS_ppoll, &list, 1, &timeout, NULL, 0);
}

/* It is reported until it is read, among others and one by one. */
static void again_and_in_turn(void)
{
	uint64_t seen = 0;

	wait_and_raise(&first);
	expect(set, 4, -1, 1, FIRST, 0);
	expect(set, 4, -1, 1, FIRST, 0);
	expect(set, 4, 0, 1, FIRST, 0);
	raise_on(&second);
	expect(set, 4, -1, 2, FIRST, SECOND);
	take(&first);
	expect(set, 4, -1, 1, SECOND, 0);
	raise_on(&first);
	for (double deadline = end_deadline(); seen != (FIRST | SECOND);) {
		struct epoll_event event;

		end_check_deadline(deadline);
		if (epoll_wait(set, &event, 1, -1) != 1)
			fail("epoll_wait: %s", strerror(errno));
		seen |= event.data.u64;
	}
	take(&first);
	take(&second);
	expect(set, 4, 20, 0, 0, 0);
	expect_nothing(&first);
	expect_nothing(&second);
}

/* What was changed of its membership holds for an event that was raised before. */
static void changed_membership(void)
{
	int other = epoll_create1(0), same = dup(set);

	wait_and_raise(&first);
	first.data = CHANGED;
	control(set, EPOLL_CTL_MOD, &first, EPOLLIN);
	expect(set, 4, -1, 1, CHANGED, 0);
	first.data = FIRST;
	control(set, EPOLL_CTL_DEL, &first, 0);
	expect(set, 4, 20, 0, 0, 0);
	control(other, EPOLL_CTL_ADD, &first, EPOLLIN);
	expect(other, 4, -1, 1, FIRST, 0);
	control(set, EPOLL_CTL_ADD, &first, EPOLLIN);
	expect(set, 4, -1, 1, FIRST, 0);
	take(&first);
	wait_and_raise(&first);
	expect(other, 4, -1, 1, FIRST, 0);
	take(&first);
	control(other, EPOLL_CTL_DEL, &first, 0);
	wait_and_raise(&first);
	control(set, EPOLL_CTL_MOD, &first, 0);
	expect(set, 4, 20, 0, 0, 0);
	control(set, EPOLL_CTL_MOD, &first, EPOLLIN | EPOLLONESHOT);
	expect(set, 4, -1, 1, FIRST, 0);
	expect(set, 4, 20, 0, 0, 0);
	control(set, EPOLL_CTL_MOD, &first, EPOLLIN | EPOLLET);
	expect(set, 4, -1, 1, FIRST, 0);
	expect(set, 4, 20, 0, 0, 0);
	take(&first);
	control(set, EPOLL_CTL_MOD, &first, EPOLLIN);
	/* By another descriptor of the same set. */
	wait_and_raise(&first);
	control(same, EPOLL_CTL_DEL, &first, 0);
	expect(set, 4, 20, 0, 0, 0);
	control(set, EPOLL_CTL_ADD, &first, EPOLLIN);
	expect(set, 4, -1, 1, FIRST, 0);
	take(&first);
	close(same);
	close(other);
}

static void *takes(void *p)
{
	take(p);
	return NULL;
}

/* Other calls, threads and processes. */
static void elsewhere(void)
{
	int fd = first.end.channel->fd, outer = epoll_create1(0), status;
	struct epoll_event event = { .events = EPOLLIN };
	struct timeval limit = { .tv_sec = 5 };
	struct pollfd list = { fd, POLLIN, 0 };
	pthread_t thread;
	fd_set input;
	pid_t child;

	wait_and_raise(&first);
	if (poll(&list, 1, 0) != 1 || poll(&list, 1, -1) != 1)
		fail("poll does not see the event");
	take(&first);
	wait_and_raise(&first);
	FD_ZERO(&input);
	FD_SET(fd, &input);
	if (select(fd + 1, &input, NULL, NULL, &limit) != 1)
		fail("select does not see the event");
	take(&first);
	wait_and_raise(&first);
	if (has_input(fd, 5000) != 1)
		fail("a system call without the stand-in does not see the event");
	take(&first);
	if (epoll_ctl(outer, EPOLL_CTL_ADD, set, &event))
		fail("epoll_ctl: %s", strerror(errno));
	wait_and_raise(&first);
	if (epoll_wait(outer, &event, 1, 5000) != 1)
		fail("a set of sets does not see the event");
	take(&first);
	close(outer);
	wait_and_raise(&first);
	if (pthread_create(&thread, NULL, takes, &first))
		fail("pthread_create");
	pthread_join(thread, NULL);
	expect_nothing(&first);
	wait_and_raise(&first);
	child = fork();
	if (!child)
		_exit(has_input(fd, 5000) == 1 ? 0 : 1);
	if (waitpid(child, &status, 0) != child || status)
		fail("a child does not see the event: status %d", status);
	take(&first);
}

/* An event is read by ibv_get_cq_event alone, and the thread then waits elsewhere. */
static void other_channel(void)
{
	int flags = fcntl(second.end.channel->fd, F_GETFL);

	fcntl(second.end.channel->fd, F_SETFL, flags & ~O_NONBLOCK);
	control(set, EPOLL_CTL_DEL, &second, 0);
	wait_and_raise(&first);
	for (int i = 0; i < 3; i++) {
		raise_on(&second);
		take(&second);
	}
	if (has_input(first.end.channel->fd, 5000) != 1)
		fail("an event is not seen after a wait for another channel");
	take(&first);
	fcntl(second.end.channel->fd, F_SETFL, flags | O_NONBLOCK);
	raise_on(&second);
	control(set, EPOLL_CTL_ADD, &second, EPOLLIN);
	expect(set, 4, -1, 1, SECOND, 0);
	take(&second);
}

/* Events of a queue that is destroyed are gone, and those of others are not. */
static void destroyed_queue(void)
{
	struct pair brief = { .end = first.end, .data = FIRST };

	brief.end.cq = ibv_create_cq(brief.end.context, 16, NULL, brief.end.channel, 0);
	if (!brief.end.cq)
		fail("ibv_create_cq: %s", strerror(errno));
	brief.a = loopback_qp(&brief.end, IBV_QPT_RC, NULL);
	brief.b = loopback_qp(&brief.end, IBV_QPT_RC, NULL);
	loopback_connect(&brief.end, brief.a, brief.b);
	wait_and_raise(&brief);
	raise_on(&first);
	raise_on(&brief);
	loopback_destroy(brief.a, brief.b);
	if (ibv_destroy_cq(brief.end.cq))
		fail("ibv_destroy_cq");
	expect(set, 4, -1, 1, FIRST, 0);
	take(&first);
	expect_nothing(&first);
}

static void open_second(void)
{
	struct end *e = &second.end;

	*e = first.end;
	e->channel = ibv_create_comp_channel(e->context);
	if (!e->channel)
		fail("ibv_create_comp_channel: %s", strerror(errno));
	e->cq = ibv_create_cq(e->context, 16, NULL, e->channel, 0);
	if (!e->cq)
		fail("ibv_create_cq: %s", strerror(errno));
	second.a = loopback_qp(e, IBV_QPT_RC, NULL);
	second.b = loopback_qp(e, IBV_QPT_RC, NULL);
	loopback_connect(e, second.a, second.b);
}

/* A channel that is closed is not reported any more. */
static void closed_channel(void)
{
	wait_and_raise(&second);
	loopback_destroy(second.a, second.b);
	if (ibv_destroy_cq(second.end.cq) || ibv_destroy_comp_channel(second.end.channel))
		fail("a completion channel was not destroyed");
	expect(set, 4, 20, 0, 0, 0);
}


void check_unread(void)
{
	struct pair *pairs[] = { &first, &second };

	loopback_open(&first.end, IBV_ACCESS_LOCAL_WRITE, &first.a, &first.b);
	first.data = FIRST;
	second.data = SECOND;
	open_second();
	set = epoll_create1(0);
	for (int i = 0; i < 2; i++) {
		int fd = pairs[i]->end.channel->fd;

		if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK))
			fail("fcntl");
		control(set, EPOLL_CTL_ADD, pairs[i], EPOLLIN);
	}
	for (int i = 0; i < 10; i++) {
		again_and_in_turn();
elsewhere();
other_channel();
destroyed_queue();
	}
	changed_membership();
	closed_channel();
	loopback_close(&first.end, first.a, first.b);
}
