// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * pool-c-check node rc|dc PORT         a node, until it is killed
 * pool-c-check client rc|dc PORT       every operation, and close
 * pool-c-check threads rc|dc PORT      threads, each a user, share a pool
 * pool-c-check errors rc|dc PORT       what is refused
 * pool-c-check killed rc|dc PORT       reads until the node is killed, and after it has begun anew
 * pool-c-check switched dc PORT        counts over DC and over a connection, and back
 *
 * A further argument is the port of a metadata service.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <urdma_pool.h>

#include "../exs-c-check/require.h"

#define WORDS 512
#define THREADS 4
#define READS 2000

/* Requires that a call fails with this errno. */
#define REFUSED(call, number) \
	do { \
		errno = 0; \
		REQUIRE((call) == -1 && errno == (number)); \
	} while (0)

static enum urdma_pool_transport transport;
static struct sockaddr_in address;
static struct sockaddr_storage service;
static int services;

static struct urdma_pool *create(void)
{
	struct urdma_pool_attr attr = { .transport = transport };
	struct urdma_pool *pool =
		urdma_pool_create((struct sockaddr *)&address, sizeof(address), &attr);

	REQUIRE(pool != NULL);
	if (services)
		REQUIRE(urdma_pool_use_metadata(pool, &service, services) == 0);
	return pool;
}

/* A virtual queue pair with memory of its user. */
struct end {
	struct urdma_pool *pool;
	urdma_pool_qp_t qp;
	urdma_pool_mr_t mr;
	struct urdma_pool_remote remote;
	struct urdma_pool_sge sge;
	uint64_t words[WORDS];
};

static int open_qp(struct end *end, uint32_t user)
{
	return urdma_pool_open(end->pool, user, (struct sockaddr *)&address, sizeof(address), 4,
			       &end->qp, &end->remote);
}

static void open_end(struct end *end, struct urdma_pool *pool, uint32_t user)
{
	memset(end, 0, sizeof(*end));
	end->pool = pool;
	REQUIRE(urdma_pool_reg_mr(pool, user, end->words, sizeof(end->words), &end->mr) == 0);
	REQUIRE(open_qp(end, user) == 0);
	REQUIRE(end->remote.length == sizeof(end->words));
}

static void close_end(struct end *end)
{
	REQUIRE(urdma_pool_close(end->pool, end->qp) == 0);
	REQUIRE(urdma_pool_dereg_mr(end->pool, end->mr) == 0);
}

static struct urdma_pool_sge element(struct end *end, int word, uint32_t length)
{
	struct urdma_pool_sge sge = { .mr = end->mr, .addr = &end->words[word], .length = length };

	return sge;
}

/* A request for a word of both ends. */
static struct urdma_pool_wr request(struct end *end, enum ibv_wr_opcode opcode, int word)
{
	struct urdma_pool_wr wr = {
		.wr_id = 7, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.sg_list = &end->sge, .num_sge = 1, .remote = end->remote.id,
		.remote_addr = end->remote.addr + sizeof(uint64_t) * (size_t)word,
	};

	end->sge = element(end, word, sizeof(uint64_t));
	return wr;
}

static struct urdma_pool_wc wait_for(struct end *end)
{
	struct urdma_pool_wc wc;
	int count;

	while ((count = urdma_pool_poll(end->pool, end->qp, 1, &wc)) == 0)
		sched_yield();
	REQUIRE(count == 1 && wc.wr_id == 7);
	return wc;
}

static void execute(struct end *end, const struct urdma_pool_wr *wr, enum ibv_wc_opcode opcode)
{
	struct urdma_pool_wc wc;
	uint32_t length = 0;

	REQUIRE(urdma_pool_post(end->pool, end->qp, wr) == 0);
	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	wc = wait_for(end);
	REQUIRE(wc.status == IBV_WC_SUCCESS && wc.opcode == opcode && wc.byte_len == length);
}

