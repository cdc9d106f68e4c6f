/*
 * rdma_cm in a process that connects to itself, with all of its ids on one channel that it polls.
 */
#include "scenarios.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#define RESOLVE_MS 10000
#define ENDING 16
#define LISTENERS 8
#define CLIENTS 3
/* `IB_CM_REJ_CONSUMER_DEFINED` */
#define REJECTED_BY_CONSUMER 28

/* An event, read and acknowledged; a request's `id` is its listener. */
struct seen {
	struct rdma_cm_id *id, *requested;
	enum rdma_cm_event_type type;
	int status;
	uint8_t len, data[256];
};

static struct rdma_event_channel *channel;
static struct seen seen[256];
static size_t seen_count;

static struct rdma_event_channel *polled_channel(void)
{
	struct rdma_event_channel *made = rdma_create_event_channel();
	struct rdma_cm_event *none;

	if (!made || fcntl(made->fd, F_SETFL, O_NONBLOCK))
		fail("an event channel: %s", strerror(errno));
	if (!rdma_get_cm_event(made, &none) || errno != EAGAIN)
		fail("an empty channel that does not block: %s", strerror(errno));
	return made;
}

static void read_event(void)
{
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	struct seen *next = &seen[seen_count];

	if (poll(&readable, 1, 1000) <= 0)
		return;
	if (rdma_get_cm_event(channel, &event))
		fail("a readable channel: %s", strerror(errno));
	if (seen_count == sizeof(seen) / sizeof(*seen))
		fail("too many events");
	*next = (struct seen){
		.id = event->listen_id ? event->listen_id : event->id,
		.requested = event->id,
		.type = event->event,
		.status = event->status,
		.len = event->param.conn.private_data_len,
	};
	if (next->len)
		memcpy(next->data, event->param.conn.private_data, next->len);
	seen_count++;
	rdma_ack_cm_event(event);
}

/* The next event of an id, which must be of this type. */
static struct seen expect(struct rdma_cm_id *id, enum rdma_cm_event_type type)
{
	double deadline = end_deadline();

	for (;;) {
		for (size_t i = 0; i < seen_count; i++) {
			struct seen found = seen[i];

			if (found.id != id)
				continue;
			memmove(&seen[i], &seen[i + 1], (--seen_count - i) * sizeof(*seen));
			if (found.type != type)
				fail("%s, status %d, instead of %s", rdma_event_str(found.type),
				     found.status, rdma_event_str(type));
			return found;
		}
		read_event();
		end_check_deadline(deadline);
	}
}

static struct sockaddr_in here(uint16_t port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = htons(port),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static struct rdma_cm_id *new_id(void)
{
	struct rdma_cm_id *id;

	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		fail("an id: %s", strerror(errno));
	return id;
}

static struct rdma_cm_id *listener(int backlog)
{
	struct rdma_cm_id *id = new_id();
	struct sockaddr_in any_port = here(0);

	if (rdma_bind_addr(id, (struct sockaddr *)&any_port) || !rdma_get_src_port(id) ||
	    rdma_listen(id, backlog))
		fail("a listener: %s", strerror(errno));
	return id;
}

static void add_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	if (rdma_create_qp(id, NULL, &attr))
		fail("a queue pair of an id: %s", strerror(errno));
}

