// Becomes the program at a path, by a descriptor that exec closes: of its file, or with a second argument
// of a copy in memory; with a third one by the descriptor's name.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 2) return 9;
    int file = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (argc > 2) {
        int copy = memfd_create("copy", MFD_CLOEXEC);
        char bytes[4096];
        ssize_t got;
        while ((got = read(file, bytes, sizeof bytes)) > 0)
            if (write(copy, bytes, got) != got) return 1;
        file = copy;
    }
    char name[64], *none[] = {0}, *few[] = {"fexecs", 0};
    if (argc > 3) {
        snprintf(name, sizeof name, "/proc/self/fd/%d", file);
        execve(name, few, none);
    } else {
        fexecve(file, few, none);
    }
    perror("exec");
    return 1;
}
