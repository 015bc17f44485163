#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    if (argc < 2) return 9;
    char *none[] = {"/nonexistent/program", 0};
    execv(none[0], none); // fails, and goes on
    char *variables[] = {"COLOUR=a,b", "LD_FLATWALK=1", 0};
    execve(argv[1], argv + 1, variables);
    perror("exec");
    return 1;
}
