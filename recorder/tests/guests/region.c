#include "../../flatwalk.h"
#include "bare.h"

volatile int sink;
char pages[64 << 12];
__attribute__((noinline)) void outside(void) { sink++; }
__attribute__((noinline)) void inside(void) { sink++; }

int main(void) {
    for (int i = 0; i < 64; i++) pages[i << 12] = 1;
    for (int i = 0; i < 500; i++) outside();
    flatwalk_start();
    for (int i = 0; i < 40; i++) inside();
    flatwalk_mark("half way");
    for (int i = 0; i < 40; i++) inside();
    flatwalk_stop();
    for (int i = 0; i < 500; i++) outside();
    flatwalk_start();
    inside();
    flatwalk_stop();
    return 0;
}
