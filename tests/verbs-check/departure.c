/*
 * A server that ends as soon as it has received a client's message: the send succeeds, and the
 * client learns of the end from rdma_cm only. The server is a separate process, restarted for each
 * way to end.
 */
#include "scenarios.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OCTETS 64u
#define TIMEOUT_MS 60000

extern char **environ;

static const char *const ways[] = { "disconnect", "exit", "_exit", "kill" };

/* A connected id with a queue pair, a receive request and memory. */
struct connection {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	uint8_t memory[OCTETS];
};

static struct ibv_qp_init_attr qp_attr(void)
{
	return (struct ibv_qp_init_attr){
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
}

/* Gives an id a queue pair and posts a receive request. */
static void equip(struct connection *c)
{
	struct ibv_qp_init_attr attr = qp_attr();

	if (rdma_create_qp(c->id, NULL, &attr))
		fail("rdma_create_qp: %s", strerror(errno));
	c->mr = rdma_reg_msgs(c->id, c->memory, OCTETS);
	if (!c->mr || rdma_post_recv(c->id, NULL, c->memory, OCTETS, c->mr))
		fail("a receive request: %s", strerror(errno));
}

static struct sockaddr_in here(uint16_t port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = port,
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

void departing_server(const char *way)
{
	struct connection c = { 0 };
	struct rdma_cm_id *listener;
	struct sockaddr_in any = here(0);
	struct ibv_wc wc;
	uint16_t port;

	if (rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (struct sockaddr *)&any) || rdma_listen(listener, 1))
		fail("a listener: %s", strerror(errno));
	port = rdma_get_src_port(listener);
	if (write(STDOUT_FILENO, &port, sizeof(port)) != sizeof(port) ||
	    rdma_get_request(listener, &c.id))
		fail("a request: %s", strerror(errno));
	equip(&c);
	if (rdma_accept(c.id, NULL))
		fail("rdma_accept: %s", strerror(errno));
	while (ibv_poll_cq(c.id->recv_cq, 1, &wc) == 0)
		;
	if (wc.status != IBV_WC_SUCCESS)
		fail("the message was not received: %s", ibv_wc_status_str(wc.status));
	if (!strcmp(way, "disconnect"))
		rdma_disconnect(c.id);
	else if (!strcmp(way, "_exit"))
		_exit(0);
	else if (!strcmp(way, "kill"))
		kill(getpid(), SIGKILL);
	exit(0);
}

/* Starts a server; returns its process id and its port. */
static pid_t start_server(const char *way, uint16_t *port)
{
	char *argv[] = { "verbs-check", "departing-server", (char *)way, NULL };
	posix_spawn_file_actions_t actions;
	int out[2];
	pid_t pid;

	if (pipe(out) || posix_spawn_file_actions_init(&actions) ||
	    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO) ||
	    posix_spawn_file_actions_addclose(&actions, out[0]))
		fail("a pipe: %s", strerror(errno));
	if (posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ))
		fail("the server does not start");
	close(out[1]);
	if (read(out[0], port, sizeof(*port)) != sizeof(*port))
		fail("the server tells no port");
	close(out[0]);
	posix_spawn_file_actions_destroy(&actions);
	return pid;
}

static void expect_no_event(struct ibv_context *context)
{
	struct pollfd events = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	if (!poll(&events, 1, 0))
		return;
	if (ibv_get_async_event(context, &event))
		fail("ibv_get_async_event: %s", strerror(errno));
	fail("event '%s'", ibv_event_type_str(event.event_type));
}

static void check_departure(const char *way, bool signaled)
{
	struct connection c = { 0 };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;
	struct sockaddr_in addr;
	struct ibv_wc wc;
	uint16_t port;
	pid_t pid = start_server(way, &port);

	addr = here(port);
	if (rdma_create_id(NULL, &c.id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(c.id, NULL, (struct sockaddr *)&addr, TIMEOUT_MS) ||
	    rdma_resolve_route(c.id, TIMEOUT_MS))
		fail("the way to the server: %s", strerror(errno));
	equip(&c);
	if (rdma_connect(c.id, NULL) || rdma_migrate_id(c.id, channel))
		fail("rdma_connect: %s", strerror(errno));
	if (rdma_post_send(c.id, NULL, c.memory, OCTETS, c.mr, signaled ? IBV_SEND_SIGNALED : 0))
		fail("a send request: %s", strerror(errno));
	if (poll(&readable, 1, TIMEOUT_MS) != 1 || rdma_get_cm_event(channel, &event))
		fail("%s: no event of rdma_cm", way);
	if (event->event != RDMA_CM_EVENT_DISCONNECTED)
		fail("%s: %s", way, rdma_event_str(event->event));
	rdma_ack_cm_event(event);
	for (int expected = signaled; ibv_poll_cq(c.id->send_cq, 1, &wc); expected--)
		if (!expected || wc.status != IBV_WC_SUCCESS)
			fail("%s: the send ended with '%s'", way, ibv_wc_status_str(wc.status));
	if (ibv_poll_cq(c.id->recv_cq, 1, &wc))
		fail("%s: the receive request ended with '%s'", way, ibv_wc_status_str(wc.status));
	expect_no_event(c.id->verbs);
	end_expect_state(c.id->qp, IBV_QPS_RTS);
	if (rdma_disconnect(c.id))
		fail("rdma_disconnect: %s", strerror(errno));
	if (ibv_poll_cq(c.id->recv_cq, 1, &wc) != 1 || wc.status != IBV_WC_WR_FLUSH_ERR)
		fail("%s: rdma_disconnect did not flush the receive request", way);
	rdma_destroy_qp(c.id);
	if (rdma_dereg_mr(c.mr) || rdma_destroy_id(c.id))
		fail("an object could not be destroyed: %s", strerror(errno));
	rdma_destroy_event_channel(channel);
	if (waitpid(pid, NULL, 0) != pid)
		fail("the server does not end");
}

void check_departures(void)
{
	for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++)
		for (int signaled = 0; signaled < 2; signaled++)
			check_departure(ways[i], signaled);
}
