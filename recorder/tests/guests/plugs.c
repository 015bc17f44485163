// Maps code of a file that is no program: twice as it is, changed in secret, and changed; then of files
// without names. Its argument is the file.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void map(int file) {
    if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED) perror("mmap");
}

int main(int argc, char **argv) {
    int file = open(argv[1], O_RDWR | O_CREAT, 0700), memory = memfd_create("plug", 0);
    struct timespec times[2] = {{1000000000, 0}, {1000000000, 0}};
    if (argc < 2 || pwrite(file, "one", 3, 0) != 3 || pwrite(memory, "one", 3, 0) != 3) return 1;
    futimens(file, times);
    map(file);
    if (pwrite(file, "two", 3, 0) != 3) return 1;
    futimens(file, times); // as if it had not changed
    map(file);
    times[1].tv_nsec = 1;
    futimens(file, times);
    map(file);
    map(memory);
    unlink(argv[1]);
    map(file);
    return 0;
}
