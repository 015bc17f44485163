/*
 * The guest's first process. The host's root file system is mounted over 9p, read-only, under a tmpfs for
 * what is written. Runs one command in it, passes its output and its exit status to the host, and powers off.
 *
 * The command is in /job: its working directory, "fed" if it has input, the number of its arguments, the
 * arguments, then its environment, each string terminated by a zero byte. Ports, by name: stdin if it has
 * input, stdout, stderr, status.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../recorder/flatwalk.h"

/* The command, as /job says it. */
struct job {
	char *directory;
	int fed;
	char **arguments, **environment;
};

static int status_port = -1;

static void switch_off(void)
{
	sync();
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}

/* Reports to the host why the command cannot be started. */
static void fail(const char *what, const char *which)
{
	char line[4096];
	int length = snprintf(line, sizeof(line), "failed %s %s: %s\n", what, which, strerror(errno));

	if (write(status_port < 0 ? 2 : status_port, line, length) != length)
		perror(line);
	switch_off();
}

static void attach(const char *source, const char *target, const char *type, unsigned long flags,
		   const char *options)
{
	if (mkdir(target, 0755) && errno != EEXIST)
		fail("make", target);
	if (mount(source, target, type, flags, options))
		fail("mount", target);
}

/* Opens the virtio port of this name. */
static int port(const char *name, int flags)
{
	DIR *ports = opendir("/sys/class/virtio-ports");
	struct dirent *entry;

	if (!ports)
		fail("open", "/sys/class/virtio-ports");
	while ((entry = readdir(ports)) != NULL) {
		char path[512], found[64] = "";
		FILE *file;

		snprintf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", entry->d_name);
		file = fopen(path, "r");
		if (!file)
			continue;
		if (fscanf(file, "%63s", found) == 1 && !strcmp(found, name)) {
			int fd;

			fclose(file);
			closedir(ports);
			snprintf(path, sizeof(path), "/dev/%s", entry->d_name);
			fd = open(path, flags | O_CLOEXEC);
			if (fd < 0)
				fail("open", path);
			return fd;
		}
		fclose(file);
	}
	errno = ENODEV;
	fail("find port", name);
	return -1;
}

static char *read_all(const char *path, size_t *length)
{
	struct stat about;
	char *text;
	FILE *file = fopen(path, "r");

	if (!file || fstat(fileno(file), &about))
		fail("open", path);
	text = calloc(1, about.st_size + 1);
	if (!text || fread(text, 1, about.st_size, file) != (size_t)about.st_size)
		fail("read", path);
	fclose(file);
	*length = about.st_size;
	return text;
}

/*
 * Passes on what the command writes, until all writers have closed the pipe; the command may leave children
 * behind.
 */
static int pump(pid_t command, const int from[2], const int to[2])
{
	struct pollfd watched[2] = { { .fd = from[0], .events = POLLIN }, { .fd = from[1], .events = POLLIN } };
	int status = 0, over = 0;

	for (;;) {
		/* Once the command has ended, pass on the rest without waiting for its children. */
		int ready = poll(watched, 2, over ? 0 : 100);
		int idle = ready <= 0;

		for (int i = 0; i < 2; i++) {
			static char buffer[65536];
			ssize_t got;

			if (ready <= 0 || !watched[i].revents)
				continue;
			got = read(watched[i].fd, buffer, sizeof(buffer));
			if (got <= 0) {
				watched[i].fd = -1;
				continue;
			}
			for (ssize_t done = 0; done < got;) {
				ssize_t put = write(to[i], buffer + done, got - done);

				if (put < 0)
					fail("write", i ? "stderr" : "stdout");
				done += put;
			}
		}
		if (over && idle)
			return status;
		for (;;) {
			int ended;
			pid_t child = waitpid(-1, &ended, WNOHANG);

			if (child <= 0)
				break;
			if (child == command) {
				status = ended;
				over = 1;
			}
		}
	}
}

