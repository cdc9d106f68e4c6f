/* `raw PORT BEGIN`: makes round trips with `ends.py echo PORT`, waits for the file BEGIN, which
   says that the connection has rings, and makes system calls on the socket without the C library,
   each from two places; then round trips again. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TRIPS = 20, OCTETS = 64, SET_OCTETS = 8 };

/* As the kernel has it. */
struct kernel_action {
	void (*handler)(int);
	unsigned long flags;
	void (*restorer)(void);
	unsigned long mask;
};
enum { RESTORER = 0x04000000 };

static volatile sig_atomic_t handled;

static inline __attribute__((always_inline)) long raw(long number, long a, long b, long c, long d,
						      long e, long f)
{
	register long r10 asm("r10") = d;
	register long r8 asm("r8") = e;
	register long r9 asm("r9") = f;
	long result;
	asm volatile("syscall"
		     : "=a"(result)
		     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
		     : "rcx", "r11", "memory");
	return result;
}

#define TWICE(...) (raw(__VA_ARGS__), raw(__VA_ARGS__))

static void expect(int holds, const char *what)
{
	if (!holds) {
		printf("not %s\n", what);
		exit(1);
	}
}

static void trips(int fd)
{
	char sent[OCTETS], received[OCTETS];

	for (int trip = 0; trip < TRIPS; trip++) {
		memset(sent, trip, OCTETS);
		expect(send(fd, sent, OCTETS, 0) == OCTETS, "sent");
		expect(recv(fd, received, OCTETS, MSG_WAITALL) == OCTETS, "received");
		expect(memcmp(sent, received, OCTETS) == 0, "the same octets");
	}
}

/* A C library of its own returns from handlers by a system call of its own. */
asm(".text\nreturn_from_handler:\n\tmov $15, %eax\n\tsyscall\n");
extern void return_from_handler(void);

static void on_signal(int signal)
{
	handled = signal;
}

static void *in_thread(void *fd)
{
	char octet;
	struct iovec part = { &octet, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	TWICE(SYS_recvmsg, *(int *)fd, (long)&message, MSG_DONTWAIT, 0, 0, 0);
	return NULL;
}

static void look_at(int fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	struct pollfd list[] = { { -1, POLLIN, 0 }, { fd, POLLIN, 0 } };
	struct timeval now = { 0, 0 };
	int set = epoll_create1(0);
	fd_set read_set;

	TWICE(SYS_poll, (long)list, 2, 0, 0, 0, 0);
	FD_ZERO(&read_set);
	FD_SET(fd, &read_set);
	TWICE(SYS_select, fd + 1, (long)&read_set, 0, 0, (long)&now, 0);
	expect(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "a member");
	TWICE(SYS_epoll_wait, set, (long)&event, 1, 0, 0, 0);
	close(set);
}

static void handle_signals(int fd)
{
	struct kernel_action action = { on_signal, RESTORER, return_from_handler, 0 };
	unsigned long all = ~0UL, old = ~0UL;
	char octet;
	struct iovec part = { &octet, 1 };

	raw(SYS_rt_sigaction, SIGUSR1, (long)&action, 0, SET_OCTETS, 0, 0);
	raw(SYS_kill, getpid(), SIGUSR1, 0, 0, 0, 0);
	expect(handled == SIGUSR1, "handled");
	expect(raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&old, SET_OCTETS, 0, 0) == 0,
	       "blocked");
	expect(old == 0, "without a mask before");
	raw(SYS_kill, getpid(), SIGUSR2, 0, 0, 0, 0);
	TWICE(SYS_readv, fd, (long)&part, 1, 0, 0, 0);
	expect(raw(SYS_rt_sigprocmask, SIG_BLOCK, 8, 0, SET_OCTETS, 0, 0) == -14, "a fault");
}

/* A filter of the program's own ends it, whatever handles SIGSYS. */
static void end_by_filter(void)
{
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { 4, rules };
	pid_t child = fork();
	int status;

	if (child == 0) {
		prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
		getppid();
		_exit(0);
	}
	expect(waitpid(child, &status, 0) == child, "a child");
	expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS, "ended by the filter");
}

int main(int count, char **words)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM, 0), ends[2];
	pthread_t thread;
	sigset_t all;
	char octet;

	expect(count == 3 && pipe(ends) == 0, "two arguments");
	address.sin_port = htons(atoi(words[1]));
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	expect(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0, "connected");
	trips(fd);
	while (access(words[2], F_OK) != 0)
		usleep(1000);
	trips(fd);

	/* Not on a socket. */
	TWICE(SYS_write, ends[1], (long)"x", 1, 0, 0, 0);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	TWICE(SYS_read, fd, (long)&octet, 1, 0, 0, 0);
	fcntl(fd, F_SETFL, 0);
	TWICE(SYS_recvfrom, fd, (long)&octet, 1, MSG_DONTWAIT, 0, 0);
	look_at(fd);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	handle_signals(fd);
	fcntl(fd, F_SETFL, 0);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	expect(pthread_create(&thread, NULL, in_thread, &fd) == 0, "a thread");
	pthread_join(thread, NULL);
	trips(fd);
	end_by_filter();
	printf("done\n");
	return 0;
}
