// Counts until it is killed; says when it is well under way.
#include "bare.h"
volatile unsigned long counter;
int main(void) {
    for (;;)
        if (++counter == 200000) call3(1, 1, (long)"go\n", 3);
}
