/*
 * Exercises operations that change page tables, and verifies every byte that it wrote: mm TEST.
 * Prints "ok TEST" and exits 0; prints what is wrong and exits 1 otherwise; exits 77 where the kernel lacks
 * what is tested. The results are the same in every mode of flat_page_tables=.
 */
#include <asm/ldt.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef UFFDIO_MOVE /* since Linux 6.8 */
#define UFFD_FEATURE_MOVE (1 << 16)
struct uffdio_move {
	__u64 dst, src, len, mode;
	__s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#endif
#ifndef UFFDIO_POISON /* since Linux 6.6 */
#define UFFD_FEATURE_POISON (1 << 14)
struct uffdio_poison {
	struct uffdio_range range;
	__u64 mode;
	__s64 updated;
};
#define UFFDIO_POISON _IOWR(UFFDIO, 0x08, struct uffdio_poison)
#endif
#ifndef MAP_HUGE_1GB
#define MAP_HUGE_1GB (30 << 26)
#endif
#define PR_SET_FLAT_PAGE_TABLES 0x464c4154
#define PR_GET_FLAT_PAGE_TABLES 0x464c4155
#define FLAT_DEFAULT 0
#define FLAT_NEVER 1
#define FLAT_ALWAYS 2

#define KIB 1024UL
#define MIB (1024UL * KIB)
#define GIB (1024UL * MIB)
#define PAGE (4UL * KIB)
#define THREADS 4
#define SKIPPED 77
/* Where nothing else is mapped, whichever levels are flattened. */
#define FAR ((char *)0x200000000000)

#define CHECK(condition)                                                                                  \
	do {                                                                                              \
		if (!(condition)) {                                                                       \
			fprintf(stderr, "%s:%d: %s: %s\n", __func__, __LINE__, #condition, strerror(errno)); \
			exit(1);                                                                          \
		}                                                                                         \
	} while (0)

static uint64_t mix(uint64_t value)
{
	value ^= value >> 31;
	value *= 0x9e3779b97f4a7c15;
	return value ^ value >> 29;
}

static char *map(size_t bytes, int flags)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags,
			    -1, 0);

	CHECK(memory != MAP_FAILED);
	return memory;
}

/* A range of @bytes that starts at a multiple of @align. */
static char *map_aligned(size_t bytes, size_t align)
{
	char *memory = map(bytes + align, 0);
	char *start = (char *)(((uintptr_t)memory + align - 1) & -align);

	if (start > memory)
		CHECK(!munmap(memory, start - memory));
	CHECK(!munmap(start + bytes, memory + align - start));
	return start;
}

/* One word in each page, at an offset that differs from page to page. */
static void fill(char *memory, size_t bytes, size_t step, uint64_t seed)
{
	for (size_t at = 0; at < bytes; at += step) {
		uint64_t word = mix(seed + at);

		*(uint64_t *)(memory + at + word % (PAGE / 8) * 8) = word;
	}
}

static void verify(const char *memory, size_t bytes, size_t step, uint64_t seed)
{
	for (size_t at = 0; at < bytes; at += step) {
		uint64_t word = mix(seed + at);

		if (*(const uint64_t *)(memory + at + word % (PAGE / 8) * 8) != word) {
			fprintf(stderr, "wrong contents at %p\n", memory + at);
			exit(1);
		}
	}
}

/* What @name, a child, exited with. Nobody should kill it. */
static int exit_status(pid_t child, const char *name)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child);
	if (WIFSIGNALED(status)) {
		fprintf(stderr, "%s was ended by a signal: %s\n", name, strsignal(WTERMSIG(status)));
		exit(1);
	}
	return WEXITSTATUS(status);
}

static void wait_for(pid_t child)
{
	CHECK(exit_status(child, "a child") == 0);
}

/* All children that are still there. */
static void wait_for_others(void)
{
	int status;

	while (wait(&status) > 0)
		CHECK(status == 0);
}

/* One process waits for another, through a pipe. */
static void tell(const int ends[2])
{
	CHECK(write(ends[1], "", 1) == 1);
}

static void await(const int ends[2])
{
	char byte;

	CHECK(read(ends[0], &byte, 1) == 1);
}

static pthread_barrier_t meeting;

/* Waits until all threads of in_threads() are here. */
static void meet(void)
{
	pthread_barrier_wait(&meeting);
}

static void in_threads(void *(*work)(void *), char *memory)
{
	struct {
		pthread_t thread;
		void *argument[2];
	} threads[THREADS];

	CHECK(!pthread_barrier_init(&meeting, NULL, THREADS));
	for (intptr_t i = 0; i < THREADS; i++) {
		threads[i].argument[0] = memory;
		threads[i].argument[1] = (void *)i;
		CHECK(!pthread_create(&threads[i].thread, NULL, work, threads[i].argument));
	}
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i].thread, NULL));
}

static size_t number(const char *path, const char *key)
{
	char line[256];
	size_t value = 0;
	FILE *file = fopen(path, "r");

	CHECK(file);
	while (fgets(line, sizeof(line), file)) {
		if (!strncmp(line, key, strlen(key)))
			value += strtoul(line + strlen(key), NULL, 10);
	}
	fclose(file);
	return value;
}

static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	ssize_t done = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return done == (ssize_t)strlen(text) ? 0 : -1;
}

/* What may be in the way of large pages, and of blocks, goes or is moved. */
static void make_room_for_blocks(void)
{
	CHECK(!put("/proc/sys/vm/drop_caches", "3"));
	CHECK(!put("/proc/sys/vm/compact_memory", "1"));
}

/* Tables come and go in a range that four threads fill at once, each its own 2 MB regions. */
static void *populate_part(void *argument)
{
	char *memory = ((void **)argument)[0];
	size_t part = (size_t)((void **)argument)[1];

	for (size_t region = part; region < 1024; region += THREADS) {
		fill(memory + region * 2 * MIB, 2 * MIB, 128 * KIB, region);
		if (region % 5 == 0)
			CHECK(!madvise(memory + region * 2 * MIB, 2 * MIB, MADV_DONTNEED));
	}
	for (size_t region = part; region < 1024; region += THREADS) {
		if (region % 5)
			verify(memory + region * 2 * MIB, 2 * MIB, 128 * KIB, region);
		else
			CHECK(memory[region * 2 * MIB] == 0);
	}
	return NULL;
}

static void test_populate(void)
{
	for (int round = 0; round < 3; round++) {
		char *memory = map_aligned(2 * GIB, 2 * MIB);

		in_threads(populate_part, memory);
		CHECK(!munmap(memory, 2 * GIB));
	}
}

/* Children of children, each with its own copy of the pages that it writes. */
static void test_fork(void)
{
	const size_t bytes = 384 * MIB, step = 64 * KIB;
	char *memory = map(bytes, 0);

	fill(memory, bytes, step, 1);
	for (int i = 0; i < 12; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child) {
			verify(memory, bytes, step, 1);
			fill(memory, bytes, 8 * step, 100 + i);
			if (i % 3 == 0) {
				pid_t grandchild = fork();

				CHECK(grandchild >= 0);
				if (!grandchild) {
					verify(memory, bytes, 8 * step, 100 + i);
					fill(memory, bytes, 4 * step, 200);
					verify(memory, bytes, 4 * step, 200);
					_exit(0);
				}
				wait_for(grandchild);
			}
			verify(memory, bytes, 8 * step, 100 + i);
			_exit(0);
		}
		if (i % 2)
			wait_for(child);
	}
	wait_for_others();
	verify(memory, bytes, step, 1);
}

static void test_exec(void)
{
	for (int i = 0; i < 60; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child) {
			execl("/proc/self/exe", "mm", "nothing", NULL);
			_exit(1);
		}
		if (i % 4 == 3) {
			for (int j = 0; j < 4; j++) {
				int status;

				CHECK(wait(&status) > 0 && status == 0);
			}
		}
	}
}

/* Four threads map, change and unmap memory at random. */
static void *mmap_part(void *argument)
{
	uint64_t random = 77 + (size_t)((void **)argument)[1];
	struct {
		char *memory;
		size_t bytes;
		uint64_t seed;
	} slots[16] = { 0 };

	for (int i = 0; i < 150; i++) {
		typeof(slots[0]) *slot = &slots[(random = mix(random + i)) % 16];

		if (slot->memory) {
			verify(slot->memory, slot->bytes, PAGE, slot->seed);
			if (random >> 20 & 1) {
				CHECK(!mprotect(slot->memory, slot->bytes / 2, PROT_READ));
				verify(slot->memory, slot->bytes, PAGE, slot->seed);
				CHECK(!mprotect(slot->memory, slot->bytes / 2, PROT_READ | PROT_WRITE));
			}
			CHECK(!munmap(slot->memory, slot->bytes));
			slot->memory = NULL;
		} else {
			slot->bytes = PAGE * (2 + (random >> 24) % 700);
			slot->seed = random;
			slot->memory = map(slot->bytes, 0);
			fill(slot->memory, slot->bytes, PAGE, slot->seed);
		}
	}
	return NULL;
}

static void test_mmap(void)
{
	in_threads(mmap_part, NULL);
}

/* A range that was flat, unmapped and mapped again becomes flat again, even if it is not larger than before. */
static void test_again(void)
{
	const size_t bytes = 4 * GIB;
	size_t flat[2];

	for (int i = 0; i < 2; i++) {
		/* The root may be flat, and other ranges. */
		size_t before = number("/proc/self/status", "VmFlat:");
		char *memory = map_aligned(bytes, GIB);

		fill(memory, bytes, 2 * MIB, 33 + i);
		flat[i] = number("/proc/self/status", "VmFlat:") - before;
		verify(memory, bytes, 2 * MIB, 33 + i);
		CHECK(!munmap(memory, bytes));
	}
	CHECK(flat[1] || !flat[0]);
}

/* Whole tables move: by pages, by 2 MB and by 1 GB, nearby and far away. */
static void test_mremap(void)
{
	const size_t sizes[] = { 3 * MIB, 64 * MIB, 2 * GIB };

	for (int i = 0; i < 3; i++) {
		size_t bytes = sizes[i], align = bytes >= GIB ? GIB : 2 * MIB;

		for (int shift = 0; shift < 2; shift++) {
			char *from = map_aligned(bytes, align);
			char *to = map_aligned(bytes + align, align) + shift * PAGE;

			fill(from, bytes, 1 * MIB, i);
			CHECK(mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
			verify(to, bytes, 1 * MIB, i);
			fill(to, bytes, 512 * KIB, i + 10);
			verify(to, bytes, 512 * KIB, i + 10);
			CHECK(!munmap((char *)((uintptr_t)to & -align), bytes + align));
		}
	}
}

/* Large pages that are requested come at once, even where a first small one made the range flat. */
static void ask_for_large_pages(void)
{
	/* Fewer than a flat range refuses, but more than one, as each allocation may fail. */
	const size_t bytes = 30 * 2 * MIB;
	int policy = prctl(PR_GET_FLAT_PAGE_TABLES, 0, 0, 0, 0);
	char *memory = map_aligned(GIB, GIB);

	prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0);
	fill(memory + bytes, PAGE, PAGE, 2);
	CHECK(!madvise(memory, bytes, MADV_HUGEPAGE));
	fill(memory, bytes, PAGE, 1);
	CHECK(number("/proc/self/smaps", "AnonHugePages:") > 0);
	verify(memory, bytes, PAGE, 1);
	verify(memory + bytes, PAGE, PAGE, 2);
	CHECK(!munmap(memory, GIB));
	if (policy >= 0)
		CHECK(!prctl(PR_SET_FLAT_PAGE_TABLES, policy, 0, 0, 0));
}

