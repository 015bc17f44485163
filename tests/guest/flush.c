/*
 * Changes entries of page tables, with and without the flush that they need, and waits after each step until the
 * other side has counted what QEMU's checking mode (flat-pt-check) has reported.
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
#define DIRTY 0x40ul
#define LARGE 0x80ul
#define GLOBAL 0x100ul
#define CR0_WP (1ul << 16)
#define CR4_PGE (1ul << 7)
#define CR4_PCIDE (1ul << 17)
#define KEEP (1ul << 63)

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

static void invlpg(u64 address)
{
    asm volatile("invlpg (%0)" : : "r"(address) : "memory");
}

static void flush(void)
{
    invlpg(ADDRESS);
}

/* The page that was touched last, and the entry that maps it. */
static u64 page(void)
{
    return ADDRESS + 4096 * (used - 1);
}

static volatile u64 *leaf(void)
{
    return at(LAST_A + 8 * (used - 1));
}

/* Lets QEMU walk again: its own TLB forgets everything when CR0.WP changes, a processor's nothing. */
static void again(void)
{
    u64 cr0;
    asm volatile("mov %%cr0, %0" : "=r"(cr0));
    asm volatile("mov %0, %%cr0; mov %1, %%cr0" : : "r"(cr0 ^ CR0_WP), "r"(cr0) : "memory");
}

static void read_again(void)
{
    again();
    (void)*(volatile u64 *)page();
}

static void write_again(void)
{
    again();
    *(volatile u64 *)page() = 1;
}

static u64 fault_again(u64 kind)
{
    again();
    return attempt(0, page(), kind, 0, 0);
}

static void load_cr3(u64 bits)
{
    asm volatile("mov %0, %%cr3" : : "r"((u64)own_table | bits) : "memory");
}

static void set_cr4(u64 bit, u64 on)
{
    u64 cr4 = get_cr4();
    asm volatile("mov %0, %%cr4" : : "r"(on ? cr4 | bit : cr4 & ~bit) : "memory");
}

static void invpcid(u64 type, u64 pcid, u64 address)
{
    u64 descriptor[2] = { pcid, address };
    asm volatile("invpcid (%0), %1" : : "r"(descriptor), "r"(type) : "memory");
}

