/*
 * Refused calls: the result is an errno value and is in errno too. Among them are calls with a
 * destroyed object or with a copy of its public structure.
 */
#include "loopback.h"
#include "scenarios.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND)
/* A handle that this program does not have. */
#define OTHER_HANDLE 0x7ffffff0u

static void refused(const char *call, int answer, int set, int expected)
{
	if (answer != expected)
		fail("%s gave '%s' instead of '%s'", call, strerror(answer), strerror(expected));
	if (set != expected)
		fail("%s set errno to '%s', not '%s'", call, strerror(set), strerror(expected));
}

/* The call returns this errno value and sets errno to it. */
#define REFUSED(call, expected) do { \
	errno = 0; \
	int answer_ = (call); \
	refused(#call, answer_, errno, expected); \
} while (0)

/* The call returns no object and sets errno. */
#define NOT_MADE(call, expected) do { \
	errno = 0; \
	const void *made_ = (call); \
	refused(#call, made_ ? 0 : expected, errno, expected); \
} while (0)

static void no_object(const char *call, int answer, int set)
{
	if (answer != ENOENT || set != ENOENT)
		fail("%s gave '%s' with errno '%s'", call, strerror(answer), strerror(set));
}

/* The call is made with an object that does not exist. */
#define NO_OBJECT(call) do { \
	errno = 0; \
	int answer_ = (call); \
	no_object(#call, answer_, errno); \
} while (0)

/* The call would create an object from one that does not exist. */
#define NOT_MADE_OF(call) do { \
	errno = 0; \
	const void *made_ = (call); \
	no_object(#call, made_ ? 0 : errno, errno); \
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

/* ibv_rereg_mr reports its error in errno only. */
static void rereg_refused(struct ibv_mr *mr, int flags, struct ibv_pd *pd, int access, int expected)
{
	int answer;

	errno = 0;
	answer = ibv_rereg_mr(mr, flags, pd, NULL, 0, access);
	if (answer != IBV_REREG_MR_ERR_CMD || errno != expected)
		fail("ibv_rereg_mr set errno to '%s'", strerror(errno));
}

/* Every error is in errno too. */
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
	rereg_refused(k->mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, IBV_ACCESS_REMOTE_WRITE, EINVAL);
}

/* A destroyed object is destroyed again, and passed where an object is needed. */
static void destroyed_twice(struct end *e)
{
	struct kinds k = make(e);

	destroy(&k);
	NO_OBJECT(ibv_destroy_qp(k.qp));
	NO_OBJECT(ibv_destroy_qp(k.xrc_qp));
	NO_OBJECT(ibv_destroy_srq(k.srq));
	NO_OBJECT(ibv_destroy_srq(k.xrc_srq));
	NO_OBJECT(ibv_destroy_cq(k.cq));
	NO_OBJECT(ibv_destroy_cq(ibv_cq_ex_to_cq(k.cq_ex)));
	NO_OBJECT(ibv_dealloc_mw(k.mw));
	NO_OBJECT(ibv_dereg_mr(k.mr));
	NO_OBJECT(ibv_destroy_ah(k.ah));
	NO_OBJECT(ibv_free_dm(k.dm));
	NO_OBJECT(ibv_close_xrcd(k.xrcd));
	NO_OBJECT(ibv_dealloc_pd(k.parent));
	NO_OBJECT(ibv_dealloc_pd(k.pd));
	NO_OBJECT(ibv_dealloc_td(k.td));
}