static void test_thp(void)
{
	const size_t bytes = 96 * MIB;
	char *memory, *to;
	pid_t child;

	ask_for_large_pages();
	memory = map_aligned(bytes, 2 * MIB);
	CHECK(!madvise(memory, bytes, MADV_HUGEPAGE));
	fill(memory, bytes, PAGE, 3);
	verify(memory, bytes, PAGE, 3);
	/* Split: protection, then a hole, in the middle of a large page. */
	CHECK(!mprotect(memory + 5 * MIB, 64 * KIB, PROT_READ));
	CHECK(!munmap(memory + 9 * MIB, 256 * KIB));
	verify(memory, 9 * MIB, PAGE, 3);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		fill(memory + 32 * MIB, 32 * MIB, PAGE, 4);
		verify(memory + 32 * MIB, 32 * MIB, PAGE, 4);
		_exit(0);
	}
	wait_for(child);
	for (size_t at = 16 * MIB; at < bytes; at += PAGE)
		CHECK(*(uint64_t *)(memory + at + mix(3 + at) % (PAGE / 8) * 8) == mix(3 + at));
	CHECK(!munmap(memory, bytes));

	/* Small pages, collapsed. */
	memory = map_aligned(bytes, 2 * MIB);
	fill(memory, bytes, PAGE, 5);
	if (madvise(memory, bytes, MADV_COLLAPSE) && errno == EINVAL)
		exit(SKIPPED);
	verify(memory, bytes, PAGE, 5);
	to = map_aligned(bytes / 2, 2 * MIB);
	CHECK(mremap(memory, bytes / 2, bytes / 2, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	verify(to, bytes / 2, PAGE, 5);
}

/* Processes share the tables of level 2 of a mapping of whole gigabytes, while one of them flattens its own. */
static void share_tables(void)
{
	const size_t bytes = 2 * GIB, step = 256 * MIB;
	char *memory = map_aligned(bytes, GIB);

	CHECK(mmap(memory, bytes, PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED | MAP_HUGETLB | MAP_NORESERVE, -1, 0) == memory);
	fill(memory, bytes / 2, step, 20);
	for (int i = 0; i < 6; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child) {
			prctl(PR_SET_FLAT_PAGE_TABLES, i % 3, 0, 0, 0);
			verify(memory, bytes / 2, step, 20);
			fill(memory + bytes / 2, bytes / 2, step, 21);
			prctl(PR_SET_FLAT_PAGE_TABLES, (i + 1) % 3, 0, 0, 0);
			verify(memory + bytes / 2, bytes / 2, step, 21);
			/* In the midst of a table, which this process then shares no more. */
			if (i % 2)
				CHECK(!mprotect(memory + step, bytes - step, PROT_READ));
			else
				CHECK(!munmap(memory + step, bytes - step));
			verify(memory, step, step, 20);
			_exit(0);
		}
		if (i % 2)
			wait_for(child);
	}
	wait_for_others();
	verify(memory, bytes / 2, step, 20);
	verify(memory + bytes / 2, bytes / 2, step, 21);
	CHECK(!munmap(memory, bytes));
}

/*
 * A large page is requested while its range becomes flat: hardware sees the same. Where a block has level 1, one of the
 * two happens, and whichever was first is delayed next time, so that they coincide. Elsewhere both do: the delay grows
 * to its most, and from nothing again.
 */
static volatile bool ready, collapsing;
static volatile size_t delay;
static const size_t most_delay = 1 << 22;

static void *flatten_later(void *unused)
{
	ready = true;
	while (!collapsing)
		;
	for (size_t wait = delay; wait; wait--)
		__asm__ volatile("");
	prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0);
	return unused;
}

static void test_collapse(void)
{
	const size_t bytes = 2 * MIB, step = 64 * KIB;

	for (int round = 0; round < 400; round++) {
		size_t before = number("/proc/vmstat", "flat_table_alloc "), change = delay / 16 + 1000;
		char *memory = map_aligned(GIB, GIB);
		pthread_t other;

		prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_NEVER, 0, 0, 0);
		fill(memory, bytes, step, round);
		ready = collapsing = false;
		CHECK(!pthread_create(&other, NULL, flatten_later, NULL));
		while (!ready)
			;
		collapsing = true;
		madvise(memory, bytes, MADV_COLLAPSE);
		CHECK(!pthread_join(other, NULL));
		verify(memory, bytes, step, round);
		fill(memory, bytes, step, round + 1);
		verify(memory, bytes, step, round + 1);
		CHECK(!munmap(memory, GIB));
		if (number("/proc/vmstat", "flat_table_alloc ") > before)
			delay = delay < most_delay ? delay + change : 0;
		else
			delay -= delay < change ? delay : change;
	}
}

/*
 * A process begins to share the table of another before, while and after this flattens it: the table does not become
 * flat, or it is not shared. Then the other goes, with its table.
 */
static void share_while_flattening(void)
{
	const size_t bytes = GIB, step = 2 * MIB, used = 8 * MIB;
	int policy = prctl(PR_GET_FLAT_PAGE_TABLES, 0, 0, 0, 0);

	/* A flat range shares no table of others. */
	prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_NEVER, 0, 0, 0);
	for (int round = 0; round < 16; round++) {
		char *memory = map_aligned(bytes, GIB);
		int touched[2], shared[2], gone[2];
		pid_t flattening, sharing;

		CHECK(!pipe(touched) && !pipe(shared) && !pipe(gone));
		CHECK(mmap(memory, bytes, PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED | MAP_HUGETLB | MAP_NORESERVE, -1, 0) == memory);
		flattening = fork();
		CHECK(flattening >= 0);
		if (!flattening) {
			fill(memory, used, step, round);
			tell(touched);
			prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0);
			/* If the other has failed, this is the pipe's last end. */
			CHECK(!close(shared[1]));
			await(shared);
			verify(memory, used, step, round);
			_exit(0);
		}
		sharing = fork();
		CHECK(sharing >= 0);
		if (!sharing) {
			await(touched);
			/* The ranges of the program and its stack become flat, too, one after the other. */
			usleep(round * 4000);
			verify(memory, used, step, round);
			tell(shared);
			await(gone);
			verify(memory, used, step, round);
			/* Where no TLB knows the way. */
			fill(memory + used, used, step, round);
			verify(memory + used, used, step, round);
			_exit(0);
		}
		CHECK(!close(shared[1]));
		wait_for(flattening);
		tell(gone);
		wait_for(sharing);
		verify(memory, used, step, round);
		CHECK(!close(touched[0]) && !close(touched[1]) && !close(shared[0]));
		CHECK(!close(gone[0]) && !close(gone[1]));
		CHECK(!munmap(memory, bytes));
	}
	if (policy >= 0)
		CHECK(!prctl(PR_SET_FLAT_PAGE_TABLES, policy, 0, 0, 0));
}

static void test_hugetlb(void)
{
	const size_t bytes = 32 * MIB;
	char *shared, *private;
	pid_t child;

	/* As many as are needed below, each once. */
	if (number("/proc/meminfo", "HugePages_Free:") < 40)
		exit(SKIPPED);
	share_tables();
	share_while_flattening();
	shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	CHECK(shared != MAP_FAILED);
	private = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	CHECK(private != MAP_FAILED);
	fill(shared, bytes, PAGE, 6);
	fill(private, bytes, PAGE, 7);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		verify(shared, bytes, PAGE, 6);
		verify(private, bytes, PAGE, 7);
		fill(shared, bytes / 2, PAGE, 8);
		fill(private, 4 * MIB, PAGE, 9);
		_exit(0);
	}
	wait_for(child);
	verify(shared, bytes / 2, PAGE, 8);
	verify(private, bytes, PAGE, 7);
	CHECK(!munmap(shared, bytes));
	CHECK(!munmap(private, bytes));
}

static void test_ksm(void)
{
	const size_t bytes = 8 * MIB;
	char *memory = map(bytes, 0);

	if (put("/sys/kernel/mm/ksm/run", "1"))
		exit(SKIPPED);
	CHECK(!put("/sys/kernel/mm/ksm/pages_to_scan", "4000"));
	for (size_t at = 0; at < bytes; at += PAGE)
		memset(memory + at, at / PAGE % 7, PAGE);
	CHECK(!madvise(memory, bytes, MADV_MERGEABLE));
	while (number("/sys/kernel/mm/ksm/pages_sharing", "") < bytes / PAGE - 100)
		poll(NULL, 0, 20);
	for (size_t at = 0; at < bytes; at += PAGE)
		CHECK(memory[at + 99] == (char)(at / PAGE % 7));
	fill(memory, bytes / 2, PAGE, 11);
	verify(memory, bytes / 2, PAGE, 11);
	for (size_t at = bytes / 2; at < bytes; at += PAGE)
		CHECK(memory[at + 99] == (char)(at / PAGE % 7));
	CHECK(!put("/sys/kernel/mm/ksm/run", "2"));
	for (size_t at = bytes / 2; at < bytes; at += PAGE)
		CHECK(memory[at + 99] == (char)(at / PAGE % 7));
}

/* Another thread provides every page; then writes are caught, one by one. */
static int uffd;
static volatile size_t caught;

static void *serve(void *argument)
{
	static char page[PAGE];
	char *memory = argument;
	struct uffd_msg message;

	while (read(uffd, &message, sizeof(message)) == sizeof(message)) {
		char *at = (char *)(message.arg.pagefault.address & -PAGE);

		if (message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP) {
			struct uffdio_writeprotect unprotect = { .range = { (uintptr_t)at, PAGE } };

			caught++;
			CHECK(!ioctl(uffd, UFFDIO_WRITEPROTECT, &unprotect));
		} else {
			struct uffdio_copy copy = { .dst = (uintptr_t)at, .src = (uintptr_t)page, .len = PAGE };

			memset(page, (at - memory) / PAGE % 251, PAGE);
			CHECK(!ioctl(uffd, UFFDIO_COPY, &copy) || errno == EEXIST);
		}
	}
	return NULL;
}

static void test_userfaultfd(void)
{
	const size_t bytes = 192 * MIB, step = 512 * KIB;
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP };
	char *memory = map(bytes, 0);
	struct uffdio_register range = {
		.range = { (uintptr_t)memory, bytes },
		.mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP,
	};
	struct uffdio_writeprotect protect = { .range = range.range, .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	pthread_t server;

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (uffd < 0)
		exit(SKIPPED);
	CHECK(!ioctl(uffd, UFFDIO_API, &api));
	CHECK(!ioctl(uffd, UFFDIO_REGISTER, &range));
	CHECK(!pthread_create(&server, NULL, serve, memory));
	for (size_t at = 0; at < bytes; at += step)
		CHECK((unsigned char)memory[at] == at / PAGE % 251);
	CHECK(!ioctl(uffd, UFFDIO_WRITEPROTECT, &protect));
	for (size_t at = 0; at < bytes; at += step) {
		memory[at + 1] = 1;
		CHECK((unsigned char)memory[at] == at / PAGE % 251 && memory[at + 1] == 1);
	}
	CHECK(caught == bytes / step);
}

