#include "bare.h"
int counter;
__attribute__((noinline)) void tick(void) { __asm__ volatile("incl counter(%rip)"); }
int main(void) {
    for (int i = 0; i < 1000; i++) tick();
    __asm__ volatile(".globl good\ngood: nop\nnop\nmovl counter(%%rip), %%eax\n"
                     ".globl bad\nbad: movl %%eax, 8\n.globl after\nafter: nop\nnop\n" ::: "rax", "memory");
    return 0;
}