/* Makes the host's files, and what a system has in addition to them, the root. */
static void enter_root(void)
{
	static const char *const devices[] = { "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr" };
	static const char *const fds[] = { "/proc/self/fd", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2" };

	attach("tmpfs", "/over", "tmpfs", 0, "size=90%");
	attach("host", "/host", "9p", MS_RDONLY, "trans=virtio,version=9p2000.L,msize=512000,cache=loose");
	if (mkdir("/over/upper", 0755) || mkdir("/over/work", 0755))
		fail("make", "/over");
	attach("root", "/root", "overlay", 0, "lowerdir=/host,upperdir=/over/upper,workdir=/over/work");
	if (chdir("/root") || chroot("/root"))
		fail("enter", "/root");
	attach("proc", "/proc", "proc", 0, NULL);
	attach("sysfs", "/sys", "sysfs", 0, NULL);
	attach("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
	attach("cgroup", "/sys/fs/cgroup", "cgroup2", 0, NULL);
	attach("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	attach("devpts", "/dev/pts", "devpts", 0, NULL);
	attach("tmpfs", "/dev/shm", "tmpfs", 0, NULL);
	attach("hugetlbfs", "/dev/hugepages", "hugetlbfs", 0, NULL);
	for (int i = 0; i < 4; i++) {
		if (symlink(fds[i], devices[i]) && errno != EEXIST)
			fail("link", devices[i]);
	}
}

/* Takes /job, whose text this is, apart: the strings stay where they are in it. */
static struct job parse(char *text, size_t length)
{
	struct job job = { .directory = text };
	char *at = text + strlen(text) + 1;
	size_t count;

	job.fed = !strcmp(at, "fed");
	at += strlen(at) + 1;
	count = strtoul(at, NULL, 10);
	at += strlen(at) + 1;
	job.arguments = calloc(length + 1, sizeof(char *));
	job.environment = calloc(length + 1, sizeof(char *));
	if (!job.arguments || !job.environment)
		fail("allocate", "the command");
	for (size_t i = 0; i < count; i++, at += strlen(at) + 1)
		job.arguments[i] = at;
	for (size_t i = 0; at < text + length; i++, at += strlen(at) + 1)
		job.environment[i] = at;
	return job;
}

/* Starts the command. Its output and its errors can be read from `from`. */
static pid_t start(const struct job *job, int from[2])
{
	int in = job->fed ? port("stdin", O_RDONLY) : open("/dev/null", O_RDONLY | O_CLOEXEC);
	int out[2], err[2];
	pid_t child;

	if (in < 0 || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
		fail("open", "pipes");
	child = fork();
	if (child < 0)
		fail("start", job->arguments[0]);
	if (!child) {
		setsid();
		dup2(in, 0);
		dup2(out[1], 1);
		dup2(err[1], 2);
		if (chdir(job->directory)) {
			dprintf(2, "%s: %s\n", job->directory, strerror(errno));
			_exit(127);
		}
		environ = job->environment;
		/* For the recorder, if it runs: the program that starts now. */
		flatwalk_start();
		execvp(job->arguments[0], job->arguments);
		dprintf(2, "%s: %s\n", job->arguments[0], strerror(errno));
		_exit(errno == ENOENT ? 127 : 126);
	}
	close(out[1]);
	close(err[1]);
	from[0] = out[0];
	from[1] = err[0];
	return child;
}

int main(void)
{
	int ports[2], from[2], status;
	struct job job;
	size_t length;
	char *text, line[64];
	pid_t command;

	attach("proc", "/proc", "proc", 0, NULL);
	attach("sysfs", "/sys", "sysfs", 0, NULL);
	attach("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	status_port = port("status", O_WRONLY);
	ports[0] = port("stdout", O_WRONLY);
	ports[1] = port("stderr", O_WRONLY);
	/* It is in the first root, which the command does not see. */
	text = read_all("/job", &length);
	enter_root();

	job = parse(text, length);
	command = start(&job, from);
	status = pump(command, from, ports);
	flatwalk_stop();
	if (WIFSIGNALED(status))
		snprintf(line, sizeof(line), "signal %d\n", WTERMSIG(status));
	else
		snprintf(line, sizeof(line), "exit %d\n", WEXITSTATUS(status));
	if (write(status_port, line, strlen(line)) < 0)
		perror("status");
	switch_off();
}
