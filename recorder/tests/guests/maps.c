// Prints its own memory map.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void) {
    char *keep = mmap(0, 40 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(keep + (4 << 12), 4 << 12);
    mprotect(keep + (12 << 12), 4 << 12, PROT_READ);
    mmap(0, 3 << 12, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!malloc(300000)) return 1;
    int file = open("/proc/self/maps", O_RDONLY);
    static char text[1 << 16];
    for (ssize_t n; (n = read(file, text, sizeof text)) > 0;)
        if (write(1, text, n) != n) return 1;
    return 0;
}
