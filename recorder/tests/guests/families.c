// A program of two threads forks a child, which forks one itself and then spawns a program.
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int sink, done;
__attribute__((noinline)) void in_parent(void) { sink++; }
__attribute__((noinline)) void in_child(void) { sink += 2; }
__attribute__((noinline)) void in_grandchild(void) { sink += 3; }
__attribute__((noinline)) void in_spawned(void) { sink += 4; }

static void *work(void *argument) {
    while (!done) usleep(100);
    return argument;
}

static int child(char *self) {
    int status;
    for (int i = 0; i < 10; i++) in_child();
    pid_t grandchild = fork();
    if (grandchild == 0) {
        for (int i = 0; i < 20; i++) in_grandchild();
        _exit(1);
    }
    waitpid(grandchild, &status, 0);
    char *arguments[] = {self, "spawned", 0}, *environment[] = {0};
    pid_t spawned;
    if (posix_spawn(&spawned, self, 0, 0, arguments, environment)) return 9;
    waitpid(spawned, &status, 0);
    return WEXITSTATUS(status);
}

int main(int count, char **arguments) {
    if (count > 1) {
        for (int i = 0; i < 30; i++) in_spawned();
        return 3;
    }
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    pid_t other = fork();
    if (other == 0) _exit(child(arguments[0]));
    for (int i = 0; i < 5; i++) in_parent();
    int status;
    waitpid(other, &status, 0);
    done = 1;
    pthread_join(thread, 0);
    return WEXITSTATUS(status);
}
