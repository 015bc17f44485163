// Vector accesses of 16 and 32 bytes, and a read-modify-write.
#include "bare.h"

__attribute__((aligned(64))) char memory[256];

int main(void) {
    __asm__ volatile(
        ".globl marked\nmarked:\n"
        "movups memory+1(%%rip), %%xmm0\n"
        "movups %%xmm0, memory+64(%%rip)\n"
        "vmovdqu memory(%%rip), %%ymm1\n"
        "vmovdqu %%ymm1, memory+128(%%rip)\n"
        "lock addl $1, memory(%%rip)\n"
        "addq $1, memory+8(%%rip)\n"
        ".globl marked_end\nmarked_end:\n" ::: "memory");
    return 0;
}
