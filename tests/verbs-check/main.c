/*
 * verbs-check: a verbs program that checks what perftest does not: every octet, every error.
 *
 * verbs-check SCENARIO server|client PATH [SEED [OPERATIONS]] two ends that meet at the socket PATH
 * verbs-check CHECK one process alone, see `alone`
 *
 * Prints "SCENARIO: ok" and exits with 0 when everything was as verbs promise.
 */
#include "scenarios.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Operations of each end in scenarios without a fixed number. */
#define OPERATIONS 5000

/* The checks in a single process. */
static const struct {
	const char *name;
	void (*check)(void);
} alone[] = {
	{ "limits", check_limits }, { "datagram", check_datagram }, { "cm", check_cm },
	{ "connects", check_connects },
	{ "async", check_async },
	{ "last-words", check_last_words },
	{ "departures", check_departures },
	{ "events", check_events },
	{ "requests", check_requests },
	{ "services", check_services },
	{ "refusals", check_refusals },
	{ "clock", check_clock },
	{ "keys", check_keys },
	{ "ids", check_ids },
	{ "sysfs", check_sysfs },
	{ "cancel", check_cancel },
	{ "sleeps", check_sleeps },
	{ "sets", check_sets },
	{ "sets-of-old-kernels", check_sets_of_old_kernels },
	{ "unread", check_unread },
	{ "fork-descriptors", check_fork_descriptors },
	{ "closefrom", check_closefrom },
	{ "low-descriptors", check_low_descriptors },
	{ "successors", check_successors },
	{ "outlives", check_outlives },
	{ "setuid", check_setuid },
	{ "segv", check_segv },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc == 2 && i < sizeof(alone) / sizeof(*alone); i++) {
		if (!strcmp(argv[1], alone[i].name)) {
			alone[i].check();
			printf("%s: ok\n", alone[i].name);
			return 0;
		}
	}
	if (argc == 3 && !strcmp(argv[1], "departing-server"))
		departing_server(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "storm-server"))
		storm_server(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "storm-client"))
		storm_client(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "successor"))
		successor(argv[2]);
	if (argc < 4 || (strcmp(argv[2], "server") && strcmp(argv[2], "client"))) {
		fprintf(stderr,
			"usage: verbs-check SCENARIO server|client PATH [SEED [OPERATIONS]]\n"
			"       verbs-check CHECK\n"
			"The checks:");
		for (size_t i = 0; i < sizeof(alone) / sizeof(*alone); i++)
			fprintf(stderr, " %s", alone[i].name);
		fprintf(stderr, "\n");
		return 2;
	}
	const struct scenario *scenario = scenario_find(argv[1]);
	if (!scenario) {
		fprintf(stderr, "verbs-check: no scenario '%s'\n", argv[1]);
		return 2;
	}
	bool server = !strcmp(argv[2], "server");
	struct end end;

	setvbuf(stdout, NULL, _IOLBF, 0);
	end_open(&end, scenario->access[server]);
	end.seed = argc > 4 ? strtoul(argv[4], NULL, 10) : 1;
	end.operations = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : OPERATIONS;
	srand48((long)end.seed);
	end_connect(&end, argv[3], server,
		    &(struct wish){ .access = scenario->access[server],
				    .rnr_retry = scenario->rnr_retry,
				    .min_rnr_timer = 12,
				    .timeout = scenario->timeout });
	(server ? scenario->server : scenario->client)(&end);
	end_close(&end);
	printf("%s: ok\n", scenario->name);
	return 0;
}
