// Threads of which each starts the next before it ends, as many as the argument says, and a status.
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_attr_t detached;
static sem_t over;
static volatile long sum;

static void *work(void *argument) {
    long left = (long)argument - 1;
    pthread_t next;
    for (long i = 0; i < 300; i++) sum += i;
    if (left == 0) sem_post(&over);
    else if (pthread_create(&next, &detached, work, (void *)left)) _exit(1);
    return 0;
}

int main(int count, char **arguments) {
    pthread_t first;
    if (count < 2 || sem_init(&over, 0, 0) || pthread_attr_init(&detached)) return 1;
    if (pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED)) return 1;
    if (pthread_create(&first, &detached, work, (void *)atol(arguments[1]))) return 1;
    while (sem_wait(&over)) {}
    return 7;
}
