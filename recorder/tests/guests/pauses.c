// Pauses the recording time and again.
#include "../../flatwalk.h"
#include "bare.h"

volatile int sink;
__attribute__((noinline)) void work(int rounds) {
    for (int i = 0; i < rounds; i++) sink++;
}

int main(void) {
    for (int i = 0; i < 400; i++) {
        work(700);
        flatwalk_stop();
        work(300);
        flatwalk_start();
    }
    return 0;
}
