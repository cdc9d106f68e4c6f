/*
 * One end of a connection made the way most verbs programs make it: GID, QP number and keys
 * exchanged over a socket of their own.
 */
#ifndef VERBS_CHECK_END_H
#define VERBS_CHECK_END_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEND_DEPTH 64
#define RECV_DEPTH 64
#define REGION_OCTETS (4u << 20)

/* The data that the two ends exchange. */
struct hello {
	uint32_t qpn, psn, rkey, foreign_rkey;
	uint64_t addr;
	union ibv_gid gid;
};

struct end {
	int socket;
	struct ibv_context *context;
	struct ibv_pd *pd, *foreign_pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr, *foreign_mr;
	uint8_t *region;
	struct hello peer;
	uint32_t psn;		/* the first that this end sends */
	uint64_t seed;
	uint32_t operations;	/* of scenarios that take as many as one likes */
};

/* The parameters of a connection. */
struct wish {
	int access;		/* rights of the region */
	uint8_t rnr_retry, min_rnr_timer, timeout;
};

/* Prints a sentence and ends the program; never returns. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Opens urdma0 and creates one object of each kind; fails with a sentence. */
void end_open(struct end *e, int access);
/* Meets the other end at `path` (the server first) and takes the queue pair to RTS. */
void end_connect(struct end *e, const char *path, bool server, const struct wish *wish);
/* Waits until both ends have reached this point. */
void end_meet(struct end *e);
/* Sends the other end a message, whether it waits or not. */
void end_say(struct end *e);
/* Waits until the other end sends a message or its process ends. */
void end_await_peer(struct end *e);
/* Whether the other end has reached its next end_meet or has ended. */
bool end_peer_waits(struct end *e);
void end_close(struct end *e);

/* Posts one work request; returns 0 or the errno of ibv_post_*. */
int end_send(struct end *e, struct ibv_send_wr *wr, size_t offset, uint32_t length, uint32_t lkey);
int end_recv(struct end *e, uint64_t wr_id, size_t offset, uint32_t length);

/* The deadline of a wait that begins now; fails if it has passed. */
double end_deadline(void);
void end_check_deadline(double deadline);
/* Polls until a completion comes; fails after a minute. */
struct ibv_wc end_wait(struct end *e);
/* Waits for a completion and fails unless it has this status. */
struct ibv_wc end_expect(struct end *e, enum ibv_wc_status status);
/* Waits for an asynchronous event and fails unless it is this one. */
void end_expect_event(struct end *e, enum ibv_event_type type);
/* Fails unless the queue pair is in this state. */
void end_expect_state(struct ibv_qp *qp, enum ibv_qp_state state);

#endif
