/*
 * What `flatwalk vm bench` runs: gups PAGES UPDATES. Writes one word of each of so many pages in order (phase 1),
 * then adds to words of them at random (phase 2); says how large its page tables are (phase 3).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../recorder/flatwalk.h"

#define PAGE 4096UL
#define MARK 0x100000000000UL /* as in linux/guest/count.c */
#define MEMORY (MARK + (1UL << 30)) /* in one range of level 3, whatever the mode */
#define PHASES 3

static char *marks;

/* Tells the counting plugin. */
static void begin(int phase)
{
	*(volatile char *)(marks + phase * PAGE) = 1;
}

int main(int argc, char **argv)
{
	uint64_t pages = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;
	uint64_t updates = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
	uint64_t random = 1;
	char *memory, line[256];
	FILE *status;

	if (!pages) {
		fprintf(stderr, "usage: gups PAGES UPDATES\n");
		return 2;
	}
	memory = mmap((void *)MEMORY, pages * PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	marks = mmap((void *)MARK, (PHASES + 1) * PAGE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (memory == MAP_FAILED || marks == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	begin(1);
	for (uint64_t page = 0; page < pages; page++)
		*(uint64_t *)(memory + page * PAGE) = page;
	begin(2);
	flatwalk_start();
	for (uint64_t i = 0; i < updates; i++) {
		random = random * 6364136223846793005 + 1442695040888963407;
		*(uint64_t *)(memory + (random >> 20) % pages * PAGE) += i;
	}
	begin(3);
	status = fopen("/proc/self/status", "r");
	while (status && fgets(line, sizeof(line), status)) {
		if (!strncmp(line, "VmPTE:", 6) || !strncmp(line, "VmFlat:", 7))
			fputs(line, stdout);
	}
	return 0;
}
