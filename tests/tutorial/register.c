/* Step 1: list the devices, and register memory with the first one. */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	static char buffer[4096];
	struct ibv_device **devices;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	int count, i;

	devices = ibv_get_device_list(&count);
	if (!devices || !count)
		return fputs("no RDMA device\n", stderr), 1;
	for (i = 0; i < count; i++)
		printf("device %s\n", ibv_get_device_name(devices[i]));
	context = ibv_open_device(devices[0]);
	ibv_free_device_list(devices);
	if (!context)
		return perror("ibv_open_device"), 1;
	pd = ibv_alloc_pd(context);
	if (!pd)
		return perror("ibv_alloc_pd"), 1;
	mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		return perror("ibv_reg_mr"), 1;
	printf("registered %zu octets\n", mr->length);
	ibv_dereg_mr(mr);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return 0;
}
