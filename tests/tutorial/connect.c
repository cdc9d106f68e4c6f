/* Step 2: connect. */
#include "connection.h"

int main(int argc, char **argv)
{
	int is_server = argc > 1 && !strcmp(argv[1], "server");
	struct rdma_cm_id *id;

	if (argc != 4)
		return fputs("usage: connect server|client ADDRESS PORT\n", stderr), 1;
	id = endpoint(is_server, argv[2], argv[3]);
	check(is_server ? rdma_accept(id, NULL) : rdma_connect(id, NULL), "connect");
	printf("connected by %s\n", ibv_get_device_name(id->verbs->device));
	rdma_disconnect(id);
	rdma_destroy_ep(id);
	return 0;
}
