// Memory that the kernel brings in before the program touches it.
#include "bare.h"
#define P 4096L

long addresses[8];

static long map(long flags) { return call6(9, 0, 4 * P, 3, 0x22 | flags, -1, 0); }

int main(void) {
    addresses[0] = map(0x8000);  // MAP_POPULATE
    addresses[1] = map(0x18000); // MAP_POPULATE | MAP_NONBLOCK: nothing is brought in
    addresses[2] = map(0x2000);  // MAP_LOCKED
    addresses[3] = map(0);
    call3(149, addresses[3] + P + 1, P, 0); // mlock, over two pages
    call3(149, 1L << 40, P, 0);             // fails: nothing is there
    call3(151, 2, 0, 0);                    // mlockall(MCL_FUTURE)
    addresses[4] = map(0);
    addresses[5] = call3(12, 0, 0, 0);
    call3(12, addresses[5] + 2 * P, 0, 0);
    call3(152, 0, 0, 0); // munlockall
    addresses[6] = map(0);
    call3(1, 1, (long)addresses, sizeof addresses);
    return 0;
}
