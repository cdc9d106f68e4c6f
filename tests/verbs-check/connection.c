#include "connection.h"
#include "end.h"

#include <errno.h>
#include <string.h>

int connection_equip(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return rdma_create_qp(id, NULL, &attr);
}

enum rdma_cm_event_type connection_next(struct rdma_event_channel *channel, struct rdma_cm_id **id)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type type;

	if (rdma_get_cm_event(channel, &event))
		fail("rdma_get_cm_event: %s", strerror(errno));
	type = event->event;
	*id = event->id;
	rdma_ack_cm_event(event);
	return type;
}

void connection_destroy(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id: %s", strerror(errno));
}
