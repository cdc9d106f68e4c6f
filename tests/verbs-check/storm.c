/*
 * Connections of rdma_cm that are made and ended until the process is killed. Whatever becomes of
 * one, its end makes the next: the other end may be killed at any moment.
 */
#include "connection.h"
#include "scenarios.h"

#include <arpa/inet.h>
#include <errno.h>
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
		switch (connection_next(channel, &id)) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			if (connection_equip(id) || rdma_accept(id, &param))
				connection_destroy(id);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			break;
		default:
			connection_destroy(id);
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
		switch (connection_next(channel, &id)) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			failed = rdma_resolve_route(id, TIMEOUT_MS);
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			failed = connection_equip(id) || rdma_connect(id, &param);
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
			connection_destroy(id);
			begin(channel, port);
		}
	}
}
