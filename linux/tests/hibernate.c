/*
 * The first process of a guest that hibernates and resumes. Its disk /dev/vda is swap space and takes the image. In the
 * first boot it makes its page tables flat, fills memory, and hibernates, which ends it; in the second it
 * resumes: the process from the first boot goes on, verifies its memory, and prints "hibernated". It prints to the kernel's
 * log, a line at a time, so that no message of the kernel's divides a line on the serial port.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define PR_SET_FLAT_PAGE_TABLES 0x464c4154
#define FLAT_ALWAYS 2
#define MIB (1024UL * 1024)
#define PAGE 4096UL
#define DISK "/dev/vda"

static void switch_off(void)
{
	reboot(RB_AUTOBOOT);
	for (;;)
		pause();
}

#define CHECK(condition)                                                                         \
	do {                                                                                     \
		if (!(condition)) {                                                              \
			printf("%s:%d: %s: %s\n", __func__, __LINE__, #condition, strerror(errno)); \
			switch_off();                                                            \
		}                                                                                \
	} while (0)

static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	ssize_t done = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return done == (ssize_t)strlen(text) ? 0 : -1;
}

/* What mkswap writes: the signature at the end of the first page, the version and the number of the last page. */
static void make_swap(void)
{
	static char page[PAGE];
	int fd = open(DISK, O_RDWR);
	off_t bytes;
	uint32_t *header = (uint32_t *)(page + 1024);

	CHECK(fd >= 0 && (bytes = lseek(fd, 0, SEEK_END)) > 0);
	header[0] = 1;
	header[1] = bytes / PAGE - 1;
	memcpy(page + PAGE - 10, "SWAPSPACE2", 10);
	CHECK(pwrite(fd, page, PAGE, 0) == (ssize_t)PAGE && !fsync(fd) && !close(fd));
}

static uint64_t word(size_t at)
{
	return (at + 1) * 0x9e3779b97f4a7c15;
}

int main(void)
{
	const size_t bytes = 64 * MIB, step = 64 * 1024;
	char device[32], *memory;
	struct stat about;
	int log;

	CHECK(!mount("none", "/dev", "devtmpfs", 0, NULL));
	log = open("/dev/kmsg", O_WRONLY);
	if (log < 0 || dup2(log, 1) < 0)
		switch_off();
	setvbuf(stdout, NULL, _IOLBF, 0);
	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	CHECK(!mount("none", "/proc", "proc", 0, NULL) && !mount("none", "/sys", "sysfs", 0, NULL));
	CHECK(!stat(DISK, &about));
	snprintf(device, sizeof(device), "%u:%u", major(about.st_rdev), minor(about.st_rdev));
	/* Does not come back if there is an image. */
	put("/sys/power/resume", device);

	make_swap();
	CHECK(!swapon(DISK, 0));
	if (prctl(PR_SET_FLAT_PAGE_TABLES, FLAT_ALWAYS, 0, 0, 0))
		CHECK(errno == EINVAL);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	for (size_t at = 0; at < bytes; at += step)
		*(uint64_t *)(memory + at) = word(at);
	CHECK(!put("/sys/power/disk", "reboot"));
	CHECK(!put("/sys/power/state", "disk"));
	for (size_t at = 0; at < bytes; at += step)
		CHECK(*(uint64_t *)(memory + at) == word(at));
	for (size_t at = 0; at < bytes; at += step)
		*(uint64_t *)(memory + at) = word(at + 1);
	for (size_t at = 0; at < bytes; at += step)
		CHECK(*(uint64_t *)(memory + at) == word(at + 1));
	printf("hibernated\n");
	switch_off();
}
