/*
 * The results of bind, listen and resolve in rdma_cm, by the state of the id and the owners of the
 * port: the rules of the kernel's cma (cma_check_port, rdma_listen, rdma_resolve_addr,
 * rdma_resolve_route), in one process and between two.
 */
#include "scenarios.h"

#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define RESOLVE_MS 10000

/* Addresses of the instance that runs this, and the wildcards. */
static const char *const addresses[] = { "127.0.0.1", "127.0.0.3", "0.0.0.0", "::1", "::" };

/* An option that is not set. */
#define UNSET -1

/* How an id takes a port. */
struct way {
	unsigned int address;
	int reuse, af_only;	/* 0, 1 or UNSET */
	int late;		/* the options are set when it is bound already */
	int listens;
};

static struct rdma_event_channel *channel;

static int is_ipv6(const struct way *way)
{
	return strchr(addresses[way->address], ':') != NULL;
}

static int is_any(const struct way *way)
{
	const char *address = addresses[way->address];

	return !strcmp(address, "::") || !strcmp(address, "0.0.0.0");
}

/* The effective AFONLY: an IPv4 id has it unless the application says otherwise. */
static int is_af_only(const struct way *way)
{
	return way->af_only == UNSET ? !is_ipv6(way) : way->af_only;
}

/* The result of cma_check_port for `asked`, with REUSEADDR `reuse`, while `held` has the port. */
static int clash(const struct way *held, const struct way *asked, int reuse)
{
	if (reuse == 1 && held->reuse == 1 && !held->listens)
		return 0;
	if (is_af_only(held) && is_af_only(asked) && is_ipv6(held) != is_ipv6(asked))
		return 0;
	if (is_any(held) || is_any(asked))
		return EADDRNOTAVAIL;
	return held->address == asked->address ? EADDRINUSE : 0;
}

static struct rdma_cm_id *new_id(void)
{
	struct rdma_cm_id *id;

	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		fail("an id: %s", strerror(errno));
	return id;
}

static int option(struct rdma_cm_id *id, int name, int value)
{
	return rdma_set_option(id, RDMA_OPTION_ID, name, &value, sizeof(value)) ? errno : 0;
}

static void set_options(struct rdma_cm_id *id, const struct way *way)
{
	if ((way->reuse != UNSET && option(id, RDMA_OPTION_ID_REUSEADDR, way->reuse)) ||
	    (way->af_only != UNSET && option(id, RDMA_OPTION_ID_AFONLY, way->af_only)))
		fail("an option of an id: %s", strerror(errno));
}

/* Binds, and listens if requested; returns the errno or 0. */
static int take(struct rdma_cm_id *id, const struct way *way, uint16_t port)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	int six = is_ipv6(way);
	void *ip = six ? (void *)&v6.sin6_addr : (void *)&v4.sin_addr;

	if (inet_pton(six ? AF_INET6 : AF_INET, addresses[way->address], ip) != 1)
		fail("no address: %s", addresses[way->address]);
	if (!way->late)
		set_options(id, way);
	if (rdma_bind_addr(id, six ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4))
		return errno;
	if (way->late)
		set_options(id, way);
	return way->listens && rdma_listen(id, 1) ? errno : 0;
}

static void drop(struct rdma_cm_id *id)
{
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id: %s", strerror(errno));
}

/* Takes a port temporarily. */
static int attempt(const struct way *way, uint16_t port)
{
	struct rdma_cm_id *id = new_id();
	int outcome = take(id, way, port);

	drop(id);
	return outcome;
}

static void print_way(char *text, size_t size, const struct way *way)
{
	snprintf(text, size, "%s reuse %d af_only %d%s%s", addresses[way->address], way->reuse,
		 way->af_only, way->late ? " late" : "", way->listens ? " listening" : "");
}

static void expect(const char *who, const struct way *held, const struct way *asked, int got,
		   int wanted)
{
	char first[80], second[80];

	if (got == wanted)
		return;
	print_way(first, sizeof(first), held);
	print_way(second, sizeof(second), asked);
	fail("%s, %s beside %s: %s instead of %s", who, second, first, strerror(got),
	     strerror(wanted));
}

