// Forks a child that does more than its parent did until then.
#include "bare.h"

volatile int sink;
__attribute__((noinline)) void work(int rounds) {
    for (int i = 0; i < rounds; i++) sink++;
}

int main(void) {
    work(20000);
    long child = call3(57 /* fork */, 0, 0, 0);
    if (child == 0) {
        work(40000);
        return 0;
    }
    int status = 1;
    call6(61 /* wait4 */, child, (long)&status, 0, 0, 0, 0);
    return status != 0;
}
