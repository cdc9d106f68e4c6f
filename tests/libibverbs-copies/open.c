/*
 * Opens the device through several copies of libibverbs in one process, in the order given: open
 * [--unload] COPY... With --unload each copy is loaded with RTLD_GLOBAL and unloaded after its use.
 *
 * Prints "COPY: urdma0 works" for a copy whose device can be used, "COPY: no device" for one that
 * finds none.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

static void *find(void *library, const char *name)
{
	void *symbol = dlsym(library, name);

	if (!symbol) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	return symbol;
}

/* A function of one copy, with the type that the header declares. */
#define FUNCTION(library, name) ((__typeof__(&name))find(library, #name))

static void require(int holds, const char *copy, const char *what)
{
	if (!holds) {
		fprintf(stderr, "%s: %s failed\n", copy, what);
		exit(1);
	}
}

static void use(void *library, const char *copy, struct ibv_device *device)
{
	struct ibv_context *context = FUNCTION(library, ibv_open_device)(device);
	require(context != NULL, copy, "ibv_open_device");
	struct ibv_pd *pd = FUNCTION(library, ibv_alloc_pd)(context);
	require(pd != NULL, copy, "ibv_alloc_pd");
	struct ibv_cq *cq = FUNCTION(library, ibv_create_cq)(context, 4, NULL, NULL, 0);
	require(cq != NULL, copy, "ibv_create_cq");
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .pd = pd, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *qp = verbs_get_ctx(context)->create_qp_ex(context, &attr);
	require(qp != NULL, copy, "ibv_create_qp_ex");
	require(FUNCTION(library, ibv_qp_to_qp_ex)(qp) != NULL, copy, "ibv_qp_to_qp_ex");
	require(FUNCTION(library, ibv_destroy_qp)(qp) == 0, copy, "ibv_destroy_qp");
	require(FUNCTION(library, ibv_destroy_cq)(cq) == 0, copy, "ibv_destroy_cq");
	require(FUNCTION(library, ibv_dealloc_pd)(pd) == 0, copy, "ibv_dealloc_pd");
	require(FUNCTION(library, ibv_close_device)(context) == 0, copy, "ibv_close_device");
	printf("%s: %s works\n", copy, device->name);
}

int main(int argc, char **argv)
{
	int unload = argc > 1 && !strcmp(argv[1], "--unload");
	/* As Python loads the libraries of a wheel: no copy sees the names of another. */
	int scope = unload ? RTLD_GLOBAL : RTLD_LOCAL;

	for (int i = 1 + unload; i < argc; i++) {
		void *library = dlopen(argv[i], RTLD_NOW | scope);
		int count = 0;

		if (!library) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		struct ibv_device **devices = FUNCTION(library, ibv_get_device_list)(&count);
		if (count)
			use(library, argv[i], devices[0]);
		else
			printf("%s: no device\n", argv[i]);
		if (devices)
			FUNCTION(library, ibv_free_device_list)(devices);
		if (unload)
			dlclose(library);
	}
	return 0;
}
