/*
 * Memory that a program unmaps while it is registered: requests of both ends succeed, as with a
 * NIC, which holds the pages, and all other memory has what it should have.
 */
#include "scenarios.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096u
/* Pages of the registered memory, and those of them that are unmapped. */
#define PAGES 16u
#define HOLE 4u
#define HOLE_PAGES 8u
#define OCTETS (PAGES * PAGE)
/* A page of the hole that the program maps again. */
#define AGAIN (HOLE + 3)
#define MESSAGE 9000u
#define PATTERN 0x5a
#define ANOTHER 0x77

#define ALL                                                                          \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	 IBV_ACCESS_REMOTE_ATOMIC)

/* What the server's peer is told, at the start of the server's region. */
struct place {
	uint64_t addr;
	uint32_t rkey;
};

static uint8_t *map_at(void *at, size_t octets, int flags)
{
	void *memory = mmap(at, octets, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap: %s", strerror(errno));
	return memory;
}

static bool is_mapped(const uint8_t *page)
{
	unsigned char resident;

	return !mincore((void *)page, PAGE, &resident);
}

static void unmap_hole(uint8_t *memory)
{
	if (munmap(memory + HOLE * PAGE, HOLE_PAGES * PAGE))
		fail("munmap: %s", strerror(errno));
}

/* Registers memory with a pattern. */
static struct ibv_mr *registered(struct end *e)
{
	uint8_t *memory = map_at(NULL, OCTETS, 0);
	struct ibv_mr *mr;

	memset(memory, PATTERN, OCTETS);
	mr = ibv_reg_mr(e->pd, memory, OCTETS, ALL);
	if (!mr)
		fail("ibv_reg_mr: %s", strerror(errno));
	return mr;
}

static void expect_all(const uint8_t *memory, unsigned page, unsigned pages, uint8_t octet)
{
	for (size_t i = page * PAGE; i < (page + pages) * PAGE; i++)
		if (memory[i] != octet)
			fail("octet %zu is %02x instead of %02x", i, memory[i], octet);
}

/*
 * Ends the region, and with it what was mapped in the hole but for the page that is the program's.
 */
static void end_region(struct ibv_mr *mr)
{
	uint8_t *memory = mr->addr, *again;

	again = map_at(memory + AGAIN * PAGE, PAGE, MAP_FIXED);
	memset(again, ANOTHER, PAGE);
	if (ibv_dereg_mr(mr))
		fail("ibv_dereg_mr: %s", strerror(errno));
	for (unsigned page = 0; page < PAGES; page++) {
		bool is_hole = page >= HOLE && page < HOLE + HOLE_PAGES && page != AGAIN;

		if (is_mapped(memory + page * PAGE) == is_hole)
			fail("page %u is %s", page, is_hole ? "mapped" : "unmapped");
	}
	expect_all(memory, AGAIN, 1, ANOTHER);
	munmap(memory, OCTETS);
}

static void request(struct end *e, enum ibv_wr_opcode opcode, const struct place *there,
		    size_t offset, uint32_t length)
{
	struct ibv_send_wr wr = { .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = there->addr + offset;
		wr.wr.atomic.rkey = there->rkey;
		wr.wr.atomic.compare_add = 3;
	} else if (opcode != IBV_WR_SEND) {
		wr.wr.rdma.remote_addr = there->addr + offset;
		wr.wr.rdma.rkey = there->rkey;
	}
	if (end_send(e, &wr, 0, length, e->mr->lkey))
		fail("a request was refused");
	end_expect(e, IBV_WC_SUCCESS);
}

static struct place place_of_peer(struct end *e, unsigned number)
{
	struct place server = { .addr = e->peer.addr, .rkey = e->peer.rkey }, places[2];

	request(e, IBV_WR_RDMA_READ, &server, 0, sizeof(places));
	memcpy(places, e->region, sizeof(places));
	return places[number];
}

/* A source of this end that is unmapped, and a destination. */
static void use_own_hole(struct end *e, const struct place *there)
{
	struct ibv_mr *mr = registered(e);
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = OCTETS, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .sg_list = &sge,
				  .num_sge = 1 },
			   *bad;

	unmap_hole(mr->addr);
	wr.wr.rdma.remote_addr = there->addr;
	wr.wr.rdma.rkey = there->rkey;
	if (ibv_post_send(e->qp, &wr, &bad))
		fail("a Write was refused");
	end_expect(e, IBV_WC_SUCCESS);
	munmap((uint8_t *)mr->addr + HOLE * PAGE, HOLE_PAGES * PAGE);
	wr.opcode = IBV_WR_RDMA_READ;
	if (ibv_post_send(e->qp, &wr, &bad))
		fail("a Read was refused");
	end_expect(e, IBV_WC_SUCCESS);
	expect_all(mr->addr, 0, HOLE, PATTERN);
	expect_all(mr->addr, HOLE + HOLE_PAGES, PAGES - HOLE - HOLE_PAGES, PATTERN);
	end_region(mr);
}

