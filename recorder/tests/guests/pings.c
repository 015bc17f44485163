#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

// Two threads hand a turn to each other by pipes, two others by a futex, and one does neither.
enum { ROUNDS = 300 };
static int pipes[2][2];
static uint32_t turn;
long sums[5];

__attribute__((noinline)) void step(long *sum) { *sum += 1; }

static void *by_pipe(void *argument) {
    long number = (long)argument;
    char byte = 0;
    for (int i = 0; i < ROUNDS; i++) {
        if (number == 0) write(pipes[0][1], &byte, 1);
        if (read(pipes[1 - number][0], &byte, 1) != 1) return (void *)1;
        step(&sums[number]);
        if (number == 1) write(pipes[1][1], &byte, 1);
    }
    return 0;
}

static void *by_futex(void *argument) {
    long number = (long)argument;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t now;
        while ((now = __atomic_load_n(&turn, __ATOMIC_ACQUIRE)) % 2 != number)
            syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, now, 0, 0, 0);
        step(&sums[2 + number]);
        __atomic_fetch_add(&turn, 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
    }
    return 0;
}

static void *alone(void *argument) {
    for (int i = 0; i < 100 * ROUNDS; i++) step(&sums[4]);
    return argument;
}

int main(void) {
    pthread_t threads[5];
    if (pipe(pipes[0]) || pipe(pipes[1])) return 1;
    for (long i = 0; i < 5; i++)
        pthread_create(&threads[i], 0, i < 2 ? by_pipe : i < 4 ? by_futex : alone, (void *)(i % 2));
    for (int i = 0; i < 5; i++) pthread_join(threads[i], 0);
    printf("%ld\n", sums[0] + sums[1] + sums[2] + sums[3]);
    return 0;
}
