/*
 * Faults of a program whose registered memory may be unmapped (unmapped.c): its own handlers get
 * those of the program, and without one they end it.
 */
#include "loopback.h"
#include "scenarios.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096u
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

static uint8_t alternate[65536];
static sigjmp_buf after;
/* What a handler has seen. */
static volatile int caught;
static void *volatile address;
static volatile bool is_on_alternate, is_usr1_blocked, is_segv_blocked;
/* A page that a handler makes accessible. */
static void *volatile protected;

static void note(siginfo_t *info)
{
	char here;
	sigset_t mask;

	sigprocmask(SIG_BLOCK, NULL, &mask);
	caught++;
	address = info ? info->si_addr : NULL;
	is_on_alternate = (uint8_t *)&here >= alternate &&
			  (uint8_t *)&here < alternate + sizeof(alternate);
	is_usr1_blocked = sigismember(&mask, SIGUSR1);
	is_segv_blocked = sigismember(&mask, SIGSEGV);
}

static void jump(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	note(info);
	siglongjmp(after, 1);
}

static void jump_plain(int signal)
{
	(void)signal;
	note(NULL);
	siglongjmp(after, 1);
}

static void unprotect(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)context;
	note(info);
	mprotect(protected, PAGE, PROT_READ | PROT_WRITE);
}

static struct sigaction action(void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags };

	sigemptyset(&action.sa_mask);
	return action;
}

static void store(void *to)
{
	*(volatile uint8_t *)to = 1;
}

/* Has the program's handler catch a fault of the program. */
static void expect_caught(void *to)
{
	int before = caught;

	if (!sigsetjmp(after, 1))
		store(to);
	if (caught != before + 1)
		fail("no fault at %p", to);
}

/* Whether a child ends by SIGSEGV. */
static bool ends_by_segv(void (*act)(void))
{
	pid_t child = fork();
	int status;

	if (!child) {
		alarm(60);
		act();
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child)
		fail("waitpid: %s", strerror(errno));
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static void fault(void)
{
	store(NULL);
}

static void send_itself(void)
{
	raise(SIGSEGV);
}

/* A handler that is removed when it is called. */
static void fault_twice(void)
{
	struct sigaction once = action(jump, SA_RESETHAND);

	sigaction(SIGSEGV, &once, NULL);
	expect_caught(NULL);
	store(NULL);
}

static void expect_deaths(const char *when)
{
	if (!ends_by_segv(fault) || !ends_by_segv(send_itself) || !ends_by_segv(fault_twice))
		fail("%s: no end by SIGSEGV", when);
	signal(SIGSEGV, SIG_IGN);
	if (!ends_by_segv(fault))
		fail("%s: a fault is ignored", when);
	if (ends_by_segv(send_itself))
		fail("%s: an ignored signal ends the program", when);
	signal(SIGSEGV, SIG_DFL);
}

/* A handler with a stack and a mask of its own. */
static void expect_handler(void)
{
	expect_caught((void *)8);
	if (address != (void *)8 || !is_on_alternate || !is_usr1_blocked || !is_segv_blocked)
		fail("the handler ran at %p, %s, with%s SIGUSR1 and with%s SIGSEGV", address,
		     is_on_alternate ? "on its stack" : "elsewhere",
		     is_usr1_blocked ? "out" : "", is_segv_blocked ? "out" : "");
}

static void expect_shown(const struct sigaction *expected)
{
	struct sigaction shown;
	int wanted = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;

	if (sigaction(SIGSEGV, NULL, &shown) || shown.sa_sigaction != expected->sa_sigaction ||
	    (shown.sa_flags & wanted) != (expected->sa_flags & wanted) ||
	    sigismember(&shown.sa_mask, SIGUSR1) != sigismember(&expected->sa_mask, SIGUSR1))
		fail("sigaction shows another handler");
}

static void check_handlers(const struct sigaction *first)
{
	struct sigaction bare = action(jump, SA_NODEFER);

	expect_shown(first);
	expect_handler();
	if (sigaction(SIGSEGV, &bare, NULL))
		fail("sigaction: %s", strerror(errno));
	expect_shown(&bare);
	expect_caught(NULL);
	if (is_on_alternate || is_usr1_blocked || is_segv_blocked)
		fail("the handler has the stack or the mask of another one");
	if ((void *)signal(SIGSEGV, jump_plain) != (void *)jump)
		fail("signal returns another handler");
	expect_caught(NULL);
	if (signal(SIGSEGV, SIG_DFL) != jump_plain)
		fail("signal returns another handler");
	expect_deaths("after handlers");
	if (sigaction(SIGSEGV, first, NULL))
		fail("sigaction: %s", strerror(errno));
	expect_handler();
}

static uint8_t *mapped(void)
{
	void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	return page;
}

static void write_to(struct end *e, struct ibv_qp *from, const struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)e->region, .length = 64, .lkey = e->mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .sg_list = &sge,
				  .num_sge = 1 },
			   *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)mr->addr;
	wr.wr.rdma.rkey = mr->rkey;
	if (ibv_post_send(from, &wr, &bad))
		fail("a Write was refused");
	end_expect(e, IBV_WC_SUCCESS);
}

/* Faults at registered memory: those of the program, and those that it wants to have. */
static void check_registered(struct end *e, struct ibv_qp *qp)
{
	uint8_t *page = mapped();
	struct ibv_mr *mr = ibv_reg_mr(e->pd, page, PAGE, ALL);
	struct sigaction opens = action(unprotect, 0);
	int before = caught;

	if (!mr)
		fail("ibv_reg_mr: %s", strerror(errno));
	if (mprotect(page, PAGE, PROT_NONE) || sigaction(SIGSEGV, &opens, NULL))
		fail("a protected page: %s", strerror(errno));
	protected = page;
	write_to(e, qp, mr);
	if (caught != before + 1 || address < (void *)page || address >= (void *)(page + PAGE))
		fail("the handler did not get a fault of a Write to what is protected");
	opens = action(jump, 0);
	if (munmap(page, PAGE) || sigaction(SIGSEGV, &opens, NULL))
		fail("an unmapped page: %s", strerror(errno));
	expect_caught(page);
	before = caught;
	write_to(e, qp, mr);
	if (caught != before || memcmp(page, e->region, 64))
		fail("a Write to what is unmapped did not arrive");
	if (ibv_dereg_mr(mr))
		fail("ibv_dereg_mr: %s", strerror(errno));
	expect_caught(page);
}

void check_segv(void)
{
	struct sigaction first = action(jump, SA_ONSTACK);
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof(alternate) };
	struct ibv_qp *a, *b;
	struct end e;

	sigaddset(&first.sa_mask, SIGUSR1);
	if (sigaltstack(&stack, NULL) || sigaction(SIGSEGV, &first, NULL))
		fail("a handler: %s", strerror(errno));
	expect_handler();
	loopback_open(&e, ALL, &a, &b);
	check_handlers(&first);
	check_registered(&e, a);
	signal(SIGSEGV, SIG_DFL);
	expect_deaths("at the end");
	loopback_close(&e, a, b);
}
