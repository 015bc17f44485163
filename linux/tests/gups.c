/*
 * What `flatwalk vm bench` runs: gups PAGES UPDATES. Writes one word of each of PAGES pages in order (from the first
 * marker on), then adds to words of them at random (from the second marker to the third). Prints the size of its page
 * tables.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../../recorder/flatwalk.h"
#include "tables.h"

#define PAGE 4096UL
#define MEMORY 0x100040000000UL /* within one range of level 3 in every mode */

int main(int argc, char **argv)
{
	uint64_t pages = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;
	uint64_t updates = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
	uint64_t random = 1;
	char *memory;

	if (!pages) {
		fprintf(stderr, "usage: gups PAGES UPDATES\n");
		return 2;
	}
	memory = mmap((void *)MEMORY, pages * PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	if (memory == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	flatwalk_mark("loading");
	for (uint64_t page = 0; page < pages; page++)
		*(uint64_t *)(memory + page * PAGE) = page;
	flatwalk_start();
	for (uint64_t i = 0; i < updates; i++) {
		random = random * 6364136223846793005 + 1442695040888963407;
		*(uint64_t *)(memory + (random >> 20) % pages * PAGE) += i;
	}
	flatwalk_stop();
	tell_tables();
	return 0;
}
