#include "switches.h"

#include "end.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Voluntary context switches of the threads. */
static long engine_switches(void)
{
	DIR *tasks = opendir("/proc/self/task");
	long sum = 0, value;
	char path[300], line[128];

	for (struct dirent *task; (task = readdir(tasks));) {
		bool is_engine = false;
		FILE *status;

		snprintf(path, sizeof(path), "/proc/self/task/%s/status", task->d_name);
		status = fopen(path, "r");
		while (status && fgets(line, sizeof(line), status)) {
			is_engine |= !strcmp(line, "Name:\turdma-engine\n");
			if (is_engine && sscanf(line, "voluntary_ctxt_switches: %ld", &value) == 1)
				sum += value;
		}
		if (status)
			fclose(status);
	}
	closedir(tasks);
	return sum;
}

long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

struct switches begin_count(void)
{
	return (struct switches){ engine_switches(), now_ms() };
}

void expect_few_wake_ups(struct switches since, long messages)
{
	long slept = engine_switches() - since.count, ms = now_ms() - since.ms;

	if (slept > ms + 1 + messages / 10)
		fail("the background thread slept %ld times in %ld ms and %ld messages", slept, ms,
		     messages);
}
