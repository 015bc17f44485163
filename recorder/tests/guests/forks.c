#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int sink;
__attribute__((noinline)) void before(void) { sink++; }
__attribute__((noinline)) void in_parent(void) { sink++; }
__attribute__((noinline)) void in_child(void) { sink++; }

int main(void) {
    char *page = malloc(1 << 20);
    for (int i = 0; i < 1 << 20; i += 4096) page[i] = 1;
    for (int i = 0; i < 100; i++) before();
    pid_t child = fork();
    if (child == 0) {
        // What a careful child does: nothing of the recorder's may be among these.
        for (int fd = 3; fd < 1024; fd++) close(fd);
        for (int i = 0; i < 50; i++) in_child();
        _exit(7);
    }
    for (int i = 0; i < 30; i++) in_parent();
    int status;
    if (waitpid(-1, &status, 0) != child || wait(&status) != -1) return 1;
    pid_t other = vfork();
    if (other == 0) _exit(5);
    waitpid(other, &status, 0);
    return WEXITSTATUS(status);
}