/* More memory than the machine has is swapped out and in. */
static void test_swap(void)
{
	const size_t bytes = 160 * MIB;
	char *memory;
	pid_t child;

	if (number("/proc/meminfo", "SwapTotal:") == 0)
		exit(SKIPPED);
	CHECK(!put("/sys/fs/cgroup/cgroup.subtree_control", "+memory"));
	mkdir("/sys/fs/cgroup/swap", 0755);
	CHECK(!put("/sys/fs/cgroup/swap/memory.high", "64M"));
	CHECK(!put("/sys/fs/cgroup/swap/memory.max", "80M"));
	CHECK(!put("/sys/fs/cgroup/swap/cgroup.procs", "0"));
	memory = map(bytes, 0);
	fill(memory, bytes, PAGE, 12);
	CHECK(number("/proc/self/status", "VmSwap:") > 0);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		verify(memory, bytes, PAGE, 12);
		_exit(0);
	}
	verify(memory, bytes, PAGE, 12);
	wait_for(child);
	fill(memory, bytes, 2 * PAGE, 13);
	verify(memory, bytes, 2 * PAGE, 13);
	CHECK(!put("/sys/fs/cgroup/cgroup.procs", "0"));
}

/* The kernel reads page tables without locks (process_vm_readv, vmsplice) while they change. */
static volatile int stop;

static void *pipe_pages(void *argument)
{
	char *memory = ((void **)argument)[0];
	static __thread char copy[PAGE];
	int ends[2];

	CHECK(!pipe(ends));
	for (size_t at = 0; !stop; at = (at + 2 * MIB + PAGE) % (512 * MIB)) {
		struct iovec from = { memory + (at & -PAGE), PAGE };

		CHECK(vmsplice(ends[1], &from, 1, 0) == PAGE);
		CHECK(read(ends[0], copy, PAGE) == PAGE);
		CHECK(copy[0] == 0 || copy[0] == 1);
	}
	close(ends[0]);
	close(ends[1]);
	return NULL;
}

static void *churn(void *argument)
{
	char *memory = ((void **)argument)[0];

	for (int i = 0; i < 200; i++) {
		size_t at = mix(i) % 128 * 4 * MIB;

		memset(memory + at, 1, 4 * PAGE);
		CHECK(!madvise(memory + at, 4 * MIB, MADV_DONTNEED));
		CHECK(mmap(memory + at, 4 * MIB, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == memory + at);
		/* Flat and back, where the kernel supports it. */
		prctl(PR_SET_FLAT_PAGE_TABLES, i % 8 == 3 ? 1 : i % 8 == 7 ? 2 : 0, 0, 0, 0);
	}
	stop = 1;
	return NULL;
}

static void *pipe_or_churn(void *argument)
{
	return (size_t)((void **)argument)[1] ? pipe_pages(argument) : churn(argument);
}

static void test_gup(void)
{
	char *memory = map_aligned(512 * MIB, 2 * MIB);

	in_threads(pipe_or_churn, memory);
}

/* The files about a process's tables are read while these change. */
static void read_from(const char *path, off_t start, size_t bytes)
{
	static __thread char buffer[64 * KIB];
	int fd = open(path, O_RDONLY);

	/* Some exist only where tables can be flat. */
	if (fd < 0 && errno == ENOENT)
		return;
	CHECK(fd >= 0);
	CHECK(!start || lseek(fd, start, SEEK_SET) == start);
	for (size_t got = 0; got < bytes;) {
		ssize_t now = read(fd, buffer, sizeof(buffer));

		CHECK(now >= 0);
		if (!now)
			break;
		got += now;
	}
	close(fd);
}

static void *read_or_churn(void *argument)
{
	char *memory = ((void **)argument)[0];
	size_t part = (size_t)((void **)argument)[1];

	if (!part)
		return churn(argument);
	while (!stop) {
		if (part == 1) {
			read_from("/proc/self/smaps", 0, SIZE_MAX);
			CHECK(!put("/proc/self/clear_refs", "1"));
		} else if (part == 2) {
			read_from("/proc/self/pagemap", (uintptr_t)memory / PAGE * 8, 512 * MIB / PAGE * 8);
		} else {
			read_from("/sys/kernel/debug/x86/flat_page_tables", 0, SIZE_MAX);
			read_from("/sys/kernel/debug/page_tables/current_user", 0, SIZE_MAX);
		}
	}
	return NULL;
}

static void test_proc(void)
{
	in_threads(read_or_churn, map_aligned(512 * MIB, 2 * MIB));
}

/* A process's own segments are in a part of the kernel's half that differs by process; a new root must keep it. */
static uint32_t through_ldt(unsigned int entry)
{
	uint32_t value;

	__asm__ volatile("mov %1, %%gs\n\tmovl %%gs:0, %0\n\tmov %2, %%gs"
			 : "=&r"(value)
			 : "r"(entry << 3 | 7), "r"(0)
			 : "memory");
	return value;
}

static unsigned int ldt_wait_us;

static void *use_ldt(void *argument)
{
	uint32_t *memory = ((void **)argument)[0];
	unsigned int part = (size_t)((void **)argument)[1];
	char read_back[8];

	/* Whoever maps memory waits for the new root; a new LDT must not have to. */
	memory[part * 1024] = 0;
	meet();
	if (!part)
		prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0);
	else
		usleep(part * ldt_wait_us); /* until the new root is in the making */
	for (uint32_t i = 1; i <= 40; i++) {
		uint32_t *word = memory + part * 1024 + i;
		struct user_desc entry = {
			.entry_number = part * 8 + i % 8, .base_addr = (uintptr_t)word, .limit = 3, .seg_32bit = 1,
			.contents = MODIFY_LDT_CONTENTS_DATA, .useable = 1,
		};

		*word = part << 16 | i;
		CHECK(!syscall(SYS_modify_ldt, 0x11, &entry, sizeof(entry)));
		CHECK(through_ldt(entry.entry_number) == *word);
		CHECK(syscall(SYS_modify_ldt, 0, read_back, sizeof(read_back)) == sizeof(read_back));
	}
	return NULL;
}

static void test_ldt(void)
{
	char *memory = mmap(NULL, THREADS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);

	CHECK(memory != MAP_FAILED);
	if (syscall(SYS_modify_ldt, 0, memory, 8) < 0 && errno == ENOSYS)
		exit(SKIPPED);
	/* A child begins with a root that is not flat, and without an LDT. */
	prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_NEVER, 0, 0, 0);
	for (int i = 0; i < 8; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child) {
			ldt_wait_us = 3000 * i;
			in_threads(use_ldt, memory);
			_exit(0);
		}
		wait_for(child);
	}
}

static bool is_flat(int level, const char *at);

struct range {
	int level; /* of the upper of its pair of levels */
	char *start;
};

/* This process's flat ranges that overlap @memory and of which less than half is in use. Returns how many there are. */
static size_t sparse_ranges(const char *memory, size_t bytes, struct range *found, size_t most)
{
	FILE *file = fopen("/sys/kernel/debug/x86/flat_page_tables", "r");
	char line[256], state[8];
	bool own = false;
	size_t count = 0;

	while (file && fgets(line, sizeof(line), file)) {
		uintptr_t start, end;
		int level, used;

		if (*line != ' ')
			own = atoi(line) == getpid();
		if (!own || sscanf(line, " L%d+L%*d %lx-%lx %d %7s", &level, &start, &end, &used, state) != 5)
			continue;
		if (strcmp(state, "flat") || used >= 256 || start >= (uintptr_t)memory + bytes || end <= (uintptr_t)memory)
			continue;
		CHECK(count < most);
		found[count++] = (struct range){ level, (char *)start };
	}
	if (file)
		fclose(file);
	return count;
}

/*
 * A child takes all memory until the kernel kills it. Before that, flat blocks are split, and the contents of other
 * processes' memory stay.
 */
static void test_oom(void)
{
	const size_t bytes = 64 * GIB;
	char *memory = map_aligned(bytes, GIB), *dense = map_aligned(GIB, GIB), *all;
	struct range sparse[128];
	size_t count;
	int status;
	pid_t child;

	fill(memory, bytes, GIB, 14);
	/* A block without an idle page is still there in the end. */
	fill(dense, GIB, 2 * MIB, 16);
	count = sparse_ranges(memory, bytes, sparse, 128);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		CHECK(!put("/proc/self/oom_score_adj", "1000"));
		all = map(bytes, 0);
		for (size_t at = 0; at < bytes; at += PAGE)
			all[at] = 1;
		_exit(1);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	for (size_t i = 0; i < count; i++)
		CHECK(!is_flat(sparse[i].level, sparse[i].start));
	printf("%zu blocks were given up\n", count);
	verify(memory, bytes, GIB, 14);
	verify(dense, GIB, 2 * MIB, 16);
	fill(memory, bytes, GIB / 4, 15);
	verify(memory, bytes, GIB / 4, 15);
}

/* Flat and back while four threads fault in the same range. */
static void *fault_and_switch(void *argument)
{
	char *memory = ((void **)argument)[0];
	size_t part = (size_t)((void **)argument)[1];

	for (int round = 0; round < 12; round++) {
		for (size_t at = part * 2 * MIB; at < GIB; at += THREADS * 2 * MIB) {
			fill(memory + at, 2 * MIB, 256 * KIB, at + round);
			if (at % (32 * MIB) == part * 2 * MIB && part == (size_t)round % THREADS)
				prctl(PR_SET_FLAT_PAGE_TABLES, 1 + round % 2, 0, 0, 0);
		}
		for (size_t at = part * 2 * MIB; at < GIB; at += THREADS * 2 * MIB)
			verify(memory + at, 2 * MIB, 256 * KIB, at + round);
		for (size_t at = part * 2 * MIB; at < GIB; at += THREADS * 6 * MIB)
			CHECK(!madvise(memory + at, 2 * MIB, MADV_DONTNEED));
	}
	return NULL;
}

static void test_switch(void)
{
	for (int i = 0; i < 2; i++) {
		char *memory = map_aligned(GIB, GIB);

		in_threads(fault_and_switch, memory);
		CHECK(!munmap(memory, GIB));
	}
}

/*
 * The following tests let QEMU's checking mode find it if Linux leaves out a flush: a CPU that was not flushed
 * keeps using old entries for longer than QEMU grants between a change and its flush.
 */
enum { RANGES = 16, PAGES = 32, LONG_MS = 300 };
static volatile unsigned int asked, answered;

static void use_cpu(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	CHECK(!sched_setaffinity(0, sizeof(set), &set));
}