void unmapped_client(struct end *e)
{
	struct place written, read;
	uint64_t before;

	end_meet(e);
	written = place_of_peer(e, 0);
	read = place_of_peer(e, 1);
	request(e, IBV_WR_RDMA_READ, &read, 0, OCTETS);
	expect_all(e->region, 0, HOLE, PATTERN);
	expect_all(e->region, HOLE + HOLE_PAGES, PAGES - HOLE - HOLE_PAGES, PATTERN);
	memset(e->region, ANOTHER, OCTETS);
	request(e, IBV_WR_RDMA_WRITE, &written, PAGE, (PAGES - 2) * PAGE);
	memset(e->region, 0, OCTETS);
	request(e, IBV_WR_RDMA_READ, &written, 0, OCTETS);
	expect_all(e->region, 0, 1, PATTERN);
	expect_all(e->region, 1, PAGES - 2, ANOTHER);
	expect_all(e->region, PAGES - 1, 1, PATTERN);
	end_meet(e);
	/* The hole is unmapped once more. */
	end_meet(e);
	request(e, IBV_WR_ATOMIC_FETCH_AND_ADD, &written, HOLE * PAGE, sizeof(before));
	request(e, IBV_WR_ATOMIC_FETCH_AND_ADD, &written, HOLE * PAGE, sizeof(before));
	memcpy(&before, e->region, sizeof(before));
	if (before != 3)
		fail("an atomic found %lu", (unsigned long)before);
	request(e, IBV_WR_SEND, NULL, 0, MESSAGE);
	use_own_hole(e, &read);
	end_meet(e);
}

void unmapped_server(struct end *e)
{
	struct ibv_mr *written = registered(e), *read = registered(e);
	struct place places[] = {
		{ .addr = (uintptr_t)written->addr, .rkey = written->rkey },
		{ .addr = (uintptr_t)read->addr, .rkey = read->rkey },
	};
	struct ibv_sge sge = { .addr = places[0].addr + (HOLE + 1) * PAGE,
			       .length = MESSAGE,
			       .lkey = written->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	memcpy(e->region, places, sizeof(places));
	unmap_hole(written->addr);
	unmap_hole(read->addr);
	if (ibv_post_recv(e->qp, &wr, &bad))
		fail("a receive request was refused");
	end_meet(e);
	/* A thread of the library answers meanwhile. */
	end_meet(e);
	expect_all(written->addr, 0, 1, PATTERN);
	expect_all(written->addr, 1, HOLE - 1, ANOTHER);
	expect_all(written->addr, HOLE + HOLE_PAGES, PAGES - HOLE - HOLE_PAGES - 1, ANOTHER);
	expect_all(written->addr, PAGES - 1, 1, PATTERN);
	expect_all(read->addr, 0, HOLE, PATTERN);
	unmap_hole(written->addr);
	end_meet(e);
	/* And now this one. */
	if (end_expect(e, IBV_WC_SUCCESS).byte_len != MESSAGE)
		fail("a message has another length");
	end_meet(e);
	end_region(written);
	end_region(read);
}
