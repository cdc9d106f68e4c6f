// SPDX-License-Identifier: MIT OR Apache-2.0
/* Files that are longer than what is sent of one at a time. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

#define LENGTH (1 << 20)
/* The most memory that a file may need, in KiB, with the ring of the receiver. */
#define NEEDED_KIB (32 << 10)
/* More than the ring and the pieces in progress hold. */
#define LEFT (8 << 20)

static unsigned char expected[LENGTH], received[LENGTH];

/* The greatest resident size of this process so far, in KiB. */
static long greatest_size(void)
{
	char line[200];
	long size = -1;
	FILE *status = fopen("/proc/self/status", "re");

	REQUIRE(status);
	while (size < 0 && fgets(line, sizeof(line), status))
		sscanf(line, "VmHWM: %ld", &size);
	fclose(status);
	REQUIRE(size > 0);
	return size;
}

static int open_file(const char *path, size_t *length)
{
	struct stat status;
	int file = open(path, O_RDWR | O_CLOEXEC);

	REQUIRE(file >= 0 && fstat(file, &status) == 0);
	*length = (size_t)status.st_size;
	return file;
}

/* The octets of the file that the server receives next; the events of sends are put into sent. */
static void receive(const struct pair *pair, int file, size_t from, size_t length,
		    exs_mhandle_t memory, exs_event_t *sent)
{
	while (length > 0) {
		size_t most = length < LENGTH ? length : LENGTH;
		exs_event_t event = { .exs_evt_type = 0 };

		REQUIRE(exs_recv(pair->server, received, most, MSG_WAITALL, memory, NULL,
				 pair->queue) == 0);
		while ((event = next_event(pair->queue)).exs_evt_type != EXS_EVT_RECV)
			*sent = event;
		REQUIRE(event.exs_evt_errno == 0);
		REQUIRE(event.exs_evt_union.exs_evt_xfer.exs_evt_length == most);
		REQUIRE(pread(file, expected, most, (off_t)from) == (ssize_t)most);
		REQUIRE(memcmp(expected, received, most) == 0);
		from += most;
		length -= most;
	}
}

/* The event of the file, which was taken, or is the next. */
static void expect_file(const struct pair *pair, const exs_event_t *sent, int number, size_t length)
{
	exs_event_t event = sent->exs_evt_type ? *sent : next_event(pair->queue);

	REQUIRE(event.exs_evt_type == EXS_EVT_SENDFILE && event.exs_evt_errno == number);
	REQUIRE(event.exs_evt_union.exs_evt_xfer.exs_evt_length == length);
}

/* The stream ends here; closes everything. */
static void end(struct pair *pair, exs_mhandle_t memory, int file)
{
	REQUIRE(exs_recv(pair->server, received, LENGTH, 0, memory, NULL, pair->queue) == 0);
	expect_octets(pair->queue, EXS_EVT_RECV, 0, 0);
	close(file);
	REQUIRE(exs_close(pair->client) == 0 && exs_close(pair->server) == 0);
	REQUIRE(exs_mderegister(memory) == 0);
	end_pair(pair);
}

/* A file in bounded memory; the end of the sending half follows it. */
void check_long_file(int port, const char *path)
{
	struct pair pair = make_pair(SOCK_STREAM, port);
	exs_mhandle_t memory = exs_mregister(received, LENGTH, EXS_ACCESS_WRITE);
	exs_event_t sent = { .exs_evt_type = 0 };
	size_t length;
	int file = open_file(path, &length), other = dup(file);

	memset(expected, 1, LENGTH);
	memset(received, 1, LENGTH);
	REQUIRE(memory && other >= 0 && length >= (size_t)256 << 20);
	long before = greatest_size();

	REQUIRE(exs_sendfile(pair.client, other, 0, length, 0, NULL, pair.queue) == 0);
	close(other);
	REQUIRE(exs_shutdown(pair.client, SHUT_WR) == 0);
	receive(&pair, file, 0, length, memory, &sent);
	expect_file(&pair, &sent, 0, length);
	REQUIRE(greatest_size() - before < NEEDED_KIB);
	end(&pair, memory, file);
}

/* Cancels a file; what was sent of it is told, and arrives. */
void check_canceled_file(int port, const char *path)
{
	struct pair pair = make_pair(SOCK_STREAM, port);
	exs_mhandle_t memory = exs_mregister(received, LENGTH, EXS_ACCESS_WRITE);
	exs_event_t none = { .exs_evt_type = 0 };
	size_t length;
	int tag, file = open_file(path, &length);

	REQUIRE(memory && length == LEFT);
	REQUIRE(exs_sendfile(pair.client, file, 0, length, 0, &tag, pair.queue) == 0);
	REQUIRE(exs_cancel(pair.client, &tag) == 0);
	exs_event_t event = expect(pair.queue, EXS_EVT_SENDFILE, ECANCELED);
	size_t sent = event.exs_evt_union.exs_evt_xfer.exs_evt_length;

	REQUIRE(sent < length);
	REQUIRE(exs_shutdown(pair.client, SHUT_WR) == 0);
	receive(&pair, file, 0, sent, memory, &none);
	end(&pair, memory, file);
}

/* The file becomes shorter while it is sent; a later send and the end follow what it had. */
void check_short_file(int port, const char *path)
{
	struct pair pair = make_pair(SOCK_STREAM, port);
	exs_mhandle_t memory = exs_mregister(received, LENGTH, EXS_ACCESS_RDWR);
	exs_event_t sent = { .exs_evt_type = 0 };
	exs_qhandle_t other = exs_qcreate(1);
	size_t length;
	int file = open_file(path, &length);
	static unsigned char nine[] = "behind it";
	exs_mhandle_t behind = exs_mregister(nine, 9, EXS_ACCESS_READ);

	REQUIRE(memory && behind && other >= 0 && length > LEFT);
	REQUIRE(exs_sendfile(pair.client, file, 0, length, 0, NULL, pair.queue) == 0);
	REQUIRE(exs_send(pair.client, nine, 9, 0, behind, NULL, other) == 0);
	REQUIRE(exs_shutdown(pair.client, SHUT_WR) == 0);
	REFUSED(exs_send(pair.client, nine, 9, 0, behind, NULL, pair.queue), EPIPE);
	REFUSED(exs_sendfile(pair.client, file, 0, 1, 0, NULL, pair.queue), EPIPE);
	REQUIRE(ftruncate(file, LEFT) == 0);
	receive(&pair, file, 0, LEFT, memory, &sent);
	expect_file(&pair, &sent, EIO, LEFT);
	REQUIRE(exs_recv(pair.server, received, 9, MSG_WAITALL, memory, NULL, pair.queue) == 0);
	expect_octets(pair.queue, EXS_EVT_RECV, 0, 9);
	expect_octets(other, EXS_EVT_SEND, 0, 9);
	REQUIRE(memcmp(received, nine, 9) == 0);
	end(&pair, memory, file);
	REQUIRE(exs_mderegister(behind) == 0 && exs_qdelete(other) == 0);
}
