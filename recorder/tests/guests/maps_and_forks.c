// Threads that map and unmap a page over and over, while the main one forks children, each of which stores to the
// pages that it finds mapped.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 6, CHILDREN = 100, PAGE = 4096 };

static char *volatile latest[THREADS];
static volatile int over;

static void *work(void *argument) {
    long own = (long)argument;
    while (!over) {
        char *page = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        page[0] = 1;
        latest[own] = page;
        for (volatile int i = 0; i < 200; i++) {}
        latest[own] = 0;
        munmap(page, PAGE);
    }
    return 0;
}

int main(void) {
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], 0, work, (void *)i)) return 1;
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (child == 0) {
            for (int j = 0; j < THREADS; j++) {
                char *page = latest[j];
                unsigned char is_there;
                if (page && mincore(page, PAGE, &is_there) == 0) page[0]++;
            }
            _exit(0);
        }
        waitpid(child, 0, 0);
    }
    over = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    return 7;
}
