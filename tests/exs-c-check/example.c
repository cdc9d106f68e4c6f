// SPDX-License-Identifier: MIT OR Apache-2.0
/* The example of an asynchronous send in the paper that doc/streams.md names, as printed there. */
#include "check.h"

/* It prints a size_t by %d. */
#pragma GCC diagnostic ignored "-Wformat"

static unsigned char buf[4096];

static void send_as_printed(int fd, int bufsize)
{
	exs_mhandle_t mh = exs_mregister(buf, bufsize, EXS_ACCESS_READ);
	exs_qhandle_t qh = exs_qcreate(10);

	if (exs_send(fd, buf, bufsize, 0, mh, 0, qh) < 0) {
		perror("Could not start send operation");
		/* bail out */
	}

	/* do work in parallel with data transfer */

	exs_event_t ev;
	if (exs_qdequeue(qh, &ev, 1, NULL) < 0) {
		perror("Could not get send completion event");
		/* bail out */
	}

	fprintf(stderr, "Send of %d/%d bytes complete with errno=%d\n",
		bufsize, ev.exs_evt_union.exs_evt_xfer.exs_evt_length,
		ev.exs_evt_errno);

	REQUIRE(exs_mderegister(mh) == 0 && exs_qdelete(qh) == 0);
}

void check_example(int port)
{
	struct pair pair = make_pair(SOCK_STREAM, port);

	send_as_printed(pair.client, sizeof(buf));
	REQUIRE(exs_close(pair.client) == 0 && exs_close(pair.server) == 0);
	end_pair(&pair);
}