/* Words 20 to 25 of the node into four places of two regions, and back in another order. */
static void use_elements(struct end *end)
{
	static uint64_t other[2];
	struct urdma_pool_sge list[4];
	struct urdma_pool_wr wr = request(end, IBV_WR_RDMA_READ, 20);
	urdma_pool_mr_t mr;

	REQUIRE(urdma_pool_reg_mr(end->pool, 1, other, sizeof(other), &mr) == 0);
	list[0] = element(end, 40, 8);
	list[1] = (struct urdma_pool_sge){ .mr = mr, .addr = other, .length = 16 };
	list[2] = element(end, 30, 0);
	list[3] = element(end, 50, 24);
	end->words[30] = 1;
	wr.sg_list = list;
	wr.num_sge = 4;
	execute(end, &wr, IBV_WC_RDMA_READ);
	REQUIRE(end->words[40] == 20 && other[0] == 21 && other[1] == 22);
	REQUIRE(end->words[50] == 23 && end->words[51] == 24 && end->words[52] == 25);
	REQUIRE(end->words[30] == 1 && end->words[41] == 0 && end->words[53] == 0);
	list[0] = element(end, 50, 24);
	list[2] = element(end, 40, 8);
	wr.num_sge = 3;
	wr.opcode = IBV_WR_RDMA_WRITE;
	execute(end, &wr, IBV_WC_RDMA_WRITE);
	wr = request(end, IBV_WR_RDMA_READ, 20);
	end->sge = element(end, 20, 48);
	execute(end, &wr, IBV_WC_RDMA_READ);
	REQUIRE(end->words[20] == 23 && end->words[22] == 25 && end->words[23] == 21);
	REQUIRE(end->words[24] == 22 && end->words[25] == 20);
	/* As it was. */
	for (int i = 20; i < 26; i++)
		end->words[i] = (uint64_t)i;
	wr.opcode = IBV_WR_RDMA_WRITE;
	execute(end, &wr, IBV_WC_RDMA_WRITE);
	/* Nothing at all. */
	wr.num_sge = 0;
	execute(end, &wr, IBV_WC_RDMA_WRITE);
	wr.sg_list = NULL;
	wr.opcode = IBV_WR_RDMA_READ;
	execute(end, &wr, IBV_WC_RDMA_READ);
	REQUIRE(urdma_pool_dereg_mr(end->pool, mr) == 0);
}

/* Lists of which one element is impossible. */
static void refuse_elements(struct end *end, struct end *other)
{
	struct urdma_pool_sge list[17];
	struct urdma_pool_wr wr = request(end, IBV_WR_RDMA_READ, 0);

	for (int i = 0; i < 17; i++)
		list[i] = element(end, i, 8);
	wr.sg_list = list;
	for (wr.num_sge = 5; wr.num_sge <= 17; wr.num_sge++)
		REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EINVAL);
	wr.num_sge = -1;
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EINVAL);
	wr.num_sge = 4;
	list[3] = element(other, 0, 8);
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EINVAL);
	list[3] = element(end, WORDS - 1, 9);
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EINVAL);
	list[3] = element(end, 0, UINT32_MAX);
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EINVAL);
	list[3] = element(end, 0, 8);
	list[3].mr++;
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EINVAL);
	list[3] = element(end, 0, 8);
	/* Each is in its memory, but not all together in the node's. */
	wr.remote_addr += 8 * (WORDS - 3);
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EINVAL);
	wr = request(end, IBV_WR_ATOMIC_FETCH_AND_ADD, 0);
	wr.sg_list = list;
	list[0] = element(end, 0, 4);
	list[1] = element(end, 1, 4);
	wr.num_sge = 2;
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EINVAL);
	wr.num_sge = 0;
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EINVAL);
	wr.num_sge = 1;
	wr.sg_list = NULL;
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EFAULT);
}

