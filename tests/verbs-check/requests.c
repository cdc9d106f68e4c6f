/*
 * Work requests: lists with a refused request, lists of many elements, inline data, solicited
 * events, null regions and regions with their own addresses.
 */
#include "loopback.h"
#include "scenarios.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
/* Octets of each element of a long list: odd, so that none is aligned. */
#define PIECE 61u
#define LIMIT_MS 60000

static void fill(uint8_t *octets, size_t count)
{
	for (size_t i = 0; i < count; i++)
		octets[i] = (uint8_t)(i * 31 + (i >> 8) + 1);
}

static void complete(struct end *e, int count)
{
	while (count--)
		end_expect(e, IBV_WC_SUCCESS);
}

/*
 * In a list, the requests before the first bad one are executed, bad_wr is the bad one, and those
 * behind it are not posted.
 */
static void lists(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(e->pd, &init);
	struct ibv_recv_wr recv[4] = { { 0 } }, *bad_recv = NULL;
	struct ibv_send_wr send[4] = { { 0 } }, *bad_send = NULL;
	struct ibv_wc wc[4];

	if (!srq)
		fail("ibv_create_srq: %s", strerror(errno));
	for (int i = 0; i < 4; i++) {
		recv[i] = (struct ibv_recv_wr){ .wr_id = 10 + (uint64_t)i,
						.next = i < 3 ? &recv[i + 1] : NULL };
		send[i] = (struct ibv_send_wr){
			.wr_id = 20 + (uint64_t)i,
			.next = i < 3 ? &send[i + 1] : NULL,
			.opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED,
		};
	}
	recv[2].num_sge = send[2].num_sge = SGES + 1;
	if (ibv_post_recv(b, recv, &bad_recv) != EINVAL || bad_recv != &recv[2])
		fail("ibv_post_recv did not name the third request");
	if (ibv_post_srq_recv(srq, recv, &bad_recv) != EINVAL || bad_recv != &recv[2])
		fail("ibv_post_srq_recv did not name the third request");
	if (ibv_post_send(a, send, &bad_send) != EINVAL || bad_send != &send[2])
		fail("ibv_post_send did not name the third request");
	for (int i = 0; i < 4; i++)
		wc[i] = end_expect(e, IBV_WC_SUCCESS);
	for (int kind = 0, next; kind < 2; kind++) {
		next = kind ? 10 : 20;
		for (int i = 0; i < 4; i++)
			if ((wc[i].opcode == IBV_WC_RECV) == kind &&
			    wc[i].wr_id != (uint64_t)next++)
				fail("request %lu completed out of turn",
				     (unsigned long)wc[i].wr_id);
	}
	/* The last request of neither list was posted: the whole queue is free. */
	send[2].num_sge = recv[2].num_sge = 0;
	if (ibv_post_recv(b, recv, &bad_recv) || ibv_post_send(a, send, &bad_send))
		fail("a list was refused");
	complete(e, 8);
	if (ibv_destroy_srq(srq))
		fail("ibv_destroy_srq");
}

/* The maximum number of elements, of one region, for every kind of transfer. */
static void long_lists(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE,
						      IBV_WR_RDMA_READ };
	struct ibv_sge sges[SGES], inbox;
	uint8_t *mine = e->region, *theirs = e->region + INBOX;

	for (size_t i = 0; i < SGES; i++)
		/* From the last piece to the first, with gaps. */
		sges[i] = (struct ibv_sge){ .addr = (uintptr_t)mine + (SGES - 1 - i) * 2 * PIECE,
					    .length = PIECE,
					    .lkey = e->mr->lkey };
	for (size_t kind = 0; kind < sizeof(opcodes) / sizeof(*opcodes); kind++) {
		struct ibv_send_wr wr = {
			.sg_list = sges,
			.num_sge = SGES,
			.opcode = opcodes[kind],
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)theirs, .rkey = e->mr->rkey },
		}, *bad;
		struct ibv_recv_wr recv = loopback_inbox(e, &inbox), *bad_recv;
		bool is_read = opcodes[kind] == IBV_WR_RDMA_READ,
		     is_send = opcodes[kind] == IBV_WR_SEND;

		memset(is_read ? mine : theirs, 0, OCTETS);
		fill(is_read ? theirs : mine, OCTETS);
		if (is_send && ibv_post_recv(b, &recv, &bad_recv))
			fail("ibv_post_recv");
		if (ibv_post_send(a, &wr, &bad))
			fail("a list of %u elements was refused", SGES);
		complete(e, is_send ? 2 : 1);
		for (size_t i = 0; i < SGES; i++)
			if (memcmp((void *)(uintptr_t)sges[i].addr, theirs + i * PIECE, PIECE))
				fail("element %zu of a list of opcode %d is not what it was", i,
				     opcodes[kind]);
	}
}

/* Inline data may be reused when ibv_post_send returns, and needs no region. */
static void inline_data(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	uint8_t octets[INLINE + 1], expected[INLINE];
	struct ibv_sge sge = { .addr = (uintptr_t)octets, .length = INLINE };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE },
			   *bad;

	fill(expected, INLINE);
	memcpy(octets, expected, INLINE);
	loopback_receive(e, b);
	if (ibv_post_send(a, &wr, &bad))
		fail("%u inline octets were refused", INLINE);
	memset(octets, 0, sizeof(octets));
	complete(e, 2);
	if (memcmp(e->region + INBOX, expected, INLINE))
		fail("inline data is not what it was");
}

