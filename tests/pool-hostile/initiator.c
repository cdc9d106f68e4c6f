// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * pool-hostile-initiator ADDRESS PORT STEP...
 *
 * Asks a pool over initiators that exchanges messages (doc/design/pool-sends.md) at the address,
 * and executes the steps. It has a target, to which the pool may send. It knows no rule of the
 * protocol. Octets are hexadecimal.
 *
 * ask=OCTETS:LENGTH        asks with LENGTH octets of private data: OCTETS, and behind them as much
 *                          as is left of 44 zeros, the own target and memory of no octets. Prints
 *                          "refused", "node" if a node answers, or "answered" and whether it was
 *                          told the "same" token as before or "another" one
 * message=KIND:...         a message (compose in message.h) with the number that is next; times,
 *                          dead, stranger, shift, rest and cut are for the next one only
 * times=COUNT              it is sent so many times, without waiting for completions
 * dead, stranger           it begins with the token before the last one, or one of nothing
 * shift=NUMBER             its number is off by this, and counts for nothing
 * rest=NUMBER              the end of its label, which is to be 0
 * cut=LENGTH               it has so many octets, with its label
 * wait=KIND                waits for a message of the pool
 * silent                   takes no further message, so that it posts no further Receive
 * deaf                     the same from the beginning: posts no Receive at all, and has those that
 *                          send to it wait as long as there is a number for
 * say=TEXT                 prints it
 * stay                     stays until it is killed
 */
#include <infiniband/urdmadv.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <unistd.h>

#include "message.h"

#define LIMIT_S 30
#define ASK_AGAIN_US 5000
#define LABEL_OCTETS 16
#define BUFFER_OCTETS (LABEL_OCTETS + HEADER_OCTETS + 4096)
#define SLOTS 32
#define SENT_OCTETS 8192
#define DEPTH 256
#define KEY 0x0123456789abcdefull
#define QUESTION_OCTETS 76
/* Where the own target is in a question, and what is where in an answer. */
#define TARGET_AT 44
#define KEY_AT 24
#define TOKEN_AT 44
#define SHARE_AT 52

/* Received messages, then those that are sent. */
static struct {
	uint8_t slots[SLOTS][BUFFER_OCTETS];
	uint8_t sent[DEPTH][SENT_OCTETS];
} memory __attribute__((aligned(4096)));

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *region;
static struct ibv_cq *sent_cq, *received_cq;
static struct ibv_srq *receives;
static struct ibv_qp *target, *initiator;
static struct ibv_ah *way;
static bool silent, deaf;
static enum ibv_wc_status failure = IBV_WC_SUCCESS;
/* What the pool has told. */
static uint32_t pool_target;
static uint64_t pool_key, token, dead_token;
/* How many messages of a kind have come, and were waited for. */
static unsigned int come[KINDS], waited[KINDS];
/* The end that the pool has named first. */
static uint64_t named;
static uint16_t posted, counted;

/* What the next message has in place of what is right. */
static struct odd {
	unsigned int times, rest;
	int shift;
	bool dead, stranger, has_shift;
	size_t cut;
} odd = { .times = 1 };

static void post_slot(uint64_t slot)
{
	struct ibv_sge element = {
		.addr = (uintptr_t)memory.slots[slot],
		.length = BUFFER_OCTETS,
		.lkey = region->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &element, .num_sge = 1 }, *bad;

	REQUIRE(ibv_post_srq_recv(receives, &wr, &bad) == 0);
	posted++;
}

static void take_news(void)
{
	struct ibv_wc done;

	while (!silent && received_cq && ibv_poll_cq(received_cq, 1, &done) > 0) {
		const uint8_t *message = memory.slots[done.wr_id] + LABEL_OCTETS;

		REQUIRE(done.status == IBV_WC_SUCCESS);
		REQUIRE(done.byte_len >= LABEL_OCTETS + HEADER_OCTETS);
		come[message[24]]++;
		if (!named && (message[24] == OPEN || message[24] == ACCEPT))
			named = big_endian_64(message + 8);
		post_slot(done.wr_id);
	}
}

static void wait_for(unsigned int kind)
{
	time_t until = now_s() + LIMIT_S;

	waited[kind]++;
	while (come[kind] < waited[kind]) {
		take_news();
		sched_yield();
		if (now_s() > until) {
			printf("no message %u\n", kind);
			exit(1);
		}
	}
}

static void go(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	REQUIRE(ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE) == 0);
}

