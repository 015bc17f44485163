// Forks with very many mappings, so that much is allocated for the child's copy of them.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAPPINGS = 25000, PAGE = 4096 };

int main(void) {
    for (int i = 0; i < MAPPINGS; i++) {
        // Neighbours differ, so that each stays a mapping of its own.
        int protection = i % 2 ? PROT_READ : PROT_READ | PROT_WRITE;
        if (mmap(0, PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) return 1;
    }
    int status = 0;
    pid_t child = fork();
    if (child == 0) _exit(7);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}