/* A request to the other process. */
struct question {
	struct way way;
	uint16_t port;
};

/* The other process: answers each request with an errno until there are no more. */
static void answer(int socket)
{
	struct question question;

	channel = rdma_create_event_channel();
	if (!channel)
		fail("an event channel: %s", strerror(errno));
	while (read(socket, &question, sizeof(question)) == sizeof(question)) {
		int outcome = attempt(&question.way, question.port);

		if (write(socket, &outcome, sizeof(outcome)) != sizeof(outcome))
			exit(1);
	}
	exit(0);
}

static int attempt_elsewhere(int socket, const struct way *way, uint16_t port)
{
	struct question question = { .way = *way, .port = port };
	int outcome;

	if (write(socket, &question, sizeof(question)) != sizeof(question) ||
	    read(socket, &outcome, sizeof(outcome)) != sizeof(outcome))
		fail("the other process has ended");
	return outcome;
}

/* One way to ask for the port of `held`. */
static void check_beside(int socket, const struct way *held, const struct way *asked, uint16_t port)
{
	int wanted = clash(held, asked, asked->reuse);

	expect("one process", held, asked, attempt(asked, port), wanted);
	expect("two processes", held, asked, attempt_elsewhere(socket, asked, port), wanted);
	/* Port 0 is any port that is free. */
	expect("another port", held, asked, attempt(asked, 0), 0);
}

/* Every way to ask for the port of `held`. */
static void check_held(int socket, const struct way *held)
{
	struct rdma_cm_id *id = new_id();
	int outcome = take(id, held, 0);
	uint16_t port = ntohs(rdma_get_src_port(id));
	struct way asked = { 0 };

	expect("alone", held, held, outcome, 0);
	if (!port)
		fail("port 0 became port 0");
	for (asked.address = 0; asked.address < COUNT(addresses); asked.address++)
		for (asked.reuse = UNSET; asked.reuse <= 1; asked.reuse++)
			for (asked.af_only = UNSET; asked.af_only <= 1; asked.af_only++)
				check_beside(socket, held, &asked, port);
	drop(id);
}

static void check_ports(int socket)
{
	struct way held = { 0 };

	for (held.address = 0; held.address < COUNT(addresses); held.address++)
		for (held.reuse = UNSET; held.reuse <= 1; held.reuse++)
			for (held.af_only = UNSET; held.af_only <= 1; held.af_only++)
				for (int more = 0; more < 4; more++) {
					held.late = more & 1;
					held.listens = more >> 1;
					/* REUSEADDR of a bound port cannot be cleared. */
					if (!held.late || held.reuse != 0)
						check_held(socket, &held);
				}
}

/* Two ids share a port, and the second listens: no other id may listen at it. */
static void check_listen_beside(int socket, const struct way *held, const struct way *asked)
{
	struct way listening = *asked;
	struct rdma_cm_id *id = new_id(), *other = new_id();
	int wanted = clash(held, asked, 0);
	uint16_t port;

	listening.listens = 1;
	expect("alone", held, held, take(id, held, 0), 0);
	port = ntohs(rdma_get_src_port(id));
	expect("one process", held, &listening, attempt(&listening, port), wanted);
	expect("two processes", held, &listening, attempt_elsewhere(socket, &listening, port),
	       wanted);
	/*
	 * An id that failed to listen is still bound, and can listen when the other is destroyed.
	 */
	expect("one process", held, asked, take(other, asked, port), 0);
	expect("one process", held, &listening, rdma_listen(other, 1) ? errno : 0, wanted);
	drop(id);
	if (wanted && rdma_listen(other, 1))
		fail("rdma_listen on a port that is free: %s", strerror(errno));
	/* From now on the port is not shared. */
	wanted = clash(&listening, asked, 1);
	expect("two processes", &listening, asked, attempt_elsewhere(socket, asked, port), wanted);
	if (option(other, RDMA_OPTION_ID_REUSEADDR, 1) != EINVAL ||
	    option(other, RDMA_OPTION_ID_AFONLY, 1) != EINVAL)
		fail("an option of a listener was changed");
	drop(other);
}

