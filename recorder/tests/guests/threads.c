#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 6, ROUNDS = 20000 };
long sums[THREADS][64];
static long total;

__attribute__((noinline)) void step(long *sum, long value) {
    *sum += value;
    __atomic_fetch_add(&total, 1, __ATOMIC_RELAXED);
}

static void *work(void *argument) {
    long number = (long)argument;
    for (int i = 0; i < ROUNDS; i++) {
        step(&sums[number][i % 64], i);
        if (i % 1000 == 0) free(malloc(1 << 20)); // mmap and munmap: new epochs for all
    }
    return 0;
}

int main(void) {
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    printf("%ld\n", total);
    return 0;
}