static struct ibv_qp *create(enum urdmadv_dc_type type)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = sent_cq, .recv_cq = received_cq, .qp_type = IBV_QPT_DRIVER, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
	};
	struct urdmadv_qp_init_attr role = {
		.comp_mask = URDMADV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = type, .dct_access_key = KEY },
	};
	struct ibv_qp *qp;

	if (type == URDMADV_DCTYPE_DCT) {
		attr.srq = receives;
	} else {
		attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
		attr.cap.max_send_wr = DEPTH;
		attr.cap.max_send_sge = 1;
	}
	qp = urdmadv_create_qp(context, &attr, &role);
	REQUIRE(qp);
	go(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1 },
	   IBV_QP_PKEY_INDEX | IBV_QP_PORT |
		   (type == URDMADV_DCTYPE_DCT ? IBV_QP_ACCESS_FLAGS : 0));
	go(qp, (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
				     .min_rnr_timer = deaf ? 0 : 12 },
	   IBV_QP_PATH_MTU | (type == URDMADV_DCTYPE_DCT ? IBV_QP_MIN_RNR_TIMER : 0));
	return qp;
}

static void prepare(struct ibv_context *found)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = SLOTS, .max_sge = 1 } };

	if (context) {
		REQUIRE(context == found);
		return;
	}
	context = found;
	pd = ibv_alloc_pd(context);
	sent_cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	received_cq = ibv_create_cq(context, SLOTS, NULL, NULL, 0);
	REQUIRE(pd && sent_cq && received_cq);
	receives = ibv_create_srq(pd, &attr);
	region = ibv_reg_mr(pd, &memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	REQUIRE(receives && region);
	target = create(URDMADV_DCTYPE_DCT);
	initiator = create(URDMADV_DCTYPE_DCI);
	go(initiator,
	   (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7,
				 .rnr_retry = 7, .max_rd_atomic = 1 },
	   IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		   IBV_QP_MAX_QP_RD_ATOMIC);
	for (uint64_t slot = 0; slot < SLOTS && !deaf; slot++)
		post_slot(slot);
}

/* What the pool has answered. */
static void learn(const struct rdma_ud_param *answer)
{
	const uint8_t *told = answer->private_data;
	uint64_t new_token;

	pool_target = answer->qp_num;
	REQUIRE(answer->private_data_len >= KEY_AT + 8);
	pool_key = big_endian_64(told + KEY_AT);
	if (!way) {
		struct ibv_ah_attr attr = answer->ah_attr;

		way = ibv_create_ah(pd, &attr);
		REQUIRE(way);
	}
	if (answer->private_data_len < SHARE_AT + 2 || (told[SHARE_AT] | told[SHARE_AT + 1]) == 0) {
		puts("node");
		return;
	}
	new_token = big_endian_64(told + TOKEN_AT);
	printf("answered %s\n", new_token == token ? "same" : "another");
	if (new_token == token)
		return;
	dead_token = token;
	token = new_token;
	/* Both begin to count anew. */
	take_news();
	counted = 0;
	posted = SLOTS;
}

static struct rdma_cm_event *event_of(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;

	REQUIRE(rdma_get_cm_event(channel, &event) == 0);
	return event;
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = event_of(channel);

	REQUIRE(event->event == type);
	rdma_ack_cm_event(event);
}

