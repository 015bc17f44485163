/*
 * What `flatwalk vm bench` runs where memory is short: crowd PROCESSES AT_ONCE PAGES. Starts PROCESSES processes,
 * AT_ONCE at a time, each a program of its own that writes about PAGES pages twice and verifies them. Each prints
 *   process NUMBER BEGAN ENDED
 * its page tables in blocks, in KiB, once it has written its first page and once it is done.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static long blocks_kib(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[256];
	long kib = -1;

	if (!status)
		fail("/proc/self/status");
	while (fgets(line, sizeof(line), status)) {
		if (sscanf(line, "VmFlat: %ld", &kib) == 1)
			break;
	}
	fclose(status);
	if (kib < 0) {
		fprintf(stderr, "/proc/self/status has no VmFlat\n");
		exit(1);
	}
	return kib;
}

static int work(uint64_t number, uint64_t pages)
{
	uint64_t random = number * 6364136223846793005 + 1442695040888963407;
	long began;
	char *memory;

	/* Between three and five quarters of PAGES, so that processes end at different times. */
	pages = pages / 4 * 3 + (random >> 33) % (pages / 2 + 1);
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap");
	*memory = 1;
	began = blocks_kib();
	for (uint64_t round = 1; round <= 2; round++) {
		for (uint64_t page = 0; page < pages; page++)
			*(uint64_t *)(memory + page * PAGE) = number + page * round;
		for (uint64_t page = 0; page < pages; page++) {
			if (*(uint64_t *)(memory + page * PAGE) != number + page * round) {
				fprintf(stderr, "process %lu: page %lu is wrong\n", number, page);
				return 1;
			}
		}
	}
	printf("process %lu %ld %ld\n", number, began, blocks_kib());
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t processes, at_once, running = 0;

	if (argc == 4 && !strcmp(argv[1], "work"))
		return work(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
	if (argc != 4) {
		fprintf(stderr, "usage: crowd PROCESSES AT_ONCE PAGES\n");
		return 2;
	}
	/* Each needs as many blocks as any other: none has its stack and its mappings in different ones by chance. */
	if (personality(ADDR_NO_RANDOMIZE) < 0)
		fail("personality");
	processes = strtoull(argv[1], NULL, 10);
	at_once = strtoull(argv[2], NULL, 10);
	for (uint64_t number = 0; number < processes || running;) {
		char text[32];
		int status;

		if (number < processes && running < at_once) {
			pid_t child = fork();

			if (child < 0)
				fail("fork");
			if (!child) {
				snprintf(text, sizeof(text), "%lu", number);
				execl("/proc/self/exe", "crowd", "work", text, argv[3], NULL);
				fail("exec");
			}
			number++;
			running++;
			continue;
		}
		if (wait(&status) < 0)
			fail("wait");
		running--;
		if (status) {
			fprintf(stderr, "a process ended with %d\n", status);
			return 1;
		}
	}
	return 0;
}
