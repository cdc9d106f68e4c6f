/* Step 4: RDMA WRITE into the memory of the server, and a SEND that says so. */
#include "connection.h"

/* What the client must know about the memory of the server. */
struct memory {
	uint64_t address;
	uint32_t rkey;
};

int main(int argc, char **argv)
{
	int is_server = argc > 1 && !strcmp(argv[1], "server");
	struct rdma_conn_param param = { .rnr_retry_count = 7 };
	char text[64] = "";
	struct memory memory;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	if (argc != 4)
		return fputs("usage: write server|client ADDRESS PORT\n", stderr), 1;
	id = endpoint(is_server, argv[2], argv[3]);
	check(!(mr = rdma_reg_write(id, text, sizeof(text))), "rdma_reg_write");
	if (is_server) {
		memory = (struct memory){ (uintptr_t)text, mr->rkey };
		param.private_data = &memory;
		param.private_data_len = sizeof(memory);
		check(rdma_post_recvv(id, NULL, NULL, 0), "rdma_post_recvv");
		check(rdma_accept(id, &param), "rdma_accept");
		check(rdma_get_recv_comp(id, &wc) != 1, "rdma_get_recv_comp");
		expect_success(&wc);
		printf("written: %s\n", text);
	} else {
		strcpy(text, "no recv was needed");
		check(rdma_connect(id, NULL), "rdma_connect");
		memcpy(&memory, id->event->param.conn.private_data, sizeof(memory));
		check(rdma_post_write(id, NULL, text, sizeof(text), mr, 0, memory.address,
				      memory.rkey), "rdma_post_write");
		check(rdma_get_send_comp(id, &wc) != 1, "rdma_get_send_comp");
		expect_success(&wc);
		puts("the WRITE is complete");
		check(rdma_post_sendv(id, NULL, NULL, 0, 0), "rdma_post_sendv");
		check(rdma_get_send_comp(id, &wc) != 1, "rdma_get_send_comp");
		expect_success(&wc);
	}
	rdma_disconnect(id);
	rdma_destroy_ep(id);
	return 0;
}
