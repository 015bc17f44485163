// Reads one word of each page of four regions: two functions, each two of them. Whoever counts
// knows how often.
//
//     regions FILE [NAME]     NAME: of the anonymous memory

#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum { PAGE = 4096, BYTES = 24 << 20 };

static volatile char in_bss[BYTES];

#define SWEEP(region)                                                                                                  \
    for (size_t at = 0; at < BYTES; at += PAGE)                                                                        \
    sum += (region)[at]

__attribute__((noinline)) static long bss_and_heap(volatile char *heap)
{
    long sum = 0;
    for (int i = 0; i < 5; i++)
        SWEEP(in_bss); // line of the array
    for (int i = 0; i < 3; i++)
        SWEEP(heap); // line of the heap
    return sum;
}

__attribute__((noinline)) static long mapped(volatile char *anonymous, volatile char *file)
{
    long sum = 0;
    SWEEP(anonymous); // line of the anonymous memory
    SWEEP(file);      // line of the file
    return sum;
}

static void *or_end(void *memory)
{
    if (memory == NULL || memory == MAP_FAILED) {
        perror("regions");
        exit(1);
    }
    return memory;
}

int main(int argc, char **argv)
{
    int fd = open(argv[1], O_RDONLY);
    // Below this size memory comes from the program break.
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    volatile char *heap = or_end(malloc(BYTES));
    volatile char *anonymous =
        or_end(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (argc > 2)
        prctl(0x53564d41 /* PR_SET_VMA */, 0 /* PR_SET_VMA_ANON_NAME */, anonymous, BYTES, argv[2]);
    volatile char *file = or_end(mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0));
    printf("%p %ld\n", (void *)anonymous, bss_and_heap(heap) + mapped(anonymous, file));
    return 0;
}
