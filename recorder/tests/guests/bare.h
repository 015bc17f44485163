// A program without a C library, so that every instruction is in its source.
static inline long call3(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static inline long call6(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

int main(void);

__attribute__((used)) static void begin(void) {
    int status = main();
    call3(231, status, 0, 0);
    __builtin_unreachable();
}

// A stack of its own, so that no address depends on the environment.
__attribute__((used, aligned(4096))) static char stack[1 << 16];

__asm__(".globl _start\n_start: xor %ebp, %ebp\nlea stack+65536(%rip), %rsp\ncall begin\n");
