/* Calls that are refused: the answer is an errno value and is in errno too. */
#include "loopback.h"
#include "scenarios.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND)

static void refused(const char *call, int answer, int set, int expected)
{
	if (answer != expected)
		fail("%s gave '%s' instead of '%s'", call, strerror(answer), strerror(expected));
	if (set != expected)
		fail("%s set errno to '%s', not '%s'", call, strerror(set), strerror(expected));
}

/* The call answers with this errno value, and sets errno to it. */
#define REFUSED(call, expected) do { \
	errno = 0; \
	int answer_ = (call); \
	refused(#call, answer_, errno, expected); \
} while (0)

/* The call gives no object, and sets errno. */
#define NOT_MADE(call, expected) do { \
	errno = 0; \
	const void *made_ = (call); \
	refused(#call, made_ ? 0 : expected, errno, expected); \
} while (0)

/* One of each kind of object. */
struct kinds {
	struct ibv_td *td;
	struct ibv_pd *pd, *parent;
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct ibv_cq *cq;
	struct ibv_cq_ex *cq_ex;
	struct ibv_srq *srq, *xrc_srq;
	struct ibv_qp *qp, *xrc_qp;
	struct ibv_ah *ah;
	struct ibv_xrcd *xrcd;
	struct ibv_dm *dm;
};

static struct ibv_qp_init_attr small_qp(struct ibv_cq *cq, struct ibv_srq *srq)
{
	return (struct ibv_qp_init_attr){
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
}

static struct ibv_ah_attr to_itself(struct end *e)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1 } };

	if (ibv_query_gid(e->context, 1, 1, &attr.grh.dgid))
		fail("ibv_query_gid");
	return attr;
}

static struct ibv_srq_init_attr_ex xrc_srq(const struct kinds *k)
{
	return (struct ibv_srq_init_attr_ex){
		.attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC,
		.pd = k->pd, .cq = k->cq, .xrcd = k->xrcd,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ |
			     IBV_SRQ_INIT_ATTR_XRCD,
	};
}

static struct ibv_qp_init_attr_ex xrc_target(const struct kinds *k)
{
	return (struct ibv_qp_init_attr_ex){
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = k->xrcd,
	};
}

static struct kinds make(struct end *e)
{
	struct ibv_td_init_attr td_attr = { 0 };
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_ah_attr ah_attr = to_itself(e);
	struct ibv_xrcd_init_attr xrcd_attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1, .oflags = O_CREAT,
	};
	struct ibv_alloc_dm_attr dm_attr = { .length = 4096 };
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 4 };
	struct kinds k = {
		.pd = ibv_alloc_pd(e->context), .td = ibv_alloc_td(e->context, &td_attr),
	};
	struct ibv_parent_domain_init_attr parent_attr = { .pd = k.pd, .td = k.td };

	k.parent = ibv_alloc_parent_domain(e->context, &parent_attr);
	k.mr = ibv_reg_mr(k.pd, e->region, OCTETS, ALL);
	k.mw = ibv_alloc_mw(k.pd, IBV_MW_TYPE_1);
	k.cq = ibv_create_cq(e->context, 4, NULL, e->channel, 0);
	k.cq_ex = ibv_create_cq_ex(e->context, &cq_attr);
	k.srq = ibv_create_srq(k.pd, &srq_attr);
	k.xrcd = ibv_open_xrcd(e->context, &xrcd_attr);
	k.ah = ibv_create_ah(k.pd, &ah_attr);
	k.dm = ibv_alloc_dm(e->context, &dm_attr);
	if (!k.pd || !k.td || !k.parent || !k.mr || !k.mw || !k.cq || !k.cq_ex || !k.srq ||
	    !k.xrcd || !k.ah || !k.dm)
		fail("one of each kind could not be made: %s", strerror(errno));
	struct ibv_qp_init_attr qp_attr = small_qp(k.cq, k.srq);
	struct ibv_srq_init_attr_ex xrc_srq_attr = xrc_srq(&k);
	struct ibv_qp_init_attr_ex target_attr = xrc_target(&k);

	k.qp = ibv_create_qp(k.pd, &qp_attr);
	k.xrc_srq = ibv_create_srq_ex(e->context, &xrc_srq_attr);
	k.xrc_qp = ibv_create_qp_ex(e->context, &target_attr);
	if (!k.qp || !k.xrc_srq || !k.xrc_qp)
		fail("a queue pair or an XRC queue: %s", strerror(errno));
	return k;
}

