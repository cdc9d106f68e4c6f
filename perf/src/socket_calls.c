/*
 * socket_calls CONNECTIONS ROUND_TRIPS: both ends of TCP connections that follow one another.
 * socket_calls rings|exchange ROUND_TRIPS: those of one connection that has rings.
 * See socket_instructions.rs.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Where tcpi_bytes_received is in struct tcp_info of the kernel, and how much of that is read. */
enum { RECEIVED_AT = 128, INFO_OCTETS = 136 };
/* Looks, of a millisecond each, until a connection has rings. */
enum { LOOKS = 5000 };

static void check(int is_done, const char *what)
{
	if (!is_done)
		err(1, "%s", what);
}

/* Waits until there is an event; with a limit of 0, looks once. */
static void look(int set, int limit_ms)
{
	struct epoll_event found[16];

	check(epoll_wait(set, found, 16, limit_ms) >= 0, "epoll_wait");
}

static void add(int set, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.fd = fd };

	check(!epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

/* Octets of 64 one way, and of 128 the other, which the non-blocking end waits for. */
static void round_trip(int client, int server, int set)
{
	char octets[512] = "";
	struct iovec parts[] = { { octets, 64 }, { octets, 64 } };
	struct msghdr answer = { .msg_iov = parts, .msg_iovlen = 2 };

	check(send(client, octets, 64, 0) == 64, "send");
	look(set, -1);
	check(recv(server, octets, sizeof(octets), 0) == 64, "recv");
	check(sendmsg(server, &answer, 0) == 128, "sendmsg");
	check(recv(server, octets, sizeof(octets), 0) == -1 && errno == EAGAIN,
	      "a receive in vain");
	look(set, 0);
	check(recv(client, octets, sizeof(octets), 0) == 128, "recv");
}

/* Octets of 64 each way, and no other calls. */
static void exchange(int client, int server)
{
	char octets[512] = "";

	check(send(client, octets, 64, 0) == 64, "send");
	check(recv(server, octets, sizeof(octets), 0) == 64, "recv");
	check(send(server, octets, 64, 0) == 64, "send");
	check(recv(client, octets, sizeof(octets), 0) == 64, "recv");
}

/* What the kernel has received: a call that no library sees. */
static uint64_t by_tcp(int fd)
{
	char info[INFO_OCTETS] = "";
	socklen_t length = sizeof(info);
	uint64_t received;

	check(!syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, info, &length), "getsockopt");
	memcpy(&received, info + RECEIVED_AT, sizeof(received));
	return received;
}

/* The ends of a connection, of which the server's does not wait and is in the set. */
static void connect_ends(int listener, const struct sockaddr_in *at, int set, int ends[2])
{
	int on = 1;

	ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	check(ends[0] >= 0, "socket");
	check(!connect(ends[0], (const struct sockaddr *)at, sizeof(*at)), "connect");
	look(set, -1);
	ends[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	check(ends[1] >= 0, "accept4");
	check(!ioctl(ends[1], FIONBIO, &on), "ioctl");
	add(set, ends[1], EPOLLIN | EPOLLET | EPOLLRDHUP);
}

/* Round trips of a connection from when it has rings. */
static void by_rings(int listener, const struct sockaddr_in *at, int set, int round_trips,
		     int is_exchange)
{
	uint64_t before;
	int ends[2], looks = 0;

	connect_ends(listener, at, set, ends);
	do {
		if (looks++ == LOOKS)
			errx(1, "the connection gets no rings");
		usleep(1000);
		before = by_tcp(ends[0]) + by_tcp(ends[1]);
		round_trip(ends[0], ends[1], set);
	} while (by_tcp(ends[0]) + by_tcp(ends[1]) != before);
	while (round_trips-- > 0)
		if (is_exchange)
			exchange(ends[0], ends[1]);
		else
			round_trip(ends[0], ends[1], set);
	if (by_tcp(ends[0]) + by_tcp(ends[1]) != before)
		errx(1, "TCP has carried octets of a connection that has rings");
}

static void connection(int listener, const struct sockaddr_in *at, int set, int round_trips)
{
	int ends[2], client, server;
	char octet;

	connect_ends(listener, at, set, ends);
	client = ends[0];
	server = ends[1];
	while (round_trips-- > 0)
		round_trip(client, server, set);
	check(!close(client), "close");
	look(set, -1);
	check(recv(server, &octet, 1, 0) == 0, "the end");
	check(!close(server), "close");
}

int main(int argc, char **argv)
{
	int set = epoll_create1(EPOLL_CLOEXEC);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t length = sizeof(at);

	if (argc != 3)
		errx(1, "usage: socket_calls CONNECTIONS|rings|exchange ROUND_TRIPS");
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	check(set >= 0 && listener >= 0, "socket");
	check(!bind(listener, (struct sockaddr *)&at, sizeof(at)), "bind");
	check(!listen(listener, 16), "listen");
	check(!getsockname(listener, (struct sockaddr *)&at, &length), "getsockname");
	add(set, listener, EPOLLIN);
	if (strcmp(argv[1], "rings") == 0 || strcmp(argv[1], "exchange") == 0)
		by_rings(listener, &at, set, atoi(argv[2]), argv[1][0] == 'e');
	else
		for (int connections = atoi(argv[1]); connections > 0; connections--)
			connection(listener, &at, set, atoi(argv[2]));
	return 0;
}
