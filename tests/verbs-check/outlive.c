/*
 * A program that outlives urdmad and opens the device of the next one: its number of threads,
 * descriptors and mappings is unchanged. The test ends urdmad and starts another one when the
 * program prints its round.
 */
#include "loopback.h"
#include "scenarios.h"

#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS 6
/* Rounds after which the libraries have allocated all that they keep. */
#define WARM 2
/* The C library counts what its threads keep of freed memory. A urdmad had left 170 KB. */
#define SLACK_OCTETS (32u << 10)

struct usage {
	int threads, descriptors, mappings;
	size_t octets;
};

static int entries(const char *path)
{
	DIR *directory = opendir(path);
	int count = 0;

	if (!directory)
		fail("%s: %s", path, strerror(errno));
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* Channels, pages, the directory and delivery records. */
static int mappings_of_shared_memory(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[4096];
	int count = 0;

	if (!maps)
		fail("/proc/self/maps: %s", strerror(errno));
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, "/memfd:urdma-") != NULL;
	fclose(maps);
	return count;
}

static struct usage usage(void)
{
	return (struct usage){
		.threads = entries("/proc/self/task"),
		.descriptors = entries("/proc/self/fd"),
		.mappings = mappings_of_shared_memory(),
		.octets = mallinfo2().uordblks,
	};
}

static bool is_within(const struct usage *now, const struct usage *before)
{
	return now->threads <= before->threads && now->descriptors <= before->descriptors &&
	       now->mappings <= before->mappings && now->octets <= before->octets + SLACK_OCTETS;
}

/* Threads may take a moment to end. */
static void expect_no_more_than(const struct usage *before)
{
	for (int tries = 0;; tries++) {
		struct usage now = usage();

		if (is_within(&now, before))
			return;
		if (tries == 500)
			fail("%d threads instead of %d, %d descriptors instead of %d, "
			     "%d mappings instead of %d, %zu octets instead of %zu",
			     now.threads, before->threads, now.descriptors, before->descriptors,
			     now.mappings, before->mappings, now.octets, before->octets);
		usleep(10000);
	}
}

/* Waits until a urdmad serves the device. */
static void await_device(void)
{
	double deadline = end_deadline();

	for (;;) {
		struct ibv_device **devices = ibv_get_device_list(NULL);
		struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0])
								    : NULL;

		if (devices)
			ibv_free_device_list(devices);
		if (context) {
			ibv_close_device(context);
			return;
		}
		end_check_deadline(deadline);
		usleep(10000);
	}
}

/* A thread domain has an engine of its own. */
static void use_thread_domain(struct ibv_context *context)
{
	struct ibv_td_init_attr attr = { 0 };
	struct ibv_td *td = ibv_alloc_td(context, &attr);

	if (!td || ibv_dealloc_td(td))
		fail("ibv_alloc_td: %s", strerror(errno));
}

static void one_round(int round, struct usage *warm)
{
	struct rdma_event_channel *events;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct ibv_qp *a, *b;
	struct end e;

	await_device();
	end_open(&e, IBV_ACCESS_LOCAL_WRITE);
	a = loopback_qp(&e, IBV_QPT_RC, NULL);
	b = loopback_qp(&e, IBV_QPT_RC, NULL);
	loopback_connect(&e, a, b);
	loopback_receive(&e, b);
	loopback_exchange(&e, a);
	use_thread_domain(e.context);
	events = rdma_create_event_channel();
	if (!events || rdma_create_id(events, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id: %s", strerror(errno));
	if (round == WARM)
		*warm = usage();
	if (round > WARM)
		expect_no_more_than(warm);
	printf("round %d\n", round);
	end_expect_event(&e, IBV_EVENT_DEVICE_FATAL);
	/* rdma_cm reports the end as well, on the channel that was open at the time. */
	if (rdma_get_cm_event(events, &event) || event->event != RDMA_CM_EVENT_DEVICE_REMOVAL ||
	    rdma_ack_cm_event(event))
		fail("no DEVICE_REMOVAL: %s", strerror(errno));
	if (rdma_destroy_id(id))
		fail("rdma_destroy_id: %s", strerror(errno));
	rdma_destroy_event_channel(events);
	loopback_destroy(a, b);
	end_close(&e);
}

void check_outlives(void)
{
	struct usage warm = { 0 };

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int round = 0; round < ROUNDS; round++)
		one_round(round, &warm);
}