/* An id without a queue pair that could connect to a listener at a port. */
static struct rdma_cm_id *route_to(uint16_t port)
{
	struct rdma_cm_id *id = new_id();
	struct sockaddr_in addr = here(port);

	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, RESOLVE_MS))
		fail("rdma_resolve_addr: %s", strerror(errno));
	expect(id, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, RESOLVE_MS))
		fail("rdma_resolve_route: %s", strerror(errno));
	expect(id, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

/* An id that could connect to a listener at a port. */
static struct rdma_cm_id *client_at(uint16_t port)
{
	struct rdma_cm_id *id = route_to(port);

	add_qp(id);
	return id;
}

/* An id that could connect to a listener. */
static struct rdma_cm_id *client_of(struct rdma_cm_id *to)
{
	return client_at(ntohs(rdma_get_src_port(to)));
}

static struct rdma_conn_param with_data(const uint8_t *data, uint8_t len)
{
	return (struct rdma_conn_param){ .private_data = data,
					 .private_data_len = len,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };
}

static void ask(struct rdma_cm_id *id, const uint8_t *data, uint8_t len)
{
	struct rdma_conn_param param = with_data(data, len);

	if (rdma_connect(id, &param))
		fail("rdma_connect: %s", strerror(errno));
}

/* Accepts a pending request of a listener, and waits until the client is connected. */
static struct rdma_cm_id *grant(const struct seen *request, const uint8_t *data, uint8_t len)
{
	struct rdma_conn_param param = with_data(data, len);

	add_qp(request->requested);
	if (rdma_accept(request->requested, &param))
		fail("rdma_accept: %s", strerror(errno));
	expect(request->requested, RDMA_CM_EVENT_ESTABLISHED);
	return request->requested;
}

static void expect_data(const struct seen *event, const uint8_t *data, uint8_t len)
{
	if (event->len < len || memcmp(event->data, data, len))
		fail("%s came with other private data than %u octets", rdma_event_str(event->type),
		     len);
}

static void drop(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id: %s", strerror(errno));
}

/* Both ends disconnect before either has the other's DREQ. */
static void end_both(struct rdma_cm_id *a, struct rdma_cm_id *b)
{
	if (rdma_disconnect(a) || rdma_disconnect(b))
		fail("rdma_disconnect: %s", strerror(errno));
	expect(a, RDMA_CM_EVENT_DISCONNECTED);
	expect(b, RDMA_CM_EVENT_DISCONNECTED);
	drop(a);
	drop(b);
}

/* Private data of every message, up to InfiniBand's maximum for each: 56, 196 and 148 octets. */
static void check_private_data(void)
{
	static const uint8_t lengths[][3] = { { 0, 0, 0 }, { 1, 1, 1 }, { 56, 196, 148 } };
	struct rdma_cm_id *server = listener(0);
	uint8_t data[256];

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7 + 3);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		struct rdma_cm_id *client = client_of(server), *accepted;
		struct seen event;

		ask(client, data, lengths[i][0]);
		event = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
		expect_data(&event, data, lengths[i][0]);
		accepted = grant(&event, data, lengths[i][1]);
		event = expect(client, RDMA_CM_EVENT_ESTABLISHED);
		expect_data(&event, data, lengths[i][1]);
		end_both(client, accepted);

		client = client_of(server);
		ask(client, data, lengths[i][0]);
		event = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
		if (rdma_reject(event.requested, data, lengths[i][2]))
			fail("rdma_reject: %s", strerror(errno));
		drop(event.requested);
		event = expect(client, RDMA_CM_EVENT_REJECTED);
		if (event.status != REJECTED_BY_CONSUMER)
			fail("rejected for reason %d", event.status);
		expect_data(&event, data, lengths[i][2]);
		drop(client);
	}
	drop(server);
}

