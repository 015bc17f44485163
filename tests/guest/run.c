/*
 * Runs the vectors of flat page tables on a bare machine, with real accesses, and prints what came of them on
 * the serial port. What should come of them is not known here: tests/test_flat_page_tables.py compares.
 *
 * The vectors, words of 8 bytes at physical 64 MiB:
 *   magic, levels, number of cases; and each case:
 *   flat, cr3, numbers of words, accesses and loads;
 *   words: physical address, value;
 *   accesses: address, kind, user, physical address of what is accessed (-1: none), whether that is data
 *   loads: register (0 CR3, 1 CR4.FLAT), value.
 */
#include "bare.h"

#define MAGIC 0x46414c5450542031
#define CR3_ADDRESS 0x000ffffffffff000

static u64 get_cr3(void)
{
    u64 value;
    asm volatile("mov %%cr3, %0" : "=r"(value));
    return value;
}

static void set_cr3(u64 value)
{
    asm volatile("mov %0, %%cr3" : : "r"(value) : "memory");
}

/* Maps this program in the tables of a case, in the slot that the vectors leave free. */
static void join(u64 cr3, u64 levels, int on)
{
    u64 physical = (u64)(levels == 5 ? own_table : upper_table);
    u64 root = cr3 & CR3_ADDRESS;
    if (root < MEMORY_BYTES)
        at(root)[511] = on ? physical | 7 : 0;
}

static void print(const char *what, u64 index, long status, u64 value)
{
    text(what);
    number(index);
    text(status == 0 ? " ok" : status == 13 ? " gp" : " pf");
    if (status == 0)
        number(value);
    if (status == 14) {
        number(code);
        number(fault_address);
    }
    put('\n');
}

static void try(u64 index, u64 cr3, const u64 *access)
{
    u64 kind = access[1], target = access[3], data = access[4];
    u64 value = target ^ 0x5a5a000000000000;
    if (data)
        *at(target) = kind == 0 ? value : kind == 1 ? 0 : 0xc300000000b8 | (value & 0xffffffff) << 8;
    long status = attempt(cr3, access[0], kind, access[2], value);
    print("access", index, status, data && kind == 1 ? *at(target) : result);
}

void run(void)
{
    const u64 *next = (const u64 *)at(0x4000000);
    u64 own = get_cr3();

    catch_faults();
    if (*next++ != MAGIC) {
        text("no vectors\n");
        return;
    }
    u64 levels = *next++, cases = *next++;
    for (u64 number_of = 0; number_of < cases; number_of++) {
        u64 flat = next[0], cr3 = next[1], words = next[2], accesses = next[3], loads = next[4];
        const u64 *word = next + 5, *access = word + 2 * words, *loaded = access + 5 * accesses;
        next = loaded + 2 * loads;
        text("case");
        number(number_of);
        put('\n');
        set_flat(flat);
        for (u64 i = 0; i < accesses; i++) {
            for (u64 j = 0; j < words; j++)
                *at(word[2 * j]) = word[2 * j + 1];
            join(cr3, levels, 1);
            try(i, cr3, access + 5 * i);
            set_cr3(own);
            for (u64 j = 0; j < words; j++)
                if (*at(word[2 * j]) != word[2 * j + 1]) {
                    text("after");
                    number(word[2 * j]);
                    number(*at(word[2 * j]));
                    put('\n');
                }
        }
        for (u64 j = 0; j < words; j++)
            *at(word[2 * j]) = word[2 * j + 1];
        join(cr3, levels, 1);
        set_cr3(cr3);
        wait();
        for (u64 i = 0; i < loads; i++) {
            u64 which = loaded[2 * i], value = loaded[2 * i + 1];
            set_cr3(own);
            set_flat(flat);
            join(cr3, levels, 1);
            set_cr3(cr3);
            if (which)
                value = value ? get_cr4() | CR4_FLAT : get_cr4() & ~CR4_FLAT;
            else
                join(value, levels, 1);
            long status = load(value, which);
            print("load", i, status, which ? !!(get_cr4() & CR4_FLAT) : get_cr3());
            set_cr3(own);
            if (!which)
                join(value, levels, 0);
        }
        set_cr3(own);
        join(cr3, levels, 0);
        for (u64 j = 0; j < words; j++)
            *at(word[2 * j]) = 0;
    }
    text("end\n");
}
