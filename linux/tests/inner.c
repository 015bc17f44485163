/*
 * For a guest in a guest: inner PAGES ROUNDS. In each round, writes a word to each of PAGES pages and verifies the word of
 * the round before; executes CPUID, which KVM emulates, before each 16th, so that what follows is translated anew; and
 * prints a line. A marker ends the first round, in which all pages are new.
 */
#include <cpuid.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../../recorder/flatwalk.h"

#define PAGE 4096UL
#define MEMORY 0x100040000000UL /* within one range of level 3 in every mode */

int main(int argc, char **argv)
{
	uint64_t pages = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;
	uint64_t rounds = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
	unsigned int a, b, c, d;
	char *memory;

	if (!pages || !rounds) {
		fprintf(stderr, "usage: inner PAGES ROUNDS\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	memory = mmap((void *)MEMORY, pages * PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	if (memory == MAP_FAILED || madvise(memory, pages * PAGE, MADV_NOHUGEPAGE)) {
		perror("memory");
		return 1;
	}
	for (uint64_t round = 1; round <= rounds; round++) {
		for (uint64_t page = 0; page < pages; page++) {
			uint64_t *word = (uint64_t *)(memory + page * PAGE + page % 512 * 8);
			uint64_t expected = round == 1 ? 0 : (round - 1) << 32 | page;

			if (page % 16 == 0)
				__cpuid(0, a, b, c, d);
			if (*(volatile uint64_t *)word != expected) {
				printf("page %lu has %#lx in round %lu\n", page, *word, round);
				return 1;
			}
			*word = round << 32 | page;
		}
		printf("round %lu\n", round);
		if (round == 1)
			flatwalk_start();
	}
	return 0;
}
