/* What rdma_client and rdma_server do, over TCP: one connection, 16 octets each way, the end. */
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { OCTETS = 16 };

static int failed(const char *what)
{
	perror(what);
	return 1;
}

static int connection(const struct addrinfo *where, int is_server)
{
	int fd = socket(where->ai_family, where->ai_socktype, 0), listener = fd, on = 1;

	if (!is_server)
		return fd < 0 || connect(fd, where->ai_addr, where->ai_addrlen) ? -1 : fd;
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(fd, where->ai_addr, where->ai_addrlen) || listen(fd, 1) ||
	    puts("listening") < 0 || fflush(stdout))
		return -1;
	fd = accept(listener, NULL, NULL);
	close(listener);
	return fd;
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *where;
	char sent[OCTETS] = "", received[OCTETS];
	int is_server = argc == 4 && !strcmp(argv[1], "server"), fd;

	if (argc != 4 || getaddrinfo(argv[2], argv[3], &hints, &where))
		return fputs("usage: exchange server|client ADDRESS PORT\n", stderr), 1;
	fd = connection(where, is_server);
	freeaddrinfo(where);
	if (fd < 0)
		return failed("connection");
	if (!is_server && write(fd, sent, OCTETS) != OCTETS)
		return failed("write");
	if (recv(fd, received, OCTETS, MSG_WAITALL) != OCTETS)
		return failed("recv");
	if (is_server && write(fd, sent, OCTETS) != OCTETS)
		return failed("write");
	return close(fd) ? failed("close") : 0;
}
