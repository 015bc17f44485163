// Instructions that QEMU carries out in pieces, or in a way of its own.
#include "bare.h"

__attribute__((aligned(64))) char memory[1024];
// Selects elements 0 to 2 of 8.
const int mask[8] = {-1, -1, -1, 0, 0, 0, 0, 0};

int main(void) {
    __asm__ volatile(
        "vmovdqu mask(%%rip), %%ymm4\n"
        "vpxor %%xmm2, %%xmm2, %%xmm2\n"
        "vpcmpeqd %%ymm3, %%ymm3, %%ymm3\n"
        "lea memory(%%rip), %%rbx\n"
        "xor %%eax, %%eax\n"
        "xor %%ecx, %%ecx\n"
        "xor %%edx, %%edx\n"
        ".globl marked\nmarked:\n"
        "movups 1(%%rbx), %%xmm0\n"
        "movups %%xmm0, 64(%%rbx)\n"
        "vmovdqu (%%rbx), %%ymm1\n"
        "vmovdqu %%ymm1, 128(%%rbx)\n"
        "lock addl $1, (%%rbx)\n"
        "addq $1, 8(%%rbx)\n"
        "fldt 16(%%rbx)\n"
        "fstpt 32(%%rbx)\n"
        "vfmadd231sd 48(%%rbx), %%xmm0, %%xmm1\n"
        "vfmadd231pd 64(%%rbx), %%ymm0, %%ymm1\n"
        "vgatherdpd %%ymm3, (%%rbx,%%xmm2,8), %%ymm1\n"
        "vpmaskmovd 96(%%rbx), %%ymm4, %%ymm1\n"
        "vpmaskmovd %%ymm1, %%ymm4, 100(%%rbx)\n"
        "lock cmpxchg16b 160(%%rbx)\n"
        "testl %%ecx, %%ecx\n"
        "cmovnel 176(%%rbx), %%ebp\n"
        "pinsrw $3, 180(%%rbx), %%xmm0\n"
        "vbroadcastss 184(%%rbx), %%ymm1\n"
        "vpmovzxbw 192(%%rbx), %%ymm1\n"
        "xlatb\n"
        "movsl\n"
        "cmpsq\n"
        "prefetcht0 (%%rbx)\n"
        ".globl marked_end\nmarked_end:\n"
        ".globl saves\nsaves: fxsave64 512(%%rbx)\n" ::"S"(memory + 708),
        "D"(memory + 704)
        : "rax", "rbx", "rcx", "rdx", "rbp", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "memory");
    return 0;
}
