/*
 * Threads that sleep in epoll_wait, poll or select until a completion channel or another file is
 * readable: the call returns what it returns for a file of the kernel.
 */
#define _GNU_SOURCE
#include "loopback.h"
#include "scenarios.h"
#include "switches.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OTHER 0x1234567800000001ull
#define CHANNEL 0x1234567800000002ull

/*
 * The set, and a file in it that is not a completion channel; for poll and select, a list of both.
 */
struct set {
	struct end *end;
	int fd, other;
	enum { EPOLL, POLL, SELECT, CALLS } call;
};

static void add(int set, int fd, uint64_t data)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = data };

	if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
		fail("epoll_ctl: %s", strerror(errno));
}

static int64_t poll_once(struct set *s, const struct timespec *timeout, const sigset_t *mask)
{
	struct pollfd list[] = { { s->end->channel->fd, POLLIN, 0 }, { s->other, POLLIN, 0 } };
	int timeout_ms = timeout ? timeout->tv_nsec / 1000000 : -1;
	int count = mask ? ppoll(list, 2, timeout, mask) : poll(list, 2, timeout_ms);

	if (count < 0)
		return -errno;
	if (count != !!list[0].revents + !!list[1].revents)
		fail("poll returned %d for %d and %d", count, list[0].revents, list[1].revents);
	return !count ? 0 : list[0].revents ? CHANNEL : OTHER;
}

static int64_t select_once(struct set *s, const struct timespec *timeout, const sigset_t *mask)
{
	int channel = s->end->channel->fd, last = channel > s->other ? channel : s->other, count;
	struct timeval left = { .tv_usec = timeout ? timeout->tv_nsec / 1000 : 0 }, all = left;
	fd_set input;

	FD_ZERO(&input);
	FD_SET(channel, &input);
	FD_SET(s->other, &input);
	count = mask ? pselect(last + 1, &input, NULL, NULL, timeout, mask) :
		       select(last + 1, &input, NULL, NULL, timeout ? &left : NULL);
	if (count < 0)
		return -errno;
	if (count != !!FD_ISSET(channel, &input) + !!FD_ISSET(s->other, &input))
		fail("select returned %d", count);
	if (!count && (left.tv_sec || left.tv_usec))
		fail("select left %ld us of its time", left.tv_usec);
	if (left.tv_sec || left.tv_usec > all.tv_usec)
		fail("select left more time than there was");
	for (int fd = 0; fd < FD_SETSIZE; fd++)
		if (FD_ISSET(fd, &input) && fd != channel && fd != s->other)
			fail("select: descriptor %d was not in the set", fd);
	return !count ? 0 : FD_ISSET(channel, &input) ? CHANNEL : OTHER;
}

/* One wait; the data of what it returns, 0 for nothing, or a negative errno. */
static int64_t wait_once(struct set *s, int max, int timeout_ms)
{
	struct timespec timeout = { .tv_nsec = timeout_ms * 1000000l };
	struct epoll_event events[4];
	int count;

	if (s->call == POLL)
		return poll_once(s, timeout_ms < 0 ? NULL : &timeout, NULL);
	if (s->call == SELECT)
		return select_once(s, timeout_ms < 0 ? NULL : &timeout, NULL);
	count = epoll_wait(s->fd, events, max, timeout_ms);

	if (count < 0)
		return -errno;
	for (int i = 0; i < count; i++)
		if (events[i].data.u64 != OTHER && events[i].data.u64 != CHANNEL)
			fail("an event of a descriptor that is not in the set");
	return count ? (int64_t)events[0].data.u64 : 0;
}

static void expect_wait(struct set *s, int max, int timeout_ms, int64_t expected)
{
	int64_t found = wait_once(s, max, timeout_ms);

	if (found != expected)
		fail("epoll_wait: %lld instead of %lld", (long long)found, (long long)expected);
}

static void *writes_later(void *argument)
{
	struct set *s = argument;

	usleep(20000);
	if (eventfd_write(s->other, 1))
		fail("eventfd_write");
	return NULL;
}

