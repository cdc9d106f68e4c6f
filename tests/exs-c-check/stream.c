// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Many sockets of one queue: the client sends octets, the server answers with a hash of what it
 * has received, and the client compares it with that of what it has sent.
 */
#include "check.h"

/* Operations in progress of a socket, and the greatest length of one. */
#define POSTED 8
#define LENGTH 100000

/* One end, with its buffers and a place for the hash. */
struct end {
	int fd;
	int posted;
	int is_ended;
	int is_answered;
	size_t left;
	uint64_t hash;
	uint64_t random;
	uint64_t *answer;
	unsigned char *buffers;
};

static exs_qhandle_t queue;
static exs_mhandle_t memory;

static void hash(struct end *end, const unsigned char *octets, size_t count)
{
	for (size_t i = 0; i < count; i++)
		end->hash = (end->hash ^ octets[i]) * 0x100000001b3;
}

static uint64_t draw(struct end *end)
{
	end->random ^= end->random << 13;
	end->random ^= end->random >> 7;
	end->random ^= end->random << 17;
	return end->random;
}

/* The ends, whose memory is registered as a whole. */
static struct end *make_ends(int count, size_t octets, unsigned char **all)
{
	size_t each = sizeof(uint64_t) + (size_t)POSTED * LENGTH;
	struct end *ends = calloc((size_t)count, sizeof(*ends));

	each = (each + 7) / 8 * 8;
	*all = aligned_alloc(8, each * (size_t)count);
	REQUIRE(ends && *all);
	memory = exs_mregister(*all, each * (size_t)count, EXS_ACCESS_RDWR);
	REQUIRE(memory != EXS_MHANDLE_INVALID);
	queue = exs_qcreate(count * (POSTED + 1) + 1);
	REQUIRE(queue != EXS_QHANDLE_INVALID);
	for (int i = 0; i < count; i++) {
		ends[i].fd = -1;
		ends[i].left = octets;
		ends[i].hash = 0xcbf29ce484222325;
		ends[i].random = 1 + (uint64_t)i;
		ends[i].answer = (uint64_t *)(*all + each * (size_t)i);
		ends[i].buffers = (unsigned char *)(ends[i].answer + 1);
	}
	return ends;
}

/* The end of an event; each has one operation of a socket, or an answer, per handle. */
static struct end *of(struct end *ends, int count, int fd)
{
	for (int i = 0; i < count; i++)
		if (ends[i].fd == fd)
			return &ends[i];
	fprintf(stderr, "an event of socket %d\n", fd);
	exit(1);
}

static void post_recv(struct end *end, unsigned char *buffer)
{
	size_t length = 1 + draw(end) % LENGTH;
	int flags = draw(end) % 4 == 0 ? MSG_WAITALL : 0;

	REQUIRE(exs_recv(end->fd, buffer, length, flags, memory, end, queue) == 0);
	end->posted++;
}

/* Handles an event of a server's socket; whether the socket was closed. */
static int served(struct end *end, const exs_event_t *event)
{
	size_t length = event->exs_evt_union.exs_evt_xfer.exs_evt_length;
	unsigned char *buffer = event->exs_evt_union.exs_evt_xfer.exs_evt_buffer;

	end->posted--;
	if (event->exs_evt_type == EXS_EVT_RECV) {
		hash(end, buffer, length);
		if (length > 0 && !end->is_ended)
			post_recv(end, buffer);
		if (length == 0 && !end->is_ended) {
			end->is_ended = 1;
			*end->answer = end->hash;
			REQUIRE(exs_send(end->fd, end->answer, sizeof(uint64_t), 0, memory, end,
					 queue) == 0);
			end->posted++;
		}
	} else {
		REQUIRE(event->exs_evt_type == EXS_EVT_SEND && length == sizeof(uint64_t));
		end->is_answered = 1;
	}
	if (end->posted > 0 || !end->is_answered)
		return 0;
	REQUIRE(exs_close(end->fd) == 0);
	end->fd = -1;
	return 1;
}

