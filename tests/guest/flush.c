/*
 * Changes entries of page tables that are not leaves, with and without the flush that they need, and waits after
 * each step until the other side has counted what QEMU's checking mode (flat-pt-check) has reported.
 *
 * Physical memory: tables from 256 MiB on, as named below; the pages that they map from 512 MiB on.
 */
#include "bare.h"

#define SLOT 3ul
#define ADDRESS (SLOT << 39)
#define FLAT_A 0x10000000ul
#define FLAT_B 0x10200000ul
#define GLUE 0x10400000ul
#define LAST_A 0x10401000ul
#define LAST_B 0x10402000ul
#define PAGES 0x20000000ul
#define OTHER_PAGES 0x21000000ul
#define FULL 7ul
#define RW 2ul

static u64 used;

/* Reads, or writes, a page that no TLB knows: each time another one. */
static void touch(int write)
{
    volatile u64 *page = (volatile u64 *)(ADDRESS + 4096 * used++);
    if (write)
        *page = 1;
    else
        (void)*page;
}

static void flush(void)
{
    asm volatile("invlpg (%0)" : : "r"(ADDRESS) : "memory");
}

static void point(u64 entry)
{
    *at((u64)own_table + 8 * SLOT) = entry;
}

static void fill(u64 table, u64 pages)
{
    for (u64 i = 0; i < 512; i++)
        *at(table + 8 * i) = (pages + 4096 * i) | FULL;
}

/* The state that every step begins in: a flat table of level 2, cached. */
static void begin(void)
{
    for (u64 i = 0; i < 512; i++) {
        *at(FLAT_A + 8 * i) = 0;
        *at(FLAT_B + 8 * i) = 0;
        *at(GLUE + 8 * i) = (FLAT_A + 4096 * i) | FULL;
    }
    fill(LAST_A, PAGES);
    fill(LAST_B, PAGES);
    *at(FLAT_A) = LAST_A | FULL;
    *at(FLAT_B) = LAST_A | FULL;
    point(FLAT_A | FULL | FLAT);
    flush();
    touch(0);
}

static void end(const char *name)
{
    text("step ");
    text(name);
    put('\n');
    wait();
}

void run(void)
{
    catch_faults();
    set_flat(1);

    begin();
    point(GLUE | FULL);
    touch(1);
    end("demoted-to-a-table-of-its-parts");

    begin();
    point(GLUE | FULL);
    touch(0);
    touch(0);
    end("!demoted-and-not-flushed-in-time");

    begin();
    point(FLAT_B | FULL | FLAT);
    touch(1);
    end("moved-and-not-used-again");

    begin();
    point(FLAT_B | FULL | FLAT);
    touch(0);
    touch(0);
    end("!moved-and-not-flushed-in-time");

    begin();
    point(FLAT_B | FULL | FLAT);
    *at(FLAT_A) = 0;
    touch(0);
    end("!moved-and-freed");

    begin();
    point(FLAT_B | FULL | FLAT);
    flush();
    *at(FLAT_A) = 0;
    touch(0);
    end("moved-flushed-and-freed");

    begin();
    point(FLAT_B | FULL | FLAT);
    fill(LAST_B, OTHER_PAGES);
    *at(FLAT_A) = LAST_B | FULL;
    touch(0);
    end("!moved-and-used-for-other-pages");

    begin();
    point(FLAT_B | FULL | FLAT);
    *at(FLAT_A) = LAST_A | FULL | 0x80 | 1 << 13;
    touch(0);
    end("!moved-and-used-for-something-else");

    begin();
    point((FLAT_A | FULL | FLAT) & ~RW);
    touch(0);
    end("!a-right-withdrawn");

    begin();
    point((FLAT_A | FULL | FLAT) & ~RW);
    asm volatile("mov %%cr3, %%rax; mov %%rax, %%cr3" : : : "rax", "memory");
    touch(0);
    end("a-right-withdrawn-and-cr3-loaded");

    begin();
    point((FLAT_A | FULL | FLAT) & ~RW);
    flush();
    touch(0);
    point(FLAT_A | FULL | FLAT);
    touch(0);
    touch(0);
    end("a-right-granted");

    begin();
    *at(FLAT_A) = LAST_B | FULL;
    touch(0);
    end("last-level-copied-and-read");

    begin();
    *at(FLAT_A) = LAST_B | FULL;
    touch(1);
    end("!last-level-copied-and-written");

    begin();
    point(GLUE | FULL);
    set_flat(0);
    touch(0);
    set_flat(1);
    end("cr4-changed");

    begin();
    point(0);
    u64 status = attempt(0, ADDRESS + 4096 * used++, 0, 0, 0);
    end("unmapped-and-used");

    status += attempt(0, ADDRESS + 4096 * used++, 0, 0, 0);
    end(status == 28 ? "!unmapped-and-not-flushed-in-time" : "there-was-no-page-fault");

    text("end\n");
}
