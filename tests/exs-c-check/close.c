// SPDX-License-Identifier: MIT OR Apache-2.0
/* Sockets that are closed while the peer has not received everything. */
#include <time.h>

#include "check.h"

/* Less than the ring of the receiver holds. */
#define LENGTH (3 << 20)
#define PIECE 100000

static unsigned char octets[LENGTH], received[PIECE];

/* Waits until the peer is known to have closed: it receives no more. */
static void wait_for_close(int fd, exs_mhandle_t sent, exs_qhandle_t queue)
{
	const struct timespec moment = { .tv_nsec = 10 * 1000 * 1000 };

	while (exs_send(fd, octets, 1, 0, sent, NULL, queue) == 0) {
		next_event(queue);
		nanosleep(&moment, NULL);
	}
	REQUIRE(errno == EPIPE);
}

/* One end sends and closes at once; the other receives after that, then the end of the stream. */
static void check_sender(struct pair *pair, int sender, int receiver)
{
	exs_mhandle_t sent = exs_mregister(octets, LENGTH, EXS_ACCESS_READ);
	exs_mhandle_t memory = exs_mregister(received, PIECE, EXS_ACCESS_WRITE);
	size_t from = 0, length;

	REQUIRE(sent && memory);
	REQUIRE(exs_send(sender, octets, LENGTH, 0, sent, NULL, pair->queue) == 0);
	REQUIRE(exs_close(sender) == 0);
	expect_octets(pair->queue, EXS_EVT_SEND, 0, LENGTH);
	wait_for_close(receiver, sent, pair->queue);
	do {
		REQUIRE(exs_recv(receiver, received, PIECE, MSG_WAITALL, memory, NULL,
				 pair->queue) == 0);
		length = LENGTH - from < PIECE ? LENGTH - from : PIECE;
		expect_octets(pair->queue, EXS_EVT_RECV, 0, length);
		REQUIRE(memcmp(received, octets + from, length) == 0);
		from += length;
	} while (length > 0);
	REFUSED(exs_send(receiver, octets, 1, 0, sent, NULL, pair->queue), EPIPE);
	REQUIRE(exs_close(receiver) == 0);
	REQUIRE(exs_mderegister(sent) == 0 && exs_mderegister(memory) == 0);
	end_pair(pair);
}

void check_close(int port)
{
	struct pair pair = make_pair(SOCK_STREAM, port);

	for (size_t i = 0; i < LENGTH; i++)
		octets[i] = (unsigned char)(i ^ i >> 8 ^ i >> 16);
	check_sender(&pair, pair.client, pair.server);
	pair = make_pair(SOCK_STREAM, port + 1);
	check_sender(&pair, pair.server, pair.client);
}
