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

/* One more of each than the device reports is refused; exactly as many work. */
static void sizes(struct end *e, const struct ibv_device_attr *device)
{
	struct ibv_qp_init_attr attr = small_qp(e);
	struct ibv_qp *qp;

	attr.cap.max_send_sge = (uint32_t)device->max_sge + 1;
	expect_errno("a queue pair with too many SGEs", ibv_create_qp(e->pd, &attr), EINVAL);
	attr = small_qp(e);
	attr.cap.max_send_wr = (uint32_t)device->max_qp_wr + 1;
	expect_errno("a queue pair with too many work requests", ibv_create_qp(e->pd, &attr),
		     EINVAL);
	expect_errno("a completion queue with too many entries",
		     ibv_create_cq(e->context, device->max_cqe + 1, NULL, NULL, 0), EINVAL);
	attr = small_qp(e);
	attr.cap.max_send_sge = attr.cap.max_recv_sge = (uint32_t)device->max_sge;
	qp = ibv_create_qp(e->pd, &attr);
	if (!qp)
		fail("a queue pair with %d SGEs: %s", device->max_sge, strerror(errno));
	ibv_destroy_qp(qp);
}

/* A kind of object whose maximum number the device reports. */
struct kind {
	const char *name;
	int max;
	/* Objects that the end has created before. */
	int existing;
	void *(*make)(struct end *e, int number);
	int (*destroy)(void *object);
};

static void *make_pd(struct end *e, int number)
{
	(void)number;
	return ibv_alloc_pd(e->context);
}

static void *make_cq(struct end *e, int number)
{
	(void)number;
	return ibv_create_cq(e->context, 1, NULL, NULL, 0);
}

static void *make_qp(struct end *e, int number)
{
	struct ibv_qp_init_attr attr = small_qp(e);

	(void)number;
	return ibv_create_qp(e->pd, &attr);
}

static void *make_srq(struct end *e, int number)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 1, .max_sge = 1 } };

	(void)number;
	return ibv_create_srq(e->pd, &attr);
}

static void *make_mr(struct end *e, int number)
{
	(void)number;
	return ibv_reg_mr(e->pd, e->region, 64, 0);
}

static void *make_mw(struct end *e, int number)
{
	return ibv_alloc_mw(e->pd, number % 2 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
}

static void *make_ah(struct end *e, int number)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1 } };

	(void)number;
	if (ibv_query_gid(e->context, 1, 1, &attr.grh.dgid))
		fail("ibv_query_gid: %s", strerror(errno));
	return ibv_create_ah(e->pd, &attr);
}

static int destroy_pd(void *object) { return ibv_dealloc_pd(object); }
static int destroy_cq(void *object) { return ibv_destroy_cq(object); }
static int destroy_qp(void *object) { return ibv_destroy_qp(object); }
static int destroy_srq(void *object) { return ibv_destroy_srq(object); }
static int destroy_mr(void *object) { return ibv_dereg_mr(object); }
static int destroy_mw(void *object) { return ibv_dealloc_mw(object); }
static int destroy_ah(void *object) { return ibv_destroy_ah(object); }

/* The reported number of objects can be created, and one more is refused with ENOMEM. */
static void count_of(struct end *e, const struct kind *kind)
{
	void **made = calloc((size_t)kind->max + 1, sizeof(*made));
	int count = 0;

	if (!made)
		fail("no memory");
	for (; count <= kind->max; count++)
		if (!(made[count] = kind->make(e, count)))
			break;
	int refusal = errno;
	if (count + kind->existing != kind->max)
		fail("%d %s could be made where the device says %d", count + kind->existing,
		     kind->name, kind->max);
	if (refusal != ENOMEM)
		fail("%s beyond the limit gave '%s'", kind->name, strerror(refusal));
	while (count--)
		if (kind->destroy(made[count]))
			fail("%s could not be destroyed: %s", kind->name, strerror(errno));
	free(made);
}

