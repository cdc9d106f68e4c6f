#include "scenarios.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_errno(const char *what, void *made, int expected)
{
	if (made)
		fail("%s was allowed", what);
	if (errno != expected)
		fail("%s gave '%s' instead of '%s'", what, strerror(errno), strerror(expected));
}

static struct ibv_qp_init_attr small_qp(struct end *e)
{
	return (struct ibv_qp_init_attr){
		.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
}

/* One more of each than the device says is refused; with exactly as many it works. */
static void sizes(struct end *e, const struct ibv_device_attr *device)
{
	struct ibv_qp_init_attr attr = small_qp(e);
	struct ibv_qp *qp;

	attr.cap.max_send_sge = (uint32_t)device->max_sge + 1;
	expect_errno("a queue pair with too many SGEs", ibv_create_qp(e->pd, &attr), EINVAL);
	attr = small_qp(e);
	attr.cap.max_send_wr = (uint32_t)device->max_qp_wr + 1;
	expect_errno("a queue pair with too many work requests", ibv_create_qp(e->pd, &attr), EINVAL);
	expect_errno("a completion queue with too many entries", ibv_create_cq(e->context, device->max_cqe + 1, NULL, NULL, 0), EINVAL);
	attr = small_qp(e);
	attr.cap.max_send_sge = attr.cap.max_recv_sge = (uint32_t)device->max_sge;
	qp = ibv_create_qp(e->pd, &attr);
	if (!qp)
		fail("a queue pair with %d SGEs: %s", device->max_sge, strerror(errno));
	ibv_destroy_qp(qp);
}

static void count_of_queue_pairs(struct end *e, int max_qp)
{
	struct ibv_qp **made = calloc((size_t)max_qp + 1, sizeof(*made));
	int count = 0;

	for (; count <= max_qp; count++) {
		struct ibv_qp_init_attr attr = small_qp(e);

		made[count] = ibv_create_qp(e->pd, &attr);
		if (!made[count])
			break;
	}
	if (count != max_qp - 1)	/* one more exists from before */
		fail("%d queue pairs could be made where the device says %d", count + 1, max_qp);
	if (errno != ENOMEM)
		fail("one queue pair too many gave '%s'", strerror(errno));
	while (count--)
		ibv_destroy_qp(made[count]);
	free(made);
}

static void count_of_regions(struct end *e, int max_mr)
{
	struct ibv_mr **made = calloc((size_t)max_mr + 1, sizeof(*made));
	int count = 0;

	for (; count <= max_mr; count++)
		if (!(made[count] = ibv_reg_mr(e->pd, e->region, 64, 0)))
			break;
	if (count != max_mr - 2)	/* two more exist from before */
		fail("%d regions could be made where the device says %d", count + 2, max_mr);
	if (errno != ENOMEM)
		fail("one region too many gave '%s'", strerror(errno));
	while (count--)
		ibv_dereg_mr(made[count]);
	free(made);
}

static void count_of_windows(struct end *e, int max_mw)
{
	struct ibv_mw **made = calloc((size_t)max_mw + 1, sizeof(*made));
	int count = 0;

	for (; count <= max_mw; count++)
		if (!(made[count] = ibv_alloc_mw(e->pd, count % 2 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2)))
			break;
	if (count != max_mw)
		fail("%d memory windows could be made where the device says %d", count, max_mw);
	if (errno != ENOMEM)
		fail("one memory window too many gave '%s'", strerror(errno));
	while (count--)
		ibv_dealloc_mw(made[count]);
	free(made);
}

static void shared_receive_queues(struct end *e, const struct ibv_device_attr *device)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = (uint32_t)device->max_srq_wr, .max_sge = (uint32_t)device->max_srq_sge } };
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
	struct ibv_srq *srq = ibv_create_srq(e->pd, &attr);

	if (!srq)
		fail("a shared receive queue of %d requests: %s", device->max_srq_wr, strerror(errno));
	for (int i = 0; i < device->max_srq_wr; i++)
		if (ibv_post_srq_recv(srq, &wr, &bad))
			fail("request %d of %d was refused", i, device->max_srq_wr);
	if (ibv_post_srq_recv(srq, &wr, &bad) != ENOMEM || bad != &wr)
		fail("one request more than a shared receive queue holds was not refused with ENOMEM");
	ibv_destroy_srq(srq);
	attr.attr.max_wr = (uint32_t)device->max_srq_wr + 1;
	expect_errno("a shared receive queue with too many requests", ibv_create_srq(e->pd, &attr), EINVAL);
	attr.attr = (struct ibv_srq_attr){ .max_wr = 1, .max_sge = (uint32_t)device->max_srq_sge + 1 };
	expect_errno("a shared receive queue with too many SGEs", ibv_create_srq(e->pd, &attr), EINVAL);
}

static void device_memory(struct end *e)
{
	struct ibv_device_attr_ex device;

	if (ibv_query_device_ex(e->context, NULL, &device))
		fail("ibv_query_device_ex: %s", strerror(errno));
	struct ibv_alloc_dm_attr attr = { .length = device.max_dm_size };
	struct ibv_dm *dm = ibv_alloc_dm(e->context, &attr);
	if (!dm)
		fail("device memory of %lu octets: %s", (unsigned long)attr.length, strerror(errno));
	ibv_free_dm(dm);
	attr.length++;
	expect_errno("too much device memory", ibv_alloc_dm(e->context, &attr), EINVAL);
}

static void requests(struct end *e)
{
	struct ibv_sge sges[5] = { { 0 } };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = sges, .num_sge = 5 }, *bad = NULL;
	struct ibv_recv_wr recv = { .sg_list = sges, .num_sge = 5 }, *bad_recv = NULL;

	if (ibv_post_send(e->qp, &wr, &bad) != EINVAL || bad != &wr)
		fail("a send on a queue pair in RESET was not refused with EINVAL");
	if (ibv_post_recv(e->qp, &recv, &bad_recv) != EINVAL || bad_recv != &recv)
		fail("a receive with too many SGEs was not refused with EINVAL");
}

void check_limits(void)
{
	struct ibv_device_attr device;
	struct end e;

	end_open(&e, IBV_ACCESS_LOCAL_WRITE);
	if (ibv_query_device(e.context, &device))
		fail("ibv_query_device: %s", strerror(errno));
	sizes(&e, &device);
	count_of_queue_pairs(&e, device.max_qp);
	count_of_regions(&e, device.max_mr);
	count_of_windows(&e, device.max_mw);
	shared_receive_queues(&e, &device);
	device_memory(&e);
	requests(&e);
	errno = 0;
	expect_errno("remote write without local write", ibv_reg_mr(e.pd, e.region, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	end_close(&e);
}
