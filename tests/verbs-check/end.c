#include "end.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_S 60
#define GID_INDEX 1

void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fprintf(stderr, "verbs-check: ");
	vfprintf(stderr, format, arguments);
	fprintf(stderr, "\n");
	va_end(arguments);
	exit(1);
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	if (!list || !list[0])
		fail("no verbs device");
	context = ibv_open_device(list[0]);
	if (!context)
		fail("ibv_open_device: %s", strerror(errno));
	ibv_free_device_list(list);
	return context;
}

void end_open(struct end *e, int access)
{
	memset(e, 0, sizeof(*e));
	e->socket = -1;
	e->context = open_device();
	e->pd = ibv_alloc_pd(e->context);
	e->foreign_pd = ibv_alloc_pd(e->context);
	e->channel = ibv_create_comp_channel(e->context);
	if (!e->pd || !e->foreign_pd || !e->channel)
		fail("protection domain or channel: %s", strerror(errno));
	e->cq = ibv_create_cq(e->context, SEND_DEPTH + RECV_DEPTH, NULL, e->channel, 0);
	if (!e->cq)
		fail("ibv_create_cq: %s", strerror(errno));
	e->region = aligned_alloc(4096, REGION_OCTETS);
	memset(e->region, 0, REGION_OCTETS);
	e->mr = ibv_reg_mr(e->pd, e->region, REGION_OCTETS, access);
	e->foreign_mr = ibv_reg_mr(e->foreign_pd, e->region, REGION_OCTETS, access);
	if (!e->mr || !e->foreign_mr)
		fail("ibv_reg_mr: %s", strerror(errno));
	struct ibv_qp_init_attr init = {
		.send_cq = e->cq,
		.recv_cq = e->cq,
		.cap = { .max_send_wr = SEND_DEPTH,
			 .max_recv_wr = RECV_DEPTH,
			 .max_send_sge = 4,
			 .max_recv_sge = 4,
			 .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
	};
	e->qp = ibv_create_qp(e->pd, &init);
	if (!e->qp)
		fail("ibv_create_qp: %s", strerror(errno));
}

static int meet_at(const char *path, bool server)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), peer;
	double deadline = now_s() + LIMIT_S;

	if (strlen(path) >= sizeof(address.sun_path))
		fail("the socket's path is too long: %s", path);
	strcpy(address.sun_path, path);
	if (server) {
		unlink(path);
		if (bind(fd, (void *)&address, sizeof(address)) || listen(fd, 1))
			fail("listen at %s: %s", path, strerror(errno));
		peer = accept(fd, NULL, NULL);
		close(fd);
		unlink(path);
		return peer;
	}
	while (connect(fd, (void *)&address, sizeof(address))) {
		if (now_s() > deadline)
			fail("no listener at %s", path);
		usleep(2000);
	}
	return fd;
}

static void exchange(struct end *e, const void *mine, void *theirs, size_t octets)
{
	if (send(e->socket, mine, octets, MSG_NOSIGNAL) != (ssize_t)octets)
		fail("the other end is gone");
	if (recv(e->socket, theirs, octets, MSG_WAITALL) != (ssize_t)octets)
		fail("the other end is gone");
}

static void modify(struct end *e, struct ibv_qp_attr *attr, int mask)
{
	int error = ibv_modify_qp(e->qp, attr, mask);

	if (error)
		fail("ibv_modify_qp to state %d: %s", attr->qp_state, strerror(error));
}

void end_connect(struct end *e, const char *path, bool server, const struct wish *wish)
{
	struct hello mine = {
		.qpn = e->qp->qp_num,
		.psn = (uint32_t)(now_s() * 1e6) & 0xffffff,
		.rkey = e->mr->rkey,
		.foreign_rkey = e->foreign_mr->rkey,
		.addr = (uintptr_t)e->region,
	};

	if (ibv_query_gid(e->context, 1, GID_INDEX, &mine.gid))
		fail("ibv_query_gid: %s", strerror(errno));
	e->psn = mine.psn;
	e->socket = meet_at(path, server);
	exchange(e, &mine, &e->peer, sizeof(mine));

	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = wish->access };
	modify(e, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = e->peer.qpn,
		.rq_psn = e->peer.psn,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = wish->min_rnr_timer,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .dgid = e->peer.gid,
				      .sgid_index = GID_INDEX,
				      .hop_limit = 4 } },
	};
	modify(e, &attr,
	       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.sq_psn = mine.psn,
		.timeout = wish->timeout,
		.retry_cnt = 7,
		.rnr_retry = wish->rnr_retry,
		.max_rd_atomic = 4,
	};
	modify(e, &attr,
	       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		       IBV_QP_MAX_QP_RD_ATOMIC);
	end_meet(e);
}

