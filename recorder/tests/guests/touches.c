// Prints the addresses that it accesses, as it knows them: of globals, the stack, the heap and
// mapped memory, wherever they lie this time.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { COUNT = 1000 };

static long table[512];
static char *addresses[COUNT];

// One load and one store of a long, and nothing else.
__attribute__((noinline)) void touch(long *where);
__asm__(".text\n.globl touch, touched\n"
        "touch: addq $1, (%rdi)\n"
        "touched: ret\n");

int main(void) {
    long local[64];
    long *heap = malloc(100000), *mapped = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned state = 1;
    for (int i = 0; i < COUNT; i++) {
        state = state * 1664525u + 1013904223u;
        unsigned at = state >> 16;
        long *choices[] = {&table[at % 512], &local[at % 64], &heap[at % 12500], &mapped[at % 131072]};
        long *where = choices[state >> 8 & 3];
        addresses[i] = (char *)where;
        touch(where);
    }
    printf("%p\n", (void *)touch);
    for (int i = 0; i < COUNT; i++) printf("%p\n", (void *)addresses[i]);
    return 0;
}