/* Time-outs, and files that are not ours. */
static void other_files(struct set *s)
{
	long began = now_ms();
	pthread_t writer;
	eventfd_t value;

	expect_wait(s, 4, 50, 0);
	if (now_ms() - began < 50)
		fail("epoll_wait returned after %ld ms of 50", now_ms() - began);
	expect_wait(s, 4, 0, 0);
	if (s->call == EPOLL)
		expect_wait(s, 0, 50, -EINVAL);
	for (int max = 1; max <= 4; max++) {
		if (pthread_create(&writer, NULL, writes_later, s))
			fail("pthread_create");
		expect_wait(s, max, -1, OTHER);
		pthread_join(writer, NULL);
		eventfd_read(s->other, &value);
	}
}

static void events(struct set *s, struct ibv_qp *a, struct ibv_qp *b)
{
	for (int max = 1; max <= 4; max++) {
		loopback_raise(s->end, a, b);
		expect_wait(s, max, -1, CHANNEL);
		expect_wait(s, max, 0, CHANNEL);
		if (!loopback_take(s->end))
			fail("ibv_get_cq_event: %s", strerror(errno));
		expect_wait(s, max, 0, 0);
	}
}

enum { SLEEPS = 1 };

/* A thread in a wait. */
struct waiter {
	struct set *set;
	pthread_t thread;
	sigset_t mask;
	bool has_mask;
	_Atomic int64_t result;
};

static void *waits(void *argument)
{
	struct waiter *w = argument;
	struct epoll_event event;

	if (!w->has_mask) {
		w->result = wait_once(w->set, 4, -1);
	} else {
		pthread_sigmask(SIG_BLOCK, &w->mask, NULL);
		sigdelset(&w->mask, SIGUSR1);
		if (w->set->call == POLL)
			w->result = poll_once(w->set, NULL, &w->mask);
		else if (w->set->call == SELECT)
			w->result = select_once(w->set, NULL, &w->mask);
		else if (epoll_pwait(w->set->fd, &event, 1, -1, &w->mask) < 0)
			w->result = -errno;
	}
	return NULL;
}

static void begin(struct waiter *w, struct set *s)
{
	w->set = s;
	w->result = SLEEPS;
	if (pthread_create(&w->thread, NULL, waits, w))
		fail("pthread_create");
}

static void handle(int number)
{
	(void)number;
}

/* Every handler ends epoll_wait, also one with SA_RESTART. */
static void signals(struct set *s)
{
	const int flags[] = { 0, SA_RESTART };

	for (int i = 0; i < 4; i++) {
		struct sigaction action = { .sa_handler = handle, .sa_flags = flags[i % 2] };
		struct waiter w = { .has_mask = i > 1 };

		sigemptyset(&w.mask);
		sigaddset(&w.mask, SIGUSR1);
		sigaction(SIGUSR1, &action, NULL);
		begin(&w, s);
		for (double deadline = end_deadline(); w.result == SLEEPS; usleep(2000)) {
			end_check_deadline(deadline);
			pthread_kill(w.thread, SIGUSR1);
		}
		pthread_join(w.thread, NULL);
		if (w.result != -EINTR)
			fail("epoll_wait: %lld instead of EINTR", (long long)w.result);
	}
}

static void *takes(void *argument)
{
	struct waiter *w = argument;

	do {
		if (wait_once(w->set, 1, -1) != CHANNEL)
			fail("epoll_wait did not return the channel");
	} while (!loopback_take(w->set->end));
	w->result = 0;
	return NULL;
}

/* Each event ends the wait of a thread. */
static void several_threads(struct set *s, struct ibv_qp *a, struct ibv_qp *b)
{
	struct waiter w[3];

	for (int i = 0; i < 3; i++) {
		w[i].set = s;
		if (pthread_create(&w[i].thread, NULL, takes, &w[i]))
			fail("pthread_create");
	}
	usleep(20000);
	for (int i = 0; i < 3; i++) {
		loopback_raise(s->end, a, b);
		usleep(2000);
	}
	for (int i = 0; i < 3; i++)
		pthread_join(w[i].thread, NULL);
}