/* Whether the pool says that it is to be asked again. */
static bool asked_later(struct rdma_cm_id *id, struct rdma_addrinfo *to, const char *text)
{
	uint8_t private[QUESTION_OCTETS] = { 0 }, *at = private + TARGET_AT;
	struct rdma_conn_param param = { .private_data = private };
	const char *colon = strchr(text, ':');
	struct rdma_cm_event *event;
	bool is_later = false;

	REQUIRE(rdma_resolve_addr(id, NULL, to->ai_dst_addr, 1000 * LIMIT_S) == 0);
	expect(id->channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	REQUIRE(rdma_resolve_route(id, 1000 * LIMIT_S) == 0);
	expect(id->channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	prepare(id->verbs);
	put(put(at, target->qp_num, 4), KEY, 8);
	REQUIRE(colon);
	octets_of(text, (size_t)(colon - text), private, sizeof(private));
	param.private_data_len = (uint8_t)strtoul(colon + 1, NULL, 10);
	REQUIRE(param.private_data_len <= sizeof(private));
	REQUIRE(rdma_connect(id, &param) == 0);
	event = event_of(id->channel);
	if (event->event == RDMA_CM_EVENT_ESTABLISHED) {
		learn(&event->param.ud);
	} else {
		const struct rdma_ud_param *refusal = &event->param.ud;

		REQUIRE(event->event == RDMA_CM_EVENT_REJECTED && refusal->private_data_len >= 8);
		is_later = ((const uint8_t *)refusal->private_data)[7] == 1;
		if (!is_later)
			puts("refused");
	}
	rdma_ack_cm_event(event);
	return is_later;
}

static void ask(struct rdma_addrinfo *to, const char *text)
{
	time_t until = now_s() + LIMIT_S;
	bool is_later;

	do {
		struct rdma_event_channel *channel = rdma_create_event_channel();
		struct rdma_cm_id *id;

		REQUIRE(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
		is_later = asked_later(id, to, text);
		rdma_destroy_id(id);
		rdma_destroy_event_channel(channel);
		take_news();
		if (is_later)
			usleep(ASK_AGAIN_US);
		REQUIRE(now_s() <= until);
	} while (is_later);
}

static uint64_t begin(void)
{
	if (odd.dead)
		return dead_token;
	return odd.stranger ? token ^ 1 : token;
}

static void post_message(const char *text, unsigned int place)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(initiator);
	uint8_t *at = memory.sent[place];
	uint16_t number = (uint16_t)(counted + 1 + odd.shift);
	size_t length;

	counted += !odd.has_shift && !odd.dead && !odd.stranger;
	put(put(put(at, begin(), 8), number, 2), odd.rest, 6);
	length = LABEL_OCTETS + compose(text, named, posted, at + LABEL_OCTETS,
					SENT_OCTETS - LABEL_OCTETS);
	if (odd.cut)
		length = odd.cut - 1;
	ibv_wr_start(ex);
	ex->wr_id = place;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	urdmadv_wr_set_dc_addr(urdmadv_qp_ex_from_ibv_qp_ex(ex), way, pool_target, pool_key);
	ibv_wr_set_sge(ex, region->lkey, (uintptr_t)at, (uint32_t)length);
	REQUIRE(ibv_wr_complete(ex) == 0);
}

/* Nothing is posted after a request that has failed. */
static void send_messages(const char *text)
{
	time_t until = now_s() + LIMIT_S;
	unsigned int sent = 0, complete = 0;
	struct ibv_wc done;

	while (complete < odd.times && failure == IBV_WC_SUCCESS) {
		while (sent < odd.times && sent - complete < DEPTH)
			post_message(text, sent++ % DEPTH);
		take_news();
		sched_yield();
		REQUIRE(now_s() <= until);
		while (ibv_poll_cq(sent_cq, 1, &done) > 0) {
			complete++;
			if (failure == IBV_WC_SUCCESS)
				failure = done.status;
		}
	}
	odd = (struct odd){ .times = 1 };
}

static bool is_odd(const char *name)
{
	if (sscanf(name, "times=%u", &odd.times) == 1 || sscanf(name, "rest=%u", &odd.rest) == 1)
		return true;
	if (sscanf(name, "shift=%d", &odd.shift) == 1)
		return odd.has_shift = true;
	if (sscanf(name, "cut=%zu", &odd.cut) == 1)
		return odd.cut++, true;
	if (strcmp(name, "dead") == 0)
		return odd.dead = true;
	if (strcmp(name, "stranger") == 0)
		return odd.stranger = true;
	return false;
}

static void step(struct rdma_addrinfo *to, const char *name)
{
	if (is_odd(name))
		return;
	if (strncmp(name, "ask=", 4) == 0)
		ask(to, name + 4);
	else if (strncmp(name, "message=", 8) == 0)
		send_messages(name + 8);
	else if (strncmp(name, "wait=", 5) == 0)
		wait_for((unsigned int)atoi(name + 5));
	else if (strncmp(name, "say=", 4) == 0)
		puts(name + 4);
	else if (strcmp(name, "stay") == 0)
		pause();
	else if (strcmp(name, "silent") == 0)
		silent = true;
	else if (strcmp(name, "deaf") == 0)
		silent = deaf = true;
	else
		REQUIRE(!"a step");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_UDP }, *to;

	REQUIRE(argc >= 3);
	REQUIRE(rdma_getaddrinfo(argv[1], argv[2], &hints, &to) == 0);
	for (int i = 3; i < argc; i++)
		step(to, argv[i]);
	take_news();
	if (failure != IBV_WC_SUCCESS)
		printf("failed: %s\n", ibv_wc_status_str(failure));
	puts("leaves");
	return 0;
}
