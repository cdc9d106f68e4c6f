/*
 * Programs that close descriptors that they do not own, or open others in their place, while the
 * device is open.
 */
#define _GNU_SOURCE
#include "loopback.h"
#include "scenarios.h"

#include <errno.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Above the descriptors of the checks, and below the limit of descriptors. */
#define DESCRIPTORS 256
#define FIRST 3

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

/* Opens files until each descriptor below DESCRIPTORS is open; returns the first new one. */
static int open_all(void)
{
	int first = -1, fd;

	while ((fd = open("/dev/zero", O_RDONLY | O_CLOEXEC)) < DESCRIPTORS) {
		if (fd < 0)
			fail("open: %s", strerror(errno));
		if (first < 0)
			first = fd;
	}
	close(fd);
	return first;
}

static int outcome_of(pid_t child)
{
	int status;

	if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
		fail("the child was killed");
	return WEXITSTATUS(status);
}

/* The device works, and two new queue pairs exchange a message. */
static void exchange(struct end *e)
{
	struct ibv_qp *a = loopback_qp(e, IBV_QPT_RC, NULL), *b = loopback_qp(e, IBV_QPT_RC, NULL);

	loopback_connect(e, a, b);
	loopback_receive(e, b);
	loopback_exchange(e, a);
	loopback_destroy(a, b);
}

void check_fork_descriptors(void)
{
	struct end e;
	pid_t child;

	end_open(&e, IBV_ACCESS_LOCAL_WRITE);
	exchange(&e);
	/* Without the C library. */
	if (syscall(SYS_close_range, FIRST, ~0u, 0))
		fail("close_range: %s", strerror(errno));
	if (open_all() != FIRST)
		fail("a descriptor was not closed");
	child = fork();
	if (child == 0) {
		for (int fd = FIRST; fd < DESCRIPTORS; fd++)
			if (!is_open(fd))
				_exit(1);
		_exit(0);
	}
	if (outcome_of(child))
		fail("a file of the program is closed in its child");
}

/* The ways in which programs close descriptors that they do not own. */
static void with_closefrom(void)
{
	closefrom(FIRST);
}

static void with_close_range(void)
{
	if (close_range(FIRST, ~0u, 0))
		fail("close_range: %s", strerror(errno));
}

static void one_by_one(void)
{
	for (int fd = FIRST; fd < DESCRIPTORS; fd++)
		close(fd);
}

/* In a child no descriptor is protected, because the child has no use for them. */
static void child_closes_all(void (*close_all)(void))
{
	pid_t child = fork();

	if (child == 0) {
		close_all();
		for (int fd = FIRST; fd < DESCRIPTORS; fd++)
			if (is_open(fd))
				_exit(1);
		_exit(0);
	}
	if (outcome_of(child))
		fail("a descriptor is open in a child that closed all");
}

/* Nothing was written to the files that the program opened in place of those that it had closed. */
static void expect_unused(int socket)
{
	char octet;

	if (recv(socket, &octet, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN)
		fail("something came in on a socket of the program");
}

/* Open descriptors among those that a program counts on for its small sets of select(2). */
static int low_descriptors(void)
{
	int count = 0;

	for (int fd = 0; fd < 40; fd++)
		count += is_open(fd);
	return count;
}

void check_low_descriptors(void)
{
	int before = low_descriptors();
	struct end e;

	end_open(&e, IBV_ACCESS_LOCAL_WRITE);
	exchange(&e);
	/* The device and its asynchronous events, as with any provider; the channel of `e`. */
	if (low_descriptors() != before + 3)
		fail("%d low descriptors instead of %d", low_descriptors(), before + 3);
	if (!rdma_create_event_channel())
		fail("rdma_create_event_channel: %s", strerror(errno));
	if (low_descriptors() != before + 4)
		fail("%d low descriptors instead of %d", low_descriptors(), before + 4);
}

void check_closefrom(void)
{
	static void (*const ways[])(void) = { with_closefrom, with_close_range, one_by_one };
	struct end e;
	int ends[2];

	end_open(&e, IBV_ACCESS_LOCAL_WRITE);
	exchange(&e);
	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
		child_closes_all(ways[i]);
		ways[i]();
		for (int pairs = 0; pairs < 16; pairs++)
			if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
				fail("socketpair: %s", strerror(errno));
		/*
		 * Queue pairs, regions and connections need urdmad and the channel no less than
		 * before.
		 */
		if (ibv_req_notify_cq(e.cq, 0))
			fail("ibv_req_notify_cq");
		exchange(&e);
		for (int fd = FIRST; fd <= ends[1]; fd++) {
			int type;
			socklen_t room = sizeof(type);

			if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &room) &&
			    type == SOCK_STREAM)
				expect_unused(fd);
		}
	}
	/* The protected descriptors can be neither closed nor replaced. */
	open_all();
	with_closefrom();
	for (int fd = FIRST; fd < DESCRIPTORS; fd++) {
		if (!is_open(fd))
			continue;
		if (!close(fd) || errno != EBADF)
			fail("descriptor %d can be closed", fd);
		if (dup2(STDERR_FILENO, fd) >= 0 || errno != EBUSY)
			fail("descriptor %d can be replaced", fd);
	}
	exchange(&e);
}
