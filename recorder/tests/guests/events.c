// One of each memory-mapping system call, and some that fail.
#include "bare.h"
#define P 4096L

static long call6(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

long addresses[4];

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
    addresses[0] = heap;
    addresses[1] = a;
    addresses[2] = b;
    call3(1, 1, (long)addresses, sizeof addresses);
    return 0;
}
