// Threads one after another, each of them short, and a status.
#include <pthread.h>
#include <unistd.h>

static volatile long sum;

static void *work(void *argument) {
    for (long i = 0; i < 300; i++) sum += i;
    return argument;
}

int main(void) {
    for (int i = 0; i < 200; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, work, 0) || pthread_join(thread, 0)) return 1;
    }
    if (write(1, "done\n", 5) != 5) return 1;
    return 7;
}
