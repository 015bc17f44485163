// Forks thirty children, all of which are there at the same time, and says how many ended well.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 30 };

int main(void) {
    int here[2], go[2], status, well = 0;
    char byte = 0;
    if (pipe(here) || pipe(go)) return 1;
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (child < 0) return 1;
        if (child == 0) {
            close(go[1]);
            if (write(here[1], &byte, 1) != 1) return 1;
            return read(go[0], &byte, 1) != 0;
        }
    }
    close(here[1]);
    for (int i = 0; i < CHILDREN && read(here[0], &byte, 1) == 1; i++) {}
    close(go[1]);
    while (wait(&status) > 0) well += status == 0;
    printf("%d\n", well);
    return 0;
}