static void destroy(const struct kinds *k)
{
	if (ibv_destroy_qp(k->xrc_qp) || ibv_destroy_srq(k->xrc_srq) || ibv_destroy_qp(k->qp) ||
	    ibv_destroy_ah(k->ah) || ibv_free_dm(k->dm) || ibv_close_xrcd(k->xrcd) ||
	    ibv_destroy_srq(k->srq) || ibv_destroy_cq(ibv_cq_ex_to_cq(k->cq_ex)) ||
	    ibv_destroy_cq(k->cq) || ibv_dealloc_mw(k->mw) || ibv_dereg_mr(k->mr) ||
	    ibv_dealloc_pd(k->parent) || ibv_dealloc_pd(k->pd) || ibv_dealloc_td(k->td))
		fail("one of each kind could not be destroyed: %s", strerror(errno));
}

/* ibv_rereg_mr says in errno alone why it failed. */
static void rereg_refused(struct ibv_mr *mr, int flags, struct ibv_pd *pd, int access)
{
	errno = 0;
	if (ibv_rereg_mr(mr, flags, pd, NULL, 0, access) != IBV_REREG_MR_ERR_CMD || errno != EINVAL)
		fail("ibv_rereg_mr set errno to '%s'", strerror(errno));
}

/* Whatever is wrong, the answer is in errno too. */
static void errno_is_set(struct end *e, const struct kinds *k)
{
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR };
	struct ibv_srq_attr limit = { .srq_limit = 5 };
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr recv = { 0 }, *bad_recv;
	struct ibv_poll_cq_attr poll = { .comp_mask = 1 };
	union ibv_gid gid = { 0 };
	uint32_t number, word = 0;

	REFUSED(ibv_dealloc_pd(k->pd), EBUSY);
	REFUSED(ibv_dealloc_td(k->td), EBUSY);
	REFUSED(ibv_destroy_cq(k->cq), EBUSY);
	REFUSED(ibv_destroy_srq(k->srq), EBUSY);
	REFUSED(ibv_close_xrcd(k->xrcd), EBUSY);
	REFUSED(ibv_modify_qp(k->qp, &rtr, IBV_QP_STATE), EINVAL);
	REFUSED(ibv_modify_srq(k->srq, &limit, IBV_SRQ_LIMIT), EINVAL);
	REFUSED(ibv_resize_cq(k->cq, 0), EINVAL);
	REFUSED(ibv_post_send(k->qp, &send, &bad_send), EINVAL);
	REFUSED(ibv_post_recv(k->qp, &recv, &bad_recv), EINVAL);
	recv.num_sge = 2;
	REFUSED(ibv_post_srq_recv(k->srq, &recv, &bad_recv), EINVAL);
	REFUSED(ibv_attach_mcast(k->qp, &gid, 0), EINVAL);
	REFUSED(ibv_get_srq_num(k->srq, &number), EOPNOTSUPP);
	REFUSED(ibv_start_poll(k->cq_ex, &poll), EINVAL);
	REFUSED(ibv_memcpy_to_dm(k->dm, 4096, &word, sizeof(word)), EINVAL);
	NOT_MADE(ibv_create_cq(e->context, 0, NULL, NULL, 0), EINVAL);
	rereg_refused(k->mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, IBV_ACCESS_REMOTE_WRITE);
}

void check_refusals(void)
{
	struct end e;
	struct kinds k;

	end_open(&e, ALL);
	k = make(&e);
	errno_is_set(&e, &k);
	destroy(&k);
	end_close(&e);
}