static void serve(void)
{
	static uint64_t words[WORDS];
	struct urdma_pool_node *node = urdma_pool_node_create(
		(struct sockaddr *)&address, sizeof(address), words, sizeof(words), transport);

	REQUIRE(node != NULL);
	for (int i = 0; i < WORDS; i++)
		words[i] = (uint64_t)i;
	if (services)
		REQUIRE(urdma_pool_node_register(node, &service, services) == 0);
	puts("listens");
	fflush(stdout);
	while (urdma_pool_node_wait(node, -1) == 0)
		;
	REQUIRE(!"the node has ended");
}

static void use_operations(void)
{
	struct urdma_pool *pool = create();
	struct end end;
	struct urdma_pool_wr wr;

	open_end(&end, pool, 1);
	wr = request(&end, IBV_WR_RDMA_READ, 9);
	execute(&end, &wr, IBV_WC_RDMA_READ);
	REQUIRE(end.words[9] == 9);
	end.words[9] = 90;
	wr = request(&end, IBV_WR_RDMA_WRITE, 9);
	execute(&end, &wr, IBV_WC_RDMA_WRITE);
	wr = request(&end, IBV_WR_ATOMIC_FETCH_AND_ADD, 9);
	wr.compare_add = 5;
	execute(&end, &wr, IBV_WC_FETCH_ADD);
	REQUIRE(end.words[9] == 90);
	wr = request(&end, IBV_WR_ATOMIC_CMP_AND_SWP, 9);
	wr.compare_add = 95;
	wr.swap = 9;
	execute(&end, &wr, IBV_WC_COMP_SWAP);
	REQUIRE(end.words[9] == 95);
	use_elements(&end);
	wr = request(&end, IBV_WR_RDMA_READ, 0);
	end.sge.length = sizeof(end.words);
	execute(&end, &wr, IBV_WC_RDMA_READ);
	for (int i = 0; i < WORDS; i++)
		REQUIRE(end.words[i] == (uint64_t)i);
	close_end(&end);
	REQUIRE(urdma_pool_destroy(pool) == 0);
}

static void *read_as_user(void *pool)
{
	static int users;
	struct end end;

	open_end(&end, pool, (uint32_t)__atomic_add_fetch(&users, 1, __ATOMIC_SEQ_CST));
	for (int i = 0; i < READS; i++) {
		struct urdma_pool_wr wr = request(&end, IBV_WR_RDMA_READ, i % WORDS);

		execute(&end, &wr, IBV_WC_RDMA_READ);
		REQUIRE(end.words[i % WORDS] == (uint64_t)(i % WORDS));
	}
	close_end(&end);
	return NULL;
}

static void use_threads(void)
{
	struct urdma_pool *pool = create();
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		REQUIRE(pthread_create(&threads[i], NULL, read_as_user, pool) == 0);
	for (int i = 0; i < THREADS; i++)
		REQUIRE(pthread_join(threads[i], NULL) == 0);
	REQUIRE(urdma_pool_destroy(pool) == 0);
}

static void refuse_requests(struct end *end, struct end *other)
{
	struct urdma_pool_wr wr = request(end, IBV_WR_RDMA_READ, 0);
	struct urdma_pool_wc wc[4];

	wr.opcode = IBV_WR_SEND;
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EOPNOTSUPP);
	wr = request(end, IBV_WR_RDMA_READ, 0);
	wr.send_flags = IBV_SEND_INLINE;
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EOPNOTSUPP);
	wr = request(end, IBV_WR_RDMA_READ, 0);
	end->sge = element(other, 0, 8);
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EINVAL);
	wr = request(end, IBV_WR_RDMA_READ, WORDS - 1);
	end->sge.length = 9;
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EINVAL);
	wr = request(end, IBV_WR_ATOMIC_FETCH_AND_ADD, 0);
	wr.remote_addr += 4;
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), EINVAL);
	refuse_elements(end, other);
	REFUSED(urdma_pool_post(end->pool, end->qp, NULL), EFAULT);
	REFUSED(urdma_pool_post(NULL, end->qp, &wr), EFAULT);
	REFUSED(urdma_pool_post(end->pool, UINT64_MAX, &wr), EINVAL);
	REFUSED(urdma_pool_poll(end->pool, end->qp, -1, wc), EINVAL);
	REFUSED(urdma_pool_poll(end->pool, UINT64_MAX, 1, wc), EINVAL);
	/* More than its depth, without a poll. */
	wr = request(end, IBV_WR_RDMA_READ, 0);
	for (int i = 0; i < 4; i++)
		REQUIRE(urdma_pool_post(end->pool, end->qp, &wr) == 0);
	REFUSED(urdma_pool_post(end->pool, end->qp, &wr), ENOMEM);
	for (int i = 0; i < 4; i++)
		REQUIRE(wait_for(end).status == IBV_WC_SUCCESS);
}

