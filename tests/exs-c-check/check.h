/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Shared by the parts of exs-c-check, a program that uses liburdma-exs. */
#ifndef CHECK_H
#define CHECK_H

#include <exs.h>
#include <netinet/in.h>

#include "require.h"

/* Requires that a call fails with this errno. */
#define REFUSED(call, number) \
	do { \
		errno = 0; \
		REQUIRE((call) == -1 && errno == (number)); \
	} while (0)

/* The address of a port of this host. */
struct sockaddr_in address_of(int port);

/* The next event of a queue, which must come; sleeps in epoll until then. */
exs_event_t next_event(exs_qhandle_t qh);

/* A socket that listens at the port. */
int listen_at(int type, int port);

/* Passes octets to or from sockets of the other process. */
void serve(int port, int sockets);
void send_all(int port, int sockets, size_t octets);

/* Passes a file and messages, and the errors of each call, within this process. */
void check_file(int port, const char *path);
void check_messages(int port);
void check_errors(int port);

/* Closes sockets whose peers receive what was sent afterwards. */
void check_close(int port);

/* Threads that share sockets and queues. */
void check_threads(int port);

/* The example of the paper. */
void check_example(int port);

/* Sends files that are longer than what is in progress at a time. */
void check_long_file(int port, const char *path);
void check_short_file(int port, const char *path);
void check_canceled_file(int port, const char *path);

/* Both ends of a connection, and the memory and the queue that they use. */
struct pair {
	int listener, client, server;
	exs_qhandle_t queue;
	exs_mhandle_t sent, received;
};

struct pair make_pair(int type, int port);
void end_pair(const struct pair *pair);
/* The next transfer must end like this, after `length` octets. */
void expect_octets(exs_qhandle_t queue, int type, int number, size_t length);
/* The next event must be of this kind and have this errno. */
exs_event_t expect(exs_qhandle_t queue, int type, int number);

#endif
