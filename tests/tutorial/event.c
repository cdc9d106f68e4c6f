/* Step 6: wait for a completion event. The server sleeps until the client sends. */
#include "connection.h"
#include <poll.h>

/* Waits in poll(2) for a completion. */
static void wait_for_completion(struct ibv_cq *cq)
{
	struct pollfd fd = { .fd = cq->channel->fd, .events = POLLIN };
	struct ibv_cq *ready;
	struct ibv_wc wc;
	void *context;
	int count;

	check(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	while (!(count = ibv_poll_cq(cq, 1, &wc))) {
		check(poll(&fd, 1, -1) != 1, "poll");
		check(ibv_get_cq_event(cq->channel, &ready, &context), "ibv_get_cq_event");
		ibv_ack_cq_events(ready, 1);
		check(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	}
	check(count < 0, "ibv_poll_cq");
	expect_success(&wc);
}

int main(int argc, char **argv)
{
	int is_server = argc > 1 && !strcmp(argv[1], "server");
	char text[64] = "";
	struct rdma_cm_id *id;
	struct ibv_mr *mr;

	if (argc != 4)
		return fputs("usage: event server|client ADDRESS PORT\n", stderr), 1;
	id = endpoint(is_server, argv[2], argv[3]);
	check(!(mr = rdma_reg_msgs(id, text, sizeof(text))), "rdma_reg_msgs");
	if (is_server) {
		check(rdma_post_recv(id, NULL, text, sizeof(text), mr), "rdma_post_recv");
		check(rdma_accept(id, NULL), "rdma_accept");
		wait_for_completion(id->recv_cq);
		printf("received: %s\n", text);
	} else {
		check(rdma_connect(id, NULL), "rdma_connect");
		strcpy(text, "wake up");
		check(rdma_post_send(id, NULL, text, sizeof(text), mr, 0), "rdma_post_send");
		wait_for_completion(id->send_cq);
		puts("sent");
	}
	rdma_disconnect(id);
	rdma_destroy_ep(id);
	return 0;
}
