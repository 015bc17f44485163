/*
 * What `flatwalk vm bench` runs where memory is short: crowd PROCESSES AT_ONCE PAGES. Starts PROCESSES processes,
 * AT_ONCE at a time, each a program of its own that writes about PAGES pages twice and verifies them.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int work(uint64_t number, uint64_t pages)
{
	uint64_t random = number * 6364136223846793005 + 1442695040888963407;
	char *memory;

	/* Between three and five quarters of PAGES, so that processes end at different times. */
	pages = pages / 4 * 3 + (random >> 33) % (pages / 2 + 1);
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		fail("mmap");
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