static bool has_event(struct end *e, int limit_ms)
{
	struct pollfd channel = { .fd = e->channel->fd, .events = POLLIN };

	return poll(&channel, 1, limit_ms) > 0;
}

/* Waits for the event of a completion, which may arrive a moment later. */
static void take_event(struct end *e)
{
	struct ibv_cq *cq;
	void *context;

	if (!has_event(e, LIMIT_MS) || ibv_get_cq_event(e->channel, &cq, &context) || cq != e->cq)
		fail("no event of the completion queue");
	ibv_ack_cq_events(cq, 1);
}

/* Armed for solicited events, a queue reports those and errors, and nothing else. */
static void solicited(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;

	loopback_receive(e, b);
	loopback_receive(e, b);
	if (ibv_req_notify_cq(e->cq, 1))
		fail("ibv_req_notify_cq");
	if (ibv_post_send(a, &wr, &bad))
		fail("ibv_post_send");
	complete(e, 1);
	if (has_event(e, 0))
		fail("an event of a message that was not solicited");
	wr.send_flags = IBV_SEND_SOLICITED;
	if (ibv_post_send(a, &wr, &bad))
		fail("ibv_post_send");
	complete(e, 1);
	take_event(e);
	if (ibv_req_notify_cq(e->cq, 1))
		fail("ibv_req_notify_cq");
	if (loopback_post(e, a, IBV_WR_SEND, e->mr->lkey ^ 1, 0))
		fail("ibv_post_send");
	end_expect(e, IBV_WC_LOC_PROT_ERR);
	take_event(e);
	loopback_connect(e, a, b);
}

/* A null region reads as zeros, and writes to it are discarded. */
static void null_region(struct end *e, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_mr *null = ibv_alloc_null_mr(e->pd);
	uint8_t *inbox = e->region + INBOX;
	struct ibv_recv_wr recv = { 0 }, *bad;
	struct ibv_sge sge;

	if (!null)
		fail("ibv_alloc_null_mr: %s", strerror(errno));
	fill(e->region, OCTETS);
	memset(inbox, 0xff, OCTETS);
	loopback_receive(e, b);
	if (loopback_post(e, a, IBV_WR_SEND, null->lkey, 0))
		fail("ibv_post_send of a null region");
	complete(e, 2);
	for (size_t i = 0; i < OCTETS; i++)
		if (inbox[i])
			fail("a null region was not read as zeroes");
	memset(inbox, 0xff, OCTETS);
	sge = (struct ibv_sge){ .addr = (uintptr_t)inbox, .length = OCTETS, .lkey = null->lkey };
	recv = (struct ibv_recv_wr){ .sg_list = &sge, .num_sge = 1 };
	if (ibv_post_recv(b, &recv, &bad))
		fail("ibv_post_recv into a null region");
	loopback_exchange(e, a);
	if (inbox[0] != 0xff || inbox[OCTETS - 1] != 0xff)
		fail("memory was written through a null region");
	if (ibv_dereg_mr(null))
		fail("ibv_dereg_mr");
}

/* A region with its own address, by which peers and lists refer to its octets. */
static void chosen_address(struct end *e, struct ibv_qp *a)
{
	const uint64_t address = 0x123456789000;
	struct ibv_mr *mr = ibv_reg_mr_iova(e->pd, e->region + INBOX, OCTETS, address, ALL);
	struct ibv_sge sge = { .addr = (uintptr_t)e->region,
			       .length = OCTETS,
			       .lkey = e->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad;

	if (!mr)
		fail("ibv_reg_mr_iova: %s", strerror(errno));
	wr.wr.rdma.remote_addr = address;
	wr.wr.rdma.rkey = mr->rkey;
	fill(e->region, OCTETS);
	memset(e->region + INBOX, 0, OCTETS);
	if (ibv_post_send(a, &wr, &bad))
		fail("ibv_post_send");
	complete(e, 1);
	if (memcmp(e->region, e->region + INBOX, OCTETS))
		fail("a write to a region with an address of its own went elsewhere");
	memset(e->region, 0, OCTETS);
	sge = (struct ibv_sge){ .addr = address, .length = OCTETS, .lkey = mr->lkey };
	wr.wr.rdma.remote_addr = (uintptr_t)e->region;
	wr.wr.rdma.rkey = e->mr->rkey;
	if (ibv_post_send(a, &wr, &bad))
		fail("ibv_post_send");
	complete(e, 1);
	if (memcmp(e->region, e->region + INBOX, OCTETS))
		fail("a list of a region with an address of its own was read elsewhere");
	if (ibv_dereg_mr(mr))
		fail("ibv_dereg_mr");
}

void check_requests(void)
{
	struct end e;
	struct ibv_qp *a, *b;

	loopback_open(&e, ALL, &a, &b);
	lists(&e, a, b);
	long_lists(&e, a, b);
	inline_data(&e, a, b);
	solicited(&e, a, b);
	null_region(&e, a, b);
	chosen_address(&e, a);
	loopback_close(&e, a, b);
}
