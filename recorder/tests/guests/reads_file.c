// Reads pages of a file that is mapped, 4 MiB long and named by the first argument: each eighth, one after the other in
// no order, with work in between.
#include <fcntl.h>
#include <sys/mman.h>

enum { PAGE = 4096, PAGES = 1024 };

int main(int count, char **arguments) {
    int file = count > 1 ? open(arguments[1], O_RDONLY) : -1;
    volatile char *pages = mmap(0, PAGES * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    if (pages == MAP_FAILED) return 2;
    for (unsigned i = 0; i < PAGES / 8; i++) {
        (void)pages[i * 37 % (PAGES / 8) * 8 * PAGE];
        for (volatile int work = 0; work < 2000; work++) {}
    }
    return 0;
}