static void cancelled(struct set *s)
{
	struct waiter w = { 0 };
	void *result;

	begin(&w, s);
	usleep(20000);
	pthread_cancel(w.thread);
	if (pthread_join(w.thread, &result) || result != PTHREAD_CANCELED)
		fail("a thread in epoll_wait was not cancelled");
}

static sigjmp_buf way_out;

static void jump(int number)
{
	siglongjmp(way_out, number);
}

static void *jumps(void *argument)
{
	struct set *s = argument;

	if (!sigsetjmp(way_out, 1))
		wait_once(s, 4, -1);
	return NULL;
}

/* A handler leaves the wait for good; others are served all the same. */
static void leaves_by_a_jump(struct set *s, struct ibv_qp *a, struct ibv_qp *b)
{
	struct sigaction action = { .sa_handler = jump };
	pthread_t thread;

	sigaction(SIGUSR1, &action, NULL);
	if (pthread_create(&thread, NULL, jumps, s))
		fail("pthread_create");
	usleep(20000);
	pthread_kill(thread, SIGUSR1);
	pthread_join(thread, NULL);
	if (ibv_req_notify_cq(s->end->cq, 0))
		fail("ibv_req_notify_cq");
	loopback_receive(s->end, b);
	if (loopback_post(s->end, a, IBV_WR_SEND, s->end->mr->lkey, 0))
		fail("a send request was refused");
	expect_wait(s, 4, -1, CHANNEL);
	if (!loopback_take(s->end))
		fail("ibv_get_cq_event: %s", strerror(errno));
	for (int i = 0; i < 2; i++)
		end_expect(s->end, IBV_WC_SUCCESS);
}

/* A child has the set too: it may see events of the channel, but no others. */
static void forked(struct set *s, struct ibv_qp *a, struct ibv_qp *b)
{
	int status;
	pid_t child = fork();

	if (!child) {
		int64_t found = wait_once(s, 4, 100);

		_exit(found == 0 || found == CHANNEL ? 0 : 1);
	}
	events(s, a, b);
	if (waitpid(child, &status, 0) != child || status)
		fail("epoll_wait in a child: status %d", status);
}

void check_sets(void)
{
	static struct waiter last;
	static struct end end;
	static struct set s;
	struct ibv_qp *a, *b;
	int flags;

	loopback_open(&end, IBV_ACCESS_LOCAL_WRITE, &a, &b);
	flags = fcntl(end.channel->fd, F_GETFL);
	if (fcntl(end.channel->fd, F_SETFL, flags | O_NONBLOCK))
		fail("fcntl");
	s = (struct set){ .end = &end, .fd = epoll_create1(0), .other = eventfd(0, 0) };
	add(s.fd, s.other, OTHER);
	add(s.fd, end.channel->fd, CHANNEL);
	for (s.call = EPOLL; s.call < CALLS; s.call++) {
		other_files(&s);
		events(&s, a, b);
		signals(&s);
		several_threads(&s, a, b);
		cancelled(&s);
		leaves_by_a_jump(&s, a, b);
	}
	s.call = EPOLL;
	/* The set without the channel, and another one with it. */
	if (epoll_ctl(s.fd, EPOLL_CTL_DEL, end.channel->fd, NULL))
		fail("epoll_ctl: %s", strerror(errno));
	other_files(&s);
	close(s.fd);
	s.fd = epoll_create1(0);
	add(s.fd, end.channel->fd, CHANNEL);
	add(s.fd, s.other, OTHER);
	events(&s, a, b);
	forked(&s, a, b);
	/* The process ends while a thread sleeps. */
	begin(&last, &s);
	usleep(20000);
}

/* The same without epoll_pwait2(2), as before Linux 5.11: handlers are not put off. */
void check_sets_of_old_kernels(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { .len = 4, .filter = rules };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		fail("seccomp: %s", strerror(errno));
	check_sets();
}
