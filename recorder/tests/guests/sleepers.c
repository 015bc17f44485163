// Twenty threads, each of which does a little and then waits until the main one has done a lot; and a status.
#include <pthread.h>
#include <semaphore.h>

enum { THREADS = 20 };

static sem_t ready, over;
static volatile long sum;

static void count(long times) {
    for (long i = 0; i < times; i++) sum += i;
}

static void *work(void *argument) {
    count(300);
    sem_post(&ready);
    while (sem_wait(&over)) {}
    return argument;
}

int main(void) {
    pthread_t threads[THREADS];
    if (sem_init(&ready, 0, 0) || sem_init(&over, 0, 0)) return 1;
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], 0, work, 0)) return 1;
        while (sem_wait(&ready)) {}
    }
    count(2000000);
    for (int i = 0; i < THREADS; i++) sem_post(&over);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    return 7;
}
