// Arithmetic on vectors, a sieve that streams, a list that hops: some 500 million instructions.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 200, SIEVE = 1 << 24, NODES = 1 << 19 };

static double a[N][N], b[N][N], c[N][N];
static unsigned char composite[SIEVE];
struct node {
    struct node *next;
    long value;
};

static double multiply(void) {
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++)
            for (int j = 0; j < N; j++) c[i][j] += a[i][k] * b[k][j];
    return c[5][7];
}

static long primes(void) {
    long count = 0;
    for (long i = 2; i < SIEVE; i++) {
        if (composite[i]) continue;
        count++;
        for (long j = i * i; j < SIEVE; j += i) composite[j] = 1;
    }
    return count;
}

static long hop(void) {
    struct node *nodes = calloc(NODES, sizeof *nodes);
    unsigned state = 1, current = 0;
    long sum = 0;
    for (int i = 0; i < 8 * NODES; i++) {
        state = state * 1664525u + 1013904223u;
        nodes[current].next = &nodes[state >> 13];
        current = state >> 13;
    }
    struct node *node = nodes;
    for (int i = 0; i < 8 * NODES && node->next; i++, node = node->next) sum += node->value += i;
    return sum;
}

int main(void) {
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) a[i][j] = i + j, b[i][j] = i - j;
    double product = 0;
    for (int round = 0; round < 8; round++) product += multiply();
    printf("%g %ld %ld\n", product, primes(), hop());
    return 0;
}
