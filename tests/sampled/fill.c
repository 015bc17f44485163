// Fills a large array, then reads it at random: the first half says nothing about the second.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    uint64_t words = strtoull(argc > 1 ? argv[1] : "32000000", NULL, 10);
    uint64_t reads = strtoull(argc > 2 ? argv[2] : "40000000", NULL, 10);
    uint64_t *data = malloc(words * sizeof *data);
    for (uint64_t i = 0; i < words; i++)
        data[i] = i * 0x9e3779b97f4a7c15u;
    uint64_t state = 1, sum = 0;
    for (uint64_t i = 0; i < reads; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        sum += data[state % words];
    }
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
