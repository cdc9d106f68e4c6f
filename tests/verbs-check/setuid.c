/* A program that opens the device as root and then becomes another user, as daemons do. */
#include "loopback.h"
#include "scenarios.h"

#include <errno.h>
#include <grp.h>
#include <rdma/rdma_cma.h>
#include <string.h>
#include <unistd.h>

/* Debian's user `nobody`, which is in no group of an instance. */
#define NOBODY 65534

static void become_nobody(void)
{
	if (setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY))
		fail("cannot become another user: %s", strerror(errno));
	if (!setuid(0))
		fail("root is not given up");
}

/* The attributes that libibverbs reads from files in each call. */
static void look_at(struct ibv_context *context)
{
	union ibv_gid gid;
	struct ibv_gid_entry entry;
	uint16_t pkey;

	for (int index = 0; index < 2; index++) {
		if (ibv_query_gid(context, 1, index, &gid))
			fail("GID %d: %s", index, strerror(errno));
		if (ibv_query_gid_ex(context, 1, (uint32_t)index, &entry, 0))
			fail("entry of GID %d: %s", index, strerror(errno));
	}
	if (ibv_query_pkey(context, 1, 0, &pkey))
		fail("P_Key: %s", strerror(errno));
}

static void open_again(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	if (!devices || !devices[0])
		fail("the device is gone");
	struct ibv_context *context = ibv_open_device(devices[0]);

	if (!context)
		fail("cannot open the device a second time: %s", strerror(errno));
	look_at(context);
	ibv_close_device(context);
	ibv_free_device_list(devices);
}

void check_setuid(void)
{
	struct end e;

	end_open(&e, IBV_ACCESS_LOCAL_WRITE);
	become_nobody();
	look_at(e.context);
	open_again();

	struct ibv_qp *a = loopback_qp(&e, IBV_QPT_RC, NULL);
	struct ibv_qp *b = loopback_qp(&e, IBV_QPT_RC, NULL);

	loopback_connect(&e, a, b);
	loopback_receive(&e, b);
	loopback_exchange(&e, a);
	loopback_destroy(a, b);

	/* librdmacm reads the device's GUID and its own ABI. */
	struct rdma_event_channel *channel = rdma_create_event_channel();

	if (!channel)
		fail("rdma_create_event_channel: %s", strerror(errno));
	rdma_destroy_event_channel(channel);
}
