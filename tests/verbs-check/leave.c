/*
 * A receiver that ends with a completion: its peer's send succeeds, an idle peer gets no event, and
 * the next send fails. The number of operations selects the variant: how the receiver ends, the
 * operation, and whether the sender asks for a completion.
 */
#include "scenarios.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum leaving { FAILS, RESETS, DESTROYS, EXITS, EXITS_AT_ONCE, IS_KILLED, LEAVINGS };

struct variant {
	enum leaving leaving;
	bool writes, signaled;
};

static struct variant variant_of(const struct end *e)
{
	uint32_t number = e->operations % (LEAVINGS * 4);

	return (struct variant){ .leaving = number / 4,
				 .writes = number & 1,
				 .signaled = number & 2 };
}

/* Fails if there is any completion or event at this end. */
static void expect_quiet(struct end *e)
{
	struct pollfd events = { .fd = e->context->async_fd, .events = POLLIN };
	struct ibv_wc wc;

	if (ibv_poll_cq(e->cq, 1, &wc))
		fail("work request %lu ended with '%s' instead of not at all",
		     (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status));
	if (poll(&events, 1, 0))
		end_expect_event(e, IBV_EVENT_DEVICE_FATAL);
	end_expect_state(e->qp, IBV_QPS_RTS);
}

void leave_client(struct end *e)
{
	struct variant variant = variant_of(e);
	struct ibv_send_wr wr = {
		.wr_id = 1, .opcode = variant.writes ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND,
		.send_flags = variant.signaled ? IBV_SEND_SIGNALED : 0,
		.wr.rdma = { .remote_addr = e->peer.addr, .rkey = e->peer.rkey },
	};

	if (end_recv(e, 3, 0, 64))
		fail("a receive request was refused");
	end_meet(e);
	if (end_send(e, &wr, 0, 64, e->mr->lkey))
		fail("a request was refused");
	if (variant.signaled && end_expect(e, IBV_WC_SUCCESS).wr_id != 1)
		fail("another request ended");
	end_await_peer(e);
	expect_quiet(e);
	wr.wr_id = 2;
	wr.send_flags = IBV_SEND_SIGNALED;
	if (end_send(e, &wr, 0, 64, e->mr->lkey))
		fail("a request was refused");
	if (end_expect(e, IBV_WC_RETRY_EXC_ERR).wr_id != 2)
		fail("the request that had been received failed");
	if (end_expect(e, IBV_WC_WR_FLUSH_ERR).wr_id != 3)
		fail("another receive request ended");
	end_expect_state(e->qp, IBV_QPS_ERR);
}

static void go(struct end *e, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	if (ibv_modify_qp(e->qp, &attr, IBV_QP_STATE))
		fail("ibv_modify_qp: %s", strerror(errno));
}

void leave_server(struct end *e)
{
	struct ibv_wc wc;

	if (end_recv(e, 1, 0, 64))
		fail("a receive request was refused");
	end_meet(e);
	while (ibv_poll_cq(e->cq, 1, &wc) == 0)
		;
	if (wc.status != IBV_WC_SUCCESS)
		fail("the message was not received: %s", ibv_wc_status_str(wc.status));
	switch (variant_of(e).leaving) {
	case FAILS:
		go(e, IBV_QPS_ERR);
		break;
	case RESETS:
		go(e, IBV_QPS_RESET);
		break;
	case DESTROYS:
		if (ibv_destroy_qp(e->qp))
			fail("ibv_destroy_qp: %s", strerror(errno));
		break;
	case EXITS:
		exit(0);
	case EXITS_AT_ONCE:
		_exit(0);
	case IS_KILLED:
	case LEAVINGS:
		kill(getpid(), SIGKILL);
	}
	end_say(e);
	/* Waits until the peer's next request has failed. */
	end_await_peer(e);
	exit(0);
}
