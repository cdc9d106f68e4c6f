/*
 * Passes the descriptors of net_memif's interrupts to secondaries. The driver keeps their numbers
 * in shared memory, and these are valid in the primary only.
 */
#define ALLOW_EXPERIMENTAL_API
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_alarm.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>

#include "memif_queue.h"
#include "shim.h"

struct question {
	struct interrupts_request request;
	/* The secondary that asks. */
	char peer[];
};

#if URDMA_KNOWS_MEMIF
/* A copy of a queue's descriptor; -1 if there is none. */
static int copy_of(const struct queue *queue, uint16_t port)
{
	const struct rte_intr_handle *handle;
	int descriptor;

	if (queue == NULL || queue->port != port || log2_ring_size(queue) == 0)
		return -1;
	handle = is_plain(queue) ? queue->plain.interrupt : queue->counting.interrupt;
	descriptor = handle == NULL ? -1 : rte_intr_fd_get(handle);
	return descriptor < 0 ? -1 : fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
}

static void find(const struct interrupts_request *request, int descriptors[2])
{
	struct rte_eth_dev_info info;
	uint16_t port;

	if (memchr(request->device, 0, sizeof(request->device)) == NULL ||
	    rte_eth_dev_get_port_by_name(request->device, &port) != 0 ||
	    rte_eth_dev_info_get(port, &info) != 0 || strcmp(info.driver_name, "net_memif") != 0 ||
	    request->pair >= info.nb_rx_queues || request->pair >= info.nb_tx_queues)
		return;
	descriptors[0] = copy_of(rte_eth_fp_ops[port].rxq.data[request->pair], port);
	descriptors[1] = copy_of(rte_eth_fp_ops[port].txq.data[request->pair], port);
}
#else
static void find(const struct interrupts_request *request, int descriptors[2])
{
	(void)request;
	(void)descriptors;
}
#endif

static void answer(void *argument)
{
	struct question *question = argument;
	int descriptors[2] = { -1, -1 };
	struct rte_mp_msg reply;

	memset(&reply, 0, sizeof(reply));
	strcpy(reply.name, INTERRUPTS_MESSAGE);
	find(&question->request, descriptors);
	if (descriptors[0] >= 0 && descriptors[1] >= 0) {
		memcpy(reply.fds, descriptors, sizeof(descriptors));
		reply.num_fds = 2;
	}
	/* A secondary without an answer sleeps by the clock. */
	rte_mp_reply(&reply, question->peer);
	for (int i = 0; i < 2; i++)
		if (descriptors[i] >= 0)
			close(descriptors[i]);
	free(question);
}

/*
 * The answer is given by DPDK's interrupt thread, which also closes the descriptors when the peer
 * disconnects: their numbers may belong to other files afterwards.
 */
static int receive(const struct rte_mp_msg *message, const void *peer)
{
	size_t octets = strlen(peer) + 1;
	struct question *question;

	if (message->len_param != (int)sizeof(question->request))
		return -EINVAL;
	question = malloc(sizeof(*question) + octets);
	if (question == NULL)
		return -ENOMEM;
	memcpy(&question->request, message->param, sizeof(question->request));
	memcpy(question->peer, peer, octets);
	if (rte_eal_alarm_set(1, answer, question) != 0) {
		free(question);
		return -EAGAIN;
	}
	return 0;
}

int urdma_interrupts_offer(void)
{
	return rte_mp_action_register(INTERRUPTS_MESSAGE, receive) == 0 ? 0 : -rte_errno;
}