static void refuse(void)
{
	struct urdma_pool_attr attr = { .transport = (enum urdma_pool_transport)2 };
	struct sockaddr *at = (struct sockaddr *)&address;
	struct sockaddr_in nowhere = address;
	struct urdma_pool *pool = create();
	struct end end, other;

	errno = 0;
	REQUIRE(!urdma_pool_create(at, sizeof(address), &attr) && errno == EINVAL);
	attr = (struct urdma_pool_attr){ .max_sge = 17 };
	errno = 0;
	REQUIRE(!urdma_pool_create(at, sizeof(address), &attr) && errno == EINVAL);
	/* More connections than the completion queue serves, and those of a pool of connections. */
	for (uint32_t max = 32; max <= 65536; max *= 2048) {
		attr = (struct urdma_pool_attr){ .transport = URDMA_POOL_DC, .switch_max = max };
		errno = 0;
		REQUIRE(!urdma_pool_create(at, sizeof(address), &attr) && errno == EINVAL);
	}
	attr = (struct urdma_pool_attr){ .transport = URDMA_POOL_RC, .switch_max = 1 };
	errno = 0;
	REQUIRE(!urdma_pool_create(at, sizeof(address), &attr) && errno == EINVAL);
	attr.switch_max = 0;
	errno = 0;
	REQUIRE(!urdma_pool_create(NULL, 0, &attr) && errno == EFAULT);
	REFUSED(urdma_pool_use_metadata(pool, NULL, 1), EFAULT);
	REFUSED(urdma_pool_use_metadata(pool, &service, -1), EINVAL);
	REFUSED(urdma_pool_use_metadata(pool, &service, 1), EAFNOSUPPORT);
	open_end(&end, pool, 1);
	open_end(&other, pool, 2);
	refuse_requests(&end, &other);
	REFUSED(urdma_pool_reg_mr(pool, 1, NULL, 8, &end.mr), EFAULT);
	REFUSED(urdma_pool_reg_mr(pool, 1, end.words, 0, &end.mr), EINVAL);
	REFUSED(urdma_pool_dereg_mr(pool, UINT64_MAX), EINVAL);
	REFUSED(urdma_pool_open(pool, 1, at, sizeof(address), 0, &other.qp, &other.remote),
		EINVAL);
	nowhere.sin_port = htons(1);
	REFUSED(urdma_pool_open(pool, 1, (struct sockaddr *)&nowhere, sizeof(nowhere), 4,
				&other.qp, &other.remote), EHOSTUNREACH);
	close_end(&other);
	REFUSED(urdma_pool_close(pool, other.qp), EINVAL);
	REFUSED(urdma_pool_reset(pool, other.qp), EINVAL);
	REFUSED(urdma_pool_dereg_mr(pool, other.mr), EINVAL);
	close_end(&end);
	REQUIRE(urdma_pool_destroy(pool) == 0);
	REFUSED(urdma_pool_destroy(NULL), EFAULT);
	REFUSED(urdma_pool_node_wait(NULL, 0), EFAULT);
	REFUSED(urdma_pool_node_register(NULL, &service, 1), EFAULT);
}

