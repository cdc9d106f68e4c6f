/*
 * Clients that follow one another in one slot: each is a separate process, which exchanges a
 * message with the server and ends at once. The server's late notice of the end of one must not
 * affect the next. For an instance with room for two processes.
 */
#define _GNU_SOURCE
#include "scenarios.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OCTETS 64u
#define TIMEOUT_MS 60000
#define CLIENTS 60
/*
 * Attempts of a client to get a slot, that of the previous client, and the interval between them.
 */
#define TRIES 10000
#define PAUSE_US 1000

extern char **environ;

/* A connected id with a queue pair, a receive request and memory. */
struct connection {
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	uint8_t memory[OCTETS];
};

static void equip(struct connection *c)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	if (rdma_create_qp(c->id, NULL, &attr))
		fail("rdma_create_qp: %s", strerror(errno));
	c->mr = rdma_reg_msgs(c->id, c->memory, OCTETS);
	if (!c->mr || rdma_post_recv(c->id, NULL, c->memory, OCTETS, c->mr))
		fail("a receive request: %s", strerror(errno));
}

static void await(struct ibv_cq *cq, const char *what)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(cq, 1, &wc) == 0)
		;
	if (wc.status != IBV_WC_SUCCESS)
		fail("%s: %s", what, ibv_wc_status_str(wc.status));
}

static void send_one(struct connection *c, const char *what)
{
	if (rdma_post_send(c->id, NULL, c->memory, OCTETS, c->mr, IBV_SEND_SIGNALED))
		fail("%s: %s", what, strerror(errno));
	await(c->id->send_cq, what);
}

void successor(const char *port)
{
	struct sockaddr_in server = { .sin_family = AF_INET,
				      .sin_port = htons((uint16_t)atoi(port)),
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct connection c = { 0 };
	int tries = 0;

	while (rdma_create_id(NULL, &c.id, NULL, RDMA_PS_TCP)) {
		if (++tries == TRIES)
			fail("rdma_create_id: %s", strerror(errno));
		usleep(PAUSE_US);
	}
	if (rdma_resolve_addr(c.id, NULL, (struct sockaddr *)&server, TIMEOUT_MS) ||
	    rdma_resolve_route(c.id, TIMEOUT_MS))
		fail("the way to the server: %s", strerror(errno));
	equip(&c);
	if (rdma_connect(c.id, NULL))
		fail("rdma_connect: %s", strerror(errno));
	send_one(&c, "the client's message");
	await(c.id->recv_cq, "the server's message");
	_exit(0);
}

static pid_t start_client(uint16_t port)
{
	char number[8], *argv[] = { "verbs-check", "successor", number, NULL };
	pid_t pid;

	snprintf(number, sizeof(number), "%u", port);
	if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ))
		fail("the client does not start");
	return pid;
}

static void end(struct connection *c)
{
	if (!c->id)
		return;
	rdma_destroy_qp(c->id);
	if (rdma_dereg_mr(c->mr) || rdma_destroy_id(c->id))
		fail("an object could not be destroyed: %s", strerror(errno));
}

/* Whether this process has a thread of this name. */
static bool is_called(const char *thread, const char *name)
{
	char path[300], line[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%s/comm", thread);
	file = fopen(path, "r");
	if (!file)
		return false;
	if (!fgets(line, sizeof(line), file))
		line[0] = 0;
	fclose(file);
	line[strcspn(line, "\n")] = 0;
	return !strcmp(line, name);
}

/*
 * Delays the thread that learns of the ends of other processes: it gets a processor only when no
 * other thread wants one.
 */
static void hear_late(void)
{
	struct sched_param none = { 0 };
	double deadline = end_deadline();
	int found = 0;

	/* A thread sets its name some time after it has begun. */
	while (!found) {
		DIR *threads = opendir("/proc/self/task");
		struct dirent *thread;

		while (threads && (thread = readdir(threads)))
			if (is_called(thread->d_name, "urdma-control"))
				found += !sched_setscheduler(atoi(thread->d_name), SCHED_IDLE,
							     &none);
		closedir(threads);
		end_check_deadline(deadline);
	}
}

void check_successors(void)
{
	struct sockaddr_in any = { .sin_family = AF_INET,
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	/* The connection to the previous client lasts as long as that to the next. */
	struct connection connections[2] = { 0 };
	struct rdma_cm_id *listener;

	if (rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(listener, (struct sockaddr *)&any) || rdma_listen(listener, 4))
		fail("a listener: %s", strerror(errno));
	hear_late();
	for (int i = 0; i < CLIENTS; i++) {
		struct connection *c = &connections[i % 2];
		pid_t pid = start_client(ntohs(rdma_get_src_port(listener)));
		int status;

		end(c);
		if (rdma_get_request(listener, &c->id))
			fail("client %d: no request: %s", i, strerror(errno));
		equip(c);
		if (rdma_accept(c->id, NULL))
			fail("client %d: rdma_accept: %s", i, strerror(errno));
		await(c->id->recv_cq, "the client's message");
		send_one(c, "the server's message");
		if (waitpid(pid, &status, 0) != pid || status)
			fail("client %d failed", i);
	}
	end(&connections[0]);
	end(&connections[1]);
	rdma_destroy_id(listener);
}
