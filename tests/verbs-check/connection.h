/*
 * Identifiers of rdma_cm whose queue pairs take one work request each way.
 */
#ifndef VERBS_CHECK_CONNECTION_H
#define VERBS_CHECK_CONNECTION_H

#include <rdma/rdma_cma.h>

/* Gives an identifier a queue pair; 0, or -1 with errno. */
int connection_equip(struct rdma_cm_id *id);
/* Waits for the next event, which is acknowledged. */
enum rdma_cm_event_type connection_next(struct rdma_event_channel *channel, struct rdma_cm_id **id);
/* Destroys an identifier and the queue pair that it may have. */
void connection_destroy(struct rdma_cm_id *id);

#endif
