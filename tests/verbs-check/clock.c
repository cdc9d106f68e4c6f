/* Times of completions. */
#include "loopback.h"
#include "scenarios.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define ROUNDS 5000

static uint64_t wall_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The times of the queue's previous completion. */
struct times {
	uint64_t ticks, wall_ns;
	int completions;
};

/*
 * The times of the current completion: not before those of the previous one, the same in every
 * reading, and not in the future.
 */
static void look(struct ibv_cq_ex *cq, struct times *last)
{
	uint64_t ticks = ibv_wc_read_completion_ts(cq);
	uint64_t wall = ibv_wc_read_completion_wallclock_ns(cq);

	if (cq->status != IBV_WC_SUCCESS)
		fail("a message ended with '%s'", ibv_wc_status_str(cq->status));
	if (ticks < last->ticks)
		fail("completion %d came %lu ticks before the previous one", last->completions,
		     (unsigned long)(last->ticks - ticks));
	if (wall < last->wall_ns)
		fail("completion %d came %lu ns before the previous one", last->completions,
		     (unsigned long)(last->wall_ns - wall));
	if (ibv_wc_read_completion_wallclock_ns(cq) != wall)
		fail("completion %d came at two times", last->completions);
	if (wall > wall_ns())
		fail("completion %d comes in the future", last->completions);
	last->ticks = ticks;
	last->wall_ns = wall;
	last->completions++;
}

/* Polls all completions. */
static void take(struct ibv_cq_ex *cq, struct times *last)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int error = ibv_start_poll(cq, &attr);

	if (error == ENOENT)
		return;
	if (error)
		fail("ibv_start_poll: %s", strerror(error));
	do
		look(cq, last);
	while (!(error = ibv_next_poll(cq)));
	if (error != ENOENT)
		fail("ibv_next_poll: %s", strerror(error));
	ibv_end_poll(cq);
}

void check_clock(void)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 64,
		.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct end e, timed;
	struct times last = { 0 };
	struct ibv_cq_ex *cq;
	struct ibv_qp *a, *b;
	uint64_t begin = wall_ns();

	end_open(&e, IBV_ACCESS_LOCAL_WRITE);
	cq = ibv_create_cq_ex(e.context, &attr);
	if (!cq)
		fail("ibv_create_cq_ex: %s", strerror(errno));
	timed = e;
	timed.cq = ibv_cq_ex_to_cq(cq);
	a = loopback_qp(&timed, IBV_QPT_RC, NULL);
	b = loopback_qp(&timed, IBV_QPT_RC, NULL);
	loopback_connect(&timed, a, b);
	for (int round = 0; round < ROUNDS; round++) {
		double deadline = end_deadline();
		int wanted = last.completions + 4;

		for (int i = 0; i < 2; i++)
			loopback_receive(&timed, b);
		for (int i = 0; i < 2; i++)
			if (loopback_post(&timed, a, IBV_WR_SEND, timed.mr->lkey, 0))
				fail("ibv_post_send");
		for (; last.completions < wanted; end_check_deadline(deadline))
			take(cq, &last);
		if (!round && last.wall_ns < begin)
			fail("the first message completed before it was sent");
	}
	loopback_destroy(a, b);
	if (ibv_destroy_cq(timed.cq))
		fail("ibv_destroy_cq");
	end_close(&e);
}
