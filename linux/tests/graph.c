/*
 * `flatwalk vm bench` runs this as well as gups.c: graph KERNEL VERTICES DEGREE ROUNDS, over a graph whose edges are drawn
 * uniformly: each vertex has DEGREE neighbours. The kernels:
 *
 *   pagerank    rounds of pulling: each vertex reads the ranks of its neighbours
 *   bfs         searches breadth first, each from another vertex, along the edges
 *   components  connected components, edges taken in both directions; the same ROUNDS times
 *
 * The first marker begins the construction of the graph; the second, where recording begins, the first round; the third
 * ends the last. Prints the result, checked by the edges (status 1 if it is wrong), and the size of its page tables.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../recorder/flatwalk.h"
#include "tables.h"

/* As in gups.c: within one range of level 3 in every mode. */
#define MEMORY 0x100040000000UL
#define NOWHERE UINT32_MAX

static char *next = (char *)MEMORY;
static uint64_t vertices, degree;
static uint32_t *neighbours;

static void *reserve(uint64_t count, size_t bytes)
{
	char *memory = mmap(next, count * bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	if (memory == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	next += (count * bytes + 4095) & ~4095UL;
	return memory;
}

static const uint32_t *of(uint64_t vertex)
{
	return neighbours + vertex * degree;
}

/* PageRank. */

static double *ranks, *shares;

static void pagerank_loads(void)
{
	ranks = reserve(vertices, sizeof(*ranks));
	shares = reserve(vertices, sizeof(*shares));
	for (uint64_t vertex = 0; vertex < vertices; vertex++) {
		ranks[vertex] = 1.0 / vertices;
		shares[vertex] = ranks[vertex] / degree;
	}
}

static void pagerank(uint64_t round)
{
	(void)round;
	for (uint64_t vertex = 0; vertex < vertices; vertex++) {
		double taken = 0;

		for (uint64_t i = 0; i < degree; i++)
			taken += shares[of(vertex)[i]];
		ranks[vertex] = 0.15 / vertices + 0.85 * taken;
	}
	for (uint64_t vertex = 0; vertex < vertices; vertex++)
		shares[vertex] = ranks[vertex] / degree;
}

/* Each vertex is read `degree` times on average, so that all ranks together are about 1. */
static int pagerank_is_right(void)
{
	double sum = 0;

	for (uint64_t vertex = 0; vertex < vertices; vertex++)
		sum += ranks[vertex];
	printf("sum %.6f\n", sum);
	return sum > 0.9 && sum < 1.1;
}

/* Breadth-first search. */

static uint32_t *parents, *queue;
static uint64_t reached;

static void bfs_loads(void)
{
	parents = reserve(vertices, sizeof(*parents));
	queue = reserve(vertices, sizeof(*queue));
	memset(parents, 0xff, vertices * sizeof(*parents));
	memset(queue, 0, vertices * sizeof(*queue));
}

static void bfs(uint64_t round)
{
	uint32_t source = round % vertices;

	if (round)
		memset(parents, 0xff, vertices * sizeof(*parents));
	parents[source] = source;
	queue[0] = source;
	reached = 1;
	for (uint64_t at = 0; at < reached; at++) {
		for (uint64_t i = 0; i < degree; i++) {
			uint32_t found = of(queue[at])[i];

			if (parents[found] == NOWHERE) {
				parents[found] = queue[at];
				queue[reached++] = found;
			}
		}
	}
}

/* The search followed edges, level by level, and left out nothing. */
static int bfs_is_right(void)
{
	uint32_t *levels = reserve(vertices, sizeof(*levels));
	uint32_t depth = 0;

	memset(levels, 0xff, vertices * sizeof(*levels));
	levels[queue[0]] = 0;
	for (uint64_t at = 1; at < reached; at++) {
		uint32_t vertex = queue[at], parent = parents[vertex];
		uint64_t i = 0;

		while (i < degree && of(parent)[i] != vertex)
			i++;
		if (i == degree || levels[parent] == NOWHERE || levels[parent] + 1 < depth)
			return 0;
		depth = levels[vertex] = levels[parent] + 1;
	}
	for (uint64_t vertex = 0; vertex < vertices; vertex++) {
		for (uint64_t i = 0; levels[vertex] != NOWHERE && i < degree; i++) {
			uint32_t level = levels[of(vertex)[i]];

			if (level == NOWHERE || level > levels[vertex] + 1)
				return 0;
		}
	}
	printf("reached %lu, depth %u\n", reached, depth);
	return 1;
}

/* Connected components, by sets of vertices that are trees, each known by its smallest vertex. */

static uint32_t *sets;

static uint32_t set_of(uint32_t vertex)
{
	while (sets[vertex] != vertex) {
		sets[vertex] = sets[sets[vertex]];
		vertex = sets[vertex];
	}
	return vertex;
}

static void components_loads(void)
{
	sets = reserve(vertices, sizeof(*sets));
	for (uint64_t vertex = 0; vertex < vertices; vertex++)
		sets[vertex] = vertex;
}

static void components(uint64_t round)
{
	for (uint64_t vertex = 0; round && vertex < vertices; vertex++)
		sets[vertex] = vertex;
	for (uint64_t vertex = 0; vertex < vertices; vertex++) {
		for (uint64_t i = 0; i < degree; i++) {
			uint32_t one = set_of(vertex), other = set_of(of(vertex)[i]);

			if (one < other)
				sets[other] = one;
			else
				sets[one] = other;
		}
	}
	for (uint64_t vertex = 0; vertex < vertices; vertex++)
		sets[vertex] = set_of(vertex);
}

/* Neighbours are in one set. That sets are not too large shows in their number, which the caller knows. */
static int components_is_right(void)
{
	uint64_t count = 0;

	for (uint64_t vertex = 0; vertex < vertices; vertex++) {
		count += sets[vertex] == vertex;
		for (uint64_t i = 0; i < degree; i++) {
			if (sets[of(vertex)[i]] != sets[vertex])
				return 0;
		}
	}
	printf("components %lu\n", count);
	return 1;
}

static const struct kernel {
	const char *name;
	void (*loads)(void);
	void (*round)(uint64_t round);
	int (*is_right)(void);
} kernels[] = {
	{ "pagerank", pagerank_loads, pagerank, pagerank_is_right },
	{ "bfs", bfs_loads, bfs, bfs_is_right },
	{ "components", components_loads, components, components_is_right },
	{ NULL, NULL, NULL, NULL },
};

int main(int argc, char **argv)
{
	const struct kernel *kernel = kernels;
	uint64_t random = 1, rounds = 0;

	while (argc == 5 && kernel->name && strcmp(kernel->name, argv[1]))
		kernel++;
	if (argc == 5) {
		vertices = strtoull(argv[2], NULL, 10);
		degree = strtoull(argv[3], NULL, 10);
		rounds = strtoull(argv[4], NULL, 10);
	}
	if (!kernel->name || !vertices || vertices >> 32 || !degree || !rounds) {
		fprintf(stderr, "usage: graph pagerank|bfs|components VERTICES DEGREE ROUNDS\n");
		return 2;
	}
	flatwalk_mark("loading");
	neighbours = reserve(vertices * degree, sizeof(*neighbours));
	kernel->loads();
	for (uint64_t edge = 0; edge < vertices * degree; edge++) {
		random = random * 6364136223846793005 + 1442695040888963407;
		neighbours[edge] = (random >> 20) % vertices;
	}
	flatwalk_start();
	for (uint64_t round = 0; round < rounds; round++)
		kernel->round(round);
	flatwalk_stop();
	if (!kernel->is_right()) {
		fprintf(stderr, "graph: %s is wrong\n", kernel->name);
		return 1;
	}
	tell_tables();
	return 0;
}