/* Reads until a read fails; says so, and reads from the node that begins anew. */
static void outlive_the_node(void)
{
	struct end end;
	struct urdma_pool_wr wr;
	struct urdma_pool_wc wc;

	open_end(&end, create(), 1);
	puts("reads");
	fflush(stdout);
	do {
		wr = request(&end, IBV_WR_RDMA_READ, 1);
		REQUIRE(urdma_pool_post(end.pool, end.qp, &wr) == 0);
		wc = wait_for(&end);
	} while (wc.status == IBV_WC_SUCCESS);
	REFUSED(urdma_pool_post(end.pool, end.qp, &wr), EINVAL);
	REQUIRE(urdma_pool_reset(end.pool, end.qp) == 0);
	REQUIRE(urdma_pool_close(end.pool, end.qp) == 0);
	puts("failed");
	fflush(stdout);
	for (;;) {
		while (open_qp(&end, 1) != 0)
			usleep(10000);
		wr = request(&end, IBV_WR_RDMA_READ, 1);
		if (urdma_pool_post(end.pool, end.qp, &wr) == 0 &&
		    wait_for(&end).status == IBV_WC_SUCCESS)
			break;
		REQUIRE(urdma_pool_close(end.pool, end.qp) == 0);
	}
	REQUIRE(end.words[1] == 1);
	close_end(&end);
	REQUIRE(urdma_pool_destroy(end.pool) == 0);
}

/* Counts: each atomic finds what the one before has left. */
static void count_row(struct end *end, uint64_t *next)
{
	for (int i = 0; i < 16; i++) {
		struct urdma_pool_wr wr = request(end, IBV_WR_ATOMIC_FETCH_AND_ADD, 100);

		wr.compare_add = 1;
		execute(end, &wr, IBV_WC_FETCH_ADD);
		REQUIRE(end->words[100] == (*next)++);
	}
}

static void use_switch(void)
{
	struct urdma_pool_attr attr = {
		.transport = transport, .switch_max = 2, .switch_requests = 8,
		.switch_window_us = 1000, .switch_quiet = 50, .switch_retry = 10,
	};
	struct urdma_pool *pool =
		urdma_pool_create((struct sockaddr *)&address, sizeof(address), &attr);
	struct urdma_pool_stats stats;
	struct urdma_pool_wc wc;
	struct end end;
	uint64_t next = 100;

	REQUIRE(pool != NULL);
	open_end(&end, pool, 1);
	for (uint64_t round = 1; round <= 3; round++) {
		do {
			count_row(&end, &next);
			REQUIRE(urdma_pool_get_stats(pool, &stats) == 0);
		} while (stats.switched_to_connections < round);
		for (int i = 0; i < 20; i++)
			count_row(&end, &next);
		do {
			REQUIRE(urdma_pool_poll(pool, end.qp, 1, &wc) == 0);
			REQUIRE(urdma_pool_get_stats(pool, &stats) == 0);
		} while (stats.switched_back < round);
	}
	REQUIRE(stats.posted == next - 100 && stats.failed == 0 && stats.repeated == 0);
	REFUSED(urdma_pool_get_stats(pool, NULL), EFAULT);
	close_end(&end);
	REQUIRE(urdma_pool_destroy(pool) == 0);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*part)(void);
	} parts[] = {
		{ "node", serve }, { "client", use_operations }, { "threads", use_threads },
		{ "errors", refuse }, { "killed", outlive_the_node },
		{ "switched", use_switch },
	};

	REQUIRE(argc == 4 || argc == 5);
	transport = strcmp(argv[2], "dc") == 0 ? URDMA_POOL_DC : URDMA_POOL_RC;
	address.sin_family = AF_INET;
	address.sin_port = htons((uint16_t)atoi(argv[3]));
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (argc == 5) {
		struct sockaddr_in at = address;

		at.sin_port = htons((uint16_t)atoi(argv[4]));
		memcpy(&service, &at, sizeof(at));
		services = 1;
	}
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (strcmp(parts[i].name, argv[1]) == 0) {
			parts[i].part();
			puts("done");
			return 0;
		}
	}
	REQUIRE(!"the first argument names a part");
}
