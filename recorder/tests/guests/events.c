// One of each memory-mapping system call, and some that fail.
#include "bare.h"
#define P 4096L

long addresses[8];

int main(void) {
    long heap = call3(12, 0, 0, 0);
    call3(12, heap + 3 * P, 0, 0);
    call3(12, heap + P, 0, 0);
    long a = call6(9, 0, 8 * P, 3, 0x22, -1, 0);
    call3(11, a + 2 * P, P, 0);
    call3(11, a + 1, P, 0);                       // fails: not aligned
    call3(10, a, P, 1);
    long b = call6(25, a + 4 * P, 4 * P, 16 * P, 1, 0, 0);
    call3(28, b, 2 * P, 4);                        // MADV_DONTNEED
    call6(9, 0, 0, 3, 0x22, -1, 0);                // fails: no length
    call6(25, b, 16 * P, 4 * P, 0, 0, 0);          // shrinks
    call3(28, b, P, 14);                           // MADV_HUGEPAGE
    call3(28, b, P, 15);                           // MADV_NOHUGEPAGE
    call3(28, b, P, 8);                            // MADV_FREE
    call3(28, b, 2 * P, 22);                       // MADV_POPULATE_READ
    call3(28, b, 2 * P, 1);                        // MADV_RANDOM: changes no mapping
    call3(28, b, 2 * P, 3);                        // MADV_WILLNEED: reads ahead, and maps nothing
    long c = call6(9, 0, 5000, 1, 0x21, -1, 0);    // shared, of a length that is not a multiple of a page
    long d = call6(25, b, 4 * P, 4 * P, 5, 0, 0);  // MREMAP_MAYMOVE | MREMAP_DONTUNMAP
    call3(10, d, P, 0);
    long e = call6(9, 0, P, 3, 0x20022, -1, 0);    // MAP_STACK
    // Linux refuses these, as it does for a part; QEMU does not.
    call3(28, c, 2 * P, 8); // MADV_FREE of shared memory
    call3(28, d, P, 9);     // MADV_REMOVE of private memory
    long f = call6(9, 0, 2 * P, 3, 0x22, -1, 0);
    call6(9, f + P, P, 3, 0x31, -1, 0); // MAP_SHARED | MAP_FIXED | MAP_ANONYMOUS
    call3(28, f, 2 * P, 8);
    call3(28, f, 2 * P, 9);
    addresses[6] = f;
    addresses[0] = heap;
    addresses[1] = a;
    addresses[2] = b;
    addresses[3] = c;
    addresses[4] = d;
    addresses[5] = e;
    call3(1, 1, (long)addresses, sizeof addresses);
    return 0;
}
