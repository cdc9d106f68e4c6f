/*
 * Three processes that connect to each other by gloo's transport ibverbs: sums by both rings, a
 * broadcast and a barrier, whose values are known: gloo-check DIRECTORY, which is empty.
 */
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <cstdio>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr int RANKS = 3;
constexpr int ROUNDS = 10;
constexpr size_t COUNT = (1 << 20) / sizeof(float);

/* Small enough that the sums of floats are exact. */
float value(int rank, int round, size_t at)
{
	return static_cast<float>((at % 1000 + round) * (rank + 1));
}

void expect(bool is_so, const char *what)
{
	if (!is_so)
		throw std::runtime_error(what);
}

/* An algorithm is not destroyed: one whose last send is not complete ends in an exception. */
template <typename Sum>
void sums(const std::shared_ptr<gloo::rendezvous::Context> &context)
{
	auto *values = new std::vector<float>(COUNT);
	auto *sum = new Sum(context, { values->data() }, COUNT);

	for (int round = 0; round < ROUNDS; round++) {
		for (size_t i = 0; i < COUNT; i++)
			(*values)[i] = value(context->rank, round, i);
		sum->run();
		for (size_t i = 0; i < COUNT; i++)
			expect((*values)[i] == RANKS * (RANKS + 1) / 2 * value(0, round, i),
			       "a wrong sum");
	}
}

void broadcast(const std::shared_ptr<gloo::rendezvous::Context> &context)
{
	auto *values = new std::vector<float>(COUNT);
	auto *sent = new gloo::BroadcastOneToAll<float>(context, { values->data() }, COUNT);

	if (context->rank == 0)
		for (size_t i = 0; i < COUNT; i++)
			(*values)[i] = value(0, 1, i);
	sent->run();
	for (size_t i = 0; i < COUNT; i++)
		expect((*values)[i] == value(0, 1, i), "a wrong value");
}

void run(int rank, const char *directory)
{
	gloo::transport::ibverbs::attr attr = { "urdma0", 1, 1 };
	auto device = gloo::transport::ibverbs::CreateDevice(attr);
	gloo::rendezvous::FileStore store(directory);
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, RANKS);

	context->connectFullMesh(store, device);
	sums<gloo::AllreduceRing<float>>(context);
	sums<gloo::AllreduceRingChunked<float>>(context);
	broadcast(context);
	(new gloo::BarrierAllToAll(context))->run();
	/* Keeps the connections until all processes have received the barrier's messages. */
	(new gloo::BarrierAllToAll(context))->run();
}

int outcome(int rank, const char *directory)
{
	try {
		run(rank, directory);
		return 0;
	} catch (const std::exception &error) {
		fprintf(stderr, "gloo-check: rank %d: %s\n", rank, error.what());
		return 1;
	}
}

} // namespace

int main(int argc, char **argv)
{
	int failed = 0;

	if (argc != 2)
		return 2;
	for (int rank = 0; rank < RANKS; rank++) {
		pid_t child = fork();

		if (child < 0)
			return 1;
		if (!child)
			_exit(outcome(rank, argv[1]));
	}
	for (int rank = 0; rank < RANKS; rank++) {
		int status;

		failed |= wait(&status) < 0 || status;
	}
	if (failed)
		return 1;
	printf("gloo-check: %d ranks ok\n", RANKS);
	return 0;
}