/* Calls with a destroyed object. */
static void destroyed_is_named(struct end *e)
{
	struct kinds k = make(e);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_qp_init_attr init;
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex xrc_srq_init = xrc_srq(&k);
	struct ibv_qp_init_attr_ex target_init = xrc_target(&k);
	struct ibv_srq_attr srq_attr = { .srq_limit = 1 };
	struct ibv_ah_attr ah_attr = to_itself(e);
	struct ibv_parent_domain_init_attr parent_attr = { .pd = k.pd };
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = k.parent,
	};
	struct ibv_sge sge = { .addr = (uintptr_t)e->region, .length = 8, .lkey = k.mr->lkey };
	union ibv_gid gid = { 0 };
	uint32_t number;

	destroy(&k);
	NO_OBJECT(ibv_modify_qp(k.qp, &attr, IBV_QP_STATE));
	NO_OBJECT(ibv_query_qp(k.qp, &attr, IBV_QP_STATE, &init));
	NO_OBJECT(ibv_attach_mcast(k.qp, &gid, 0));
	NO_OBJECT(ibv_detach_mcast(k.qp, &gid, 0));
	NO_OBJECT(ibv_modify_srq(k.srq, &srq_attr, IBV_SRQ_LIMIT));
	NO_OBJECT(ibv_query_srq(k.srq, &srq_attr));
	NO_OBJECT(ibv_get_srq_num(k.xrc_srq, &number));
	NO_OBJECT(ibv_resize_cq(k.cq, 8));
	NO_OBJECT(ibv_advise_mr(k.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1));
	rereg_refused(k.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, 0, ENOENT);
	rereg_refused(e->mr, IBV_REREG_MR_CHANGE_PD, k.pd, 0, ENOENT);
	NOT_MADE_OF(ibv_reg_mr(k.pd, e->region, OCTETS, ALL));
	NOT_MADE_OF(ibv_alloc_null_mr(k.pd));
	NOT_MADE_OF(ibv_reg_dm_mr(e->pd, k.dm, 0, 64, IBV_ACCESS_ZERO_BASED));
	NOT_MADE_OF(ibv_alloc_mw(k.pd, IBV_MW_TYPE_1));
	NOT_MADE_OF(ibv_create_ah(k.pd, &ah_attr));
	NOT_MADE_OF(ibv_create_srq(k.pd, &srq_init));
	NOT_MADE_OF(ibv_create_srq_ex(e->context, &xrc_srq_init));
	NOT_MADE_OF(ibv_create_qp_ex(e->context, &target_init));
	NOT_MADE_OF(ibv_alloc_parent_domain(e->context, &parent_attr));
	parent_attr = (struct ibv_parent_domain_init_attr){ .pd = e->pd, .td = k.td };
	NOT_MADE_OF(ibv_alloc_parent_domain(e->context, &parent_attr));
	NOT_MADE_OF(ibv_create_cq_ex(e->context, &cq_attr));
	init = small_qp(e->cq, NULL);
	NOT_MADE_OF(ibv_create_qp(k.pd, &init));
	init = small_qp(k.cq, NULL);
	NOT_MADE_OF(ibv_create_qp(e->pd, &init));
	init = small_qp(e->cq, k.srq);
	NOT_MADE_OF(ibv_create_qp(e->pd, &init));
}

/* Windows are bound by a queue pair to a region; libibverbs itself compares their domains. */
static void destroyed_is_bound(struct end *e)
{
	struct kinds k = make(e);
	struct ibv_mw *mw = ibv_alloc_mw(e->pd, IBV_MW_TYPE_1);
	struct ibv_mr *mr = ibv_reg_mr(e->pd, e->region, OCTETS, ALL);
	struct ibv_mw_bind bind = { .bind_info = { .addr = (uintptr_t)e->region, .length = 8 } };

	if (!mw || !mr)
		fail("a window or a region: %s", strerror(errno));
	destroy(&k);
	bind.bind_info.mr = k.mr;
	NO_OBJECT(ibv_bind_mw(e->qp, k.mw, &bind));
	bind.bind_info.mr = mr;
	NO_OBJECT(ibv_bind_mw(k.qp, mw, &bind));
	if (ibv_dereg_mr(mr))
		fail("ibv_dereg_mr");
	NO_OBJECT(ibv_bind_mw(e->qp, mw, &bind));
	if (ibv_dealloc_mw(mw))
		fail("ibv_dealloc_mw");
}

/* A completion queue cannot be created with a destroyed channel. */
static void dead_channel(struct end *e)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(e->context);
	struct ibv_comp_channel copy;

	if (!channel)
		fail("ibv_create_comp_channel: %s", strerror(errno));
	copy = *channel;
	if (ibv_destroy_comp_channel(channel))
		fail("ibv_destroy_comp_channel");
	NOT_MADE(ibv_create_cq(e->context, 4, NULL, &copy, 0), EINVAL);
}

/* A copy in its own memory, so that a tool detects reads behind it. */
#define COPY_OF(type, object) ({ \
	type *copy_ = malloc(sizeof(type)); \
	if (!copy_) \
		fail("no memory"); \
	*copy_ = *(object); \
	copy_; \
})