static void check_listen(int socket)
{
	struct way held = { .reuse = 1, .af_only = UNSET }, asked = held;

	for (held.address = 0; held.address < COUNT(addresses); held.address++)
		for (asked.address = 0; asked.address < COUNT(addresses); asked.address++)
			check_listen_beside(socket, &held, &asked);
}

/* The states of an id. */
enum state {
	IDLE, BOUND, BOUND_ANY, ADDR_FAILED, ADDR_RESOLVED, ROUTE_RESOLVED, CONNECTED, ACCEPTED,
	LISTENING, STATES
};

static const char *const state_names[STATES] = {
	"idle", "bound", "bound to the wildcard", "not resolved", "resolved", "with a route",
	"connected", "accepted", "listening",
};

static struct sockaddr_in here(uint16_t port)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET, .sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
}

/* The next event, which must be this one; a request's id, or NULL. */
static struct rdma_cm_id *next_event(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *requested;

	if (rdma_get_cm_event(channel, &event))
		fail("rdma_get_cm_event: %s", strerror(errno));
	if (event->event != type)
		fail("%s instead of %s", rdma_event_str(event->event), rdma_event_str(type));
	requested = event->listen_id ? event->id : NULL;
	rdma_ack_cm_event(event);
	return requested;
}

static void add_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	if (rdma_create_qp(id, NULL, &attr))
		fail("a queue pair of an id: %s", strerror(errno));
}

/* Takes an id from idle to `state`; additional ids that this needs are in `others`. */
static struct rdma_cm_id *bring_to(enum state state, struct rdma_cm_id *others[2])
{
	struct rdma_cm_id *id = new_id(), *accepted;
	struct sockaddr_in any_port = here(0), wildcard = { .sin_family = AF_INET };
	struct sockaddr_in nowhere = wildcard;
	struct rdma_conn_param param = { .retry_count = 7 };

	others[0] = others[1] = NULL;
	inet_pton(AF_INET, "192.0.2.1", &nowhere.sin_addr);
	switch (state) {
	case IDLE:
		return id;
	case BOUND:
	case LISTENING:
		if (rdma_bind_addr(id, (struct sockaddr *)&any_port) ||
		    (state == LISTENING && rdma_listen(id, 1)))
			fail("an id that is bound: %s", strerror(errno));
		return id;
	case BOUND_ANY:
		if (rdma_bind_addr(id, (struct sockaddr *)&wildcard))
			fail("an id that is bound: %s", strerror(errno));
		return id;
	case ADDR_FAILED:
		if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&nowhere, 1))
			fail("rdma_resolve_addr: %s", strerror(errno));
		next_event(RDMA_CM_EVENT_ADDR_ERROR);
		return id;
	default:
		break;
	}
	others[0] = new_id();
	if (rdma_bind_addr(others[0], (struct sockaddr *)&any_port) || rdma_listen(others[0], 1))
		fail("a listener: %s", strerror(errno));
	any_port = here(ntohs(rdma_get_src_port(others[0])));
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&any_port, RESOLVE_MS))
		fail("rdma_resolve_addr: %s", strerror(errno));
	next_event(RDMA_CM_EVENT_ADDR_RESOLVED);
	if (state == ADDR_RESOLVED)
		return id;
	if (rdma_resolve_route(id, RESOLVE_MS))
		fail("rdma_resolve_route: %s", strerror(errno));
	next_event(RDMA_CM_EVENT_ROUTE_RESOLVED);
	if (state == ROUTE_RESOLVED)
		return id;
	add_qp(id);
	if (rdma_connect(id, &param))
		fail("rdma_connect: %s", strerror(errno));
	accepted = next_event(RDMA_CM_EVENT_CONNECT_REQUEST);
	others[1] = state == CONNECTED ? accepted : id;
	if (state == CONNECTED)
		return id;
	return accepted;
}

/* The calls that an id can be used in. */
enum call {
	BIND, RESOLVE_ADDR, RESOLVE_OTHER_FAMILY, RESOLVE_ROUTE, RESOLVE_ROUTE_AT_ONCE, LISTEN,
	CALLS
};

static const char *const call_names[CALLS] = {
	"rdma_bind_addr", "rdma_resolve_addr", "rdma_resolve_addr to IPv6", "rdma_resolve_route",
	"rdma_resolve_route without time", "rdma_listen",
};

