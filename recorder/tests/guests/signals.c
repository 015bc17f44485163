// Signals at any time: of a timer, of a fault, and sent to itself.
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t alarms, faults, sent;
static char *page;
static volatile double sum;

static void on_alarm(int number) {
    (void)number;
    alarms++;
}

static void on_fault(int number) {
    (void)number;
    faults++;
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

static void on_user(int number) {
    (void)number;
    sent++;
}

// Returns to where the first instruction accesses memory: the fault comes right after a return.
__attribute__((noinline)) static int leave(int x) { return x + 1; }

__attribute__((noinline)) static void touch(int x) { page[leave(x)] = 1; }

static long (*volatile step)(long);
__attribute__((noinline)) static long twice(long x) { return 2 * x; }

int main(void) {
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    step = twice;
    signal(SIGALRM, on_alarm);
    signal(SIGSEGV, on_fault);
    signal(SIGUSR1, on_user);
    page = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    setitimer(ITIMER_REAL, &often, 0);
    while (alarms < 50)
        for (int i = 0; i < 100; i++) sum += (double)step(i) * 0.5;
    setitimer(ITIMER_REAL, &never, 0);
    for (int i = 0; i < 10; i++) {
        touch(i);
        mprotect(page, 4096, PROT_NONE);
        raise(SIGUSR1);
    }
    printf("%d %d\n", faults, sent);
    return !(faults == 10 && sent == 10);
}
