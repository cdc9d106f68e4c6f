/* One process: what is refused, with which errno, and what queries answer. */
#include "dc.h"
#include "scenarios.h"

#include <errno.h>
#include <string.h>

static void refused(struct end *e, struct ibv_qp_init_attr_ex attr,
		    struct urdmadv_qp_init_attr role, int expected, const char *what)
{
	struct ibv_qp *qp = urdmadv_create_qp(e->context, &attr, &role);
	int error = errno;

	if (qp)
		fail("%s was made", what);
	if (error != expected)
		fail("%s: %s instead of %s", what, strerror(error), strerror(expected));
	if (!urdmadv_last_error(e->context))
		fail("%s is refused without a reason", what);
}

static void creation(struct end *e)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(e->pd, &srq_attr);
	struct ibv_qp_init_attr_ex dci = dc_attributes(e, URDMADV_DCTYPE_DCI, NULL), attr;
	struct ibv_qp_init_attr_ex dct = dc_attributes(e, URDMADV_DCTYPE_DCT, srq);
	struct urdmadv_qp_init_attr initiator = dc_role(URDMADV_DCTYPE_DCI), role;
	struct urdmadv_qp_init_attr target = dc_role(URDMADV_DCTYPE_DCT);

	attr = dct;
	attr.srq = NULL;
	refused(e, attr, target, EINVAL, "a target without a shared receive queue");
	attr = dct;
	attr.recv_cq = NULL;
	refused(e, attr, target, EINVAL, "a target without a completion queue");
	attr = dct;
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	refused(e, attr, target, EINVAL, "a target that sends");
	attr = dci;
	attr.comp_mask = IBV_QP_INIT_ATTR_PD;
	refused(e, attr, initiator, EINVAL, "an initiator without calls");
	attr = dci;
	attr.send_ops_flags |= IBV_QP_EX_WITH_BIND_MW;
	refused(e, attr, initiator, EOPNOTSUPP, "an initiator with windows");
	attr = dci;
	attr.qp_type = IBV_QPT_RC;
	refused(e, attr, initiator, EINVAL, "an initiator of the type RC");
	attr = dci;
	attr.send_cq = NULL;
	refused(e, attr, initiator, EINVAL, "an initiator without a completion queue");
	role = initiator;
	role.comp_mask = 0;
	refused(e, dci, role, EINVAL, "a queue pair of the driver without a role");
	role = initiator;
	role.comp_mask |= 1 << 3;
	refused(e, dci, role, EOPNOTSUPP, "streams of an initiator");
	if (ibv_create_qp_ex(e->context, &dct) || errno != EOPNOTSUPP)
		fail("ibv_create_qp_ex makes a target");
	if (ibv_destroy_srq(srq))
		fail("ibv_destroy_srq");
}

/* Without a role urdmadv_create_qp is ibv_create_qp_ex. */
static void other_services(struct end *e)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC, .pd = e->pd,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *qp = urdmadv_create_qp(e->context, &attr, NULL);

	if (!qp || !ibv_qp_to_qp_ex(qp))
		fail("a queue pair without a role: %s", strerror(errno));
	if (urdmadv_qp_ex_from_ibv_qp_ex(ibv_qp_to_qp_ex(qp)))
		fail("a reliable connection has calls of urdmadv");
	if (ibv_destroy_qp(qp))
		fail("ibv_destroy_qp");
}

static void states(struct end *e)
{
	struct target t = dc_target(e);
	struct initiator i = dc_initiator(e);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	end_expect_state(t.qp, IBV_QPS_RESET);
	dc_refuse(t.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR },
		  IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER);
	dc_refuse(t.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 },
		  IBV_QP_PKEY_INDEX | IBV_QP_PORT);
	dc_target_ready(&t);
	dc_refuse(t.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS },
		  IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			  IBV_QP_MAX_QP_RD_ATOMIC);
	if (ibv_query_qp(t.qp, &attr, IBV_QP_STATE, &init))
		fail("ibv_query_qp");
	if (attr.qp_access_flags != DC_RIGHTS || attr.min_rnr_timer != 12 ||
	    attr.ah_attr.grh.hop_limit != 64 || attr.cap.max_send_wr || attr.cap.max_recv_wr ||
	    init.qp_type != IBV_QPT_DRIVER || init.srq != t.srq || init.recv_cq != e->cq)
		fail("ibv_query_qp of a target");
	dc_go(t.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, 0);
	dc_go(t.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, 0);
	dc_target_ready(&t);

	dc_refuse(i.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS }, IBV_QP_TIMEOUT);
	dc_initiator_ready(&i, DC_IMPATIENT);
	dc_refuse(i.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_SQD }, 0);
	dc_refuse(i.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14 },
		  IBV_QP_TIMEOUT);
	if (ibv_query_qp(i.qp, &attr, IBV_QP_STATE, &init))
		fail("ibv_query_qp");
	if (attr.timeout != DC_IMPATIENT || attr.retry_cnt != 7 ||
	    attr.cap.max_send_wr < DC_DEPTH || attr.cap.max_send_sge < 2 ||
	    attr.cap.max_inline_data < 64 || attr.cap.max_recv_wr ||
	    init.qp_type != IBV_QPT_DRIVER)
		fail("ibv_query_qp of an initiator");
	dc_destroy_initiator(&i);
	dc_destroy_target(&t);
}

