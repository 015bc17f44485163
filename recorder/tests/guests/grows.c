// Fills memory, then reads and writes at random while its mappings come, go, move and are emptied.
#include "bare.h"
#include "random.h"

enum { PAGE = 4096, CHUNKS = 32, CHUNK = 32 * PAGE };
static const long BIG = 1 << 22;

static char *map(long bytes) { return (char *)call6(9, 0, bytes, 3, 0x22, -1, 0); }

__attribute__((noinline)) static void touch(char *at, int pages) {
    for (int i = 0; i < pages; i++) at[i * PAGE] += 1;
}

int main(void) {
    char *big = map(BIG), *chunks[CHUNKS] = {0};
    for (long i = 0; i < BIG; i += 64) big[i] = i;
    for (int round = 0; round < 3000; round++) {
        for (int i = 0; i < 40; i++) big[random_number() % BIG] += 1;
        // Seldom enough that pages live from one segment to the next.
        if (round % 8) continue;
        char **chunk = &chunks[random_number() % CHUNKS];
        if (!*chunk) {
            *chunk = map(CHUNK);
            touch(*chunk, 1 + random_number() % 31);
        } else if (random_number() % 4 == 0) {
            call3(28, (long)*chunk, CHUNK / 2, 4); // madvise: MADV_DONTNEED
        } else if (random_number() % 3 == 0) {
            touch(*chunk, 1 + random_number() % 31);
        } else if (random_number() % 4 == 0) {
            char *to = map(CHUNK); // mremap onto another mapping: MREMAP_MAYMOVE | MREMAP_FIXED
            call6(25, (long)*chunk, CHUNK, CHUNK, 3, (long)to, 0);
            *chunk = to;
            touch(to, 3);
        } else {
            call3(11, (long)*chunk, CHUNK, 0); // munmap
            *chunk = 0;
        }
    }
    return 0;
}
