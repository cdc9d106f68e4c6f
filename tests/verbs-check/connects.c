/*
 * Connections one after the other between two processes, each of which sleeps until the next event
 * of its channel: in rdma_get_cm_event, in epoll_wait and in poll. A message wakes the thread that
 * sleeps there, and not the background thread before it.
 */
#include "connection.h"
#include "scenarios.h"
#include "switches.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 300
#define PORT 7391
#define RESOLVE_MS 10000

enum { IN_GET_EVENT, IN_EPOLL, IN_POLL, CALLS };

static struct rdma_event_channel *channel;
static int call, set;

static void sleep_until_readable(void)
{
	struct pollfd list = { channel->fd, POLLIN, 0 };
	struct epoll_event event;

	if (call == IN_EPOLL && epoll_wait(set, &event, 1, -1) != 1)
		fail("epoll_wait: %s", strerror(errno));
	if (call == IN_POLL && poll(&list, 1, -1) != 1)
		fail("poll: %s", strerror(errno));
}

static struct rdma_cm_id *next(enum rdma_cm_event_type *type)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	sleep_until_readable();
	if (rdma_get_cm_event(channel, &event))
		fail("rdma_get_cm_event: %s", strerror(errno));
	if (event->status)
		fail("%s with status %d", rdma_event_str(event->event), event->status);
	*type = event->event;
	id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

/* The id of the next event of this type; the request of the next connection may come before it. */
static struct rdma_cm_id *expect(enum rdma_cm_event_type type)
{
	static struct rdma_cm_id *request;
	enum rdma_cm_event_type found = RDMA_CM_EVENT_CONNECT_REQUEST;
	struct rdma_cm_id *id = request;

	if (id && type == found) {
		request = NULL;
		return id;
	}
	id = next(&found);
	if (found == RDMA_CM_EVENT_CONNECT_REQUEST && type != found) {
		request = id;
		id = next(&found);
	}
	if (found != type)
		fail("%s instead of %s", rdma_event_str(found), rdma_event_str(type));
	return id;
}

static void connect_once(struct sockaddr *address)
{
	struct rdma_conn_param parameters = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *id;

	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(id, NULL, address, RESOLVE_MS))
		fail("rdma_resolve_addr: %s", strerror(errno));
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, RESOLVE_MS))
		fail("rdma_resolve_route: %s", strerror(errno));
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	if (connection_equip(id))
		fail("rdma_create_qp: %s", strerror(errno));
	if (rdma_connect(id, &parameters))
		fail("rdma_connect: %s", strerror(errno));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	expect(RDMA_CM_EVENT_DISCONNECTED);
	if (rdma_disconnect(id))
		fail("rdma_disconnect: %s", strerror(errno));
	connection_destroy(id);
}

static void accept_once(void)
{
	struct rdma_cm_id *id = expect(RDMA_CM_EVENT_CONNECT_REQUEST);

	if (connection_equip(id))
		fail("rdma_create_qp: %s", strerror(errno));
	if (rdma_accept(id, NULL))
		fail("rdma_accept: %s", strerror(errno));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	if (rdma_disconnect(id))
		fail("rdma_disconnect: %s", strerror(errno));
	expect(RDMA_CM_EVENT_DISCONNECTED);
	connection_destroy(id);
}

static void open_channel(void)
{
	struct epoll_event event = { .events = EPOLLIN };

	channel = rdma_create_event_channel();
	set = epoll_create1(0);
	if (!channel || epoll_ctl(set, EPOLL_CTL_ADD, channel->fd, &event))
		fail("an event channel: %s", strerror(errno));
}

/* Each round once more without a count: the first ones open the device and the channel. */
static void repeat(void (*round)(struct sockaddr *), struct sockaddr *address)
{
	struct switches since;

	for (call = 0; call < CALLS; call++) {
		for (int i = 0; i < 10; i++)
			round(address);
		since = begin_count();
		for (int i = 0; i < ROUNDS; i++)
			round(address);
		expect_few_wake_ups(since, ROUNDS);
	}
}

static void accept_round(struct sockaddr *address)
{
	(void)address;
	accept_once();
}

void check_connects(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int ready[2], status;
	struct rdma_cm_id *listener;
	pid_t client;
	char octet;

	inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
	if (pipe(ready))
		fail("pipe: %s", strerror(errno));
	client = fork();
	if (!client) {
		close(ready[1]);
		if (read(ready[0], &octet, 1) != 1)
			fail("the server has ended");
		open_channel();
		repeat(connect_once, (struct sockaddr *)&address);
		_exit(0);
	}
	open_channel();
	if (rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (struct sockaddr *)&address) || rdma_listen(listener, 4))
		fail("a listener: %s", strerror(errno));
	if (write(ready[1], "", 1) != 1)
		fail("write: %s", strerror(errno));
	repeat(accept_round, NULL);
	if (waitpid(client, &status, 0) != client || status)
		fail("the client: status %d", status);
}
