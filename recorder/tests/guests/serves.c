// A process that works while its parent does something else: serves CALLS. Its own work, in two
// threads, comes after a marker; with its system calls. When it has ended, others may come to live
// where it did.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../flatwalk.h"

enum { PAGES = 64, STEPS = 4000 };
static volatile int sink;
static int begun[2];
__attribute__((noinline)) void in_parent(void) { sink++; }
__attribute__((noinline)) void in_child(char *pages, int step) { pages[step % PAGES << 12]++; }
__attribute__((noinline)) void in_thread(char *pages, int step) { pages[step % PAGES << 12]++; }
__attribute__((noinline)) void afterwards(void) { sink++; }

static void *beside(void *pages) {
    char word;
    if (read(begun[0], &word, 1) != 1) abort();
    for (int step = 0; step < STEPS; step++) in_thread(pages, step);
    return 0;
}

int main(int argc, char **argv) {
    int calls = argc == 2 ? atoi(argv[1]) : 0, status = 1;
    pid_t child;
    if (pipe(begun)) return 1;
    child = fork();
    if (child == 0) {
        char *pages = mmap((void *)0x200000000000, PAGES << 12, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        pthread_t thread;
        memset(pages, 1, PAGES << 12);
        pthread_create(&thread, 0, beside, pages);
        sleep(1);
        flatwalk_start();
        if (write(begun[1], "x", 1) != 1) abort();
        for (int step = 0; step < STEPS; step++) in_child(pages, step);
        for (int call = 0; call < calls; call++) syscall(SYS_getppid);
        pthread_join(thread, 0);
        _exit(0);
    }
    while (waitpid(child, &status, WNOHANG) == 0) in_parent();
    for (int round = 0; round < 50; round++) {
        child = fork();
        if (child == 0) {
            for (int step = 0; step < STEPS; step++) afterwards();
            _exit(0);
        }
        waitpid(child, 0, 0);
    }
    return status;
}
