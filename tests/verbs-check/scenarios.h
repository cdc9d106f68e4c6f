/* What verbs-check checks. */
#ifndef VERBS_CHECK_SCENARIOS_H
#define VERBS_CHECK_SCENARIOS_H

#include "end.h"

struct scenario {
	const char *name;
	int access[2];			/* rights of the client's and of the server's region */
	uint8_t rnr_retry, timeout;
	void (*client)(struct end *e);
	void (*server)(struct end *e);
};

const struct scenario *scenario_find(const char *name);

/* Random operations both ways. */
void mix_client(struct end *e);
void mix_server(struct end *e);
/* The same until SIGUSR1. */
void steady_client(struct end *e);
void steady_server(struct end *e);

/* A peer whose channel ends, and another one. */
void corrupted_client(struct end *e);

/* Registered memory that is unmapped. */
void unmapped_client(struct end *e);
void unmapped_server(struct end *e);
/* Faults of the program itself. */
void check_segv(void);

/* A receiver that ends at once. */
void leave_client(struct end *e);
void leave_server(struct end *e);

/* Ends that sleep until a message comes, or the peer ends. */
void sleep_client(struct end *e);
void sleep_server(struct end *e);

/* The same, in epoll_wait, in poll, in poll on a set and in select. */
void epoll_client(struct end *e);
void epoll_server(struct end *e);
void poll_client(struct end *e);
void poll_server(struct end *e);
void poll_set_client(struct end *e);
void poll_set_server(struct end *e);
void select_client(struct end *e);
void select_server(struct end *e);

/* Signals, other threads and the end of the process while a thread sleeps. */
void check_sleeps(void);
/* The same, and other files, while a thread sleeps in epoll_wait, poll or select. */
void check_sets(void);
void check_sets_of_old_kernels(void);
/* Connections one after the other between two processes that sleep meanwhile. */
void check_connects(void);
/* Asynchronous events of a thread that sleeps meanwhile. */
void check_async(void);
/* Events that are not read at once, and where they are seen. */
void check_unread(void);

/* Every limit of query_device, and one more. */
void check_limits(void);

/* Two datagram queue pairs of one process. */
void check_datagram(void);

/* Asynchronous events, SQD, SQE and fork. */
void check_events(void);

/*
 * Lists of work requests, long lists of elements, inline data, solicited events, null regions,
 * regions with addresses of their own.
 */
void check_requests(void);

/* Servers of rdma_cm that end at once, and one of them. */
void check_departures(void);
void departing_server(const char *way) __attribute__((noreturn));

/* Both ends of connections that are made and ended until the process is killed. */
void storm_server(const char *port) __attribute__((noreturn));
void storm_client(const char *port) __attribute__((noreturn));

/* Connections over a link that loses messages. */
void answers_client(struct end *e);
void answers_server(struct end *e);

/* Every request on every service, and atomics that cannot be executed. */
void check_services(void);
/* Keys of windows, of requests of shared receive queues, of regions of length 0. */
void check_keys(void);

/* Refused calls, which set errno: destroyed objects, copies of objects. */
void check_refusals(void);

/* Times of completions. */
void check_clock(void);

/* Threads that are cancelled in calls of verbs and rdma_cm. */
void check_cancel(void);

/* The descriptors of a program that has closed those of the libraries, in its child. */
void check_fork_descriptors(void);
/* The device of a program that closes all descriptors. */
void check_closefrom(void);
void check_low_descriptors(void);

/* Clients that use one slot one after the other, and one of them. */
void check_successors(void);
void successor(const char *port) __attribute__((noreturn));

/* The resources that a program keeps of each urdmad that it outlives. */
void check_outlives(void);

/* Connections of a process to itself through rdma_cm. */
void check_cm(void);
void check_last_words(void);

/* Results of bind, listen and resolve in rdma_cm, by state of the id and owners of the port. */
void check_ids(void);
/* A process that drops root privileges continues to use the device. */
void check_setuid(void);

/* The PCI address of the device, as other libraries look it up. */
void check_sysfs(void);

#endif
