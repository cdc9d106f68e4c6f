/*
 * Serialises net_memif's control messages and its bursts.
 *
 * The driver handles the messages of its peer in DPDK's interrupt thread. When the peer
 * disconnects, it unmaps the shared memory at once, even while another thread reads that memory in
 * a burst, so the daemon would crash when its peer ends. Here the driver's callbacks run under the
 * lock that urdma_rx_burst and urdma_tx_burst also take.
 *
 * The driver also registers the control channel of a new client before it sends its first message
 * to the client. If the client has disconnected by then, the driver closes the channel without
 * unregistering it, and DPDK's interrupt thread would abort the process on the bad descriptor. Here
 * a registration by a callback is forwarded after the callback, if its descriptor is still open.
 *
 * Linked with shared DPDK only: programs and liburdma_dpdk.so have functions with DPDK's names that
 * call these, and that the dynamic linker finds before DPDK's. A secondary unmaps in the thread
 * that calls the burst functions, so it does not need this file.
 */
#define _GNU_SOURCE
/* For rte_intr_fd_get. */
#define ALLOW_EXPERIMENTAL_API
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shim.h"

#include <rte_interrupts.h>

struct entry {
	struct entry *next;
	rte_intr_callback_fn callback;
	rte_intr_unregister_callback_fn ended;
	void *argument;
};

/* The registration by a callback: at most one client, which a listener has accepted. */
struct late {
	struct entry *entry;
	const struct rte_intr_handle *handle;
	int descriptor;
	struct stat file;
};

static pthread_mutex_t bursts = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t list = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries;
/* The registration of the callback that this thread runs; null outside of callbacks. */
static __thread struct late *late;

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

/*
 * Whether the descriptor is still the one that was registered: its number may denote another file
 * by now.
 */
static bool is_open(const struct late *registered)
{
	struct stat now;

	return fstat(registered->descriptor, &now) == 0 && now.st_dev == registered->file.st_dev &&
	       now.st_ino == registered->file.st_ino;
}

static void guarded(void *argument)
{
	struct entry *entry = argument;
	struct late registered = { .entry = NULL };

	pthread_mutex_lock(&bursts);
	/* The port may have been stopped or closed while this thread waited for the lock. */
	if (entry->ended == NULL) {
		late = &registered;
		entry->callback(entry->argument);
		late = NULL;
	}
	if (registered.entry != NULL &&
	    (!is_open(&registered) ||
	     next_register(registered.handle, guarded, registered.entry) < 0))
		forget(registered.entry);
	pthread_mutex_unlock(&bursts);
}

static void guarded_end(struct rte_intr_handle *handle, void *argument)
{
	struct entry *entry = argument;

	entry->ended(handle, entry->argument);
	forget(entry);
}

int urdma_guard_register(const struct rte_intr_handle *handle, rte_intr_callback_fn callback,
			       void *argument)
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
	if (late != NULL && late->entry == NULL) {
		late->entry = entry;
		late->handle = handle;
		late->descriptor = rte_intr_fd_get(handle);
		if (fstat(late->descriptor, &late->file) == 0)
			return 0;
		late->entry = NULL;
	}
	result = next_register(handle, guarded, entry);
	if (result < 0)
		forget(entry);
	return result;
}

int urdma_guard_unregister(const struct rte_intr_handle *handle,
				 rte_intr_callback_fn callback, void *argument)
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

int urdma_guard_unregister_pending(const struct rte_intr_handle *handle,
					 rte_intr_callback_fn callback, void *argument,
					 rte_intr_unregister_callback_fn ended)
{
	struct entry *entry = find(callback, argument);

	if (entry == NULL)
		return next_unregister_pending(handle, callback, argument, ended);
	entry->ended = ended;
	return next_unregister_pending(handle, guarded, entry, guarded_end);
}
