// Accesses of every kind, at addresses that are the same wherever the program runs.
#include "bare.h"

struct node {
    struct node *next;
    short key;
    char tag;
};

static struct node nodes[512];
static unsigned char bytes[1024], copy[1024];
static double reals[64];
static long double extended[4];
static long counter;
__attribute__((used)) static unsigned flags[16];

static __attribute__((noinline)) long twice(long x) { return x + x; }
static __attribute__((noinline)) long thrice(long x) { return x + x + x; }
static long (*const operations[2])(long) = {twice, thrice};

static __attribute__((noinline)) long chase(unsigned state) {
    for (int i = 0; i < 512; i++) {
        state = state * 1664525u + 1013904223u;
        nodes[i].next = &nodes[state >> 23];
        nodes[i].key = (short)state;
        nodes[i].tag++;
    }
    long sum = 0;
    struct node *node = nodes;
    for (int i = 0; i < 1000; i++, node = node->next) sum += node->key ^ node->tag;
    return sum;
}

static __attribute__((noinline)) void strings(void) {
    for (unsigned long count = 0; count < 5; count++) {
        void *to = copy + count, *from = bytes + 3 * count, *end = copy + 99;
        unsigned long n = count * 7, left = count;
        __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n)::"memory");
        n = count;
        __asm__ volatile("rep stosq" : "+D"(to), "+c"(n) : "a"(0x0101010101010101) : "memory");
        n = count;
        __asm__ volatile("std\n\trep movsw\n\tcld" : "+D"(end), "+S"(from), "+c"(n)::"memory");
        n = 50;
        to = copy, from = bytes;
        __asm__ volatile("repe cmpsb" : "+D"(to), "+S"(from), "+c"(n)::"memory", "cc");
        to = copy;
        __asm__ volatile("repne scasb" : "+D"(to), "+c"(left) : "a"(1) : "memory", "cc");
        __asm__ volatile("lodsl\n\tmovsl" : "+S"(from), "+D"(to)::"rax", "memory");
    }
}

static __attribute__((noinline)) void kinds(void) {
    long one = 1;
    __asm__ volatile(
        "pushq %[counter]\n\t"
        "popq %[counter]\n\t"
        "pushw %%ax\n\tpopw %%ax\n\t"
        "xchgq %[one], %[counter]\n\t"
        "lock xaddq %[one], %[counter]\n\t"
        "lock incl flags(%%rip)\n\t"
        "adcb $1, flags+3(%%rip)\n\t"
        "shlw $3, flags+6(%%rip)\n\t"
        "cmpl $7, flags+8(%%rip)\n\t"
        "setne flags+28(%%rip)\n\t"
        "btl $5, flags+16(%%rip)\n\t"
        "setc flags+29(%%rip)\n\t"
        "btsl $5, flags+20(%%rip)\n\t"
        "movzbl flags+25(%%rip), %%eax\n\t"
        "addl %%eax, flags+36(%%rip)\n\t"
        "movswq flags+26(%%rip), %%rax\n\t"
        "movw %%ax, flags+40(%%rip)\n\t"
        "xorl %%eax, %%eax\n\t"
        "lock cmpxchgl %%ecx, flags+32(%%rip)\n\t"
        : [one] "+r"(one), [counter] "+m"(counter)::"rax", "rcx", "cc", "memory");
    __asm__ volatile(
        "movups 1(%[from]), %%xmm0\n\t"
        "movaps %%xmm0, (%[to])\n\t"
        "movsd 8(%[from]), %%xmm1\n\t"
        "mulsd 16(%[from]), %%xmm1\n\t"
        "movlps %%xmm1, 20(%[to])\n\t"
        "addps 32(%[from]), %%xmm0\n\t"
        "fldl (%[from])\n\t"
        "fldl 8(%[from])\n\t"
        "faddp\n\t"
        "fstpl 40(%[to])\n\t" ::[from] "r"(bytes + 64), [to] "r"(reals)
        : "xmm0", "xmm1", "memory");
}

int main(void) {
    long sum = 0;
    for (int i = 0; i < 1024; i++) bytes[i] = (unsigned char)(i * 7);
    for (unsigned round = 0; round < 4; round++) {
        sum += chase(round);
        strings();
        kinds();
        for (int i = 0; i < 8; i++) sum += operations[(i ^ round) & 1](i);
    }
    extended[0] = sum;
    return (int)(sum & 63);
}