/* Each request arrives at its listener, and more requests than the backlog wait for their turn. */
static void check_listeners(void)
{
	struct rdma_cm_id *servers[LISTENERS], *clients[LISTENERS], *waiting[CLIENTS];

	for (size_t i = 0; i < LISTENERS; i++)
		servers[i] = listener(1);
	for (size_t i = 0; i < LISTENERS; i++) {
		clients[i] = client_of(servers[i]);
		ask(clients[i], NULL, 0);
	}
	for (size_t i = LISTENERS; i-- > 0;) {
		struct seen request = expect(servers[i], RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_cm_id *accepted = grant(&request, NULL, 0);

		expect(clients[i], RDMA_CM_EVENT_ESTABLISHED);
		end_both(clients[i], accepted);
	}
	for (size_t i = 0; i < CLIENTS; i++)
		waiting[i] = client_of(servers[0]);
	for (size_t i = 0; i < CLIENTS; i++)
		ask(waiting[i], NULL, 0);
	for (size_t i = 0; i < CLIENTS; i++) {
		struct seen request = expect(servers[0], RDMA_CM_EVENT_CONNECT_REQUEST);

		grant(&request, NULL, 0);
		drop(request.requested);
	}
	for (size_t i = 0; i < CLIENTS; i++) {
		expect(waiting[i], RDMA_CM_EVENT_ESTABLISHED);
		expect(waiting[i], RDMA_CM_EVENT_DISCONNECTED);
		drop(waiting[i]);
	}
	for (size_t i = 0; i < LISTENERS; i++)
		drop(servers[i]);
}

/* An id takes its events along when it migrates to another channel. */
static void check_migration(void)
{
	struct rdma_event_channel *first = channel, *second = polled_channel();
	struct rdma_cm_id *server = listener(0), *client = client_of(server), *accepted;
	struct seen request;

	if (rdma_migrate_id(client, second))
		fail("rdma_migrate_id: %s", strerror(errno));
	ask(client, NULL, 0);
	request = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	add_qp(request.requested);
	if (rdma_accept(request.requested, NULL))
		fail("rdma_accept: %s", strerror(errno));
	channel = second;
	expect(client, RDMA_CM_EVENT_ESTABLISHED);
	channel = first;
	accepted = request.requested;
	expect(accepted, RDMA_CM_EVENT_ESTABLISHED);
	if (rdma_migrate_id(client, first))
		fail("rdma_migrate_id back: %s", strerror(errno));
	end_both(client, accepted);
	drop(server);
	rdma_destroy_event_channel(second);
}

/* A datagram queue pair in RESET, which an application names where it connects others itself. */
static struct ibv_qp *placeholder(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_UD,
					 .send_cq = cq,
					 .recv_cq = cq,
					 .cap = { .max_send_wr = 1, .max_send_sge = 1 } };
	struct ibv_qp *qp = cq ? ibv_create_qp(id->pd, &attr) : NULL;

	if (!qp)
		fail("a datagram queue pair: %s", strerror(errno));
	return qp;
}

static void drop_placeholder(struct ibv_qp *qp)
{
	struct ibv_cq *cq = qp->send_cq;

	if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq))
		fail("a datagram queue pair is not destroyed");
}

/* The handshake does not wait for a queue pair that is no connection's. */
static void check_placeholders(void)
{
	struct rdma_cm_id *server = listener(0), *accepted;
	struct rdma_cm_id *client = route_to(ntohs(rdma_get_src_port(server)));
	struct ibv_qp *asking = placeholder(client), *answering;
	struct rdma_conn_param param = with_data(NULL, 0);
	struct seen request;

	param.qp_num = asking->qp_num;
	if (rdma_connect(client, &param))
		fail("rdma_connect with a placeholder: %s", strerror(errno));
	request = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	accepted = request.requested;
	answering = placeholder(accepted);
	param.qp_num = answering->qp_num;
	if (rdma_accept(accepted, &param))
		fail("rdma_accept with a placeholder: %s", strerror(errno));
	expect(client, RDMA_CM_EVENT_CONNECT_RESPONSE);
	if (rdma_establish(client))
		fail("rdma_establish: %s", strerror(errno));
	expect(accepted, RDMA_CM_EVENT_ESTABLISHED);
	drop_placeholder(asking);
	drop_placeholder(answering);
	end_both(client, accepted);
	drop(server);
}

/* Nothing listens any longer where something did. */
static void check_refusal(void)
{
	struct rdma_cm_id *server = listener(0), *client = client_of(server);

	drop(server);
	ask(client, NULL, 0);
	expect(client, RDMA_CM_EVENT_REJECTED);
	drop(client);
}

