/*
 * What `flatwalk vm bench` runs beside gups.c: graph VERTICES DEGREE ROUNDS. PageRank by pulling over a graph whose
 * edges are drawn uniformly: each vertex reads what its neighbours, anywhere, have to give. The first marker begins the
 * making of the graph, the second, where recording begins, the first round, and the third ends the last. Says the sum
 * of all ranks, which is about 1, and how large its page tables are.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../../recorder/flatwalk.h"
#include "tables.h"

/* As in gups.c: in one range of level 3, whatever the mode. */
#define MEMORY 0x100040000000UL

static char *next = (char *)MEMORY;

static void *reserve(size_t bytes)
{
	char *memory = mmap(next, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	if (memory == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	next += (bytes + 4095) & ~4095UL;
	return memory;
}

int main(int argc, char **argv)
{
	uint64_t vertices = argc == 4 ? strtoull(argv[1], NULL, 10) : 0;
	uint64_t degree = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
	uint64_t rounds = argc == 4 ? strtoull(argv[3], NULL, 10) : 0;
	uint64_t random = 1;
	uint32_t *neighbours;
	double *ranks, *shares, sum = 0;

	if (!vertices || vertices >> 32 || !degree) {
		fprintf(stderr, "usage: graph VERTICES DEGREE ROUNDS\n");
		return 2;
	}
	flatwalk_mark("loading");
	neighbours = reserve(vertices * degree * sizeof(*neighbours));
	ranks = reserve(vertices * sizeof(*ranks));
	shares = reserve(vertices * sizeof(*shares));
	for (uint64_t edge = 0; edge < vertices * degree; edge++) {
		random = random * 6364136223846793005 + 1442695040888963407;
		neighbours[edge] = (random >> 20) % vertices;
	}
	for (uint64_t vertex = 0; vertex < vertices; vertex++) {
		ranks[vertex] = 1.0 / vertices;
		shares[vertex] = ranks[vertex] / degree;
	}
	flatwalk_start();
	for (uint64_t round = 0; round < rounds; round++) {
		for (uint64_t vertex = 0; vertex < vertices; vertex++) {
			double taken = 0;

			for (uint64_t i = 0; i < degree; i++)
				taken += shares[neighbours[vertex * degree + i]];
			ranks[vertex] = 0.15 / vertices + 0.85 * taken;
		}
		for (uint64_t vertex = 0; vertex < vertices; vertex++)
			shares[vertex] = ranks[vertex] / degree;
	}
	flatwalk_stop();
	for (uint64_t vertex = 0; vertex < vertices; vertex++)
		sum += ranks[vertex];
	printf("sum %.6f\n", sum);
	tell_tables();
	return 0;
}
