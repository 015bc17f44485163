/*
 * What the programs of the bare machine share: memory, the serial port, control registers.
 */
typedef unsigned long u64;

#define WINDOW 0xffffff8000000000 /* physical 0 to 2 GiB */
#define MEMORY_BYTES 0x80000000ul
#define CR4_FLAT (1ul << 29)
#define FLAT (1ul << 52)

/* Of boot.S. */
extern u64 code, fault_address, result;
extern char own_table[], upper_table[];
extern char on_page_fault[], on_protection[], on_call[];
long attempt(u64 cr3, u64 address, u64 kind, u64 user, u64 value);
long load(u64 value, u64 which);

static inline volatile u64 *at(u64 physical)
{
    return (volatile u64 *)(WINDOW + physical);
}

static inline unsigned char in(unsigned short port)
{
    unsigned char value;
    asm volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static inline void out(unsigned short port, unsigned char value)
{
    asm volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static inline void put(char c)
{
    while (!(in(0x3fd) & 0x20))
        ;
    out(0x3f8, c);
}

static inline void text(const char *s)
{
    while (*s)
        put(*s++);
}

static inline void number(u64 value)
{
    int shift = 60;
    while (shift && !(value >> shift))
        shift -= 4;
    put(' ');
    for (; shift >= 0; shift -= 4)
        put("0123456789abcdef"[value >> shift & 15]);
}

/* Whether the other side has sent a byte. */
static inline int told(void)
{
    if (!(in(0x3fd) & 1))
        return 0;
    in(0x3f8);
    return 1;
}

/* Lets the other side look at the machine, until it sends a byte. */
static inline void wait(void)
{
    text("?\n");
    while (!told())
        ;
}

static inline u64 get_cr4(void)
{
    u64 value;
    asm volatile("mov %%cr4, %0" : "=r"(value));
    return value;
}

static inline void set_flat(u64 flat)
{
    u64 cr4 = get_cr4();
    u64 wanted = flat ? cr4 | CR4_FLAT : cr4 & ~CR4_FLAT;
    if (wanted != cr4)
        asm volatile("mov %0, %%cr4" : : "r"(wanted) : "memory");
}

static inline void set_gate(u64 *idt, int vector, char *handler, u64 privilege)
{
    u64 address = (u64)handler;
    idt[2 * vector] = (address & 0xffff) | 8ul << 16 | (0x8e00ul | privilege << 13) << 32 |
                      (address >> 16 & 0xffff) << 48;
    idt[2 * vector + 1] = address >> 32;
}

/* Lets `attempt` and `load` return after a page fault, #GP, and the end of an access from user mode. */
static inline void catch_faults(void)
{
    static u64 idt[256 * 2];
    struct { unsigned short limit; u64 base; } __attribute__((packed)) pointer = { sizeof idt - 1, (u64)idt };

    set_gate(idt, 14, on_page_fault, 0);
    set_gate(idt, 13, on_protection, 0);
    set_gate(idt, 0x80, on_call, 3);
    asm volatile("lidt %0" : : "m"(pointer));
}
