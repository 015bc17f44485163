/*
 * A hypervisor for guests of one or two instructions, on the bare machine: runs each with its own page tables and
 * nested ones (SVM), and prints how it ended. What should come of them is not known here:
 * tests/test_nested_page_tables.py compares.
 *
 * The cases, words of 8 bytes at physical 64 MiB:
 *   magic, levels of the hypervisor's and so of the nested tables, number of cases; and each case:
 *   CR4.FLAT of the hypervisor; nested_ctl and nCR3; CR3, CR4, RIP, RDI, RAX and CPL of the guest; the last word
 *   of intercepts; EFER and CR0 of the guest; number of words; words: physical address, value.
 */
#include "bare.h"

#define MAGIC 0x464c41544e505431
#define MSR_EFER 0xc0000080
#define MSR_VM_HSAVE_PA 0xc0010117
#define EFER_LMA (1ul << 10)
#define INTERCEPT_VMRUN (1ul << 32)
#define INTERCEPT_VMMCALL (1ul << 33)
#define INTERCEPT_SHUTDOWN (1ul << 31)

/* Offsets in the VMCB (AMD's manual, volume 2, appendix B). */
#define EXCEPTIONS 0x008
#define INTERCEPTS 0x00c
#define LAST_INTERCEPTS 0x014
#define ASID 0x058
#define EXIT_CODE 0x070
#define EXIT_INFO_1 0x078
#define EXIT_INFO_2 0x080
#define NESTED_CTL 0x090
#define NESTED_CR3 0x0b0
#define ES 0x400
#define CS 0x410
#define SS 0x420
#define DS 0x430
#define CPL 0x4cb
#define EFER 0x4d0
#define CR4 0x548
#define CR3 0x550
#define CR0 0x558
#define DR7 0x560
#define DR6 0x568
#define RFLAGS 0x570
#define RIP 0x578
#define RAX 0x5f8

static _Alignas(4096) unsigned char vmcb[4096], host_save[4096];

/* What of this program is linked at the top of the address space is 2 GiB above its physical address. */
static u64 physical(const void *pointer)
{
    return (u64)pointer + 0x80000000;
}

static u64 *field(u64 offset)
{
    return (u64 *)(vmcb + offset);
}

static u64 read_msr(unsigned number)
{
    unsigned low, high;
    asm volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(number));
    return (u64)high << 32 | low;
}

static void write_msr(unsigned number, u64 value)
{
    asm volatile("wrmsr" : : "c"(number), "a"((unsigned)value), "d"((unsigned)(value >> 32)));
}

static void segment(u64 offset, u64 selector, u64 attributes)
{
    *field(offset) = selector | attributes << 16 | 0xffffffff00000000;
    *field(offset + 8) = 0;
}

/* Runs a guest until it exits; it has RDI from `next`. */
static void run_guest(const u64 *next)
{
    u64 cpl = next[8], dpl = cpl << 5;

    for (u64 i = 0; i < sizeof vmcb; i += 8)
        *field(i) = 0;
    *(unsigned *)(vmcb + EXCEPTIONS) = ~0u;
    *(unsigned *)(vmcb + INTERCEPTS) = (unsigned)INTERCEPT_SHUTDOWN;
    *(unsigned *)(vmcb + INTERCEPTS + 4) = (INTERCEPT_VMRUN | INTERCEPT_VMMCALL) >> 32;
    *(unsigned *)(vmcb + LAST_INTERCEPTS) = (unsigned)next[9];
    *(unsigned *)(vmcb + ASID) = 1;
    segment(ES, 0x10 | cpl, 0xc93 | dpl);
    segment(CS, 0x08 | cpl, (next[10] & EFER_LMA ? 0xa9b : 0xc9b) | dpl);
    segment(SS, 0x10 | cpl, 0xc93 | dpl);
    segment(DS, 0x10 | cpl, 0xc93 | dpl);
    vmcb[CPL] = (unsigned char)cpl;
    *field(EFER) = next[10];
    *field(CR0) = next[11];
    *field(DR7) = 0x400;
    *field(DR6) = 0xffff0ff0;
    *field(RFLAGS) = 2;
    *field(NESTED_CTL) = next[1];
    *field(NESTED_CR3) = next[2];
    *field(CR3) = next[3];
    *field(CR4) = next[4];
    *field(RIP) = next[5];
    *field(RAX) = next[7];
    u64 rdi = next[6];
    asm volatile("push %%rbp; clgi; vmrun; stgi; pop %%rbp"
                 : "+D"(rdi)
                 : "a"(physical(vmcb))
                 : "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
}

void run(void)
{
    const u64 *next = (const u64 *)at(0x4000000);
    unsigned eax = 0x8000000a, ebx, ecx = 0, edx;

    catch_faults();
    if (*next++ != MAGIC) {
        text("no cases\n");
        return;
    }
    next++; /* levels: boot.S has seen to them */
    write_msr(MSR_EFER, read_msr(MSR_EFER) | 1ul << 12);
    write_msr(MSR_VM_HSAVE_PA, physical(host_save));
    asm volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    text("features");
    number(edx);
    put('\n');
    u64 cases = *next++;
    for (u64 index = 0; index < cases; index++) {
        u64 words = next[12];
        const u64 *word = next + 13;
        for (u64 j = 0; j < words; j++)
            *at(word[2 * j]) = word[2 * j + 1];
        set_flat(next[0]);
        run_guest(next);
        set_flat(0);
        text("case");
        number(index);
        number(*field(EXIT_CODE));
        number(*field(EXIT_INFO_1));
        number(*field(EXIT_INFO_2));
        number(*field(RAX));
        put('\n');
        for (u64 j = 0; j < words; j++) {
            u64 now = *at(word[2 * j]);
            if (now != word[2 * j + 1]) {
                text("after");
                number(word[2 * j]);
                number(now);
                put('\n');
            }
            *at(word[2 * j]) = 0;
        }
        next = word + 2 * words;
    }
    text("end\n");
}