/* @ranges times PAGES pages of memory whose tables have never been flat, as those that were are not flattened again. */
static char *map_unflattened(const char *test, size_t ranges)
{
	char *memory = FAR;

	if (!prctl(PR_GET_FLAT_PAGE_TABLES, 0, 0, 0, 0)) {
		CHECK(!prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_NEVER, 0, 0, 0));
		execl("/proc/self/exe", "mm", test, NULL);
		CHECK(!"exec");
	}
	CHECK(mmap(memory, ranges * 2 * MIB, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == memory);
	for (size_t range = 0; range < ranges; range++)
		memset(memory + range * 2 * MIB, 1, PAGES * PAGE);
	return memory;
}

/*
 * One thread does nothing but read pages that its CPU has not accessed before, one each time it is asked to, while their
 * tables become flat and conventional again.
 */
static void *read_when_asked(void *argument)
{
	const char *memory = argument;

	/* No system calls from here on: they might switch address spaces, which may flush. */
	use_cpu(1);
	while (answered < RANGES * PAGES) {
		unsigned int next = answered;

		while (asked == next)
			;
		CHECK(memory[next % RANGES * 2 * MIB + next / RANGES * PAGE] == 1);
		answered = next + 1;
	}
	return NULL;
}

static void ask(unsigned int times)
{
	while (times--) {
		unsigned int now = ++asked;

		poll(NULL, 0, 7);
		while (answered != now)
			;
	}
}

static void test_flush(void)
{
	char *memory = map_unflattened("flush", RANGES);
	pthread_t reader;

	use_cpu(0);
	CHECK(!pthread_create(&reader, NULL, read_when_asked, memory));
	ask(2 * RANGES);
	prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0);
	ask(15 * RANGES);
	prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_NEVER, 0, 0, 0);
	ask(15 * RANGES);
	CHECK(!pthread_join(reader, NULL));
}

/* The root becomes flat while one thread's CPU runs another process; afterwards it may still have the old tables cached. */
static int wakes[2];

static void *read_when_woken(void *argument)
{
	const volatile char *memory = argument;
	char byte;

	use_cpu(1);
	while (read(wakes[0], &byte, 1) == 1) {
		for (size_t page = 0; page < PAGES; page++)
			CHECK(memory[page * PAGE] == 1);
		answered++;
	}
	return NULL;
}

static void test_flush_root(void)
{
	char *memory = map_unflattened("flush-root", 1);
	pthread_t reader;
	pid_t other = fork();

	CHECK(other >= 0);
	if (!other) {
		use_cpu(1);
		for (;;)
			sched_yield();
	}
	use_cpu(0);
	CHECK(!pipe(wakes));
	CHECK(!pthread_create(&reader, NULL, read_when_woken, memory));
	for (unsigned int round = 1; round <= 4; round++) {
		tell(wakes);
		while (answered != round)
			poll(NULL, 0, 1);
		if (round == 2) {
			/* Until the reader waits again, and its CPU runs the other process. */
			poll(NULL, 0, LONG_MS);
			prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0);
		}
		poll(NULL, 0, LONG_MS);
	}
	CHECK(!close(wakes[1]));
	CHECK(!pthread_join(reader, NULL));
	CHECK(!kill(other, SIGKILL));
}

/* One thread does nothing but read the same pages, while they lose a right and are replaced by others. */
static void *read_all_the_time(void *argument)
{
	const volatile char *memory = argument;

	use_cpu(1);
	while (!stop) {
		for (size_t page = 0; page < PAGES; page++)
			(void)memory[page * PAGE];
		answered = 1;
	}
	return NULL;
}

static void test_flush_pages(void)
{
	char *memory = map_unflattened("flush-pages", 1);
	pthread_t reader;

	use_cpu(0);
	CHECK(!pthread_create(&reader, NULL, read_all_the_time, memory));
	while (!answered)
		;
	prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0);
	/* This thread must not touch them any more: its CPU is not flushed either. */
	CHECK(!mprotect(memory, PAGES * PAGE, PROT_READ));
	poll(NULL, 0, LONG_MS);
	CHECK(!madvise(memory, PAGES * PAGE, MADV_DONTNEED));
	poll(NULL, 0, LONG_MS);
	stop = 1;
	CHECK(!pthread_join(reader, NULL));
}

/* What test_exec executes. */
static void test_nothing(void)
{
	_exit(0);
}

#define DELAY "/sys/kernel/debug/x86/flat_page_tables_delay"
#define SYSCTL "/proc/sys/vm/flat_page_table_"
#define BLOCKS_FAIL "/sys/kernel/debug/fail_page_alloc/probability"

static void set(const char *path, size_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%zu", value);
	CHECK(!put(path, text));
}

/* What become_flat() executes: grows, once more by a fork, and then does nothing until it may continue. */
static void test_grow(void)
{
	const size_t bytes = 256 * MIB;
	char *memory = FAR;
	pid_t child, self;

	CHECK(mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
	      memory);
	fill(memory, bytes, 2 * MIB, 30);
	child = fork();
	CHECK(child >= 0);
	self = getpid();
	CHECK(write(STDOUT_FILENO, &self, sizeof(self)) == sizeof(self));
	CHECK(!read(STDIN_FILENO, &self, sizeof(self)));
	verify(memory, bytes, 2 * MIB, 30);
	fill(memory, bytes, MIB, 31);
	verify(memory, bytes, MIB, 31);
	if (child)
		wait_for(child);
	_exit(0);
}

/* Processes that grew while a file contained @before become flat once it contains @after, although they do nothing. */
static void become_flat(bool flattens, const char *path, size_t before, size_t after)
{
	int go_on[2], grown[2];
	char status[2][32];
	pid_t child, pid;

	set(path, before);
	CHECK(!pipe2(go_on, O_CLOEXEC) && !pipe2(grown, O_CLOEXEC));
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		CHECK(dup2(go_on[0], STDIN_FILENO) >= 0 && dup2(grown[1], STDOUT_FILENO) >= 0);
		execl("/proc/self/exe", "mm", "grow", NULL);
		_exit(1);
	}
	close(go_on[0]);
	close(grown[1]);
	for (int i = 0; i < 2; i++) {
		CHECK(read(grown[0], &pid, sizeof(pid)) == sizeof(pid));
		snprintf(status[i], sizeof(status[i]), "/proc/%d/status", pid);
		CHECK(number(status[i], "VmFlat:") == 0);
	}
	set(path, after);
	for (int i = 0; i < 2; i++) {
		while (flattens && !number(status[i], "VmFlat:"))
			poll(NULL, 0, 20);
	}
	close(go_on[1]);
	close(grown[0]);
	wait_for(child);
}

/* The kernel's daemon flattens later what could not be flattened at once, while processes start and exit. run.sh cleans up. */
static void test_later(void)
{
	const bool flattens = !access(SYSCTL "threshold", F_OK);
	const size_t bytes = 256 * MIB, step = 512 * KIB;
	char *memory;

	if (access(BLOCKS_FAIL, W_OK))
		exit(SKIPPED);
	if (flattens)
		set(SYSCTL "scan_millisecs", 1);
	become_flat(flattens, BLOCKS_FAIL, 100, 0);
	if (flattens)
		become_flat(flattens, SYSCTL "threshold", 512, number(SYSCTL "threshold", ""));

	set(BLOCKS_FAIL, 50);
	memory = map_aligned(bytes, GIB);
	fill(memory, bytes, step, 32);
	for (int i = 0; i < 120; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child) {
			if (i % 4 == 0)
				_exit(0);
			if (i % 4 == 1)
				execl("/proc/self/exe", "mm", "nothing", NULL);
			if (i % 4 == 2) {
				pid_t grandchild = fork();

				CHECK(grandchild >= 0);
				verify(memory, bytes / 2, step, 32);
				if (grandchild)
					wait_for(grandchild);
				_exit(0);
			}
			CHECK(!munmap(memory, bytes / 4 * 3));
			verify(memory + bytes / 4 * 3, bytes / 4, step, 32 + bytes / 4 * 3);
			_exit(0);
		}
		if (i % 8 == 7) {
			for (int j = 0; j < 8; j++) {
				int status;

				CHECK(wait(&status) > 0 && status == 0);
			}
		}
	}
	verify(memory, bytes, step, 32);
}

#define THP "/sys/kernel/mm/transparent_hugepage/"

static char *map_at(char *at, size_t bytes, int flags)
{
	CHECK(mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE | flags, -1, 0) ==
	      at);
	return at;
}

/* Whether the guest's mode, behind flat_page_tables=, is one of @modes, which are separated by spaces. */
static bool mode_is(const char *modes)
{
	static char line[4096], mode[32];
	FILE *file = fopen("/proc/cmdline", "r");
	char *word;

	CHECK(file && fgets(line, sizeof(line), file));
	fclose(file);
	word = strstr(line, "flat_page_tables=");
	if (!word || access(SYSCTL "threshold", F_OK) || sscanf(word, "flat_page_tables=%31[^, \n]", mode) != 1)
		return false;
	for (const char *at = modes; (at = strstr(at, mode)) != NULL; at++) {
		const char *end = at + strlen(mode);

		if ((at == modes || at[-1] == ' ') && (!*end || *end == ' '))
			return true;
	}
	return false;
}

/* Whether this process's pair of levels of which the upper is @level is flat for the range that starts at @at. */
static bool is_flat(int level, const char *at)
{
	char line[256], wanted[64];
	FILE *file = fopen("/sys/kernel/debug/x86/flat_page_tables", "r");
	bool own = false, flat = false;

	CHECK(file);
	snprintf(wanted, sizeof(wanted), "  L%d+L%d %016lx-", level, level - 1, (uintptr_t)at);
	while (fgets(line, sizeof(line), file)) {
		if (*line != ' ')
			own = atoi(line) == getpid();
		flat |= own && !strncmp(line, wanted, strlen(wanted)) && strstr(line, " flat");
	}
	fclose(file);
	return flat;
}

/* In a child, which has no memory of the tests before. What it skips or fails, the test skips or fails. */
static void run_in_child(void (*work)(void), const char *name)
{
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (!child) {
		work();
		_exit(0);
	}
	status = exit_status(child, name);
	/* It has said why. */
	if (status)
		exit(status);
}

#define in_child(work) run_in_child(work, #work)

/* A range that has large pages only becomes flat, whatever they are, if its block can hold them. */
static void large_pages_only(int flags, bool write)
{
	const size_t bytes = 16 * MIB;
	char *memory = FAR;

	if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0))
		CHECK(errno == EINVAL);
	map_at(memory, bytes, flags);
	if (!(flags & MAP_HUGETLB))
		CHECK(!madvise(memory, bytes, MADV_HUGEPAGE));
	if (write)
		fill(memory, bytes, PAGE, 40);
	for (size_t at = 0; at < bytes; at += 2 * MIB)
		(void)*(volatile char *)(memory + at);
	if (mode_is("l3l2"))
		CHECK(is_flat(3, memory));
	if (write)
		verify(memory, bytes, PAGE, 40);
}

static void large_read(void)
{
	large_pages_only(MAP_PRIVATE, false);
}

static void large_written(void)
{
	large_pages_only(MAP_PRIVATE, true);
}

