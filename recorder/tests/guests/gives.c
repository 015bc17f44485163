// Takes memory, touches pages of it and gives them back in all ways, over and over.
#include "../../flatwalk.h"
#include "bare.h"
#include "random.h"

enum { PAGE = 4096, PAGES = 32, BYTES = PAGES * PAGE, ROUNDS = 600 };

static char *map_at(char *at, long bytes, long fixed) {
    return (char *)call6(9, (long)at, bytes, 3, 0x22 | fixed, -1, 0);
}
static char *map(long bytes) { return map_at(0, bytes, 0); }
static void unmap(char *at, long bytes) { call3(11, (long)at, bytes, 0); }
static long brk(long to) { return call3(12, to, 0, 0); }

// Some of so many pages: most by stores, one by a load.
__attribute__((noinline)) static void touch(char *at, int pages) {
    for (int i = 0; i < pages; i++)
        if (random_number() % 3) at[i * PAGE] += 1;
    *(volatile char *)(at + random_number() % pages * PAGE);
}

__attribute__((noinline)) static void work(void) {
    for (long i = random_number() % 1000; i >= 0; i--) __asm__ volatile("");
}

int main(void) {
    char *area = map(BYTES), *kept[8] = {0};
    long heap = brk(0);
    for (int round = 0; round < ROUNDS; round++) {
        work();
        char **slot = &kept[random_number() % 8], *other;
        switch (random_number() % 10) {
        case 0: // Gone as a whole.
            other = map(BYTES);
            touch(other, PAGES);
            work();
            unmap(other, BYTES);
            break;
        case 1: // A part of it goes, and the rest with the part that did.
            other = map(BYTES);
            touch(other, PAGES);
            unmap(other + 4 * PAGE, 8 * PAGE);
            touch(other + 12 * PAGE, 20);
            unmap(other, BYTES);
            break;
        case 2: // MADV_DONTNEED, also of what was not touched, and MADV_FREE, not all of which is
                // touched again.
            touch(area, PAGES);
            call3(28, (long)area + 3 * PAGE, 20 * PAGE, 4);
            touch(area, PAGES);
            call3(28, (long)area + 10 * PAGE, 20 * PAGE, 8);
            touch(area, PAGES / 2);
            break;
        case 3: // The break moves up, down within a page, and down.
            brk(heap + 20 * PAGE + 100);
            touch((char *)heap, 20);
            brk(heap + 20 * PAGE + 50);
            work();
            brk(heap + 7 * PAGE + 10);
            touch((char *)heap, 7);
            brk(heap);
            break;
        case 4: // MAP_FIXED, over a part.
            touch(area, PAGES);
            map_at(area + 5 * PAGE, 9 * PAGE, 0x10);
            touch(area + 5 * PAGE, 9);
            break;
        case 5: // mremap shrinks.
            other = map(BYTES);
            touch(other, PAGES);
            call6(25, (long)other, BYTES, 6 * PAGE, 0, 0, 0);
            touch(other, 6);
            unmap(other, 6 * PAGE);
            break;
        case 6: { // mremap moves, shrinks, and replaces what was there: MREMAP_MAYMOVE | MREMAP_FIXED.
            char *to = map(BYTES);
            touch(to, PAGES);
            other = map(BYTES);
            touch(other, PAGES);
            call6(25, (long)other, BYTES, 10 * PAGE, 3, (long)to, 0);
            work();
            touch(to, PAGES);
            unmap(to, BYTES);
            break;
        }
        case 7: // One call, over several mappings and what lies between.
            other = map(3 * BYTES);
            unmap(other + BYTES, BYTES);
            touch(other, PAGES);
            touch(other + 2 * BYTES, PAGES);
            unmap(other, 3 * BYTES);
            break;
        default: // These live long.
            if (*slot) unmap(*slot, BYTES);
            *slot = random_number() % 4 ? map(BYTES) : 0;
            if (*slot) touch(*slot, PAGES);
        }
        // The recorder's descriptor, if it has one, is closed or another: dup2, close.
        if (round % 20 == 3) call3(33, 0, 1000, 0);
        if (round % 20 == 13) call3(3, 1000, 0, 0);
#ifdef FORKS
        if (round == ROUNDS / 2 && call3(57, 0, 0, 0)) return 0;
#endif
#ifdef PAUSES
        if (round % 7 == 0) {
            flatwalk_stop();
            touch(area, PAGES);
            other = map(BYTES);
            touch(other, PAGES);
            work();
            unmap(other, BYTES / 2);
            flatwalk_start();
            touch(other + BYTES / 2, PAGES / 2);
            unmap(other, BYTES);
        }
#endif
    }
    // Only the end gives these back.
    for (int i = 0; i < 100; i++) {
        work();
        touch(map(BYTES), PAGES);
    }
#ifdef ABORTS
    call3(234, call3(39, 0, 0, 0), call3(186, 0, 0, 0), 6); // tgkill, with SIGABRT
#elif defined(RAISES)
    call3(200, call3(186, 0, 0, 0), 15, 0); // tkill, with SIGTERM
#elif defined(QUEUES)
    static int about[32] = {10, 0, -1};
    call3(129, call3(39, 0, 0, 0), 10, (long)about); // rt_sigqueueinfo, with SIGUSR1
#elif defined(EXECUTES)
    static char *arguments[] = {"/bin/true", 0};
    call3(59, (long)"/bin/none", (long)arguments, 0);
    work();
    call3(59, (long)arguments[0], (long)arguments, 0);
#elif defined(LEAVES)
    call3(60, 0, 0, 0);
#endif
    return 0;
}
