// SPDX-License-Identifier: MIT OR Apache-2.0
/* What each call refuses, and how operations end, within one process. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

#define LENGTH 4096
/* The number of no descriptor. */
#define UNKNOWN 12345

static unsigned char octets[LENGTH], received[LENGTH];

exs_event_t expect(exs_qhandle_t queue, int type, int number)
{
	exs_event_t event = next_event(queue);

	errno = event.exs_evt_errno;
	if (event.exs_evt_type != type || event.exs_evt_errno != number)
		fprintf(stderr, "event %d with errno %d in place of %d with %d\n",
			event.exs_evt_type, event.exs_evt_errno, type, number);
	REQUIRE(event.exs_evt_type == type && event.exs_evt_errno == number);
	return event;
}

void expect_octets(exs_qhandle_t queue, int type, int number, size_t length)
{
	exs_event_t event = expect(queue, type, number);

	REQUIRE(event.exs_evt_union.exs_evt_xfer.exs_evt_length == length);
}

static void post_connect(int fd, int port, exs_qhandle_t queue)
{
	struct sockaddr_in address = address_of(port);

	REQUIRE(exs_connect(fd, (struct sockaddr *)&address, sizeof(address), 0, NULL, queue) == 0);
}

struct pair make_pair(int type, int port)
{
	struct pair pair = { .listener = listen_at(type, port), .server = -1 };
	int connected = 0;

	pair.queue = exs_qcreate(10);
	pair.sent = exs_mregister(octets, sizeof(octets), EXS_ACCESS_READ);
	pair.received = exs_mregister(received, sizeof(received), EXS_ACCESS_WRITE);
	pair.client = exs_socket(AF_INET, type, 0);
	REQUIRE(pair.queue >= 0 && pair.sent && pair.received && pair.client >= 0);
	REQUIRE(exs_accept(pair.listener, NULL, NULL, 0, NULL, pair.queue) == 0);
	post_connect(pair.client, port, pair.queue);
	while (pair.server < 0 || !connected) {
		exs_event_t event = next_event(pair.queue);

		errno = event.exs_evt_errno;
		REQUIRE(event.exs_evt_errno == 0);
		if (event.exs_evt_type == EXS_EVT_ACCEPT)
			pair.server = event.exs_evt_union.exs_evt_accept.exs_evt_new_socket;
		else
			connected = event.exs_evt_type == EXS_EVT_CONNECT;
	}
	return pair;
}

void end_pair(const struct pair *pair)
{
	REQUIRE(exs_close(pair->listener) == 0);
	REQUIRE(exs_mderegister(pair->sent) == 0);
	REQUIRE(exs_mderegister(pair->received) == 0);
	REQUIRE(exs_qdelete(pair->queue) == 0);
}

