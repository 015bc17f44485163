// Four threads read and write disjoint quarters of a shared table at random.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, WORDS = 16000000, STEPS = 12000000 };
static uint64_t *table;

static void *work(void *argument)
{
    uint64_t number = (uint64_t)(uintptr_t)argument, state = number + 1, sum = 0;
    uint64_t *mine = table + number * (WORDS / THREADS);
    for (int i = 0; i < STEPS; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        uint64_t at = state % (WORDS / THREADS);
        mine[at] ^= state;
        sum += mine[at / 2];
    }
    return (void *)(uintptr_t)sum;
}

int main(void)
{
    table = malloc(WORDS * sizeof *table);
    for (int i = 0; i < WORDS; i++)
        table[i] = (uint64_t)i;
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    uint64_t sum = 0;
    for (int i = 0; i < THREADS; i++) {
        void *part;
        pthread_join(threads[i], &part);
        sum += (uint64_t)(uintptr_t)part;
    }
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