static int run_call(struct rdma_cm_id *id, enum call call)
{
	struct sockaddr_in any_port = here(0), server = here(7471);
	struct sockaddr_in6 other = {
		.sin6_family = AF_INET6, .sin6_port = htons(7471),
		.sin6_addr = IN6ADDR_LOOPBACK_INIT,
	};
	int failed = -1;

	switch (call) {
	case BIND:
		failed = rdma_bind_addr(id, (struct sockaddr *)&any_port);
		break;
	case RESOLVE_ADDR:
		failed = rdma_resolve_addr(id, NULL, (struct sockaddr *)&server, RESOLVE_MS);
		break;
	case RESOLVE_OTHER_FAMILY:
		failed = rdma_resolve_addr(id, NULL, (struct sockaddr *)&other, RESOLVE_MS);
		break;
	case RESOLVE_ROUTE:
	case RESOLVE_ROUTE_AT_ONCE:
		failed = rdma_resolve_route(id, call == RESOLVE_ROUTE ? RESOLVE_MS : 0);
		break;
	case LISTEN:
		failed = rdma_listen(id, 1);
		break;
	case CALLS:
		break;
	}
	return failed ? errno : 0;
}

/* Not called: librdmacm reads the device of an id without checking that it has one. */
#define SKIPPED -1

/* `cma_comp_exch` accepts a call in one state and returns EINVAL in all others. */
static void check_states(void)
{
	static const int wanted[STATES][CALLS] = {
		[IDLE] = { 0, 0, 0, SKIPPED, SKIPPED, 0 },
		[BOUND] = { EINVAL, 0, EINVAL, EINVAL, EINVAL, 0 },
		[BOUND_ANY] = { EINVAL, 0, EINVAL, SKIPPED, SKIPPED, 0 },
		[ADDR_FAILED] = { EINVAL, 0, EINVAL, SKIPPED, SKIPPED, 0 },
		[ADDR_RESOLVED] = { EINVAL, EINVAL, EINVAL, 0, EINVAL, EINVAL },
		[ROUTE_RESOLVED] = { EINVAL, EINVAL, EINVAL, EINVAL, EINVAL, EINVAL },
		[CONNECTED] = { EINVAL, EINVAL, EINVAL, EINVAL, EINVAL, EINVAL },
		[ACCEPTED] = { EINVAL, EINVAL, EINVAL, EINVAL, EINVAL, EINVAL },
		[LISTENING] = { EINVAL, EINVAL, EINVAL, EINVAL, EINVAL, EINVAL },
	};

	for (enum state state = IDLE; state < STATES; state++) {
		for (enum call call = BIND; call < CALLS; call++) {
			struct rdma_cm_id *others[2], *id;
			int got;

			if (wanted[state][call] == SKIPPED)
				continue;
			id = bring_to(state, others);
			got = run_call(id, call);

			if (got != wanted[state][call])
				fail("%s of an id that is %s: %s instead of %s", call_names[call],
				     state_names[state], strerror(got),
				     strerror(wanted[state][call]));
			for (int i = 1; i >= 0; i--) {
				if (others[i] && others[i]->qp)
					rdma_destroy_qp(others[i]);
				if (others[i])
					drop(others[i]);
			}
			if (id->qp)
				rdma_destroy_qp(id);
			drop(id);
			/* Unread events were destroyed with their ids. */
		}
	}
}

void check_ids(void)
{
	int sockets[2], status;
	pid_t other;

	/* A socket without message boundaries could deliver a request in two parts. */
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets))
		fail("a socket pair: %s", strerror(errno));
	other = fork();
	if (!other) {
		close(sockets[0]);
		answer(sockets[1]);
	}
	close(sockets[1]);
	channel = rdma_create_event_channel();
	if (other < 0 || !channel)
		fail("another process and an event channel: %s", strerror(errno));
	check_states();
	check_listen(sockets[0]);
	check_ports(sockets[0]);
	rdma_destroy_event_channel(channel);
	close(sockets[0]);
	if (waitpid(other, &status, 0) != other || status)
		fail("the other process ended with %d", status);
}
