/* `cancel listen PORT` and `cancel connect PORT BEGIN CANCELS`: the ends of a connection, which
   send each other octets whose values follow from their positions. From when the file BEGIN is
   there, which says that the connection has rings, threads of the second end are cancelled in their
   calls (pthread_cancel), and others go on where these have ended. */
#include <arpa/inet.h>
#include <err.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { OCTETS = 4096, VALUES = 251, PAUSE_US = 300, LIMIT_S = 20 };

static int fd;
static atomic_int is_ending;
/* Octets that were moved; by one thread at a time. */
static unsigned long sent, received;

static unsigned char value(unsigned long position)
{
	return position % VALUES;
}

static void *send_all(void *unused)
{
	unsigned char octets[OCTETS];

	(void)unused;
	for (unsigned round = 1; !is_ending; round++) {
		for (size_t i = 0; i < sizeof(octets); i++)
			octets[i] = value(sent + i);
		ssize_t moved = send(fd, octets, 1 + sent % sizeof(octets), MSG_NOSIGNAL);
		if (moved < 0)
			err(1, "send");
		sent += moved;
		if (round % 4 == 0)
			usleep(PAUSE_US);
	}
	return NULL;
}

static void *receive_all(void *unused)
{
	unsigned char octets[OCTETS];

	(void)unused;
	for (;;) {
		ssize_t moved = recv(fd, octets, sizeof(octets), 0);
		if (moved < 0)
			err(1, "recv");
		if (moved == 0)
			return NULL;
		for (ssize_t i = 0; i < moved; i++)
			if (octets[i] != value(received + i))
				errx(1, "octet %lu is wrong", received + i);
		received += moved;
	}
}

static void *(*const ways[])(void *) = { send_all, receive_all };
static pthread_t threads[2];

static void start(int way)
{
	if (pthread_create(&threads[way], NULL, ways[way], NULL))
		errx(1, "pthread_create");
}

static void cancel(int way)
{
	struct timespec until;
	void *result;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += LIMIT_S;
	pthread_cancel(threads[way]);
	if (pthread_timedjoin_np(threads[way], &result, &until))
		errx(1, "a thread that %s does not end", way ? "receives" : "sends");
	if (result != PTHREAD_CANCELED)
		errx(1, "a thread has returned");
}

static void serve(struct sockaddr_in *at)
{
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(listener, (struct sockaddr *)at, sizeof(*at)) || listen(listener, 1))
		err(1, "listen");
	puts("ready");
	fflush(stdout);
	fd = accept(listener, NULL, NULL);
	if (fd < 0)
		err(1, "accept");
	start(0);
	receive_all(NULL);
	is_ending = 1;
	pthread_join(threads[0], NULL);
}

static void use(struct sockaddr_in *at, const char *begin, int cancels)
{
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (struct sockaddr *)at, sizeof(*at)))
		err(1, "connect");
	start(0);
	start(1);
	while (access(begin, F_OK))
		usleep(10000);
	for (int i = 0; i < cancels; i++) {
		usleep(rand() % (2 * PAUSE_US));
		cancel(i % 2);
		start(i % 2);
	}
	cancel(0);
	if (shutdown(fd, SHUT_WR))
		err(1, "shutdown");
	pthread_join(threads[1], NULL);
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };

	if (argc != 3 && argc != 5)
		errx(1, "usage: cancel listen PORT | connect PORT BEGIN CANCELS");
	at.sin_port = htons(atoi(argv[2]));
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (argc == 3)
		serve(&at);
	else
		use(&at, argv[3], atoi(argv[4]));
	printf("%lu octets sent, %lu received\n", sent, received);
	return close(fd);
}