void serve(int port, int sockets)
{
	struct sockaddr_in peer;
	socklen_t length = sizeof(peer);
	unsigned char *all;
	struct end *ends = make_ends(sockets, 0, &all);
	int listener = listen_at(SOCK_STREAM, port), accepted = 0, closed = 0;

	REQUIRE(exs_accept(listener, (struct sockaddr *)&peer, &length, 0, &peer, queue) == 0);
	printf("listening\n");
	while (closed < sockets) {
		exs_event_t event = next_event(queue);

		errno = event.exs_evt_errno;
		REQUIRE(event.exs_evt_errno == 0);
		if (event.exs_evt_type == EXS_EVT_ACCEPT) {
			struct end *end = &ends[accepted++];

			REQUIRE(event.exs_evt_socket == listener && event.exs_evt_ahandle == &peer);
			REQUIRE(peer.sin_family == AF_INET && length == sizeof(peer));
			REQUIRE(ntohl(peer.sin_addr.s_addr) == INADDR_LOOPBACK);
			end->fd = event.exs_evt_union.exs_evt_accept.exs_evt_new_socket;
			for (int i = 0; i < POSTED; i++)
				post_recv(end, end->buffers + (size_t)i * LENGTH);
			printf("accepted %d\n", accepted);
			if (accepted < sockets)
				REQUIRE(exs_accept(listener, (struct sockaddr *)&peer, &length, 0,
						   &peer, queue) == 0);
		} else {
			struct end *end = of(ends, sockets, event.exs_evt_socket);

			REQUIRE(event.exs_evt_ahandle == end);
			closed += served(end, &event);
		}
	}
	REQUIRE(exs_close(listener) == 0);
	REQUIRE(exs_mderegister(memory) == 0);
	REQUIRE(exs_qdelete(queue) == 0);
	free(all);
	free(ends);
}

/* Sends the next octets out of a buffer, or finishes. */
static void send_next(struct end *end, unsigned char *buffer)
{
	size_t length = 1 + draw(end) % LENGTH;

	if (end->left == 0)
		return;
	if (length > end->left)
		length = end->left;
	for (size_t i = 0; i < length; i++)
		buffer[i] = (unsigned char)(i % 64 ? buffer[i] + i : draw(end));
	hash(end, buffer, length);
	end->left -= length;
	REQUIRE(exs_send(end->fd, buffer, length, 0, memory, end, queue) == 0);
	end->posted++;
}

/* Handles an event of a client's socket; whether the socket was closed. */
static int asked(struct end *end, const exs_event_t *event)
{
	switch (event->exs_evt_type) {
	case EXS_EVT_CONNECT:
		for (int i = 0; i < POSTED; i++)
			send_next(end, end->buffers + (size_t)i * LENGTH);
		break;
	case EXS_EVT_SEND:
		end->posted--;
		send_next(end, event->exs_evt_union.exs_evt_xfer.exs_evt_buffer);
		break;
	default:
		REQUIRE(event->exs_evt_union.exs_evt_xfer.exs_evt_length == sizeof(uint64_t));
		REQUIRE(*end->answer == end->hash);
		REQUIRE(exs_close(end->fd) == 0);
		end->fd = -1;
		return 1;
	}
	if (end->posted == 0) {
		REQUIRE(exs_shutdown(end->fd, SHUT_WR) == 0);
		REQUIRE(exs_recv(end->fd, end->answer, sizeof(uint64_t), MSG_WAITALL, memory, end,
				 queue) == 0);
	}
	return 0;
}

void send_all(int port, int sockets, size_t octets)
{
	struct sockaddr_in address = address_of(port);
	unsigned char *all;
	struct end *ends = make_ends(sockets, octets, &all);
	int closed = 0;

	for (int i = 0; i < sockets; i++) {
		ends[i].fd = exs_socket(AF_INET, SOCK_STREAM, 0);
		REQUIRE(ends[i].fd >= 0);
		REQUIRE(exs_connect(ends[i].fd, (struct sockaddr *)&address, sizeof(address), 0,
				    &ends[i], queue) == 0);
	}
	while (closed < sockets) {
		exs_event_t event = next_event(queue);
		struct end *end = of(ends, sockets, event.exs_evt_socket);

		errno = event.exs_evt_errno;
		REQUIRE(event.exs_evt_errno == 0 && event.exs_evt_ahandle == end);
		closed += asked(end, &event);
	}
	REQUIRE(exs_mderegister(memory) == 0);
	REQUIRE(exs_qdelete(queue) == 0);
	free(all);
	free(ends);
}
