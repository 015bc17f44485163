// Walks through an array for ever; says when it is under way, and when that is well.
#include "bare.h"
volatile unsigned long trail[1 << 16];
int main(void) {
    for (unsigned long step = 0;; step++) {
        trail[step & 0xffff]++;
        if (step == 200000 || step == 1500000) call3(1, 1, (long)"go\n", 3);
    }
}
