/*
 * Two MPI ranks or more: a ping-pong whose answers are checked, messages of many sizes, and an
 * all-reduce whose sum is known.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 1000
#define SIZE_MAX_OCTETS (1 << 20)

static void fail(const char *what)
{
	fprintf(stderr, "mpi-check: %s\n", what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void pingpong(int rank)
{
	for (int round = 0; round < ROUNDS; round++) {
		int value = round;

		if (rank == 0) {
			MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD);
			MPI_Recv(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			if (value != 2 * round + 1)
				fail("a wrong answer");
		} else if (rank == 1) {
			MPI_Recv(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			value = 2 * value + 1;
			MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD);
		}
	}
}

static void sizes(int rank, unsigned char *octets)
{
	for (int size = 1; size <= SIZE_MAX_OCTETS; size *= 4) {
		if (rank == 0) {
			for (int i = 0; i < size; i++)
				octets[i] = (unsigned char)(i * 7 + size);
			MPI_Send(octets, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
		} else if (rank == 1) {
			MPI_Recv(octets, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			for (int i = 0; i < size; i++)
				if (octets[i] != (unsigned char)(i * 7 + size))
					fail("a wrong octet");
		}
	}
}

static void sum(int rank, int ranks)
{
	long own[100], all[100];

	for (int i = 0; i < 100; i++)
		own[i] = (long)(rank + 1) * (i + 1);
	MPI_Allreduce(own, all, 100, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < 100; i++)
		if (all[i] != (long)ranks * (ranks + 1) / 2 * (i + 1))
			fail("a wrong sum");
}

int main(int argc, char **argv)
{
	unsigned char *octets = malloc(SIZE_MAX_OCTETS);
	int rank, ranks;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks < 2)
		fail("two ranks are needed");
	pingpong(rank);
	sizes(rank, octets);
	sum(rank, ranks);
	if (rank == 0)
		printf("mpi-check: %d ranks ok\n", ranks);
	MPI_Finalize();
	free(octets);
	return 0;
}
