// Forks a child, does not wait for it, and ends with status 3.
#include "bare.h"

__attribute__((noinline)) void in_child(void) { __asm__ volatile(""); }

int main(void) {
    if (call3(57 /* fork */, 0, 0, 0)) return 3;
    in_child();
    return 0;
}
