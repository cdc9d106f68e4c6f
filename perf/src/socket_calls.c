/*
 * socket_calls CONNECTIONS ROUND_TRIPS: both ends of TCP connections that follow one another; see
 * socket_instructions.rs.
 */
#include <err.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

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

static void connection(int listener, const struct sockaddr_in *at, int set, int round_trips)
{
	int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), server, on = 1;
	char octet;

	check(client >= 0, "socket");
	check(!connect(client, (const struct sockaddr *)at, sizeof(*at)), "connect");
	look(set, -1);
	server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	check(server >= 0, "accept4");
	check(!ioctl(server, FIONBIO, &on), "ioctl");
	add(set, server, EPOLLIN | EPOLLET | EPOLLRDHUP);
	while (round_trips-- > 0)
		round_trip(client, server, set);
	check(!close(client), "close");
	look(set, -1);
	check(recv(server, &octet, 1, 0) == 0, "the end");
	check(!close(server), "close");
}

int main(int argc, char **argv)
{
	int connections = argc == 3 ? atoi(argv[1]) : -1, set = epoll_create1(EPOLL_CLOEXEC);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t length = sizeof(at);

	if (connections < 0)
		errx(1, "usage: socket_calls CONNECTIONS ROUND_TRIPS");
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	check(set >= 0 && listener >= 0, "socket");
	check(!bind(listener, (struct sockaddr *)&at, sizeof(at)), "bind");
	check(!listen(listener, 16), "listen");
	check(!getsockname(listener, (struct sockaddr *)&at, &length), "getsockname");
	add(set, listener, EPOLLIN);
	while (connections-- > 0)
		connection(listener, &at, set, atoi(argv[2]));
	return 0;
}
