// Preloaded into QEMU: what it forks waits until somebody writes to the pipe GATE.
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_at_gate(void) { close(open(getenv("GATE"), O_RDONLY)); }

__attribute__((constructor)) static void prepare(void) { pthread_atfork(0, 0, wait_at_gate); }