static void large_shared(void)
{
	large_pages_only(MAP_SHARED, true);
}

static void large_hugetlb(void)
{
	large_pages_only(MAP_PRIVATE | MAP_HUGETLB, true);
}

static void large_hugetlb_forked(void)
{
	const bool expected = mode_is("l3l2");
	pid_t child;

	large_hugetlb();
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		/* Nobody but the daemon looks at what fork() made. */
		while (expected && !is_flat(3, FAR))
			poll(NULL, 0, 20);
		verify(FAR, 16 * MIB, PAGE, 40);
		_exit(0);
	}
	wait_for(child);
}

static void test_large(void)
{
	if (access(THP "enabled", W_OK))
		exit(SKIPPED);
	CHECK(!put(THP "shmem_enabled", "advise"));
	make_room_for_blocks();
	set("/proc/sys/vm/nr_hugepages", 20);
	CHECK(number("/proc/meminfo", "HugePages_Free:") >= 16);
	if (!access(SYSCTL "scan_millisecs", F_OK))
		set(SYSCTL "scan_millisecs", 1);
	in_child(large_read);
	in_child(large_written);
	in_child(large_shared);
	in_child(large_hugetlb);
	in_child(large_hugetlb_forked);
}

/* Mappings that can hold no large page cost a flat range nothing, whoever would like large pages. */
static void small_mappings(void)
{
	const bool flattens = mode_is("l2l1 l4l3+l2l1 compendia");
	char *memory = map_at(FAR, 64 * MIB, MAP_PRIVATE);

	if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0))
		CHECK(errno == EINVAL);
	fill(memory, 64 * MIB, 2 * MIB, 41);
	CHECK(is_flat(2, memory) == flattens);
	map_at(memory + 64 * MIB, 64 * KIB, MAP_PRIVATE);
	CHECK(!madvise(memory + 64 * MIB, 64 * KIB, MADV_HUGEPAGE));
	fill(memory + 64 * MIB, 64 * KIB, PAGE, 42);
	CHECK(is_flat(2, memory) == flattens);
	CHECK(!put(THP "enabled", "always"));
	for (size_t at = 70 * MIB; at < 170 * MIB; at += 2 * MIB)
		fill(map_at(memory + at, 2 * PAGE, MAP_PRIVATE), 2 * PAGE, PAGE, at);
	CHECK(!put(THP "enabled", "madvise"));
	CHECK(is_flat(2, memory) == flattens);
	verify(memory, 64 * MIB, 2 * MIB, 41);
	verify(memory + 64 * MIB, 64 * KIB, PAGE, 42);
	/* One that can hold a large page gets it. */
	map_at(memory + 200 * MIB, 2 * MIB, MAP_PRIVATE);
	CHECK(!madvise(memory + 200 * MIB, 2 * MIB, MADV_HUGEPAGE));
	fill(memory + 200 * MIB, 2 * MIB, PAGE, 43);
	CHECK(!is_flat(2, memory) || !flattens);
	CHECK(number("/proc/self/smaps", "AnonHugePages:") > 0);
	verify(memory + 200 * MIB, 2 * MIB, PAGE, 43);
}

static void test_fits(void)
{
	if (access(THP "enabled", W_OK))
		exit(SKIPPED);
	if (mode_is("off") || access(SYSCTL "threshold", F_OK))
		return;
	in_child(small_mappings);
}

/* A large page that userfaultfd moves comes to a flat range, whose block cannot hold it. */
static void large_moved(void)
{
	const bool flattens = mode_is("l2l1 l4l3+l2l1 compendia");
	char *memory = map_at(FAR, 64 * MIB, MAP_PRIVATE), *from = map_at(FAR + GIB, 2 * MIB, MAP_PRIVATE);
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_MOVE };
	struct uffdio_register range = {
		.range = { (uintptr_t)memory + 40 * MIB, 2 * MIB },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	struct uffdio_move move = { .dst = range.range.start, .src = (uintptr_t)from, .len = 2 * MIB };

	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api))
		exit(SKIPPED);
	if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0))
		CHECK(errno == EINVAL);
	CHECK(!ioctl(uffd, UFFDIO_REGISTER, &range));
	/* First, for Compendia merges higher levels where it finds the large page before. */
	fill(memory, 32 * MIB, 2 * MIB, 45);
	CHECK(!madvise(from, 2 * MIB, MADV_HUGEPAGE));
	fill(from, 2 * MIB, PAGE, 44);
	CHECK(number("/proc/self/smaps", "AnonHugePages:") > 0);
	if (flattens)
		CHECK(is_flat(2, memory));
	CHECK(!ioctl(uffd, UFFDIO_MOVE, &move) && move.move == 2 * MIB);
	if (flattens)
		CHECK(!is_flat(2, memory));
	verify(memory + 40 * MIB, 2 * MIB, PAGE, 44);
	verify(memory, 32 * MIB, 2 * MIB, 45);
}

static void test_move(void)
{
	/* Both blocks of 2 MB are to be had. */
	make_room_for_blocks();
	in_child(large_moved);
}

/* A file of a memory cgroup that mount_cgroups() made. */
static const char *cgroup_file(int group, const char *file)
{
	static char path[64];

	snprintf(path, sizeof(path), "/tmp/cgroup/%d/%s", group, file);
	return path;
}

/* So many cgroups, each with 16 MB and without swap space. */
static void mount_cgroups(int groups)
{
	if (mkdir("/tmp/cgroup", 0755) || mount("none", "/tmp/cgroup", "cgroup2", 0, NULL))
		exit(SKIPPED);
	CHECK(!put("/tmp/cgroup/cgroup.subtree_control", "+memory"));
	for (int group = 0; group < groups; group++) {
		CHECK(!mkdir(cgroup_file(group, ""), 0755));
		CHECK(!put(cgroup_file(group, "memory.max"), "16M"));
		CHECK(!put(cgroup_file(group, "memory.swap.max"), "0"));
	}
}

static void unmount_cgroups(int groups)
{
	for (int group = 0; group < groups; group++)
		CHECK(!rmdir(cgroup_file(group, "")));
	CHECK(!umount("/tmp/cgroup"));
	CHECK(!rmdir("/tmp/cgroup"));
}

/* A process in a small cgroup lives on what lies idle in its blocks. */
static void in_cgroup(void)
{
	const size_t step = 2 * MIB, bytes = 64 * step;

	CHECK(!put(cgroup_file(0, "cgroup.procs"), "0"));
	if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0))
		CHECK(errno == EINVAL);
	for (size_t range = 0; range < 8; range++)
		fill(map_at(FAR + range * GIB, bytes, MAP_PRIVATE), bytes, step, 50 + range);
	for (size_t range = 0; range < 8; range++)
		verify(FAR + range * GIB, bytes, step, 50 + range);
}

/* Leaves a small cgroup, to which its idle blocks stay charged. */
static void leaves_cgroup(int left[2], int go_on[2])
{
	const size_t step = 2 * MIB, bytes = 64 * step;

	CHECK(!put(cgroup_file(0, "cgroup.procs"), "0"));
	if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0))
		CHECK(errno == EINVAL);
	for (size_t range = 0; range < 5; range++)
		fill(map_at(FAR + range * 512 * GIB, bytes, MAP_PRIVATE), bytes, step, 60 + range);
	CHECK(!put("/tmp/cgroup/cgroup.procs", "0"));
	tell(left);
	await(go_on);
	for (size_t range = 0; range < 5; range++)
		verify(FAR + range * 512 * GIB, bytes, step, 60 + range);
	_exit(0);
}

/* Needs what the blocks of a process that has left the cgroup take up there. */
static void stays_in_cgroup(void)
{
	const size_t bytes = 6 * MIB;

	CHECK(!put(cgroup_file(0, "cgroup.procs"), "0"));
	fill(map_at(FAR, bytes, MAP_PRIVATE), bytes, PAGE, 70);
	verify(FAR, bytes, PAGE, 70);
}

static void test_cgroup(void)
{
	int left[2], go_on[2];
	pid_t child;

	mount_cgroups(1);
	in_child(in_cgroup);
	/* A CPU that is idle may still refer to an address space that has gone, but its root is no block any more. */
	for (int tries = 0; tries < 500 && number(cgroup_file(0, "memory.current"), "") >= 2 * MIB; tries++)
		poll(NULL, 0, 20);
	CHECK(number(cgroup_file(0, "memory.current"), "") < 2 * MIB);
	CHECK(!pipe(left) && !pipe(go_on));
	child = fork();
	CHECK(child >= 0);
	if (!child)
		leaves_cgroup(left, go_on);
	/* If the child does not get there, the pipe ends. */
	CHECK(!close(left[1]));
	await(left);
	in_child(stays_in_cgroup);
	tell(go_on);
	wait_for(child);
	unmount_cgroups(1);
}

/* Compendia merges a table that became dense, gives it up when it is sparse, and merges it again. */
static void dense_and_sparse(void)
{
	const size_t step = 2 * MIB, bytes = 128 * step, left = 4 * step;
	char *memory = map_at(FAR, bytes, MAP_PRIVATE);

	for (int round = 0; round < 3; round++) {
		fill(memory, bytes, step, 60 + round);
		CHECK(is_flat(2, memory));
		verify(memory, bytes, step, 60 + round);
		CHECK(!munmap(memory + left, bytes - left));
		while (is_flat(2, memory))
			poll(NULL, 0, 20);
		verify(memory, left, step, 60 + round);
		map_at(memory + left, bytes - left, MAP_PRIVATE);
	}
	/* In between nothing changes. */
	fill(memory + left, 8 * step, step, 70);
	CHECK(!is_flat(2, memory));
	verify(memory + left, 8 * step, step, 70);
}

static void test_merge(void)
{
	if (!mode_is("compendia"))
		return;
	set(SYSCTL "threshold", 32);
	set(SYSCTL "scan_millisecs", 1);
	in_child(dense_and_sparse);
}

/* All flat blocks are page tables to everybody who counts these. */
static void test_counted(void)
{
	enum { PROCESSES = 12 };
	/* What each CPU may have in its own counters, and roots of exited processes that idle CPUs keep for a while. */
	const size_t slack = THREADS * (125 * PAGE + 2 * MIB) / KIB;
	int started[2], go_on[2], done[2], end[2];
	size_t before, flat = 0;

	if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_NEVER, 0, 0, 0)) {
		CHECK(errno == EINVAL);
		return;
	}
	CHECK(!pipe(started) && !pipe(go_on) && !pipe(done) && !pipe(end));
	for (int i = 0; i < PROCESSES; i++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child) {
			size_t mine;

			tell(started);
			await(go_on);
			CHECK(!prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0));
			mine = number("/proc/self/status", "VmFlat:");
			CHECK(write(done[1], &mine, sizeof(mine)) == sizeof(mine));
			await(end);
			_exit(0);
		}
	}
	for (int i = 0; i < PROCESSES; i++)
		await(started);
	before = number("/proc/meminfo", "PageTables:");
	for (int i = 0; i < PROCESSES; i++) {
		size_t one;

		tell(go_on);
		CHECK(read(done[0], &one, sizeof(one)) == sizeof(one));
		flat += one;
	}
	CHECK(flat >= PROCESSES * 2 * MIB / KIB);
	CHECK(number("/proc/meminfo", "PageTables:") + slack >= before + flat);
	for (int i = 0; i < PROCESSES; i++)
		tell(end);
	wait_for_others();
	/* Exiting gives all of it back. */
	CHECK(number("/proc/meminfo", "PageTables:") <= before + slack);
}

