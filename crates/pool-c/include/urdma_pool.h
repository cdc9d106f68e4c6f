/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The pool: virtual queue pairs, opened in microseconds, on a few shared queue pairs.
 *
 * Calls that return an int return -1, and those that return a pointer NULL, and set errno if they
 * fail. Threads may share a pool; its calls exclude one another. urdma_pool_create(3) and the other
 * manual pages describe them.
 */
#ifndef URDMA_POOL_H
#define URDMA_POOL_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The virtual queue pairs of a process and what they share. */
struct urdma_pool;

/* Memory that the pools of others reach by an address. */
struct urdma_pool_node;

/* What the shared queue pairs are. */
enum urdma_pool_transport {
	URDMA_POOL_RC, /* reliable connections, each to one node */
	URDMA_POOL_DC /* initiators, each of which reaches every node */
};

/* A field that is 0 has its default. */
struct urdma_pool_attr {
	enum urdma_pool_transport transport;
	uint32_t shared; /* queue pairs, for each node (RC) or in all (DC); 1 */
	uint32_t sq_depth; /* requests that each of them takes; 128 */
	uint32_t cq_depth; /* entries of the completion queue of all; 4096 */
	uint32_t virtual_max; /* virtual queue pairs; 65536 */
	uint32_t nodes_max; /* nodes that are known; 16384 */
	uint32_t max_sge; /* elements of a request, up to 16; 4 */

	/* DC: nodes that are used much are connected to, and left when they are not. */
	uint32_t switch_max; /* such connections at a time; 0: none, and each stays with DC */
	uint32_t switch_requests; /* requests in a window for which a node is connected to; 64 */
	uint32_t switch_window_us; /* the window; 1000 */
	uint32_t switch_quiet; /* windows in a row without a quarter of them, to leave it; 1000 */
	uint32_t switch_retry; /* windows between a failure and the next attempt; 1000 */
};

/* What a pool has counted. */
struct urdma_pool_stats {
	uint64_t posted; /* requests and messages of the pool */
	uint64_t failed; /* shared queue pairs that have failed */
	uint64_t repeated; /* virtual queue pairs whose requests were posted again for that */
	uint64_t switched_to_connections; /* virtual queue pairs, also those opened on one */
	uint64_t switched_back;
	uint64_t switches_failed; /* such connections that were not made, or have failed */
};

/* The number of a virtual queue pair, or of registered memory. */
typedef uint64_t urdma_pool_qp_t;
typedef uint64_t urdma_pool_mr_t;

/* The memory of a node. */
struct urdma_pool_remote {
	uint64_t id; /* for requests */
	uint64_t addr; /* its first address */
	uint64_t length;
};

/* Memory of this process in a request. */
struct urdma_pool_sge {
	urdma_pool_mr_t mr;
	void *addr; /* in the memory of mr */
	uint32_t length; /* 8 for atomics */
};

/* A request. */
struct urdma_pool_wr {
	uint64_t wr_id;
	enum ibv_wr_opcode opcode; /* IBV_WR_RDMA_READ, _RDMA_WRITE, _ATOMIC_CMP_AND_SWP,
				      _ATOMIC_FETCH_AND_ADD */
	unsigned int send_flags; /* IBV_SEND_SIGNALED */
	const struct urdma_pool_sge *sg_list;
	int num_sge; /* up to max_sge; 1 for atomics */
	uint64_t remote; /* the id of the node's memory */
	uint64_t remote_addr; /* in that memory */
	uint64_t compare_add; /* atomics, as in struct ibv_send_wr */
	uint64_t swap;
};

/* The completion of a request. */
struct urdma_pool_wc {
	uint64_t wr_id;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	uint32_t byte_len;
};

/* How a pool exchanges messages. A field that is 0 has its default. */
struct urdma_pool_message_attr {
	uint32_t send_max; /* octets of a message, the same in all pools that exchange them; 4096 */
	uint32_t share; /* Receives that are posted for each connection, 4 or more; 32 */
	uint32_t backlog; /* virtual queue pairs that wait for a service; 128 */
	void *addr; /* memory that the other pools access, NULL if there is none */
	size_t length;
};

/* The queues of a virtual queue pair to or of a service. */
struct urdma_pool_depths {
	uint32_t requests; /* whose completions are not polled, 1 or more */
	uint32_t receives; /* the same of Receives */
};

/* What has become of a virtual queue pair to or of a service. */
enum urdma_pool_state {
	URDMA_POOL_OPENING, /* the service has not answered; Sends wait */
	URDMA_POOL_ACCEPTED, /* this end has accepted it, and nothing has come since */
	URDMA_POOL_OPEN, /* both ends know each other */
	URDMA_POOL_REFUSED, /* the service has refused it, or does not exist */
	URDMA_POOL_CLOSED /* the other end was closed, or one of them has failed */
};

