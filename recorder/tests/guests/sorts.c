// Ordinary work with the C library, the same every time. (No strings are compared: how glibc does that
// depends on where in a page they lie.)
#include <stdio.h>
#include <stdlib.h>

struct record {
    unsigned key;
    char text[28];
};

static int compare(const void *a, const void *b) {
    unsigned left = (*(struct record *const *)a)->key, right = (*(struct record *const *)b)->key;
    return (left > right) - (left < right);
}

int main(void) {
    enum { COUNT = 10000 };
    static struct record *records[COUNT];
    unsigned state = 1, sum = 0;
    for (int i = 0; i < COUNT; i++) {
        state = state * 1664525u + 1013904223u;
        records[i] = malloc(sizeof *records[i]);
        records[i]->key = state >> 8;
        snprintf(records[i]->text, sizeof records[i]->text, "%u-%d", state >> 8, i);
    }
    qsort(records, COUNT, sizeof *records, compare);
    for (int i = 0; i < COUNT; i++) {
        sum = sum * 31 + (unsigned char)records[i]->text[3];
        free(records[i]);
    }
    printf("%u\n", sum);
    return 0;
}
