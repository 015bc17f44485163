/*
 * The first process of a guest in a guest. Runs the command in /job, a zero byte after each argument, with its output
 * on ttyS1; then says on ttyS2 how it ended, which ends the guest (vmm.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "../../recorder/flatwalk.h"

enum { JOB_MAX = 65536 };

static int status = 2;

/* Says how the guest ended, and waits for the end. */
static _Noreturn void end(const char *word, int number)
{
	dprintf(status, "%s %d\n", word, number);
	for (;;)
		pause();
}

static _Noreturn void fail(const char *what)
{
	perror(what);
	end("failed", errno);
}

static void attach(const char *target, const char *type)
{
	if ((mkdir(target, 0755) && errno != EEXIST) || mount(type, target, type, 0, NULL))
		fail(target);
}

/* Opens a serial port on which each byte is what it is. */
static int port(const char *path)
{
	int fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	struct termios how;

	if (fd < 0 || tcgetattr(fd, &how))
		fail(path);
	cfmakeraw(&how);
	if (tcsetattr(fd, TCSANOW, &how))
		fail(path);
	return fd;
}

int main(void)
{
	static char job[JOB_MAX + 1], *arguments[JOB_MAX / 2 + 1];
	int file, out, ended;
	ssize_t length;
	pid_t child;

	attach("/dev", "devtmpfs");
	attach("/proc", "proc");
	attach("/sys", "sysfs");
	if (mkdir("/tmp", 01777) && errno != EEXIST)
		fail("/tmp");
	status = port("/dev/ttyS2");
	out = port("/dev/ttyS1");
	file = open("/job", O_RDONLY | O_CLOEXEC);
	length = file < 0 ? -1 : read(file, job, JOB_MAX);
	if (length <= 0)
		fail("/job");
	for (char *at = job, **argument = arguments; at < job + length; at += strlen(at) + 1)
		*argument++ = at;
	child = fork();
	if (child < 0)
		fail("fork");
	if (!child) {
		setsid();
		dup2(out, 1);
		dup2(out, 2);
		/* For the plugin that counts: the program that starts now. */
		flatwalk_start();
		execv(arguments[0], arguments);
		perror(arguments[0]);
		_exit(errno == ENOENT ? 127 : 126);
	}
	while (waitpid(child, &ended, 0) != child)
		;
	flatwalk_stop();
	if (tcdrain(out))
		fail("output");
	if (WIFSIGNALED(ended))
		end("signal", WTERMSIG(ended));
	end("exit", WEXITSTATUS(ended));
}
