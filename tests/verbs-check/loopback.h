/* Queue pairs of one process that are connected to one another. */
#ifndef VERBS_CHECK_LOOPBACK_H
#define VERBS_CHECK_LOOPBACK_H

#include "end.h"

/* The source of messages, at the start of the region, and the offset of the destination. */
#define OCTETS 4096u
#define INBOX 8192u
/* Maximum elements of a list and octets of an inline message of such a queue pair. */
#define SGES 32u
#define INLINE 256u
/* The Q_Key of datagram queue pairs. */
#define LOOPBACK_QKEY 0x22222222u

struct ibv_qp *loopback_qp(struct end *e, enum ibv_qp_type type, struct ibv_srq *srq);
/* From any state to RTS, each the other's peer; datagram queue pairs have no peer. */
void loopback_connect(struct end *e, struct ibv_qp *a, struct ibv_qp *b);
/* Opens an end whose region has these access flags, with two connected queue pairs of type RC. */
void loopback_open(struct end *e, int access, struct ibv_qp **a, struct ibv_qp **b);
void loopback_close(struct end *e, struct ibv_qp *a, struct ibv_qp *b);
void loopback_destroy(struct ibv_qp *a, struct ibv_qp *b);

/* A transition that must succeed. */
void loopback_modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
void loopback_go(struct ibv_qp *qp, enum ibv_qp_state state);
/* A transition that must be refused. */
void loopback_refuse(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);

/* A receive request for the inbox, with number 2. */
struct ibv_recv_wr loopback_inbox(struct end *e, struct ibv_sge *sge);
void loopback_receive(struct end *e, struct ibv_qp *qp);
/*
 * Posts a signaled request, with number 1, for the first octets of the region; the inbox is the
 * target of one-sided requests.
 */
int loopback_post(struct end *e, struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t lkey,
		  uint32_t rkey);
/* Waits for the completions of a send of `a` and of its peer's receive. */
void loopback_exchange(struct end *e, struct ibv_qp *a);

/* Has a message of `a` to `b` raise an event. */
void loopback_raise(struct end *e, struct ibv_qp *a, struct ibv_qp *b);
/* Reads and acknowledges an event of the end's channel; false with errno. */
bool loopback_take(struct end *e);

#endif