void end_meet(struct end *e)
{
	char mine = 'm', theirs;

	exchange(e, &mine, &theirs, 1);
}

void end_say(struct end *e)
{
	if (write(e->socket, "m", 1) != 1)
		fail("the other end cannot be told: %s", strerror(errno));
}

void end_await_peer(struct end *e)
{
	struct pollfd p = { .fd = e->socket, .events = POLLIN };
	char theirs;

	if (poll(&p, 1, LIMIT_S * 1000) != 1)
		fail("the other end says nothing within %d s", LIMIT_S);
	if (read(e->socket, &theirs, 1) < 0 && errno != ECONNRESET)
		fail("the other end cannot be heard: %s", strerror(errno));
}

bool end_peer_waits(struct end *e)
{
	struct pollfd p = { .fd = e->socket, .events = POLLIN };

	return poll(&p, 1, 0) > 0;
}

void end_close(struct end *e)
{
	if (ibv_destroy_qp(e->qp) || ibv_dereg_mr(e->mr) || ibv_dereg_mr(e->foreign_mr) ||
	    ibv_destroy_cq(e->cq) || ibv_destroy_comp_channel(e->channel) ||
	    ibv_dealloc_pd(e->pd) || ibv_dealloc_pd(e->foreign_pd) || ibv_close_device(e->context))
		fail("an object could not be destroyed: %s", strerror(errno));
	if (e->socket >= 0)
		close(e->socket);
	free(e->region);
}

int end_send(struct end *e, struct ibv_send_wr *wr, size_t offset, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)e->region + offset,
			       .length = length,
			       .lkey = lkey };
	struct ibv_send_wr *bad = NULL;
	int error;

	wr->sg_list = &sge;
	wr->num_sge = length ? 1 : 0;
	error = ibv_post_send(e->qp, wr, &bad);
	if (error && bad != wr)
		fail("ibv_post_send gave %s and did not name the work request", strerror(error));
	return error;
}

int end_recv(struct end *e, uint64_t wr_id, size_t offset, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)e->region + offset,
			       .length = length,
			       .lkey = e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	int error = ibv_post_recv(e->qp, &wr, &bad);

	if (error && bad != &wr)
		fail("ibv_post_recv gave %s and did not name the work request", strerror(error));
	return error;
}

double end_deadline(void)
{
	return now_s() + LIMIT_S;
}

void end_check_deadline(double deadline)
{
	if (now_s() > deadline)
		fail("no completion within %d s", LIMIT_S);
}

struct ibv_wc end_wait(struct end *e)
{
	double deadline = end_deadline();
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(e->cq, 1, &wc)) == 0) {
		end_check_deadline(deadline);
		sched_yield();
	}
	if (count < 0)
		fail("ibv_poll_cq gave %d", count);
	return wc;
}

struct ibv_wc end_expect(struct end *e, enum ibv_wc_status status)
{
	struct ibv_wc wc = end_wait(e);

	if (wc.status != status)
		fail("work request %lu ended with '%s' instead of '%s'", (unsigned long)wc.wr_id,
		     ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
	return wc;
}

void end_expect_event(struct end *e, enum ibv_event_type type)
{
	struct pollfd p = { .fd = e->context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	if (poll(&p, 1, LIMIT_S * 1000) != 1)
		fail("no asynchronous event within %d s", LIMIT_S);
	if (ibv_get_async_event(e->context, &event))
		fail("ibv_get_async_event: %s", strerror(errno));
	if (event.event_type != type)
		fail("event '%s' instead of '%s'", ibv_event_type_str(event.event_type),
		     ibv_event_type_str(type));
	ibv_ack_async_event(&event);
}

void end_expect_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	if (ibv_query_qp(qp, &attr, IBV_QP_STATE, &init))
		fail("ibv_query_qp: %s", strerror(errno));
	if (attr.qp_state != state)
		fail("the queue pair is in state %d instead of %d", attr.qp_state, state);
}
