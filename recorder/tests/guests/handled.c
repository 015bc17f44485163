// Faults in the middle of a block, removes the cause in a handler and goes on, several times.
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

static char *page;
static int faults;

static void handler(int number) {
    (void)number;
    faults++;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

__attribute__((noinline)) void touch(char *where) {
    __asm__ volatile(".globl t0\nt0: nop\n.globl t1\nt1: movb $1, (%0)\n.globl t2\nt2: nop\n" ::"r"(where) : "memory");
}

int main(void) {
    signal(SIGSEGV, handler);
    page = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 5; i++) {
        touch(page);
        mprotect(page, 4096, PROT_NONE);
    }
    printf("%d\n", faults);
    return 0;
}
