/* What dc-check checks. */
#ifndef DC_CHECK_SCENARIOS_H
#define DC_CHECK_SCENARIOS_H

#include "dc.h"

/* One process. */
void check_alone(void);

/* Two processes: every operation, with its completions and its effect. */
void transfer_initiator(struct end *e, struct name *to);
void transfer_target(struct end *e, struct target *t);
/* Names that no target has, and another request to the right one. */
void names_initiator(struct end *e, struct name *to);
void names_target(struct end *e, struct target *t);
/* A target that is destroyed. */
void destroyed_initiator(struct end *e, struct name *to);
void destroyed_target(struct end *e, struct target *t);
/* A target whose process is killed. */
void killed_initiator(struct end *e, struct name *to);
void killed_target(struct end *e, struct target *t);
/* An initiator that is destroyed with requests that are not complete. */
void leave_initiator(struct end *e, struct name *to);
void leave_target(struct end *e, struct target *t);

/* A target that serves until its process is killed; a file tells others its name. */
void serve(const char *path) __attribute__((noreturn));
/* Keeps requests in flight, and prints "busy" when the first are complete. */
void load(const char *path, uint64_t count);

#endif
