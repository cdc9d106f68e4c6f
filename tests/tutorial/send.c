/* Step 3: SEND and RECV. The client sends COUNT messages, and the server answers each. */
#include "connection.h"
#include <sched.h>

/* Polls for a completion; returns its status. */
static enum ibv_wc_status completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;

	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		sched_yield();
	check(count < 0, "ibv_poll_cq");
	return wc.status;
}

int main(int argc, char **argv)
{
	int is_server = argc > 1 && !strcmp(argv[1], "server");
	char in[64] = "", out[64];
	long done = 0, count;
	struct rdma_cm_id *id;
	struct ibv_mr *in_mr, *out_mr;

	if (argc != 5)
		return fputs("usage: send server|client ADDRESS PORT COUNT\n", stderr), 1;
	count = atol(argv[4]);
	strcpy(out, is_server ? "pong" : "ping");
	id = endpoint(is_server, argv[2], argv[3]);
	check(!(in_mr = rdma_reg_msgs(id, in, sizeof(in))), "rdma_reg_msgs");
	check(!(out_mr = rdma_reg_msgs(id, out, sizeof(out))), "rdma_reg_msgs");
	check(rdma_post_recv(id, NULL, in, sizeof(in), in_mr), "rdma_post_recv");
	check(is_server ? rdma_accept(id, NULL) : rdma_connect(id, NULL), "connect");
	while (done < count) {
		if (!is_server)
			check(rdma_post_send(id, NULL, out, 5, out_mr, 0), "rdma_post_send");
		if (completion(id->recv_cq) != IBV_WC_SUCCESS)
			break;
		check(rdma_post_recv(id, NULL, in, sizeof(in), in_mr), "rdma_post_recv");
		if (is_server)
			check(rdma_post_send(id, NULL, out, 5, out_mr, 0), "rdma_post_send");
		if (completion(id->send_cq) != IBV_WC_SUCCESS)
			break;
		done++;
	}
	printf("messages received: %ld, the last one: %s\n", done, in);
	rdma_disconnect(id);
	rdma_destroy_ep(id);
	return 0;
}
