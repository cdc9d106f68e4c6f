/* `jump PORT JUMPS BEGIN...`: an end of one connection after the other to `events PORT`, all with
   the same descriptor. Three are without rings: handlers of signals leave their sleeps in the
   kernel by siglongjmp, and a thread that sleeps there is cancelled. Each of the others makes round
   trips until its file BEGIN is there, which says that the connection has rings, and then looks at
   octets that it does not take, while handlers of signals leave these calls by siglongjmp JUMPS
   times. */
#include <arpa/inet.h>
#include <err.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { OCTETS = 64, PERIOD_US = 50, SLEEP_US = 5000 };

static sigjmp_buf before;
static volatile sig_atomic_t jumps;

static void jump(int unused)
{
	(void)unused;
	jumps++;
	siglongjmp(before, 1);
}

static void send_some(int fd)
{
	char octets[OCTETS] = "octets";

	if (send(fd, octets, sizeof(octets), MSG_NOSIGNAL) != sizeof(octets))
		err(1, "send");
}

static void receive_some(int fd)
{
	char octets[OCTETS];

	if (recv(fd, octets, sizeof(octets), MSG_WAITALL) != sizeof(octets))
		err(1, "recv");
}

static void set_timer(long period_us)
{
	struct itimerval period = { { 0, period_us }, { 0, period_us } };

	if (setitimer(ITIMER_REAL, &period, NULL))
		err(1, "setitimer");
}

/* Looks at the octets of a round trip. */
static void leave_calls(int fd, int count)
{
	char octets[OCTETS];

	send_some(fd);
	if (recv(fd, octets, 1, MSG_PEEK) != 1)
		err(1, "recv");
	jumps = 0;
	if (!sigsetjmp(before, 1))
		set_timer(PERIOD_US);
	while (jumps < count)
		if (recv(fd, octets, sizeof(octets), MSG_PEEK | MSG_DONTWAIT) < 1)
			err(1, "recv");
	signal(SIGALRM, SIG_IGN);
	set_timer(0);
	receive_some(fd);
}

static int connected(struct sockaddr_in *at)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	static int first = -1;

	if (first >= 0 && fd != first)
		errx(1, "the descriptor is %d, and was %d", fd, first);
	first = fd;
	if (connect(fd, (struct sockaddr *)at, sizeof(*at)))
		err(1, "connect");
	return fd;
}

static void sleep_in_recv(int fd)
{
	char octet;

	recv(fd, &octet, 1, 0);
	errx(1, "recv has returned");
}

static void sleep_in_poll(int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };

	poll(&entry, 1, -1);
	errx(1, "poll has returned");
}

static void *sleep_in_thread(void *fd)
{
	sleep_in_recv(*(int *)fd);
	return NULL;
}

static void leave_sleep(struct sockaddr_in *at, void (*asleep)(int fd))
{
	int fd = connected(at);

	if (signal(SIGALRM, jump) == SIG_ERR)
		err(1, "signal");
	if (!sigsetjmp(before, 1)) {
		set_timer(SLEEP_US);
		asleep(fd);
	}
	set_timer(0);
	if (close(fd))
		err(1, "close");
}

static void cancel_sleep(struct sockaddr_in *at)
{
	int fd = connected(at);
	pthread_t thread;
	void *result;

	if (pthread_create(&thread, NULL, sleep_in_thread, &fd))
		errx(1, "pthread_create");
	usleep(SLEEP_US);
	if (pthread_cancel(thread) || pthread_join(thread, &result))
		errx(1, "pthread_cancel");
	if (result != PTHREAD_CANCELED)
		errx(1, "the thread has ended before");
	if (close(fd))
		err(1, "close");
}

static void use(struct sockaddr_in *at, const char *begin, int count)
{
	int fd = connected(at);

	while (access(begin, F_OK)) {
		send_some(fd);
		receive_some(fd);
	}
	if (signal(SIGALRM, jump) == SIG_ERR)
		err(1, "signal");
	leave_calls(fd, count);
	if (close(fd))
		err(1, "close");
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };

	if (argc < 4)
		errx(1, "usage: jump PORT JUMPS BEGIN...");
	at.sin_port = htons(atoi(argv[1]));
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	leave_sleep(&at, sleep_in_recv);
	leave_sleep(&at, sleep_in_poll);
	cancel_sleep(&at);
	for (int i = 3; i < argc; i++)
		use(&at, argv[i], atoi(argv[2]));
	puts("done");
	return 0;
}