static void move_page(void)
{
    *leaf() = (OTHER_PAGES + 4096 * (used - 1)) | FULL;
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

/* Something is done until the other side sends a byte. It begins when that has sent one before. */
static void until(const char *name)
{
    text("until ");
    text(name);
    put('\n');
    while (!told())
        ;
}

/* What TLBs keep. Nothing is reported before it is used for the second time. */
static void pages(void)
{
    u64 status;

    begin();
    move_page();
    read_again();
    end("page-moved-and-used");

    read_again();
    end("!page-moved-and-not-flushed-in-time");

    begin();
    move_page();
    invlpg(page());
    read_again();
    read_again();
    end("page-moved-and-flushed");

    begin();
    move_page();
    flush();
    read_again();
    read_again();
    end("!page-moved-and-another-flushed-not-flushed-in-time");

    begin();
    move_page();
    load_cr3(0);
    read_again();
    read_again();
    end("page-moved-and-cr3-loaded");

    begin();
    *leaf() &= ~RW;
    read_again();
    read_again();
    end("!right-to-a-page-withdrawn-and-not-flushed-in-time");

    *leaf() |= RW;
    read_again();
    write_again();
    read_again();
    end("right-to-a-page-granted");

    begin();
    *leaf() |= 1ul << 59;
    read_again();
    read_again();
    end("!protection-key-changed-and-not-flushed-in-time");

    begin();
    write_again();
    *leaf() &= ~DIRTY;
    read_again();
    read_again();
    end("page-cleaned-and-read");

    write_again();
    *leaf() &= ~DIRTY;
    write_again();
    end("!page-cleaned-and-not-flushed-in-time");

    /* The first write sets D again here, and would not on a processor. */
    begin();
    write_again();
    *leaf() &= ~DIRTY;
    write_again();
    write_again();
    end("!page-cleaned-and-written-twice-not-flushed-in-time");

    begin();
    write_again();
    *leaf() &= ~DIRTY;
    write_again();
    invlpg(page());
    write_again();
    write_again();
    end("page-cleaned-written-and-flushed");

    begin();
    *leaf() = 0;
    status = fault_again(0);
    end("page-unmapped-and-used");

    status += fault_again(0);
    end(status == 28 ? "!page-unmapped-and-not-flushed-in-time" : "there-was-no-page-fault");

    begin();
    *leaf() &= ~RW;
    invlpg(page());
    read_again();
    *leaf() = 0;
    status = fault_again(1);
    status += fault_again(0);
    end(status == 28 ? "page-unmapped-and-faulted-upon-anyway" : "there-was-no-page-fault");

    begin();
    *at(FLAT_A) = PAGES | FULL | LARGE;
    flush();
    touch(0);
    *at(FLAT_A) = LAST_A | FULL;
    read_again();
    read_again();
    end("large-page-split");

    move_page();
    read_again();
    read_again();
    end("!large-page-split-and-not-flushed-in-time");

    set_cr4(CR4_PGE, 1);
    begin();
    *leaf() |= GLOBAL;
    invlpg(page());
    read_again();
    move_page();
    load_cr3(0);
    read_again();
    read_again();
    end("!global-page-moved-and-cr3-loaded-not-flushed-in-time");

    begin();
    *leaf() |= GLOBAL;
    invlpg(page());
    read_again();
    move_page();
    set_cr4(CR4_PGE, 0);
    read_again();
    read_again();
    end("global-page-moved-and-cr4-changed");
}

/* What is found without the help of other walks. */
static void for_as_long_as_it_takes(void)
{
    begin();
    until("used-all-the-time");
    move_page();
    while (!told())
        (void)*(volatile u64 *)page();

    begin();
    write_again();
    until("written-all-the-time");
    *leaf() &= ~DIRTY;
    while (!told())
        *(volatile u64 *)page() = 1;

    until("used-once-much-later");
    for (u64 later = 1000; !told(); later *= 2) {
        used = 0;
        begin();
        move_page();
        for (volatile u64 i = 0; i < later; i++)
            ;
        read_again();
    }
}

/* Uses a page as PCID 1, then changes it as PCID 2. */
static void leave_behind(void)
{
    load_cr3(1);
    begin();
    load_cr3(2);
    move_page();
}

static void come_back(void)
{
    load_cr3(1 | KEEP);
    read_again();
    read_again();
}

/* What is kept while another PCID is the current one. */
static void pcids(void)
{
    leave_behind();
    come_back();
    end("!pcid-not-flushed-in-time");

    leave_behind();
    load_cr3(1);
    come_back();
    end("pcid-flushed-by-cr3");

    leave_behind();
    invpcid(0, 1, page());
    come_back();
    end("pcid-flushed-by-address");

    leave_behind();
    invpcid(0, 1, ADDRESS);
    invpcid(1, 2, 0);
    invlpg(page());
    come_back();
    end("!other-address-and-pcid-not-flushed-in-time");

    leave_behind();
    invpcid(1, 1, 0);
    come_back();
    end("pcid-flushed-as-a-whole");

    leave_behind();
    invpcid(2, 0, 0);
    come_back();
    end("pcid-flushed-with-all");

    leave_behind();
    invpcid(3, 0, 0);
    come_back();
    end("pcid-flushed-with-all-that-is-not-global");

    load_cr3(1);
    begin();
    load_cr3(2);
    point(FLAT_B | FULL | FLAT);
    *at(FLAT_A) = 0;
    load_cr3(1 | KEEP);
    touch(0);
    end("!table-kept-by-pcid");

    load_cr3(1);
    begin();
    load_cr3(2);
    point(FLAT_B | FULL | FLAT);
    *at(FLAT_A) = 0;
    invpcid(0, 1, ADDRESS);
    load_cr3(1 | KEEP);
    touch(0);
    end("table-flushed-by-address");
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

    point((FLAT_A | FULL | FLAT) & ~RW);
    touch(0);
    end("!a-right-granted-used-and-withdrawn");

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

    pages();
    for_as_long_as_it_takes();
    set_cr4(CR4_PCIDE, 1);
    pcids();
    load_cr3(0);
    set_cr4(CR4_PCIDE, 0);
    text("end\n");
}