static void not_posted(struct end *e, struct initiator *i, struct name to, int opcode,
		       const char *what)
{
	if (dc_post(e, i, &to, 1, (enum ibv_wr_opcode)opcode, 0, 8) != EINVAL)
		fail("%s was taken", what);
	if (!urdmadv_last_error(e->context))
		fail("%s is refused without a reason", what);
}

static void requests(struct end *e)
{
	struct initiator i = dc_initiator(e);
	struct target t = dc_target(e);
	union ibv_gid gid;
	struct name to = { .number = t.qp->qp_num, .key = DC_KEY }, other;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad = NULL;
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad_receive = NULL;

	if (ibv_query_gid(e->context, 1, 1, &gid))
		fail("ibv_query_gid");
	to.ah = dc_handle(e, &gid);
	not_posted(e, &i, to, IBV_WR_SEND, "a request before RTS");
	dc_initiator_ready(&i, DC_PATIENT);
	dc_target_ready(&t);
	other = to;
	other.ah = NULL;
	not_posted(e, &i, other, IBV_WR_SEND, "a request without a target");
	other = to;
	other.number = 1 << 24;
	not_posted(e, &i, other, IBV_WR_SEND, "a request to a number of 25 bits");
	other.number = 0xffffff;
	not_posted(e, &i, other, IBV_WR_SEND, "a request to a number of no process");
	not_posted(e, &i, to, IBV_WR_SEND_WITH_INV, "a send with invalidation");
	if (ibv_post_send(i.qp, &wr, &bad) != EINVAL || bad != &wr)
		fail("ibv_post_send of an initiator");
	if (ibv_post_send(t.qp, &wr, &bad) != EINVAL)
		fail("ibv_post_send of a target");
	if (ibv_post_recv(t.qp, &receive, &bad_receive) != EINVAL || bad_receive != &receive)
		fail("ibv_post_recv of a target");
	/* What was refused has no effect. */
	dc_receive(e, &t, 2, 4096, 64);
	if (dc_post(e, &i, &to, 1, IBV_WR_SEND, 0, 8))
		fail("a request in RTS: %s", urdmadv_last_error(e->context));
	end_expect(e, IBV_WC_SUCCESS);
	end_expect(e, IBV_WC_SUCCESS);
	if (ibv_destroy_ah(to.ah))
		fail("ibv_destroy_ah");
	dc_destroy_initiator(&i);
	dc_destroy_target(&t);
}

/* Lists are posted as a whole or not at all, and a full queue refuses. */
static void lists(struct end *e)
{
	struct initiator i = dc_initiator(e);
	struct name nowhere = { .number = i.qp->qp_num | 0xff00, .key = DC_KEY };
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	union ibv_gid gid;
	uint32_t taken = 0;
	int error;

	if (ibv_query_gid(e->context, 1, 1, &gid) ||
	    ibv_query_qp(i.qp, &attr, IBV_QP_CAP, &init))
		fail("a query");
	nowhere.ah = dc_handle(e, &gid);
	dc_initiator_ready(&i, DC_IMPATIENT);
	while (!(error = dc_post(e, &i, &nowhere, taken, IBV_WR_SEND, 0, 8)))
		taken++;
	if (error != ENOMEM || taken != attr.cap.max_send_wr)
		fail("%u requests of %u were taken, then %s", taken, attr.cap.max_send_wr,
		     strerror(error));
	for (uint32_t n = 0; n < taken; n++) {
		struct ibv_wc wc = end_wait(e);
		enum ibv_wc_status expected = n ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR;

		if (wc.wr_id != n || wc.status != expected)
			fail("request %lu ended with '%s'", (unsigned long)wc.wr_id,
			     ibv_wc_status_str(wc.status));
	}
	end_expect_state(i.qp, IBV_QPS_ERR);
	dc_go(i.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RESET }, 0);
	dc_initiator_ready(&i, DC_IMPATIENT);
	ibv_wr_start(i.ex);
	for (uint64_t n = 0; n < 2; n++) {
		i.ex->wr_id = n;
		i.ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(i.ex);
		if (!n)
			urdmadv_wr_set_dc_addr(i.dv, nowhere.ah, nowhere.number, nowhere.key);
	}
	if (ibv_wr_complete(i.ex) != EINVAL)
		fail("a list with a request without a target was taken");
	/* The first of the list would be flushed. */
	dc_go(i.qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, 0);
	if (ibv_poll_cq(e->cq, 1, &(struct ibv_wc){ 0 }))
		fail("a part of a refused list was posted");
	if (ibv_destroy_ah(nowhere.ah))
		fail("ibv_destroy_ah");
	dc_destroy_initiator(&i);
}

void check_alone(void)
{
	struct end e;

	end_open(&e, DC_RIGHTS);
	if (!urdmadv_is_supported(e.context->device))
		fail("urdmadv does not know the device");
	creation(&e);
	other_services(&e);
	states(&e);
	requests(&e);
	lists(&e);
	end_close(&e);
}
