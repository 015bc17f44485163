// Writes code, runs it, rewrites it, runs it; then code that changes the very block it runs in.
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

int main(void) {
    unsigned char *code = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    int sum = 0;
    for (int i = 0; i < 10; i++) {
        unsigned char text[] = {0xb8, (unsigned char)i, 0, 0, 0, 0xc3}; // mov $i, %eax; ret
        memcpy(code, text, sizeof text);
        sum += ((int (*)(void))code)();
    }
    // movb $7, 1f+1(%rip); 1: mov $0, %eax; ret
    unsigned char self[] = {0xc6, 0x05, 1, 0, 0, 0, 7, 0xb8, 0, 0, 0, 0, 0xc3};
    memcpy(code + 256, self, sizeof self);
    sum += 1000 * ((int (*)(void))(code + 256))();
    printf("%d\n", sum);
    return 0;
}
