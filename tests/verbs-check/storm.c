/*
 * Connections of rdma_cm that are made and ended until the process is killed. Whatever becomes of
 * one, its end makes the next: the other end may be killed at any moment.
 */
#include "scenarios.h"

#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT_ONCE 4
#define TIMEOUT_MS 60000

static struct sockaddr_in here(const char *port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = htons((uint16_t)atoi(port)),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int equip(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return rdma_create_qp(id, NULL, &attr);
}

/* Waits for the next event, which is acknowledged. */
static enum rdma_cm_event_type next(struct rdma_event_channel *channel, struct rdma_cm_id **id)
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

static void destroy(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id: %s", strerror(errno));
}

void storm_server(const char *port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct sockaddr_in at = here(port);
	struct rdma_cm_id *listener, *id;

	if (!channel || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (struct sockaddr *)&at) || rdma_listen(listener, 0))
		fail("a listener: %s", strerror(errno));
	printf("listening\n");
	fflush(stdout);
	for (;;) {
		switch (next(channel, &id)) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			if (equip(id) || rdma_accept(id, &param))
				destroy(id);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			break;
		default:
			destroy(id);
		}
	}
}

static void begin(struct rdma_event_channel *channel, const char *port)
{
	struct sockaddr_in to = here(port);
	struct rdma_cm_id *id;

	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, TIMEOUT_MS))
		fail("an id: %s", strerror(errno));
}

void storm_client(const char *port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	unsigned long connected = 0;
	struct rdma_cm_id *id;
	int failed;

	if (!channel)
		fail("rdma_create_event_channel: %s", strerror(errno));
	for (int i = 0; i < AT_ONCE; i++)
		begin(channel, port);
	for (;;) {
		switch (next(channel, &id)) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			failed = rdma_resolve_route(id, TIMEOUT_MS);
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			failed = equip(id) || rdma_connect(id, &param);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			if (++connected == AT_ONCE) {
				printf("connecting\n");
				fflush(stdout);
			}
			failed = rdma_disconnect(id);
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			failed = 0;
			break;
		default:
			failed = 1;
		}
		if (failed) {
			destroy(id);
			begin(channel, port);
		}
	}
}