/* A Send. */
struct urdma_pool_send_wr {
	uint64_t wr_id;
	enum ibv_wr_opcode opcode; /* IBV_WR_SEND, IBV_WR_SEND_WITH_IMM */
	unsigned int send_flags; /* IBV_SEND_SIGNALED */
	const struct urdma_pool_sge *sg_list;
	int num_sge; /* up to max_sge */
	__be32 imm_data;
};

/* A Receive. */
struct urdma_pool_recv_wr {
	uint64_t wr_id;
	const struct urdma_pool_sge *sg_list;
	int num_sge; /* up to max_sge */
};

/* The completion of a Receive. */
struct urdma_pool_recv_wc {
	uint64_t wr_id;
	enum ibv_wc_status status;
	uint32_t byte_len; /* of the message */
	unsigned int wc_flags; /* IBV_WC_WITH_IMM */
	__be32 imm_data;
};

struct urdma_pool *urdma_pool_create(const struct sockaddr *from, socklen_t from_len,
				     const struct urdma_pool_attr *attr);
int urdma_pool_use_metadata(struct urdma_pool *pool, const struct sockaddr_storage *services,
			    int count);
int urdma_pool_get_stats(struct urdma_pool *pool, struct urdma_pool_stats *stats);
int urdma_pool_destroy(struct urdma_pool *pool);

int urdma_pool_reg_mr(struct urdma_pool *pool, uint32_t user, void *addr, size_t length,
		      urdma_pool_mr_t *mr);
int urdma_pool_dereg_mr(struct urdma_pool *pool, urdma_pool_mr_t mr);

int urdma_pool_open(struct urdma_pool *pool, uint32_t user, const struct sockaddr *to,
		    socklen_t to_len, uint32_t depth, urdma_pool_qp_t *qp,
		    struct urdma_pool_remote *remote);
int urdma_pool_close(struct urdma_pool *pool, urdma_pool_qp_t qp);
int urdma_pool_reset(struct urdma_pool *pool, urdma_pool_qp_t qp);
int urdma_pool_post(struct urdma_pool *pool, urdma_pool_qp_t qp, const struct urdma_pool_wr *wr);
int urdma_pool_poll(struct urdma_pool *pool, urdma_pool_qp_t qp, int count,
		    struct urdma_pool_wc *wc);

int urdma_pool_offer_messages(struct urdma_pool *pool, const struct sockaddr *at, socklen_t at_len,
			      const struct urdma_pool_message_attr *attr);
int urdma_pool_listen(struct urdma_pool *pool, uint32_t service);
int urdma_pool_end_service(struct urdma_pool *pool, uint32_t service);
int urdma_pool_progress(struct urdma_pool *pool);

int urdma_pool_open_service(struct urdma_pool *pool, uint32_t user, const struct sockaddr *to,
			    socklen_t to_len, uint32_t service,
			    const struct urdma_pool_depths *depths, urdma_pool_qp_t *qp);
int urdma_pool_accept(struct urdma_pool *pool, uint32_t service, uint32_t user,
		      const struct urdma_pool_depths *depths, urdma_pool_qp_t *qp);
int urdma_pool_refuse(struct urdma_pool *pool, uint32_t service);
int urdma_pool_state(struct urdma_pool *pool, urdma_pool_qp_t qp);
int urdma_pool_peer_memory(struct urdma_pool *pool, urdma_pool_qp_t qp,
			   struct urdma_pool_remote *remote);

int urdma_pool_post_send(struct urdma_pool *pool, urdma_pool_qp_t qp,
			 const struct urdma_pool_send_wr *wr);
int urdma_pool_post_recv(struct urdma_pool *pool, urdma_pool_qp_t qp,
			 const struct urdma_pool_recv_wr *wr);
int urdma_pool_poll_recv(struct urdma_pool *pool, urdma_pool_qp_t qp, int count,
			 struct urdma_pool_recv_wc *wc);

struct urdma_pool_node *urdma_pool_node_create(const struct sockaddr *at, socklen_t at_len,
					       void *addr, size_t length,
					       enum urdma_pool_transport transport);
int urdma_pool_node_register(struct urdma_pool_node *node,
			     const struct sockaddr_storage *services, int count);
int urdma_pool_node_wait(struct urdma_pool_node *node, int timeout_ms);
int urdma_pool_node_destroy(struct urdma_pool_node *node);

#ifdef __cplusplus
}
#endif

#endif