/*
 * A copy of the public structure with another handle is no object; the object itself is unaffected.
 */
static void copies(struct end *e)
{
	struct kinds k = make(e);
	struct ibv_qp *qp = COPY_OF(struct ibv_qp, k.qp);
	struct ibv_cq *cq = COPY_OF(struct ibv_cq, k.cq);
	struct ibv_srq *srq = COPY_OF(struct ibv_srq, k.srq);
	struct ibv_pd *pd = COPY_OF(struct ibv_pd, k.pd);
	struct ibv_mw *mw = COPY_OF(struct ibv_mw, k.mw);
	struct ibv_ah *ah = COPY_OF(struct ibv_ah, k.ah);
	struct ibv_dm *dm = COPY_OF(struct ibv_dm, k.dm);
	/* libibverbs reads behind the public structure of a region. */
	struct { struct ibv_mr mr; long behind[4]; } *mr = calloc(1, sizeof(*mr));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_srq_attr srq_attr = { .srq_limit = 1 };
	struct ibv_qp_init_attr init;

	if (!mr)
		fail("no memory");
	mr->mr = *k.mr;
	qp->handle = cq->handle = srq->handle = pd->handle = OTHER_HANDLE;
	mw->handle = ah->handle = dm->handle = mr->mr.handle = OTHER_HANDLE;
	NO_OBJECT(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	NO_OBJECT(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	NO_OBJECT(ibv_destroy_qp(qp));
	NO_OBJECT(ibv_resize_cq(cq, 8));
	NO_OBJECT(ibv_destroy_cq(cq));
	NO_OBJECT(ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT));
	NO_OBJECT(ibv_query_srq(srq, &srq_attr));
	NO_OBJECT(ibv_destroy_srq(srq));
	NOT_MADE_OF(ibv_reg_mr(pd, e->region, OCTETS, ALL));
	init = small_qp(cq, NULL);
	NOT_MADE_OF(ibv_create_qp(e->pd, &init));
	init = small_qp(e->cq, srq);
	NOT_MADE_OF(ibv_create_qp(e->pd, &init));
	NO_OBJECT(ibv_dealloc_pd(pd));
	NO_OBJECT(ibv_dereg_mr(&mr->mr));
	NO_OBJECT(ibv_dealloc_mw(mw));
	NO_OBJECT(ibv_destroy_ah(ah));
	NO_OBJECT(ibv_free_dm(dm));
	/* The application may also modify the structure itself. */
	uint32_t handle = k.pd->handle;
	k.pd->handle = OTHER_HANDLE;
	NOT_MADE_OF(ibv_alloc_mw(k.pd, IBV_MW_TYPE_1));
	k.pd->handle = handle;
	destroy(&k);
	free(qp), free(cq), free(srq), free(pd), free(mw), free(ah), free(dm), free(mr);
}

/* An object of another kind, or of another context. */
static void wrong_kind(struct end *e)
{
	struct kinds k = make(e);
	struct end other;
	struct ibv_qp_init_attr init = small_qp((struct ibv_cq *)k.qp, NULL);

	NOT_MADE_OF(ibv_create_qp(e->pd, &init));
	end_open(&other, ALL);
	init = small_qp(other.cq, NULL);
	NOT_MADE_OF(ibv_create_qp(e->pd, &init));
	end_close(&other);
	init = small_qp(e->cq, (struct ibv_srq *)k.cq);
	NOT_MADE_OF(ibv_create_qp(e->pd, &init));
	NO_OBJECT(ibv_dealloc_pd((struct ibv_pd *)k.qp));
	destroy(&k);
}

void check_refusals(void)
{
	struct end e;
	struct kinds k;

	setvbuf(stdout, NULL, _IOLBF, 0);
	end_open(&e, ALL);
	k = make(&e);
	errno_is_set(&e, &k);
	destroy(&k);
	printf("errno is set\n");
	destroyed_twice(&e);
	printf("destroyed objects are not destroyed again\n");
	destroyed_is_named(&e);
	destroyed_is_bound(&e);
	dead_channel(&e);
	printf("destroyed objects are not used\n");
	copies(&e);
	wrong_kind(&e);
	end_close(&e);
}
