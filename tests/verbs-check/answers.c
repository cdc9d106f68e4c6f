/*
 * Connections over a link that loses, duplicates and reorders messages: each request is answered
 * in the time that doc/connections.md states, and both ends keep nothing of any.
 */
#include "connection.h"
#include "scenarios.h"
#include "switches.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define AT_ONCE 64
#define BACKLOG 256
#define RESOLVE_MS 10000
/*
 * A request without answer is UNREACHABLE after 4,750 ms. The processes may wait for processors as
 * long again.
 */
#define ANSWER_MS 9500
/* How long the server waits for the ends of connections that its client has left. */
#define LEFT_MS 60000

static struct rdma_event_channel *channel;

static void open_channel(void)
{
	channel = rdma_create_event_channel();
	if (!channel)
		fail("rdma_create_event_channel: %s", strerror(errno));
}

/* The IPv4 address that a GID has. */
static struct sockaddr_in address_of(const union ibv_gid *gid, uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = port };

	memcpy(&address.sin_addr, gid->raw + 12, sizeof(address.sin_addr));
	return address;
}

static void send_port(struct end *e, uint16_t port)
{
	if (send(e->socket, &port, sizeof(port), MSG_NOSIGNAL) != sizeof(port))
		fail("the client is gone");
}

static uint16_t receive_port(struct end *e)
{
	uint16_t port;

	if (recv(e->socket, &port, sizeof(port), MSG_WAITALL) != sizeof(port))
		fail("the server is gone");
	return port;
}

/* How many identifiers the server has. */
static long accepted;

static void serve(struct rdma_cm_id *id, enum rdma_cm_event_type type)
{
	switch (type) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		accepted++;
		if (connection_equip(id) || rdma_accept(id, NULL))
			fail("rdma_accept: %s", strerror(errno));
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		break;
	default:
		connection_destroy(id);
		accepted--;
	}
}

void answers_server(struct end *e)
{
	struct sockaddr_in any;
	struct rdma_cm_id *listener, *id;
	bool is_alone = false;
	union ibv_gid gid;

	open_channel();
	if (ibv_query_gid(e->context, 1, 1, &gid))
		fail("ibv_query_gid: %s", strerror(errno));
	any = address_of(&gid, 0);
	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (struct sockaddr *)&any) || rdma_listen(listener, BACKLOG))
		fail("a listener: %s", strerror(errno));
	send_port(e, rdma_get_src_port(listener));
	while (!is_alone || accepted) {
		struct pollfd files[] = { { channel->fd, POLLIN, 0 },
					  { is_alone ? -1 : e->socket, POLLIN, 0 } };
		int ready = poll(files, 2, is_alone ? LEFT_MS : -1);

		if (ready < 0)
			fail("poll: %s", strerror(errno));
		if (!ready)
			fail("%ld connections have not ended", accepted);
		if (files[1].revents) {
			end_await_peer(e);
			is_alone = true;
		}
		if (files[0].revents) {
			enum rdma_cm_event_type type = connection_next(channel, &id);

			serve(id, type);
		}
	}
	if (rdma_destroy_id(listener))
		fail("rdma_destroy_id: %s", strerror(errno));
}

/* One of the client's connections. */
struct request {
	struct rdma_cm_id *id;
	long asked_ms;
	bool is_answered;
};

static struct request requests[AT_ONCE];

static void begin(struct request *request, struct sockaddr_in *to)
{
	request->is_answered = false;
	if (rdma_create_id(channel, &request->id, request, RDMA_PS_TCP) ||
	    rdma_resolve_addr(request->id, NULL, (struct sockaddr *)to, RESOLVE_MS))
		fail("rdma_resolve_addr: %s", strerror(errno));
}

static void note_answer(struct request *request, enum rdma_cm_event_type type)
{
	long took_ms = now_ms() - request->asked_ms;

	if (!request->is_answered && took_ms > ANSWER_MS)
		fail("%s after %ld ms", rdma_event_str(type), took_ms);
	request->is_answered = true;
}

/* What follows from an event; whether the connection has ended. */
static bool advance(struct request *request, enum rdma_cm_event_type type, uint32_t *established)
{
	struct rdma_conn_param parameters = { .retry_count = 7, .rnr_retry_count = 7 };

	switch (type) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		if (rdma_resolve_route(request->id, RESOLVE_MS))
			fail("rdma_resolve_route: %s", strerror(errno));
		return false;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		request->asked_ms = now_ms();
		if (connection_equip(request->id) || rdma_connect(request->id, &parameters))
			fail("rdma_connect: %s", strerror(errno));
		return false;
	case RDMA_CM_EVENT_ESTABLISHED:
		note_answer(request, type);
		(*established)++;
		if (rdma_disconnect(request->id))
			fail("rdma_disconnect: %s", strerror(errno));
		return false;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		return false;
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_UNREACHABLE:
		note_answer(request, type);
		return true;
	default:
		fail("%s", rdma_event_str(type));
	}
}

void answers_client(struct end *e)
{
	struct sockaddr_in to = address_of(&e->peer.gid, receive_port(e));
	uint32_t begun = 0, ended = 0, established = 0;
	struct rdma_cm_id *id;

	open_channel();
	for (; begun < AT_ONCE && begun < e->operations; begun++)
		begin(&requests[begun], &to);
	while (ended < e->operations) {
		struct pollfd file = { channel->fd, POLLIN, 0 };
		enum rdma_cm_event_type type;
		struct request *request;

		if (poll(&file, 1, 2 * ANSWER_MS) != 1)
			fail("%u of %u connections have ended, and no other does", ended, begun);
		type = connection_next(channel, &id);
		request = id->context;
		if (!advance(request, type, &established))
			continue;
		connection_destroy(id);
		ended++;
		if (begun < e->operations) {
			begin(request, &to);
			begun++;
		}
	}
	end_say(e);
	/* Seven transmissions in a row are lost once in a hundred thousand times. */
	if (established < e->operations - e->operations / 100)
		fail("%u of %u connections were established", established, e->operations);
}
