// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * exs-c-check server PORT SOCKETS
 * exs-c-check client PORT SOCKETS OCTETS
 * exs-c-check errors|threads|example PORT
 * exs-c-check file PORT PATH
 */
#include <arpa/inet.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "check.h"

/* The longest time without an event. */
#define SILENCE_MS 60000

struct sockaddr_in address_of(int port)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};

	return address;
}

exs_event_t next_event(exs_qhandle_t qh)
{
	struct epoll_event wanted = { .events = EPOLLIN }, found;
	struct timeval now = { 0, 0 };
	exs_event_t event;
	int poller = epoll_create1(EPOLL_CLOEXEC);

	REQUIRE(poller >= 0 && epoll_ctl(poller, EPOLL_CTL_ADD, qh, &wanted) == 0);
	REQUIRE(epoll_wait(poller, &found, 1, SILENCE_MS) == 1);
	close(poller);
	REQUIRE(exs_qdequeue(qh, &event, 1, &now) == 1);
	return event;
}

int listen_at(int type, int port)
{
	struct sockaddr_in address = address_of(port);
	int fd = exs_socket(AF_INET, type, 0);

	REQUIRE(fd >= 0);
	REQUIRE(exs_bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	REQUIRE(exs_listen(fd, 64) == 0);
	return fd;
}

int main(int argc, char **argv)
{
	const char *role = argc > 2 ? argv[1] : "";
	int port = argc > 2 ? atoi(argv[2]) : 0;

	REQUIRE(exs_init(EXS_VERSION) == 0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (strcmp(role, "server") == 0 && argc == 4) {
		serve(port, atoi(argv[3]));
	} else if (strcmp(role, "client") == 0 && argc == 5) {
		send_all(port, atoi(argv[3]), strtoul(argv[4], NULL, 10));
	} else if (strcmp(role, "errors") == 0 && argc == 3) {
		check_errors(port);
		check_messages(port + 1);
		check_file(port + 2, argv[0]);
		check_close(port + 3);
	} else if (strcmp(role, "threads") == 0 && argc == 3) {
		check_threads(port);
	} else if (strcmp(role, "example") == 0 && argc == 3) {
		check_example(port);
	} else if (strcmp(role, "file") == 0 && argc == 4) {
		check_long_file(port, argv[3]);
		check_short_file(port + 1, argv[3]);
		check_canceled_file(port + 2, argv[3]);
	} else {
		fprintf(stderr, "usage: %s server|client|errors|threads|example|file PORT ...\n",
			argv[0]);
		return 2;
	}
	printf("done\n");
	return 0;
}