/* A server in a process of its own that rejects a request as soon as it may begin, and ends. */
static void reject_and_end(int begin, int port_to)
{
	struct rdma_cm_id *server;
	struct seen request;
	uint16_t port;

	if (read(begin, &port, 1) != 1)
		_exit(1);
	channel = polled_channel();
	server = listener(0);
	port = ntohs(rdma_get_src_port(server));
	if (write(port_to, &port, sizeof(port)) != sizeof(port))
		_exit(1);
	request = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	if (rdma_reject(request.requested, "no", 2))
		_exit(1);
	_exit(0);
}

/* What a process has sent before it ended arrives before its end. */
void check_last_words(void)
{
	int begin[ENDING][2], ports[2];

	if (pipe(ports))
		fail("a pipe: %s", strerror(errno));
	/* Before this process uses verbs. */
	for (size_t i = 0; i < ENDING; i++) {
		if (pipe(begin[i]))
			fail("a pipe: %s", strerror(errno));
		pid_t child = fork();

		if (child < 0)
			fail("fork: %s", strerror(errno));
		if (!child)
			reject_and_end(begin[i][0], ports[1]);
	}
	channel = polled_channel();
	for (size_t i = 0; i < ENDING; i++) {
		struct rdma_cm_id *client;
		struct seen event;
		uint16_t port;
		int status;

		if (write(begin[i][1], "b", 1) != 1 ||
		    read(ports[0], &port, sizeof(port)) != sizeof(port))
			fail("a server: %s", strerror(errno));
		client = client_at(port);
		ask(client, NULL, 0);
		event = expect(client, RDMA_CM_EVENT_REJECTED);
		if (event.status != REJECTED_BY_CONSUMER)
			fail("rejected for reason %d", event.status);
		expect_data(&event, (const uint8_t *)"no", 2);
		drop(client);
		if (wait(&status) < 0 || status)
			fail("a server ended with %d", status);
	}
	rdma_destroy_event_channel(channel);
}

/* What poll(2) and an epoll set report of the channel, which is in that set. */
static void expect_readiness(int set, short wanted)
{
	struct pollfd list = { .fd = channel->fd, .events = POLLIN | POLLOUT };
	struct epoll_event event = { .events = 0 };

	if (poll(&list, 1, 0) < 0 || list.revents != wanted)
		fail("poll reports %#x of an event channel", list.revents);
	if (epoll_wait(set, &event, 1, 0) < 0 || event.events != (uint32_t)wanted)
		fail("epoll_wait reports %#x of an event channel", event.events);
}

/* A channel is readable while it has an event, never writable, and cannot be read. */
static void check_readiness(void)
{
	struct epoll_event interest = { .events = EPOLLIN | EPOLLOUT | EPOLLEXCLUSIVE };
	struct rdma_cm_id *id = new_id();
	struct sockaddr_in to = here(1);
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	char octets[8];

	if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, channel->fd, &interest))
		fail("an epoll set with an event channel: %s", strerror(errno));
	for (int i = 0; i < 2; i++) {
		expect_readiness(set, 0);
		if (i ? rdma_resolve_route(id, RESOLVE_MS)
		      : rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, RESOLVE_MS))
			fail("an event: %s", strerror(errno));
		if (poll(&readable, 1, RESOLVE_MS) != 1)
			fail("no event");
		expect_readiness(set, POLLIN);
		if (read(channel->fd, octets, sizeof(octets)) >= 0 || errno != EINVAL)
			fail("a read of an event channel: %s", strerror(errno));
		expect(id, i ? RDMA_CM_EVENT_ROUTE_RESOLVED : RDMA_CM_EVENT_ADDR_RESOLVED);
	}
	expect_readiness(set, 0);
	drop(id);
	close(set);
}

void check_cm(void)
{
	channel = polled_channel();
	check_readiness();
	check_private_data();
	check_listeners();
	check_migration();
	check_placeholders();
	check_refusal();
	rdma_destroy_event_channel(channel);
}
