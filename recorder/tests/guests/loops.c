// Deterministic: no system library, no clock, no address that depends on the environment.
#include "bare.h"

static unsigned table[4096];

static __attribute__((noinline)) void copy(void *to, const void *from, unsigned long count) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count)::"memory");
}

int main(void) {
    unsigned state = 1;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 4096; i++) {
            state = state * 1664525u + 1013904223u;
            table[state >> 20] += i;
        }
        copy(table + 2048, table, 1000);
    }
    return table[7] & 1 ? 3 : 4;
}
