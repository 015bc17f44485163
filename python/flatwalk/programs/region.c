/* Preloaded into a program that is recorded by name.
 *
 * Lets its driver begin and end the recorded region from outside: SIGPROF, which none of our programs uses,
 * becomes the markers of flatwalk.h by turns.
 *
 * With FLATWALK_LOADING in the environment, another marker says where the program itself begins.
 *
 * And gives signal handlers the stack that compilers count on: QEMU 7.2 enters them with one that is not a
 * multiple of 16, on which PostgreSQL faults.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>

#include "flatwalk.h"

typedef void handler(int, siginfo_t *, void *);

static handler *handlers[_NSIG];

__attribute__((force_align_arg_pointer)) static void aligned(int number, siginfo_t *info, void *context)
{
    handlers[number](number, info, context);
}

int sigaction(int number, const struct sigaction *wanted, struct sigaction *old)
{
    int (*real)(int, const struct sigaction *, struct sigaction *) =
        (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
    struct sigaction changed;
    handler *before = NULL;
    int result;

    if (number > 0 && number < _NSIG) {
        before = handlers[number];
        if (wanted != NULL && wanted->sa_handler != SIG_DFL && wanted->sa_handler != SIG_IGN) {
            changed = *wanted;
            handlers[number] = wanted->sa_sigaction;
            changed.sa_sigaction = aligned;
            wanted = &changed;
        }
    }
    result = real(number, wanted, old);
    if (result == 0 && old != NULL && old->sa_sigaction == aligned)
        old->sa_sigaction = before;
    return result;
}

static volatile sig_atomic_t inside;

static void turn(int number)
{
    (void)number;
    if (inside) {
        inside = 0;
        flatwalk_stop();
    } else {
        inside = 1;
        flatwalk_start();
    }
}

__attribute__((constructor)) static void listen_to_it(void)
{
    struct sigaction action = {.sa_handler = turn, .sa_flags = SA_RESTART};
    sigaction(SIGPROF, &action, NULL);
    if (getenv("FLATWALK_LOADING") != NULL)
        flatwalk_mark("loading");
}
