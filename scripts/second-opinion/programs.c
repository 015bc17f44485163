/* programs.c: small programs of which flatwalk and ChampSim count the same trace (scripts/champsim.py).
 *
 *   programs gups|random|chase|stream MIB
 *
 * Each runs until its recording ends. Prepared before the mark: its data have been written once.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flatwalk.h"

#define LANES 128

static volatile uint64_t result;

/* The next number of HPC Challenge's generator. */
static inline uint64_t next(uint64_t number) { return (number << 1) ^ ((int64_t)number < 0 ? 7 : 0); }

static uint64_t *words(size_t count) {
    uint64_t *data = aligned_alloc(4096, count * sizeof *data);
    if (!data) {
        fprintf(stderr, "no memory for %zu words\n", count);
        exit(1);
    }
    for (size_t i = 0; i < count; i++)
        data[i] = i;
    return data;
}

/* RandomAccess: a word drawn from all of the table is changed, by 128 generators in turn. */
static void gups(size_t count) {
    uint64_t *table = words(count), lanes[LANES];
    uint64_t number = 1;
    for (int lane = 0; lane < LANES; lane++) {
        for (int step = 0; step < 1009; step++)
            number = next(number);
        lanes[lane] = number;
    }
    flatwalk_start();
    for (;;)
        for (int lane = 0; lane < LANES; lane++) {
            lanes[lane] = next(lanes[lane]);
            table[lanes[lane] & (count - 1)] ^= lanes[lane];
        }
}

/* Loads of words drawn from all of the table; none waits for another. They are not added up: the records name an
 * instruction's registers, not those of its address, so that a load with the sum in it would wait for the one before. */
static void uniform(size_t count) {
    uint64_t *table = words(count);
    uint64_t state = 88172645463325252u;
    flatwalk_start();
    for (;;) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        result = table[state & (count - 1)];
    }
}

/* Loads along a random cycle of all lines; each waits for the one before it. */
static void chase(size_t count) {
    uint64_t *data = words(count);
    size_t lines = count / 8;
    uint64_t *order = words(lines), state = 88172645463325252u;
    for (size_t i = lines - 1; i > 0; i--) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        size_t other = state % i;
        uint64_t kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (size_t i = 0; i < lines; i++)
        data[8 * i] = 8 * order[i];
    uint64_t at = 0, sum = 0;
    flatwalk_start();
    for (;;) {
        at = data[at];
        sum = (sum + at) * 5;
        sum ^= sum >> 3;
        sum += sum << 2;
        result = sum;
    }
}

/* a = b + 3 c, from the first word to the last, again and again. */
static void stream(size_t count) {
    size_t length = count / 3;
    uint64_t *a = words(length), *b = words(length), *c = words(length);
    flatwalk_start();
    for (;;) {
        for (size_t i = 0; i < length; i++)
            a[i] = b[i] + 3 * c[i];
        result = a[0];
    }
}

int main(int argc, char **argv) {
    char *end = "";
    size_t mib = argc == 3 ? strtoul(argv[2], &end, 10) : 0;
    if (!mib || mib > 4096 || *end) {
        fprintf(stderr, "usage: programs gups|random|chase|stream MIB\n");
        return 2;
    }
    size_t count = mib << 17;
    if ((count & (count - 1)) && strcmp(argv[1], "stream")) {
        fprintf(stderr, "%s needs a power of two\n", argv[1]);
        return 2;
    }
    if (!strcmp(argv[1], "gups"))
        gups(count);
    if (!strcmp(argv[1], "random"))
        uniform(count);
    if (!strcmp(argv[1], "chase"))
        chase(count);
    if (!strcmp(argv[1], "stream"))
        stream(count);
    fprintf(stderr, "%s is none of gups, random, chase, stream\n", argv[1]);
    return 2;
}