static void counts(struct end *e, const struct ibv_device_attr *device)
{
	const struct kind kinds[] = {
		{ "protection domains", device->max_pd, 2, make_pd, destroy_pd },
		{ "completion queues", device->max_cq, 1, make_cq, destroy_cq },
		{ "queue pairs", device->max_qp, 1, make_qp, destroy_qp },
		{ "shared receive queues", device->max_srq, 0, make_srq, destroy_srq },
		{ "regions", device->max_mr, 2, make_mr, destroy_mr },
		{ "memory windows", device->max_mw, 0, make_mw, destroy_mw },
		{ "address handles", device->max_ah, 0, make_ah, destroy_ah },
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		count_of(e, &kinds[i]);
}

/* Reads and atomics in flight, at either end. */
static void reads_in_progress(struct end *e, const struct ibv_device_attr *device)
{
	struct ibv_qp_init_attr init = small_qp(e);
	struct ibv_qp *qp = ibv_create_qp(e->pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	const int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	const int to_rts = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			   IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

	if (!qp ||
	    ibv_modify_qp(qp, &attr,
			  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("a queue pair in INIT: %s", strerror(errno));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = (uint8_t)(device->max_qp_rd_atom + 1),
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1 } },
	};
	if (ibv_query_gid(e->context, 1, 1, &attr.ah_attr.grh.dgid))
		fail("ibv_query_gid: %s", strerror(errno));
	if (ibv_modify_qp(qp, &attr, to_rtr) != EINVAL)
		fail("more reads of the peer than max_qp_rd_atom were not refused");
	attr.max_dest_rd_atomic--;
	if (ibv_modify_qp(qp, &attr, to_rtr))
		fail("max_qp_rd_atom reads of the peer were refused");
	attr.qp_state = IBV_QPS_RTS;
	attr.max_rd_atomic = (uint8_t)(device->max_qp_init_rd_atom + 1);
	if (ibv_modify_qp(qp, &attr, to_rts) != EINVAL)
		fail("more reads than max_qp_init_rd_atom were not refused");
	attr.max_rd_atomic--;
	if (ibv_modify_qp(qp, &attr, to_rts))
		fail("max_qp_init_rd_atom reads were refused");
	ibv_destroy_qp(qp);
}

static void shared_receive_queues(struct end *e, const struct ibv_device_attr *device)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = (uint32_t)device->max_srq_wr,
						    .max_sge = (uint32_t)device->max_srq_sge } };
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
	struct ibv_srq *srq = ibv_create_srq(e->pd, &attr);

	if (!srq)
		fail("a shared receive queue of %d requests: %s", device->max_srq_wr,
		     strerror(errno));
	for (int i = 0; i < device->max_srq_wr; i++)
		if (ibv_post_srq_recv(srq, &wr, &bad))
			fail("request %d of %d was refused", i, device->max_srq_wr);
	if (ibv_post_srq_recv(srq, &wr, &bad) != ENOMEM || bad != &wr)
		fail("a request too many for a shared receive queue was not refused with ENOMEM");
	ibv_destroy_srq(srq);
	attr.attr.max_wr = (uint32_t)device->max_srq_wr + 1;
	expect_errno("a shared receive queue with too many requests", ibv_create_srq(e->pd, &attr),
		     EINVAL);
	attr.attr = (struct ibv_srq_attr){ .max_wr = 1,
					   .max_sge = (uint32_t)device->max_srq_sge + 1 };
	expect_errno("a shared receive queue with too many SGEs", ibv_create_srq(e->pd, &attr),
		     EINVAL);
}

static void device_memory(struct end *e)
{
	struct ibv_device_attr_ex device;

	if (ibv_query_device_ex(e->context, NULL, &device))
		fail("ibv_query_device_ex: %s", strerror(errno));
	struct ibv_alloc_dm_attr attr = { .length = device.max_dm_size };
	struct ibv_dm *dm = ibv_alloc_dm(e->context, &attr);
	if (!dm)
		fail("device memory of %lu octets: %s", (unsigned long)attr.length,
		     strerror(errno));
	ibv_free_dm(dm);
	attr.length++;
	expect_errno("too much device memory", ibv_alloc_dm(e->context, &attr), EINVAL);
}

static void requests(struct end *e)
{
	struct ibv_sge sges[5] = { { 0 } };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = sges, .num_sge = 5 },
			   *bad = NULL;
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
	counts(&e, &device);
	reads_in_progress(&e, &device);
	shared_receive_queues(&e, &device);
	device_memory(&e);
	requests(&e);
	errno = 0;
	expect_errno("remote write without local write",
		     ibv_reg_mr(e.pd, e.region, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	end_close(&e);
}
