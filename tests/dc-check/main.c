/*
 * dc-check: a program with initiators and targets of the dynamically connected transport.
 *
 * dc-check alone                          one process
 * dc-check SCENARIO target|initiator PATH two, which meet at the socket PATH
 * dc-check serve PATH                     a target for any number of processes, named by a file
 * dc-check load PATH COUNT                COUNT requests to it; 0: until the target ends
 *
 * Prints "SCENARIO: ok" and exits with 0 when everything was as documented.
 */
#include "scenarios.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static const struct {
	const char *name;
	void (*initiator)(struct end *e, struct name *to);
	void (*target)(struct end *e, struct target *t);
	uint32_t receives;	/* posted before the initiator begins */
} scenarios[] = {
	{ "transfer", transfer_initiator, transfer_target, 2 },
	{ "names", names_initiator, names_target, 2 },
	{ "destroyed", destroyed_initiator, destroyed_target, 1 },
	{ "killed", killed_initiator, killed_target, 1 },
	{ "leave", leave_initiator, leave_target, 1 },
};

static void run_target(struct end *e, size_t n)
{
	struct target t = dc_target(e);

	dc_target_ready(&t);
	for (uint32_t i = 0; i < scenarios[n].receives; i++)
		dc_receive(e, &t, 2, 0, 1u << 20);
	if (send(e->socket, &t.qp->qp_num, sizeof(uint32_t), MSG_NOSIGNAL) != sizeof(uint32_t))
		fail("the initiator is gone");
	scenarios[n].target(e, &t);
	if (t.qp)
		dc_destroy_target(&t);
}

static void run_initiator(struct end *e, size_t n)
{
	struct name to = { .key = DC_KEY, .rkey = e->peer.rkey, .addr = e->peer.addr };

	if (recv(e->socket, &to.number, sizeof(uint32_t), MSG_WAITALL) != sizeof(uint32_t))
		fail("the target is gone");
	to.ah = dc_handle(e, &e->peer.gid);
	scenarios[n].initiator(e, &to);
	if (ibv_destroy_ah(to.ah))
		fail("ibv_destroy_ah");
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 2 && !strcmp(argv[1], "alone")) {
		check_alone();
		printf("alone: ok\n");
		return 0;
	}
	if (argc == 3 && !strcmp(argv[1], "serve"))
		serve(argv[2]);
	if (argc == 4 && !strcmp(argv[1], "load")) {
		load(argv[2], strtoul(argv[3], NULL, 10));
		printf("load: ok\n");
		return 0;
	}
	for (size_t n = 0; argc == 4 && n < sizeof(scenarios) / sizeof(*scenarios); n++) {
		bool is_target = !strcmp(argv[2], "target");
		struct end end;

		if (strcmp(argv[1], scenarios[n].name))
			continue;
		end_open(&end, DC_RIGHTS);
		/* A connection beside, as most programs have. */
		end_connect(&end, argv[3], is_target,
			    &(struct wish){ .access = DC_RIGHTS, .rnr_retry = 7,
					    .min_rnr_timer = 12, .timeout = 14 });
		(is_target ? run_target : run_initiator)(&end, n);
		end_close(&end);
		printf("%s: ok\n", argv[1]);
		return 0;
	}
	fprintf(stderr, "usage: dc-check SCENARIO target|initiator PATH\n       dc-check alone\n"
			"       dc-check serve PATH\n       dc-check load PATH COUNT\n");
	return 2;
}
