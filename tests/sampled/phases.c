// Three phases of different lengths: a stream, a chase of pointers through a ring, and sums in registers.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINES = 2000000 };
struct line {
    struct line *next;
    uint64_t pad[7];
};

int main(void)
{
    struct line *ring = malloc(LINES * sizeof *ring);
    uint64_t sum = 0, state = 7;
    for (int i = 0; i < LINES; i++)
        ring[i].next = &ring[i];
    // Sattolo: one cycle through all lines.
    for (int i = LINES - 1; i > 0; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        int j = (int)((state >> 33) % (uint64_t)i);
        struct line *other = ring[i].next;
        ring[i].next = ring[j].next;
        ring[j].next = other;
    }
    for (int round = 0; round < 12; round++)
        for (int i = 0; i < LINES; i++)
            for (int k = 0; k < 7; k++)
                ring[i].pad[k] += (uint64_t)i ^ sum;
    struct line *at = ring;
    for (int i = 0; i < 30000000; i++)
        at = at->next;
    sum += (uint64_t)(at - ring);
    for (uint64_t i = 0; i < 120000000; i++)
        sum = sum * 31 + (i >> 3);
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
