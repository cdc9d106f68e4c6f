/*
 * Keeps net_memif's control messages and its bursts apart.
 *
 * The driver handles its peer's messages in DPDK's interrupt thread. When the peer goes away it unmaps the shared memory at
 * once, even while another thread is in the middle of a burst that reads it: the daemon would die of its peer's death. Here its
 * callbacks run under the lock that urdma_rx_burst and urdma_tx_burst take too.
 *
 * Linked into programs with shared DPDK only, where these definitions come before DPDK's. Secondaries unmap in the thread
 * that bursts, and need none of this.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

#include <rte_interrupts.h>

struct entry {
	struct entry *next;
	rte_intr_callback_fn callback;
	rte_intr_unregister_callback_fn ended;
	void *argument;
};

static pthread_mutex_t bursts = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t list = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries;

static int (*next_register)(const struct rte_intr_handle *, rte_intr_callback_fn, void *);
static int (*next_unregister)(const struct rte_intr_handle *, rte_intr_callback_fn, void *);
static int (*next_unregister_pending)(const struct rte_intr_handle *, rte_intr_callback_fn, void *,
				      rte_intr_unregister_callback_fn);

__attribute__((constructor)) static void find_next(void)
{
	next_register = dlsym(RTLD_NEXT, "rte_intr_callback_register");
	next_unregister = dlsym(RTLD_NEXT, "rte_intr_callback_unregister");
	next_unregister_pending = dlsym(RTLD_NEXT, "rte_intr_callback_unregister_pending");
	urdma_control_lock = &bursts;
}

static bool is_memif(rte_intr_callback_fn callback)
{
	Dl_info info;

	return dladdr((void *)callback, &info) != 0 && info.dli_fname != NULL &&
	       strstr(info.dli_fname, "librte_net_memif") != NULL;
}

static void guarded(void *argument)
{
	struct entry *entry = argument;

	pthread_mutex_lock(&bursts);
	/* The port may have been stopped, even closed, while this waited. */
	if (entry->ended == NULL)
		entry->callback(entry->argument);
	pthread_mutex_unlock(&bursts);
}

static struct entry *find(rte_intr_callback_fn callback, void *argument)
{
	struct entry *entry;

	pthread_mutex_lock(&list);
	for (entry = entries; entry != NULL; entry = entry->next)
		if (entry->callback == callback && entry->argument == argument)
			break;
	pthread_mutex_unlock(&list);
	return entry;
}

static void forget(struct entry *entry)
{
	struct entry **place;

	pthread_mutex_lock(&list);
	for (place = &entries; *place != NULL; place = &(*place)->next)
		if (*place == entry) {
			*place = entry->next;
			break;
		}
	pthread_mutex_unlock(&list);
	free(entry);
}

static void guarded_end(struct rte_intr_handle *handle, void *argument)
{
	struct entry *entry = argument;

	entry->ended(handle, entry->argument);
	forget(entry);
}

int rte_intr_callback_register(const struct rte_intr_handle *handle, rte_intr_callback_fn callback, void *argument)
{
	struct entry *entry;
	int result;

	if (!is_memif(callback))
		return next_register(handle, callback, argument);
	entry = calloc(1, sizeof(*entry));
	if (entry == NULL)
		return -ENOMEM;
	entry->callback = callback;
	entry->argument = argument;
	pthread_mutex_lock(&list);
	entry->next = entries;
	entries = entry;
	pthread_mutex_unlock(&list);
	result = next_register(handle, guarded, entry);
	if (result < 0)
		forget(entry);
	return result;
}

int rte_intr_callback_unregister(const struct rte_intr_handle *handle, rte_intr_callback_fn callback, void *argument)
{
	struct entry *entry = find(callback, argument);
	int result;

	if (entry == NULL)
		return next_unregister(handle, callback, argument);
	result = next_unregister(handle, guarded, entry);
	if (result > 0)
		forget(entry);
	return result;
}

int rte_intr_callback_unregister_pending(const struct rte_intr_handle *handle, rte_intr_callback_fn callback,
					 void *argument, rte_intr_unregister_callback_fn ended)
{
	struct entry *entry = find(callback, argument);

	if (entry == NULL)
		return next_unregister_pending(handle, callback, argument, ended);
	entry->ended = ended;
	return next_unregister_pending(handle, guarded, entry, guarded_end);
}
