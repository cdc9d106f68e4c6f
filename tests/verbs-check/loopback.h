/* Queue pairs of one process that are connected to one another. */
#ifndef VERBS_CHECK_LOOPBACK_H
#define VERBS_CHECK_LOOPBACK_H

#include "end.h"

/* What messages are sent from, at the start of the region, and where they arrive in it. */
#define OCTETS 4096u
#define INBOX 8192u
/* Elements of a list and octets of an inline message that such a queue pair takes. */
#define SGES 32u
#define INLINE 256u
/* Of datagram queue pairs. */
#define LOOPBACK_QKEY 0x22222222u

struct ibv_qp *loopback_qp(struct end *e, enum ibv_qp_type type, struct ibv_srq *srq);
/* From whatever state to RTS, each the other's peer; datagram queue pairs have none. */
void loopback_connect(struct end *e, struct ibv_qp *a, struct ibv_qp *b);
/* Opens an end with two connected queue pairs of type RC. */
void loopback_open(struct end *e, struct ibv_qp **a, struct ibv_qp **b);
void loopback_close(struct end *e, struct ibv_qp *a, struct ibv_qp *b);
void loopback_destroy(struct ibv_qp *a, struct ibv_qp *b);

/* A step of the state machine, which must be taken. */
void loopback_modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
void loopback_go(struct ibv_qp *qp, enum ibv_qp_state state);
/* One that must be refused. */
void loopback_refuse(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);

/* A receive request for the inbox, with number 2. */
struct ibv_recv_wr loopback_inbox(struct end *e, struct ibv_sge *sge);
void loopback_receive(struct end *e, struct ibv_qp *qp);
/*
 * Posts a signaled request, with number 1, of the first octets of the region, to the inbox if it is
 * one-sided.
 */
int loopback_post(struct end *e, struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t lkey,
		  uint32_t rkey);
/* A send of `a` completes, and at its peer a receive. */
void loopback_exchange(struct end *e, struct ibv_qp *a);

#endif