/* Blocks cost no more than a part of what they map, and some. */
static void many_sparse_ranges(void)
{
	const size_t free_kib = 8 * 2 * MIB / KIB, ranges = 200, step = 512 * GIB;
	char *start = (char *)0x100000000000;
	size_t flat, mapped;

	if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0)) {
		CHECK(errno == EINVAL);
		return;
	}
	for (size_t range = 0; range < ranges; range++)
		fill(map_at(start + range * step, PAGE, MAP_PRIVATE), PAGE, PAGE, range);
	flat = number("/proc/self/status", "VmFlat:");
	mapped = number("/proc/self/status", "VmRSS:");
	CHECK(flat > 0);
	CHECK(flat <= free_kib + mapped / 10);
	for (size_t range = 0; range < ranges; range++)
		verify(start + range * step, PAGE, PAGE, range);
}

static void test_cap(void)
{
	if (!access(SYSCTL "percent", F_OK))
		set(SYSCTL "percent", 10);
	in_child(many_sparse_ranges);
}

/*
 * Processes exit at all times before, while and after the daemon looks at them for the first and only time, which takes
 * it DELAY_US each. The daemon has the CPU of who starts them. On theirs another process is always ready to run, so that
 * no idle CPU keeps their address spaces.
 */
static void test_exits(void)
{
	enum { ROUNDS = 60, AT_ONCE = 8, DELAY_US = 5000 };
	const int theirs = sysconf(_SC_NPROCESSORS_ONLN) > 1;
	pid_t other;

	if (access(SYSCTL "scan_millisecs", F_OK))
		return;
	set(DELAY, DELAY_US);
	set(SYSCTL "scan_millisecs", 1);
	other = fork();
	CHECK(other >= 0);
	if (!other) {
		use_cpu(theirs);
		for (;;)
			sched_yield();
	}
	use_cpu(0);
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < AT_ONCE; i++) {
			pid_t child = fork();

			CHECK(child >= 0);
			if (!child) {
				use_cpu(theirs);
				poll(NULL, 0, mix(round * AT_ONCE + i) % (AT_ONCE * DELAY_US / 1000));
				_exit(0);
			}
		}
		for (int i = 0; i < AT_ONCE; i++) {
			int status;

			CHECK(wait(&status) > 0 && status == 0);
		}
	}
	CHECK(!kill(other, SIGKILL));
}

/*
 * Four threads meet in the same tables of a range: they take the same table into use, free others, and ask for large
 * pages, for which a block gives way.
 */
enum { MEETINGS = 60, MET = 4 };

static void *meet_in_tables(void *argument)
{
	char *memory = ((void **)argument)[0];
	size_t part = (size_t)((void **)argument)[1], own = part * PAGE * 8;

	for (size_t round = 0; round < MEETINGS; round++) {
		char *large = memory + 512 * MIB + part * 2 * MIB, *freed = memory + (MET + part) * 2 * MIB;

		if (!part) {
			prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0);
			/* Makes the range flat; in the other rounds it becomes so while they meet. */
			if (round % 2)
				fill(memory + 900 * MIB, PAGE, PAGE, round);
		}
		meet();
		/* The same new tables, at once. */
		for (size_t table = 0; table < MET; table++)
			fill(memory + table * 2 * MIB + own, 8 * PAGE, PAGE, round + part);
		fill(freed, 2 * MIB, 128 * KIB, round);
		CHECK(!madvise(large, 2 * MIB, MADV_HUGEPAGE));
		meet();
		/* Tables go, others come, and large pages, all in the same range. */
		if (part % 2) {
			verify(freed, 2 * MIB, 128 * KIB, round);
			CHECK(!munmap(freed, 2 * MIB));
			map_at(freed, 2 * MIB, MAP_PRIVATE);
			fill(memory + (16 + part) * 2 * MIB, 2 * MIB, 128 * KIB, round);
		} else {
			fill(large, 2 * MIB, PAGE, round);
			verify(large, 2 * MIB, PAGE, round);
		}
		meet();
		for (size_t table = 0; table < MET; table++)
			verify(memory + table * 2 * MIB + own, 8 * PAGE, PAGE, round + part);
		if (part % 2)
			verify(memory + (16 + part) * 2 * MIB, 2 * MIB, 128 * KIB, round);
		meet();
		/* Nothing is left of it; what was flat once may become so again. */
		if (!part) {
			CHECK(!munmap(memory, GIB));
			map_at(memory, GIB, MAP_PRIVATE);
		}
		meet();
	}
	return NULL;
}

static void test_meet(void)
{
	in_threads(meet_in_tables, map_aligned(GIB, GIB));
}

#define RECLAIMED "/sys/fs/cgroup/reclaimed"

/* Pages are swapped out of tables that become flat meanwhile: who looks for them holds no mmap_lock. */
static void test_reclaim(void)
{
	const size_t bytes = 1 * MIB;
	char *memory;
	pid_t reclaiming;

	if (number("/proc/meminfo", "SwapTotal:") == 0)
		exit(SKIPPED);
	CHECK(!put("/sys/fs/cgroup/cgroup.subtree_control", "+memory"));
	mkdir(RECLAIMED, 0755);
	CHECK(!access(RECLAIMED "/memory.reclaim", W_OK));
	prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_NEVER, 0, 0, 0);
	memory = map_aligned(GIB, GIB);
	reclaiming = fork();
	CHECK(reclaiming >= 0);
	if (!reclaiming) {
		/* Fails while there is less. */
		for (;;)
			put(RECLAIMED "/memory.reclaim", "1M");
	}
	for (int round = 0; round < 48; round++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child) {
			CHECK(!put(RECLAIMED "/cgroup.procs", "0"));
			fill(memory, bytes, PAGE, 90 + round);
			usleep(round % 16 * 1000);
			prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0);
			verify(memory, bytes, PAGE, 90 + round);
			_exit(0);
		}
		wait_for(child);
	}
	CHECK(!kill(reclaiming, SIGKILL) && waitpid(reclaiming, NULL, 0) == reclaiming);
}

/* A file's small pages become a large one in one process, while the tables of others that map them are flat. */
static void test_retract(void)
{
	const size_t bytes = 16 * MIB;
	int file = memfd_create("retract", 0), go_on[2], done[2];
	char *memory;
	pid_t child;

	CHECK(file >= 0 && !ftruncate(file, bytes) && !pipe(go_on) && !pipe(done));
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0);
		memory = mmap(FAR, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
		CHECK(memory == FAR);
		fill(memory, bytes, PAGE, 80);
		tell(done);
		await(go_on);
		verify(memory, bytes, PAGE, 80);
		/* Tables of the same range that come later. */
		fill(map_at(memory + 64 * MIB, bytes, MAP_PRIVATE), bytes, PAGE, 81);
		verify(memory + 64 * MIB, bytes, PAGE, 81);
		fill(memory, bytes, PAGE, 82);
		verify(memory, bytes, PAGE, 82);
		_exit(0);
	}
	await(done);
	memory = map_aligned(bytes, 2 * MIB);
	CHECK(mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == memory);
	verify(memory, bytes, PAGE, 80);
	if (madvise(memory, bytes, MADV_COLLAPSE) && errno == EINVAL)
		exit(SKIPPED);
	verify(memory, bytes, PAGE, 80);
	tell(go_on);
	wait_for(child);
	verify(memory, bytes, PAGE, 82);
}

/*
 * Reclaim clears the accessed bit of what hardware walks a block by, to see whether anybody does. With five levels that is
 * an entry of the root, and still one. Without a system call that waits nothing of the program need be walked to again.
 */
static void mostly_idle(void)
{
	const size_t step = 512 * GIB, kept = 16;
	char *start = (char *)0x100000000000, *memory = start + kept * step;

	if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0))
		CHECK(errno == EINVAL);
	for (size_t range = 0; range < kept; range++)
		fill(map_at(start + range * step, PAGE, MAP_PRIVATE), PAGE, PAGE, range);
	for (size_t round = 0; round < 100; round++) {
		/* New memory is walked to, so that the block stays. */
		fill(map_at(memory, 8 * PAGE, MAP_PRIVATE), 8 * PAGE, PAGE, round);
		for (size_t i = 0; i < kept; i++) {
			size_t range = mix(round + i) % kept;

			verify(start + range * step, PAGE, PAGE, range);
		}
		CHECK(!put("/proc/sys/vm/drop_caches", "2"));
		CHECK(!munmap(memory, 8 * PAGE));
	}
	for (size_t range = 0; range < kept; range++)
		verify(start + range * step, PAGE, PAGE, range);
}

static void test_idle(void)
{
	/* From here on the kernel says nothing of it, which would take long. */
	CHECK(!put("/proc/sys/vm/drop_caches", "4"));
	/* It goes on for as long as it finds much, and would take the block for idle the second time. */
	for (int i = 0; i < 3; i++)
		CHECK(!put("/proc/sys/vm/drop_caches", "2"));
	in_child(mostly_idle);
}

/* An entry of level 3 that belongs to a page of 1 GB is no table, present or not. */
static void poisoned_page(void)
{
	char *memory = FAR, *other = FAR + 2 * GIB;
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_POISON };
	struct uffdio_register range = {
		.range = { (uintptr_t)memory, GIB },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	struct uffdio_poison poison = { .range = range.range };

	map_at(memory, GIB, MAP_PRIVATE | MAP_HUGETLB | MAP_HUGE_1GB);
	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	CHECK(uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api));
	CHECK(!ioctl(uffd, UFFDIO_REGISTER, &range));
	CHECK(!ioctl(uffd, UFFDIO_POISON, &poison) && poison.updated == (__s64)GIB);
	for (int round = 0; round < 2; round++) {
		if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0))
			CHECK(errno == EINVAL);
		fill(map_at(other, 64 * MIB, MAP_PRIVATE), 64 * MIB, 2 * MIB, 46);
		read_from("/sys/kernel/debug/x86/flat_page_tables", 0, SIZE_MAX);
		verify(other, 64 * MIB, 2 * MIB, 46);
		if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_NEVER, 0, 0, 0))
			CHECK(errno == EINVAL);
		verify(other, 64 * MIB, 2 * MIB, 46);
		CHECK(!munmap(other, 64 * MIB));
	}
	CHECK(!munmap(memory, GIB));
}

static void test_poisoned(void)
{
	/* What the machine's command line has to ask for. */
	if (access("/sys/kernel/mm/hugepages/hugepages-1048576kB", F_OK))
		exit(SKIPPED);
	in_child(poisoned_page);
}

/*
 * A fork() fails when it has copied many tables, and the daemon, which was about to look at these, looks at what is left: a
 * list of mappings whose end is none. What cannot be copied is memory of which there is too much.
 */
