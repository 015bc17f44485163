// Sixteen threads that take turns: each wakes the next and sleeps. Says how many rounds they went.
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 16 };

static sem_t turns[THREADS];
static volatile long sum;
static int rounds;

static void *work(void *argument) {
    long own = (long)argument;
    for (int round = 0; round < rounds; round++) {
        while (sem_wait(&turns[own])) {}
        for (long i = 0; i < 300; i++) sum += i;
        sem_post(&turns[(own + 1) % THREADS]);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return 9;
    rounds = atoi(argv[1]);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (sem_init(&turns[i], 0, 0)) return 1;
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], 0, work, (void *)i)) return 1;
    sem_post(&turns[0]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    printf("%d\n", rounds);
    return 0;
}
