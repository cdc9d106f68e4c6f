/* How often the threads with which urdma makes progress sleep. */
#ifndef VERBS_CHECK_SWITCHES_H
#define VERBS_CHECK_SWITCHES_H

/* Voluntary context switches of these threads. */
long engine_switches(void);
long now_ms(void);

#endif