static void fork_in_vain(void)
{
	enum { ROUNDS = 60, DELAY_US = 4000 };
	const size_t copied = 64 * MIB, large = GIB;

	if (!access(SYSCTL "scan_millisecs", F_OK)) {
		set(SYSCTL "scan_millisecs", 1);
		set(DELAY, DELAY_US);
		/* The child has the same policy from the start. */
		CHECK(!prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0));
	}
	CHECK(!put("/proc/sys/vm/overcommit_memory", "0"));
	/* Copied first, and counted for nothing. */
	fill(map_at(FAR, copied, MAP_PRIVATE), copied, PAGE, 47);
	CHECK(mmap(FAR + 512 * GIB, large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
	      FAR + 512 * GIB);
	set("/proc/sys/vm/overcommit_kbytes", number("/proc/meminfo", "Committed_AS:") + large / 2 / KIB -
						      number("/proc/meminfo", "SwapTotal:"));
	CHECK(!put("/proc/sys/vm/overcommit_memory", "2"));
	for (int round = 0; round < ROUNDS; round++) {
		CHECK(fork() < 0 && errno == ENOMEM);
		/* Not always at the same time after the daemon came. */
		if (round % 4)
			usleep(mix(round) % DELAY_US);
	}
	verify(FAR, copied, PAGE, 47);
}

static void test_halfway(void)
{
	const size_t before = number("/proc/sys/vm/overcommit_memory", "");

	in_child(fork_in_vain);
	CHECK(!put("/proc/sys/vm/overcommit_ratio", "50"));
	set("/proc/sys/vm/overcommit_memory", before);
}

/* khugepaged does nothing but come by, or comes by as seldom as usual. */
static void hurry_khugepaged(bool hurry)
{
	set(THP "khugepaged/scan_sleep_millisecs", hurry ? 1 : 10000);
	set(THP "khugepaged/alloc_sleep_millisecs", hurry ? 1 : 60000);
	set(THP "khugepaged/pages_to_scan", hurry ? 65536 : 4096);
}

static const size_t asked_bytes = 2 * MIB;
static char *const asked_page = FAR + 128 * MIB;

/* A file of one large page, which is mapped where no table is flat, and in a range whose tables are. */
static void map_one_page_twice(void)
{
	int file = memfd_create("asked", 0);
	char *first = map_aligned(asked_bytes, asked_bytes);

	CHECK(file >= 0 && !ftruncate(file, asked_bytes));
	CHECK(mmap(first, asked_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == first);
	fill(first, asked_bytes, PAGE, 83);
	if (madvise(first, asked_bytes, MADV_COLLAPSE) && errno == EINVAL)
		_exit(SKIPPED);
	CHECK(number("/proc/self/smaps", "ShmemPmdMapped:") == asked_bytes / KIB);
	if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0))
		CHECK(errno == EINVAL);
	fill(map_at(FAR, PAGE, MAP_PRIVATE), PAGE, PAGE, 84);
	if (mode_is("l2l1 l4l3+l2l1 compendia"))
		CHECK(is_flat(2, FAR));
	CHECK(mmap(asked_page, asked_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0) == asked_page);
}

/* Both mappings have the large page. */
static void verify_asked(void)
{
	CHECK(number("/proc/self/smaps", "ShmemPmdMapped:") == 2 * asked_bytes / KIB);
	if (mode_is("l2l1 l4l3+l2l1 compendia"))
		CHECK(!is_flat(2, FAR));
	verify(asked_page, asked_bytes, PAGE, 83);
	verify(FAR, PAGE, PAGE, 84);
}

/* A large page that is asked for comes to a flat range that has no table in its place. */
static void collapsed_elsewhere(void)
{
	map_one_page_twice();
	CHECK(!madvise(asked_page, asked_bytes, MADV_COLLAPSE));
	verify_asked();
}

/* The same where a table maps its small pages, and khugepaged sees that the large one is asked for. */
static void collapsed_later(void)
{
	map_one_page_twice();
	verify(asked_page, asked_bytes, PAGE, 83);
	if (mode_is("l2l1 l4l3+l2l1 compendia"))
		CHECK(number("/proc/self/smaps", "ShmemPmdMapped:") == asked_bytes / KIB && is_flat(2, FAR));
	/* khugepaged hears of the process where what is asked for is known already. */
	for (int i = 0; i < 2; i++)
		CHECK(!madvise(asked_page, asked_bytes, MADV_HUGEPAGE));
	for (int tries = 0; tries < 3000; tries++) {
		if (number("/proc/self/smaps", "ShmemPmdMapped:") == 2 * asked_bytes / KIB)
			break;
		poll(NULL, 0, 20);
		verify(asked_page, asked_bytes, PAGE, 83);
	}
	verify_asked();
}

static void test_asked(void)
{
	make_room_for_blocks();
	in_child(collapsed_elsewhere);
	CHECK(!put(THP "shmem_enabled", "advise"));
	hurry_khugepaged(true);
	in_child(collapsed_later);
	hurry_khugepaged(false);
	CHECK(!put(THP "shmem_enabled", "never"));
}

/* What a process wanted ordinary becomes flat again once it wants that. */
static void changes_its_mind(void)
{
	const int level = mode_is("l3l2") ? 3 : mode_is("l2l1 l4l3+l2l1 compendia") ? 2 : 0;
	const int policies[] = { FLAT_ALWAYS, FLAT_DEFAULT };
	const size_t bytes = 70 * 2 * MIB;
	char *memory = map_at(FAR, bytes, MAP_PRIVATE);

	if (!level)
		return;
	fill(memory, bytes, 2 * MIB, 90);
	for (int i = 0; i < 2; i++) {
		CHECK(!prctl(PR_SET_FLAT_PAGE_TABLES, policies[i], 0, 0, 0));
		CHECK(is_flat(level, memory));
		verify(memory, bytes, 2 * MIB, 90);
		CHECK(!prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_NEVER, 0, 0, 0));
		CHECK(!is_flat(level, memory));
		verify(memory, bytes, 2 * MIB, 90);
	}
}

static void test_policy(void)
{
	make_room_for_blocks();
	in_child(changes_its_mind);
}

/* khugepaged by itself, which would like the same large page each time that it comes by, costs a flat range nothing. */
static void one_large_page(void)
{
	char *memory = map_at(FAR, 64 * MIB, MAP_PRIVATE), *alone = memory + 100 * MIB;
	size_t passes;

	CHECK(!madvise(memory, 64 * MIB, MADV_NOHUGEPAGE));
	CHECK(!prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0));
	fill(memory, 64 * MIB, 2 * MIB, 91);
	CHECK(is_flat(2, memory));
	CHECK(!put(THP "enabled", "always"));
	fill(map_at(alone, 2 * MIB, MAP_PRIVATE), 2 * MIB, PAGE, 92);
	/* khugepaged hears of a process where a fault gets a large page, which none does in that range. */
	fill(map_at(FAR + 16 * GIB, 2 * MIB, MAP_PRIVATE), 2 * MIB, PAGE, 93);
	passes = number(THP "khugepaged/full_scans", "") + 40;
	for (int tries = 0; tries < 3000 && number(THP "khugepaged/full_scans", "") < passes; tries++) {
		verify(alone, 2 * MIB, PAGE, 92);
		poll(NULL, 0, 20);
	}
	CHECK(number(THP "khugepaged/full_scans", "") >= passes);
	CHECK(is_flat(2, memory));
	verify(memory, 64 * MIB, 2 * MIB, 91);
	verify(alone, 2 * MIB, PAGE, 92);
}

static void test_passes(void)
{
	if (access(THP "enabled", W_OK))
		exit(SKIPPED);
	if (!mode_is("l2l1 l4l3+l2l1 compendia"))
		return;
	make_room_for_blocks();
	hurry_khugepaged(true);
	in_child(one_large_page);
	CHECK(!put(THP "enabled", "madvise"));
	hurry_khugepaged(false);
}

/* Memory with flat tables, most of which are not in use, in as many ranges. */
static void idle_blocks(size_t ranges, size_t range_bytes)
{
	const size_t step = 2 * MIB, bytes = 64 * step;

	if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0))
		CHECK(errno == EINVAL);
	for (size_t range = 0; range < ranges; range++)
		fill(map_at(FAR + range * range_bytes, bytes, MAP_PRIVATE), bytes, step, 93 + range);
}

static void verify_idle_blocks(size_t ranges, size_t range_bytes)
{
	for (size_t range = 0; range < ranges; range++)
		verify(FAR + range * range_bytes, 128 * MIB, 2 * MIB, 93 + range);
}

/* fork(), which holds mmap_lock for writing, needs what lies idle in the same process's blocks. */
static void forks_at_limit(void)
{
	char *more = FAR + 8 * 512 * GIB;
	pid_t child;

	CHECK(!put(cgroup_file(0, "cgroup.procs"), "0"));
	idle_blocks(5, 512 * GIB);
	map_at(more, 8 * MIB, MAP_PRIVATE);
	/* Where nothing can be given up, there has to be some room. */
	for (size_t at = 0; at < 8 * MIB && mode_is("l3l2 l2l1 l4l3+l2l1 compendia"); at += 64 * KIB) {
		if (number(cgroup_file(0, "memory.current"), "") >= 16 * MIB - 512 * KIB)
			break;
		fill(more + at, 64 * KIB, PAGE, at);
	}
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		verify_idle_blocks(5, 512 * GIB);
		_exit(0);
	}
	wait_for(child);
	verify_idle_blocks(5, 512 * GIB);
}

/* Processes in several cgroups live on what lies idle in their blocks, all at once. */
static void live_at_limits(void)
{
	for (int group = 0; group < THREADS; group++) {
		pid_t child = fork();

		CHECK(child >= 0);
		if (child)
			continue;
		CHECK(!put(cgroup_file(group, "cgroup.procs"), "0"));
		for (int round = 0; round < 3; round++) {
			idle_blocks(8, GIB);
			verify_idle_blocks(8, GIB);
			for (size_t range = 0; range < 8; range++)
				CHECK(!munmap(FAR + range * GIB, 128 * MIB));
		}
		_exit(0);
	}
	wait_for_others();
}

static void test_limit(void)
{
	mount_cgroups(THREADS);
	in_child(forks_at_limit);
	in_child(live_at_limits);
	unmount_cgroups(THREADS);
}

/*
 * A table of level 2 that processes share goes from one of them, which holds no lock for it, while that process looks for
 * what to flatten.
 */
static void *look_on(void *argument)
{
	volatile size_t *looks = argument;

	for (;; ++*looks)
		prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_DEFAULT, 0, 0, 0);
	return NULL;
}

static void *touch_on(void *memory)
{
	for (;;)
		(void)*(volatile char *)memory;
	return NULL;
}

