/* One connection, between a server and a client. */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void check(int failed, const char *call)
{
	if (failed) {
		perror(call);
		exit(1);
	}
}

/* An end with a queue pair, not connected yet. The server has received a request. */
static inline struct rdma_cm_id *endpoint(int is_server, char *address, char *port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *info;
	struct ibv_qp_init_attr attr = { .sq_sig_all = 1 };
	struct rdma_cm_id *id, *listener;

	attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	hints.ai_flags = is_server ? RAI_PASSIVE : 0;
	check(rdma_getaddrinfo(address, port, &hints, &info), "rdma_getaddrinfo");
	check(rdma_create_ep(&id, info, NULL, &attr), "rdma_create_ep");
	rdma_freeaddrinfo(info);
	if (is_server) {
		listener = id;
		check(rdma_listen(listener, 1), "rdma_listen");
		puts("listening");
		fflush(stdout);
		check(rdma_get_request(listener, &id), "rdma_get_request");
	}
	return id;
}

static inline void expect_success(const struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "work request: %s\n", ibv_wc_status_str(wc->status));
		exit(1);
	}
}
