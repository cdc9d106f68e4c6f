/* Step 5: RDMA READ of the memory of the server, whose program takes no part in it. */
#include "connection.h"

/* What the client must know about the memory of the server. */
struct memory {
	uint64_t address;
	uint32_t rkey;
};

int main(int argc, char **argv)
{
	int is_server = argc > 1 && !strcmp(argv[1], "server");
	struct rdma_conn_param param = { .responder_resources = 1, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;
	char text[64] = "";
	struct memory memory;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	if (argc != 4)
		return fputs("usage: read server|client ADDRESS PORT\n", stderr), 1;
	id = endpoint(is_server, argv[2], argv[3]);
	check(!(mr = rdma_reg_read(id, text, sizeof(text))), "rdma_reg_read");
	if (is_server) {
		strcpy(text, "no send was needed");
		memory = (struct memory){ (uintptr_t)text, mr->rkey };
		param.private_data = &memory;
		param.private_data_len = sizeof(memory);
		check(rdma_accept(id, &param), "rdma_accept");
		check(rdma_get_cm_event(id->channel, &event), "rdma_get_cm_event");
		puts(rdma_event_str(event->event));
		rdma_ack_cm_event(event);
	} else {
		check(rdma_connect(id, NULL), "rdma_connect");
		memcpy(&memory, id->event->param.conn.private_data, sizeof(memory));
		check(rdma_post_read(id, NULL, text, sizeof(text), mr, 0, memory.address,
				     memory.rkey), "rdma_post_read");
		check(rdma_get_send_comp(id, &wc) != 1, "rdma_get_send_comp");
		expect_success(&wc);
		printf("read: %s\n", text);
		rdma_disconnect(id);
	}
	rdma_destroy_ep(id);
	return 0;
}
