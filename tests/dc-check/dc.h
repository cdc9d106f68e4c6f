/* Initiators and targets of the dynamically connected transport, beside an end of verbs-check. */
#ifndef DC_CHECK_DC_H
#define DC_CHECK_DC_H

#include "../verbs-check/end.h"

#include <infiniband/urdmadv.h>

#define DC_KEY 0x0123456789abcdefull
#define DC_RIGHTS                                                                                  \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |              \
	 IBV_ACCESS_REMOTE_ATOMIC)
#define DC_DEPTH 16u
/*
 * Timeouts, with seven retries: 34 ms without an answer, for requests that get none; 137 s, for
 * requests that get one, which is longer than the check waits for a completion.
 */
#define DC_IMPATIENT 8
#define DC_PATIENT 20
/* The calls that an initiator can have. */
#define DC_CALLS                                                                                   \
	(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |         \
	 IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |                          \
	 IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |                \
	 IBV_QP_EX_WITH_ATOMIC_WRITE)

struct target {
	struct ibv_qp *qp;
	struct ibv_srq *srq;
};

struct initiator {
	struct ibv_qp *qp;
	struct ibv_qp_ex *ex;
	struct urdmadv_qp_ex *dv;
};

/* What an initiator knows of a target and of memory there. */
struct name {
	struct ibv_ah *ah;
	uint32_t number, rkey;
	uint64_t key, addr;
};

/* Attributes that urdmadv_create_qp accepts for the role. */
struct ibv_qp_init_attr_ex dc_attributes(struct end *e, enum urdmadv_dc_type type,
					 struct ibv_srq *srq);
struct urdmadv_qp_init_attr dc_role(enum urdmadv_dc_type type);

/* In RESET, and to the state in which it is ready. */
struct target dc_target(struct end *e);
void dc_target_ready(struct target *t);
struct initiator dc_initiator(struct end *e);
void dc_initiator_ready(struct initiator *i, uint8_t timeout);
void dc_destroy_target(struct target *t);
void dc_destroy_initiator(struct initiator *i);

/* A transition that must succeed, and one that must be refused with a reason. */
void dc_go(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask);
void dc_refuse(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask);

struct ibv_ah *dc_handle(struct end *e, const union ibv_gid *gid);
/* A receive request with this number, for octets of the region. */
void dc_receive(struct end *e, struct target *t, uint64_t wr_id, size_t offset, uint32_t length);
/*
 * Posts a signaled request with this number between octets of the region and the target's memory;
 * an atomic compares with, or adds, 7 and swaps 9. Returns the result of ibv_wr_complete.
 */
int dc_post(struct end *e, struct initiator *i, const struct name *to, uint64_t wr_id,
	    enum ibv_wr_opcode opcode, size_t offset, uint32_t length);

#endif