static void check_arguments(void)
{
	struct timeval now = { 0, 0 };
	exs_event_t event;
	int fd = exs_socket(AF_INET6, SOCK_STREAM, 0);
	exs_qhandle_t queue = exs_qcreate(1);

	REQUIRE(fd >= 0 && queue >= 0);
	REFUSED(exs_init(EXS_VERSION + 1), EINVAL);
	REFUSED(exs_socket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
	REFUSED(exs_socket(AF_INET, SOCK_DGRAM, 0), ESOCKTNOSUPPORT);
	REFUSED(exs_qcreate(0), EINVAL);
	errno = 0;
	REQUIRE(exs_mregister(NULL, 1, EXS_ACCESS_READ) == EXS_MHANDLE_INVALID && errno == EINVAL);
	REFUSED(exs_mderegister(UNKNOWN), EINVAL);
	REFUSED(exs_send(UNKNOWN, octets, 1, 0, 1, NULL, queue), EBADF);
	REFUSED(exs_send(STDIN_FILENO, octets, 1, 0, 1, NULL, queue), EBADF);
	REFUSED(exs_close(UNKNOWN), EBADF);
	REFUSED(exs_close(queue), EBADF);
	REFUSED(exs_qdequeue(UNKNOWN, &event, 1, &now), EBADF);
	REFUSED(exs_qdelete(fd), EBADF);
	REFUSED(exs_listen(fd, 1), EDESTADDRREQ);
	REFUSED(exs_accept(fd, NULL, NULL, 0, NULL, queue), EINVAL);
	REFUSED(exs_cancel(fd, NULL), ENOENT);
	REFUSED(exs_shutdown(fd, SHUT_WR), ENOTCONN);
	REQUIRE(exs_qdequeue(queue, &event, 1, &now) == 0);
	REQUIRE(exs_close(fd) == 0);
	REFUSED(exs_close(fd), EBADF);
	REQUIRE(exs_qdelete(queue) == 0);
	REFUSED(exs_qdelete(queue), EBADF);
}

static void check_transfers(const struct pair *pair)
{
	const void *before = (const void *)((uintptr_t)octets - 1);
	int tag, other;

	REFUSED(exs_send(pair->client, octets, 1, 0, UNKNOWN, NULL, pair->queue), EINVAL);
	REFUSED(exs_send(pair->client, octets + 1, LENGTH, 0, pair->sent, NULL, pair->queue),
		EFAULT);
	REFUSED(exs_send(pair->client, before, 1, 0, pair->sent, NULL, pair->queue), EFAULT);
	REFUSED(exs_recv(pair->client, octets, 1, 0, pair->sent, NULL, pair->queue), EACCES);
	REFUSED(exs_send(pair->client, received, 1, 0, pair->received, NULL, pair->queue), EACCES);
	REFUSED(exs_send(pair->client, octets, 1, MSG_OOB, pair->sent, NULL, pair->queue),
		EOPNOTSUPP);
	REFUSED(exs_send(pair->client, octets, 0, 0, pair->sent, NULL, pair->queue), EINVAL);
	REFUSED(exs_send(pair->client, octets, 1, 0, pair->sent, NULL, UNKNOWN), EBADF);

	/* A queue is full if operations in progress may need all of its places. */
	exs_qhandle_t small = exs_qcreate(2);

	REQUIRE(exs_recv(pair->server, received, LENGTH, 0, pair->received, &tag, small) == 0);
	REQUIRE(exs_recv(pair->server, received, LENGTH, 0, pair->received, &other, small) == 0);
	REFUSED(exs_recv(pair->server, received, LENGTH, 0, pair->received, NULL, small), ENOBUFS);
	REFUSED(exs_qdelete(small), EBUSY);
	REFUSED(exs_mderegister(pair->received), EBUSY);
	REQUIRE(exs_cancel(pair->server, &other) == 0);
	REQUIRE(expect(small, EXS_EVT_RECV, ECANCELED).exs_evt_ahandle == &other);
	REQUIRE(exs_cancel(pair->server, &tag) == 0);
	REQUIRE(expect(small, EXS_EVT_RECV, ECANCELED).exs_evt_ahandle == &tag);
	REFUSED(exs_cancel(pair->server, &tag), ENOENT);
	REQUIRE(exs_qdelete(small) == 0);
}

/* No socket listens, or one of another type; the port is in use. */
static void check_connections(const struct pair *pair, int port)
{
	struct sockaddr_in address = address_of(port);
	int fd = exs_socket(AF_INET, SOCK_STREAM, 0);

	REFUSED(exs_bind(fd, (struct sockaddr *)&address, 1), EINVAL);
	REFUSED(exs_bind(fd, (struct sockaddr *)&address, sizeof(address)), EADDRINUSE);
	post_connect(fd, port + 50, pair->queue);
	expect(pair->queue, EXS_EVT_CONNECT, ECONNREFUSED);
	REQUIRE(exs_close(fd) == 0);

	fd = exs_socket(AF_INET, SOCK_SEQPACKET, 0);
	REQUIRE(exs_accept(pair->listener, NULL, NULL, 0, NULL, pair->queue) == 0);
	post_connect(fd, port, pair->queue);
	for (int i = 0; i < 2; i++) {
		exs_event_t event = next_event(pair->queue);
		int expected = event.exs_evt_type == EXS_EVT_ACCEPT ? EPROTOTYPE : ECONNREFUSED;

		errno = event.exs_evt_errno;
		REQUIRE(event.exs_evt_errno == expected);
	}
	REQUIRE(exs_close(fd) == 0);

	/* Operations of a socket that is closed are canceled. */
	fd = listen_at(SOCK_STREAM, port + 51);
	REQUIRE(exs_accept(fd, NULL, NULL, 0, NULL, pair->queue) == 0);
	REQUIRE(exs_close(fd) == 0);
	expect(pair->queue, EXS_EVT_ACCEPT, ECANCELED);
}

void check_errors(int port)
{
	check_arguments();

	struct pair pair = make_pair(SOCK_STREAM, port);

	check_transfers(&pair);
	check_connections(&pair, port);
	/* The end of the stream is a receive of no octets; the other half remains. */
	REQUIRE(exs_recv(pair.server, received, LENGTH, 0, pair.received, NULL, pair.queue) == 0);
	REQUIRE(exs_shutdown(pair.client, SHUT_WR) == 0);
	expect_octets(pair.queue, EXS_EVT_RECV, 0, 0);
	REFUSED(exs_send(pair.client, octets, 1, 0, pair.sent, NULL, pair.queue), EPIPE);
	REQUIRE(exs_send(pair.server, octets, 9, 0, pair.sent, NULL, pair.queue) == 0);
	expect_octets(pair.queue, EXS_EVT_SEND, 0, 9);
	/* What was sent before arrives after the close of its sender. */
	REQUIRE(exs_close(pair.server) == 0);
	REQUIRE(exs_recv(pair.client, received, LENGTH, MSG_WAITALL, pair.received, NULL,
			 pair.queue) == 0);
	expect_octets(pair.queue, EXS_EVT_RECV, 0, 9);
	REQUIRE(exs_close(pair.client) == 0);
	REFUSED(exs_close(pair.client), EBADF);
	end_pair(&pair);
}

void check_messages(int port)
{
	struct pair pair = make_pair(SOCK_SEQPACKET, port);

	memset(octets, 7, sizeof(octets));
	REQUIRE(exs_recv(pair.server, received, 100, 0, pair.received, NULL, pair.queue) == 0);
	REQUIRE(exs_send(pair.client, octets, 101, 0, pair.sent, NULL, pair.queue) == 0);
	expect_octets(pair.queue, EXS_EVT_SEND, EMSGSIZE, 0);
	REQUIRE(exs_send(pair.client, octets, 60, 0, pair.sent, NULL, pair.queue) == 0);
	for (int i = 0; i < 2; i++) {
		exs_event_t event = next_event(pair.queue);

		errno = event.exs_evt_errno;
		REQUIRE(event.exs_evt_errno == 0);
		REQUIRE(event.exs_evt_union.exs_evt_xfer.exs_evt_length == 60);
	}
	REQUIRE(memcmp(octets, received, 60) == 0);
	REQUIRE(exs_close(pair.client) == 0 && exs_close(pair.server) == 0);
	end_pair(&pair);
}

void check_file(int port, const char *path)
{
	struct pair pair = make_pair(SOCK_STREAM, port);
	struct stat status;
	int file = open(path, O_RDONLY | O_CLOEXEC);

	REQUIRE(file >= 0 && fstat(file, &status) == 0 && status.st_size > 100 + LENGTH);
	REFUSED(exs_sendfile(pair.client, UNKNOWN, 0, 1, 0, NULL, pair.queue), EBADF);
	REFUSED(exs_sendfile(pair.client, file, -1, 1, 0, NULL, pair.queue), EINVAL);
	REQUIRE(exs_sendfile(pair.client, file, 100, LENGTH, 0, NULL, pair.queue) == 0);
	expect_octets(pair.queue, EXS_EVT_SENDFILE, 0, LENGTH);
	REQUIRE(exs_recv(pair.server, received, LENGTH, MSG_WAITALL, pair.received, NULL,
			 pair.queue) == 0);
	expect_octets(pair.queue, EXS_EVT_RECV, 0, LENGTH);
	REQUIRE(pread(file, octets, LENGTH, 100) == LENGTH);
	REQUIRE(memcmp(octets, received, LENGTH) == 0);
	close(file);
	REQUIRE(exs_close(pair.client) == 0 && exs_close(pair.server) == 0);
	end_pair(&pair);
}
