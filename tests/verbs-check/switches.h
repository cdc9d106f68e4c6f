/* How often the threads with which urdma makes progress sleep. */
#ifndef VERBS_CHECK_SWITCHES_H
#define VERBS_CHECK_SWITCHES_H

/* Where a count begins. */
struct switches {
	long count, ms;
};

struct switches begin_count(void);

/* The monotonic clock. */
long now_ms(void);

/*
 * Fails if these threads were woken for more than one in ten of the messages since then. They
 * wake by themselves at most once per millisecond.
 */
void expect_few_wake_ups(struct switches since, long messages);

#endif