static void unshare_table(void)
{
	/* It may be the one or the other that hardly comes to its turn. */
	enum { HOLES = 300, LOOKS = 150000 };
	const size_t dense = 508 * 2 * MIB;
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_POISON };
	struct uffdio_register range = {
		.range = { (uintptr_t)FAR, GIB },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	struct uffdio_poison poison = { .range = { (uintptr_t)FAR + 2 * MIB, dense } };
	int file = memfd_create("shared", MFD_HUGETLB);
	volatile size_t *looks = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_t thread;
	pid_t child;

	CHECK(looks != MAP_FAILED && file >= 0 && !ftruncate(file, GIB));
	CHECK(mmap(FAR, GIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, file, 0) == FAR);
	*FAR = 1;
	/* Entries in use that need no memory, and which a look has to count. */
	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	CHECK(uffd >= 0 && !ioctl(uffd, UFFDIO_API, &api));
	CHECK(!ioctl(uffd, UFFDIO_REGISTER, &range));
	CHECK(!ioctl(uffd, UFFDIO_POISON, &poison) && poison.updated == (__s64)dense);
	CHECK(!ioctl(uffd, UFFDIO_UNREGISTER, &range.range) && !close(uffd));
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		CHECK(!pthread_create(&thread, NULL, look_on, (void *)looks));
		touch_on(FAR);
	}
	CHECK(!pthread_create(&thread, NULL, look_on, (void *)(looks + 1)));
	for (int hole = 0; hole < HOLES || looks[0] + looks[1] < LOOKS; hole++) {
		/* Where nothing is; all the same the table is shared no more. Whoever touches it next shares it again. */
		CHECK(!fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, GIB - 2 * MIB, 2 * MIB));
		CHECK(*(volatile char *)FAR == 1);
	}
	CHECK(!waitpid(child, NULL, WNOHANG));
	CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
}

static void test_unshare(void)
{
	set("/proc/sys/vm/nr_hugepages", 4);
	if (number("/proc/meminfo", "HugePages_Free:") < 1)
		exit(SKIPPED);
	/* So many entries are in use there, and nowhere else. */
	if (!access(SYSCTL "threshold", F_OK))
		set(SYSCTL "threshold", 500);
	in_child(unshare_table);
}

/* Whether this process's first thread has ended. */
static bool leader_ended(void)
{
	char line[256];
	FILE *file = fopen("/proc/self/stat", "r");

	CHECK(file && fgets(line, sizeof(line), file));
	fclose(file);
	return strstr(line, ") Z ");
}

/* The kernel finds a process whose first thread has ended, for its daemon and for debugfs. */
static void *grow_without_leader(void *unused)
{
	const int level = mode_is("l3l2") ? 3 : mode_is("l2l1 l4l3+l2l1 compendia") ? 2 : 0;
	const size_t bytes = 70 * 2 * MIB;

	while (!leader_ended())
		poll(NULL, 0, 1);
	fill(map_at(FAR, bytes, MAP_PRIVATE), bytes, 2 * MIB, 95);
	if (level) {
		CHECK(!is_flat(level, FAR));
		set(SYSCTL "threshold", 1);
		for (int tries = 0; tries < 500 && !is_flat(level, FAR); tries++)
			poll(NULL, 0, 20);
		CHECK(is_flat(level, FAR));
	}
	verify(FAR, bytes, 2 * MIB, 95);
	_exit(0);
	return unused;
}

static void outlive_leader(void)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, grow_without_leader, NULL));
	/* This thread alone. */
	syscall(SYS_exit, 0);
}

static void test_leader(void)
{
	make_room_for_blocks();
	if (!access(SYSCTL "threshold", F_OK)) {
		set(SYSCTL "threshold", 512);
		set(SYSCTL "scan_millisecs", 1);
	}
	in_child(outlive_leader);
}

/*
 * Page faults that find large pages of a file, or make them, in a flat range: it gives way for the 32nd, or for the first
 * that is asked for.
 */
static void find_large_pages(bool made, bool asked)
{
	enum { PAGES = 40 };
	const bool flattens = mode_is("l2l1 l4l3+l2l1 compendia");
	const size_t step = 2 * MIB;
	const int before = asked || !flattens ? 0 : 31;
	int file = memfd_create("found", 0);
	char *found = FAR + 128 * MIB;

	CHECK(file >= 0 && !ftruncate(file, PAGES * step));
	for (size_t at = 0; made && at < PAGES * step; at += step)
		CHECK(pwrite(file, &at, sizeof(at), at) == sizeof(at));
	map_at(FAR, 64 * MIB, MAP_PRIVATE);
	if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0))
		CHECK(errno == EINVAL);
	fill(FAR, 64 * MIB, step, 96);
	CHECK(!flattens || is_flat(2, FAR));
	CHECK(mmap(found, PAGES * step, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0) == found);
	if (asked)
		CHECK(!madvise(found, PAGES * step, MADV_HUGEPAGE));
	for (int page = 0; page < PAGES; page++) {
		size_t *word = (size_t *)(found + page * step);

		if (!made)
			*word = page * step;
		CHECK(*(volatile size_t *)word == page * step);
		CHECK((flattens && is_flat(2, FAR)) == (page < before));
	}
	CHECK(number("/proc/self/smaps", "ShmemPmdMapped:") == (PAGES - before) * step / KIB);
	verify(FAR, 64 * MIB, step, 96);
}

static void find_made(void)
{
	find_large_pages(true, false);
}

static void find_made_and_asked(void)
{
	find_large_pages(true, true);
}

static void find_none(void)
{
	find_large_pages(false, false);
}

static void find_none_and_asked(void)
{
	find_large_pages(false, true);
}

static void test_found(void)
{
	if (access(THP "shmem_enabled", W_OK))
		exit(SKIPPED);
	make_room_for_blocks();
	CHECK(!put(THP "shmem_enabled", "force"));
	in_child(find_made);
	in_child(find_made_and_asked);
	in_child(find_none);
	in_child(find_none_and_asked);
	CHECK(!put(THP "shmem_enabled", "never"));
}

/* Where waiters find a large page, once the process's lock is taken, which is some time after this. */
static char *waited_for;
static _Atomic int64_t lock_is_taken_ns;

static int64_t now_ns(void)
{
	struct timespec now;

	CHECK(!clock_gettime(CLOCK_MONOTONIC, &now));
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void *wait_and_find(void *unused)
{
	int64_t taken;

	meet();
	/* However long it takes until all of them are awake. */
	while (!(taken = lock_is_taken_ns) || now_ns() < taken + 500000000)
		poll(NULL, 0, 100);
	CHECK(*(volatile size_t *)waited_for == 97);
	return unused;
}

/* A range like FAR's at @at, flat, and above it a large page of a file that is not mapped yet. Returns the page. */
static char *flat_range_with_file(char *at)
{
	const size_t word = 97;
	int file = memfd_create("waiters", 0);

	CHECK(file >= 0 && !ftruncate(file, 2 * MIB));
	CHECK(pwrite(file, &word, sizeof(word), 0) == sizeof(word));
	map_at(at, 64 * MIB, MAP_PRIVATE);
	fill(at, 64 * MIB, 2 * MIB, 96);
	CHECK(!mode_is("l2l1 l4l3+l2l1 compendia") || is_flat(2, at));
	at += 128 * MIB;
	CHECK(mmap(at, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0) == at);
	return at;
}

/*
 * WAITERS threads find a large page that a flat range refuses, all while another range gives way, which takes DELAY_US and
 * the lock under which the kernel counts how often that was. It has room for 511.
 */
static void wait_for_lock(void)
{
	enum { WAITERS = 600, DELAY_US = 2000000 };
	static pthread_t threads[WAITERS];
	pthread_attr_t small;
	char *asked;

	if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0))
		CHECK(errno == EINVAL);
	CHECK(!pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, 256 * KIB));
	CHECK(!pthread_barrier_init(&meeting, NULL, WAITERS + 1));
	for (int i = 0; i < WAITERS; i++)
		CHECK((errno = pthread_create(&threads[i], &small, wait_and_find, NULL)) == 0);
	waited_for = flat_range_with_file(FAR);
	asked = flat_range_with_file(FAR + GIB);
	CHECK(!madvise(asked, 2 * MIB, MADV_HUGEPAGE));
	if (!access(DELAY, W_OK))
		set(DELAY, DELAY_US);
	meet();
	lock_is_taken_ns = now_ns();
	CHECK(*(volatile size_t *)asked == 97);
	for (int i = 0; i < WAITERS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	if (!access(DELAY, W_OK))
		set(DELAY, 0);
	if (mode_is("l2l1 l4l3+l2l1 compendia")) {
		CHECK(!is_flat(2, FAR + GIB));
		CHECK(!is_flat(2, FAR));
	}
	for (size_t at = 0; at < 2 * GIB; at += GIB) {
		verify(FAR + at, 64 * MIB, 2 * MIB, 96);
		CHECK(!munmap(FAR + at, GIB));
	}
}

static void test_waiters(void)
{
	if (access(THP "shmem_enabled", W_OK))
		exit(SKIPPED);
	make_room_for_blocks();
	CHECK(!put(THP "shmem_enabled", "force"));
	in_child(wait_for_lock);
	CHECK(!put(THP "shmem_enabled", "never"));
	/* Had the kernel freed what is not its own, that would show soon. */
	for (int i = 0; i < 4; i++) {
		char *memory = map_aligned(256 * MIB, GIB);

		fill(memory, 256 * MIB, PAGE, 98 + i);
		verify(memory, 256 * MIB, PAGE, 98 + i);
		CHECK(!munmap(memory, 256 * MIB));
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "populate", test_populate }, { "fork", test_fork },	  { "exec", test_exec },
	{ "mmap", test_mmap },	       { "mremap", test_mremap }, { "thp", test_thp },
	{ "hugetlb", test_hugetlb },   { "ksm", test_ksm },	  { "userfaultfd", test_userfaultfd },
	{ "swap", test_swap },	       { "gup", test_gup },	  { "switch", test_switch },
	{ "flush", test_flush },       { "nothing", test_nothing }, { "proc", test_proc },
	{ "ldt", test_ldt },	       { "oom", test_oom },	  { "collapse", test_collapse },
	{ "later", test_later },       { "grow", test_grow },	  { "again", test_again },
	{ "flush-root", test_flush_root }, { "flush-pages", test_flush_pages }, { "large", test_large },
	{ "fits", test_fits },	       { "cgroup", test_cgroup }, { "merge", test_merge },
	{ "counted", test_counted },   { "cap", test_cap },	  { "exits", test_exits },
	{ "move", test_move },	       { "meet", test_meet },	  { "reclaim", test_reclaim },
	{ "retract", test_retract },   { "idle", test_idle },	  { "poisoned", test_poisoned },
	{ "halfway", test_halfway },   { "asked", test_asked },	  { "policy", test_policy },
	{ "passes", test_passes },     { "limit", test_limit },	  { "unshare", test_unshare },
	{ "leader", test_leader },     { "found", test_found },
	{ "waiters", test_waiters },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc == 2 && i < sizeof(tests) / sizeof(tests[0]); i++) {
		if (!strcmp(argv[1], tests[i].name)) {
			tests[i].run();
			printf("ok %s\n", tests[i].name);
			return 0;
		}
	}
	fprintf(stderr, "usage: mm TEST; TEST is one of:");
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		fprintf(stderr, " %s", tests[i].name);
	fprintf(stderr, "\n");
	return 2;
}
