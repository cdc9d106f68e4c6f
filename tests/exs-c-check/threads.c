// SPDX-License-Identifier: MIT OR Apache-2.0
/* Threads that share sockets and queues. */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#include "check.h"

#define SENDERS 4
#define SENDS 2000
/* Sends of one thread in progress. */
#define IN_PROGRESS 16
#define TAKERS 3
#define RECVS 32

/* What every sender sends: its number and a count. */
static uint64_t sent[SENDERS][SENDS], received[RECVS];
static atomic_uint seen[SENDERS][SENDS];
static sem_t room[SENDERS];
static atomic_int posted, sends, recvs, is_over;
static int client, server;
static exs_qhandle_t queue;
static exs_mhandle_t to_send, to_receive;

static void *send_messages(void *argument)
{
	size_t sender = (size_t)(uintptr_t)argument;

	for (size_t i = 0; i < SENDS; i++) {
		REQUIRE(sem_wait(&room[sender]) == 0);
		sent[sender][i] = (uint64_t)sender << 32 | i;
		REQUIRE(exs_send(client, &sent[sender][i], sizeof(uint64_t), 0, to_send,
				 &room[sender], queue) == 0);
	}
	return NULL;
}

static void post_recv(void *buffer)
{
	REQUIRE(exs_recv(server, buffer, sizeof(uint64_t), 0, to_receive, NULL, queue) == 0);
}

static void take_message(const exs_event_t *event)
{
	uint64_t *buffer = event->exs_evt_union.exs_evt_xfer.exs_evt_buffer;
	size_t sender = *buffer >> 32, count = *buffer & UINT32_MAX;

	REQUIRE(event->exs_evt_union.exs_evt_xfer.exs_evt_length == sizeof(uint64_t));
	REQUIRE(sender < SENDERS && count < SENDS);
	REQUIRE(atomic_fetch_add(&seen[sender][count], 1) == 0);
	post_recv(buffer);
	recvs++;
}

static void take_event(const exs_event_t *event)
{
	errno = event->exs_evt_errno;
	REQUIRE(event->exs_evt_errno == 0);
	if (event->exs_evt_type == EXS_EVT_RECV) {
		take_message(event);
	} else {
		REQUIRE(event->exs_evt_type == EXS_EVT_SEND);
		REQUIRE(sem_post(event->exs_evt_ahandle) == 0);
		sends++;
	}
}

/* Takes events of the queue, as other threads do. */
static void take_until_over(void (*take)(const exs_event_t *event))
{
	struct timeval moment = { 0, 20000 };
	exs_event_t event;

	while (!is_over) {
		int count = exs_qdequeue(queue, &event, 1, &moment);

		REQUIRE(count >= 0);
		if (count > 0)
			take(&event);
	}
}

static void *take_events(void *argument)
{
	take_until_over(take_event);
	return argument;
}

static void wait_for(atomic_int *count, int least)
{
	time_t until = time(NULL) + 60;

	while (*count < least) {
		REQUIRE(time(NULL) < until);
		sched_yield();
	}
}

static void start(pthread_t *threads, int count, void *(*work)(void *))
{
	for (int i = 0; i < count; i++)
		REQUIRE(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) == 0);
}

static void join(const pthread_t *threads, int count)
{
	for (int i = 0; i < count; i++)
		REQUIRE(pthread_join(threads[i], NULL) == 0);
}

/* A connection whose sends and receives use memory and a queue of this file. */
static struct pair begin(int type, int port)
{
	struct pair pair = make_pair(type, port);

	client = pair.client;
	server = pair.server;
	to_send = exs_mregister(sent, sizeof(sent), EXS_ACCESS_READ);
	to_receive = exs_mregister(received, sizeof(received), EXS_ACCESS_WRITE);
	queue = exs_qcreate(SENDERS * IN_PROGRESS + RECVS);
	REQUIRE(to_send && to_receive && queue != EXS_QHANDLE_INVALID);
	posted = sends = recvs = is_over = 0;
	return pair;
}

static void end(const struct pair *pair)
{
	REQUIRE(exs_mderegister(to_send) == 0 && exs_mderegister(to_receive) == 0);
	REQUIRE(exs_qdelete(queue) == 0);
	end_pair(pair);
}

/* Threads send on one socket and take the events of all operations from one queue. */
static void check_messages_of_threads(int port)
{
	struct pair pair = begin(SOCK_SEQPACKET, port);
	pthread_t senders[SENDERS], takers[TAKERS];

	for (int i = 0; i < SENDERS; i++)
		REQUIRE(sem_init(&room[i], 0, IN_PROGRESS) == 0);
	for (int i = 0; i < RECVS; i++)
		post_recv(&received[i]);
	start(takers, TAKERS, take_events);
	start(senders, SENDERS, send_messages);
	join(senders, SENDERS);
	wait_for(&sends, SENDERS * SENDS);
	wait_for(&recvs, SENDERS * SENDS);
	is_over = 1;
	join(takers, TAKERS);
	REQUIRE(sends == SENDERS * SENDS && recvs == SENDERS * SENDS);
	REQUIRE(exs_cancel(server, NULL) == 0);
	for (int i = 0; i < RECVS; i++)
		expect(queue, EXS_EVT_RECV, ECANCELED);
	REQUIRE(exs_close(client) == 0 && exs_close(server) == 0);
	end(&pair);
}

/* Sends until the socket is closed. */
static void *send_until_closed(void *argument)
{
	while (exs_send(client, sent, sizeof(uint64_t), 0, to_send, NULL, queue) == 0 ||
	       errno == ENOBUFS) {
		posted += errno != ENOBUFS;
		errno = 0;
		sched_yield();
	}
	REQUIRE(errno == EBADF);
	return argument;
}

/* Takes the event of a send that may have ended with the socket. */
static void take_send(const exs_event_t *event)
{
	REQUIRE(event->exs_evt_type == EXS_EVT_SEND);
	REQUIRE(event->exs_evt_errno == 0 || event->exs_evt_errno == EPIPE ||
		event->exs_evt_errno == ECONNRESET);
	sends++;
}

static void *take_sends(void *argument)
{
	take_until_over(take_send);
	return argument;
}

/*
 * A socket is closed while other threads send on it: calls fail, and each send that was posted has
 * its event.
 */
static void check_close_beside_threads(int port)
{
	const struct timespec moment = { .tv_nsec = 20 * 1000 * 1000 };
	struct pair pair = begin(SOCK_STREAM, port);
	pthread_t senders[SENDERS], takers[TAKERS];

	start(takers, TAKERS, take_sends);
	start(senders, SENDERS, send_until_closed);
	wait_for(&sends, 100);
	nanosleep(&moment, NULL);
	REQUIRE(exs_close(client) == 0);
	join(senders, SENDERS);
	REQUIRE(exs_close(server) == 0);
	wait_for(&sends, posted);
	nanosleep(&moment, NULL);
	is_over = 1;
	join(takers, TAKERS);
	REQUIRE(sends == posted);
	end(&pair);
}

void check_threads(int port)
{
	check_messages_of_threads(port);
	check_close_beside_threads(port + 1);
}
