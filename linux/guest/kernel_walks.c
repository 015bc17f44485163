/*
 * A QEMU plugin that says which page walks a processor would make for a guest of one CPU, by the addresses that are
 * translated: QEMU's own walks are no measure of that, since its TLB holds pages of 4 KiB only and loses them with each
 * CR3. Each access, of the kernel and of programs, looks up a TLB, and after a miss the page-walk caches: once with the
 * tables as they are, and once with levels 4 and 3 of the kernel's half in one table. A phase ends, and another begins,
 * with each marker of recorder/flatwalk.h; what comes before the first is not counted. At the guest's end the plugin
 * writes, for each phase:
 *
 *   PHASE began MARKER               its number in flatwalk.h; 0 for the first phase
 *   PHASE instructions kernel|user N
 *   PHASE unknown N                  accesses to pages of which no walk was seen
 *   PHASE pages GIB SHIFT ENTRIES ACCESSES PAGES MISSES READ FOLDED
 *
 * for the pages of 2^SHIFT bytes with addresses from GIB << 30 on, in hexadecimal (of all programs: 0), whose walks read
 * ENTRIES without caches: accesses, pages accessed, misses of the TLB, entries that their walks read, and would read with
 * the folded table. Arguments: out=FILE; tlb=ENTRIES/WAYS for pages of 4 KiB and 2 MiB together, and huge=ENTRIES/WAYS
 * for those of 1 GiB; pwc=L5/L4/L3/L2, entries that point to tables of the level below. All replace the least recently
 * used. Translations of programs are tagged by CR3, as with PCIDs, and one that changes is looked up anew; what else the
 * guest flushes is not seen.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <qemu-plugin.h>

#include "executed.h"
#include "marker.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

enum { ROWS_MAX = 1024, PAGES_MAX = 1 << 22, WAYS_MAX = 4096, LEVELS_MAX = 5 };
enum { PAGE = 12, HUGE = 30 };

/* What is counted of pages of one size in one GiB of addresses. */
struct row {
    uint64_t gib;
    unsigned int shift, entries;
    uint64_t accesses, pages, misses, read, folded;
};

/* Pages of 4 KiB, each as QEMU last walked for it, and larger ones, once for each phase in which they are used. */
struct page {
    /* Of the address space and the address; 0 if the place is empty. */
    uint64_t key;
    uint64_t paddr;
    struct row *row;
    uint64_t phase;
};

/* A set-associative memory of keys. */
struct cache {
    unsigned int sets, ways;
    struct entry {
        uint64_t key, used;
    } *entries;
};

static FILE *file;
static struct row rows[ROWS_MAX];
static unsigned int row_count;
static struct page *pages, *used_pages;
static struct cache small, huge, walk_caches[2][LEVELS_MAX + 1];
static uint64_t now, root, phase, unknown;
static uint64_t kernel_before, user_before;
static unsigned int levels = 4;
static int marker;
/* The page of the latest access to data, and to instructions: it is in the TLB. */
static struct latest {
    uint64_t page;
    struct row *row;
} latest[2];

/* An address at some level: another for each program in the lower half. The lowest bits tell levels apart. */
static uint64_t key_of(uint64_t address, unsigned int shift, unsigned int level)
{
    if (address >> 63)
        return address >> shift << 4 | level << 1 | 1;
    return (root >> PAGE << 40) + (address >> shift << 4) + (level << 1);
}

/* Whether it holds a key, which it does afterwards. */
static bool look_up(struct cache *cache, uint64_t key, uint64_t index)
{
    struct entry *set = &cache->entries[index % cache->sets * cache->ways], *oldest = set;

    for (unsigned int way = 0; way < cache->ways; way++) {
        if (set[way].key == key) {
            set[way].used = ++now;
            return true;
        }
        if (set[way].used < oldest->used)
            oldest = &set[way];
    }
    *oldest = (struct entry){ key, ++now };
    return false;
}

static void forget(struct cache *cache, uint64_t key, uint64_t index)
{
    struct entry *set = &cache->entries[index % cache->sets * cache->ways];

    for (unsigned int way = 0; way < cache->ways; way++) {
        if (set[way].key == key)
            set[way] = (struct entry){ 0, 0 };
    }
}

/* The place of a key, which is empty if the key is not there. */
static struct page *place_of(struct page *table, uint64_t key)
{
    uint64_t at = key * UINT64_C(0x9e3779b97f4a7c15) >> 42;

    while (table[at].key && table[at].key != key)
        at = (at + 1) % PAGES_MAX;
    return &table[at];
}

/* A new place, of which some are always left empty. */
static void take_place(struct page *place, uint64_t key)
{
    static uint64_t taken;

    if (++taken > PAGES_MAX / 4 * 3) {
        fprintf(stderr, "kernel_walks: more than %d pages\n", PAGES_MAX / 4 * 3);
        exit(1);
    }
    place->key = key;
}

static struct row *row_of(uint64_t address, unsigned int shift, unsigned int entries)
{
    uint64_t gib = address >> 63 ? address >> 30 : 0;
    unsigned int i;

    for (i = 0; i < row_count; i++) {
        if (rows[i].gib == gib && rows[i].shift == shift && rows[i].entries == entries)
            return &rows[i];
    }
    if (row_count == ROWS_MAX) {
        fprintf(stderr, "kernel_walks: more than %d kinds of pages\n", ROWS_MAX);
        exit(1);
    }
    rows[row_count] = (struct row){ .gib = gib, .shift = shift, .entries = entries };
    return &rows[row_count++];
}

static unsigned int leaf_level(unsigned int shift)
{
    return (shift - PAGE) / 9 + 1;
}

/* The entries that a walk reads: from the table that the lowest entry in a cache points to, or the root, to the page's. */
static unsigned int walk(struct cache *caches, uint64_t address, unsigned int shift, bool folded)
{
    unsigned int leaf = leaf_level(shift), from = 0, read = 0;

    /* All are asked at once, and hold the walk's entries afterwards; the lowest that had one counts. */
    for (unsigned int level = leaf + 1; level <= levels; level++) {
        /* The entry of level 4 would lead into the middle of a folded table. */
        if (folded && level == 4)
            continue;
        if (look_up(&caches[level], key_of(address, PAGE + 9 * (level - 1), level), 0) && !from)
            from = level - 1;
    }
    for (unsigned int level = leaf; level <= (from ? from : levels); level++)
        read += !(folded && level == 4);
    return read;
}

static void on_page(uint64_t address, struct latest *last)
{
    struct page *page, *used;
    struct cache *tlb;
    struct row *row;
    uint64_t key;

    if (!phase)
        return;
    if (last->page == address >> PAGE) {
        last->row->accesses++;
        return;
    }
    page = place_of(pages, key_of(address, PAGE, 0));
    if (!page->key) {
        unknown++;
        return;
    }
    row = page->row;
    row->accesses++;
    *last = (struct latest){ address >> PAGE, row };
    tlb = row->shift == HUGE ? &huge : &small;
    key = key_of(address, row->shift, leaf_level(row->shift));
    used = place_of(used_pages, key);
    if (!used->key)
        take_place(used, key);
    if (used->phase != phase) {
        used->phase = phase;
        row->pages++;
    }
    if (look_up(tlb, key, address >> row->shift))
        return;
    row->misses++;
    row->read += walk(walk_caches[0], address, row->shift, false);
    row->folded += walk(walk_caches[1], address, row->shift, address >> 63);
}

static void on_access(unsigned int vcpu, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
    uint64_t last = address + (UINT64_C(1) << qemu_plugin_mem_size_shift(info)) - 1;

    (void)vcpu;
    (void)data;
    on_page(address, &latest[0]);
    if (last >> PAGE != address >> PAGE)
        on_page(last, &latest[0]);
}

static void on_fetch(unsigned int vcpu, void *address)
{
    (void)vcpu;
    on_page((uintptr_t)address, &latest[1]);
}

static void on_walk(qemu_plugin_id_t id, unsigned int vcpu, const struct qemu_plugin_page_walk *walked)
{
    unsigned int shift = walked->page_size ? __builtin_ctzll(walked->page_size) : PAGE;
    struct page *page;
    struct row *row;
    uint64_t key;

    (void)id;
    (void)vcpu;
    if (walked->stage != QEMU_PLUGIN_PAGE_WALK_SINGLE)
        return;
    root = walked->root;
    levels = walked->control >> 12 & 1 ? 5 : 4;
    memset(latest, 0xff, sizeof(latest));
    if (walked->faulted)
        return;
    row = row_of(walked->vaddr, shift, walked->n_entries);
    key = key_of(walked->vaddr, PAGE, 0);
    page = place_of(pages, key);
    if (!page->key) {
        take_place(page, key);
    } else if (page->row != row || page->paddr >> PAGE != walked->paddr >> PAGE) {
        unsigned int before = page->row->shift;

        forget(before == HUGE ? &huge : &small, key_of(walked->vaddr, before, leaf_level(before)),
               walked->vaddr >> before);
    }
    page->row = row;
    page->paddr = walked->paddr;
}

static void end_phase(void)
{
    fprintf(file, "%" PRIu64 " began %d\n", phase, marker);
    fprintf(file, "%" PRIu64 " instructions kernel %" PRIu64 "\n", phase, kernel - kernel_before);
    fprintf(file, "%" PRIu64 " instructions user %" PRIu64 "\n", phase, user - user_before);
    fprintf(file, "%" PRIu64 " unknown %" PRIu64 "\n", phase, unknown);
    for (struct row *row = rows; row < rows + row_count; row++) {
        if (row->accesses)
            fprintf(file,
                    "%" PRIu64 " pages %" PRIx64 " %u %u %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                    phase, row->gib, row->shift, row->entries, row->accesses, row->pages, row->misses, row->read,
                    row->folded);
        row->accesses = row->pages = row->misses = row->read = row->folded = 0;
    }
    unknown = 0;
    kernel_before = kernel;
    user_before = user;
}

static void on_marker(unsigned int vcpu, void *data)
{
    (void)vcpu;
    end_phase();
    phase++;
    marker = (intptr_t)data;
}

static void on_block(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    size_t length = qemu_plugin_tb_n_insns(block);
    uint64_t page = 0;

    (void)id;
    for (size_t i = 0; i < length; i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        uint64_t address = qemu_plugin_insn_vaddr(instruction);
        int number = address >> 63 ? 0 : marker_of(instruction);

        /* A block may cross into a second page. */
        if (!i || address >> PAGE != page)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_fetch, QEMU_PLUGIN_CB_NO_REGS,
                                                   (void *)(uintptr_t)address);
        page = address >> PAGE;
        qemu_plugin_register_vcpu_mem_cb(instruction, on_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, NULL);
        if (number)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_marker, QEMU_PLUGIN_CB_NO_REGS,
                                                   (void *)(intptr_t)number);
    }
    count_executed(block);
}

static void at_end(qemu_plugin_id_t id, void *unused)
{
    (void)id;
    (void)unused;
    end_phase();
    fclose(file);
}

static bool make(struct cache *cache, unsigned int entries, unsigned int ways)
{
    if (!ways || ways > WAYS_MAX || !entries || entries % ways)
        return false;
    *cache = (struct cache){ entries / ways, ways, calloc(entries, sizeof(struct entry)) };
    return cache->entries;
}

static bool take(const char *argument)
{
    unsigned int entries, ways, sizes[LEVELS_MAX + 1];
    bool right = true;

    if (!strncmp(argument, "out=", 4)) {
        file = fopen(argument + 4, "w");
        if (!file)
            perror(argument + 4);
        return file;
    }
    if (sscanf(argument, "tlb=%u/%u", &entries, &ways) == 2)
        return make(&small, entries, ways);
    if (sscanf(argument, "huge=%u/%u", &entries, &ways) == 2)
        return make(&huge, entries, ways);
    if (sscanf(argument, "pwc=%u/%u/%u/%u", &sizes[5], &sizes[4], &sizes[3], &sizes[2]) != 4)
        return false;
    for (int level = 2; level <= LEVELS_MAX; level++) {
        for (int variant = 0; variant < 2; variant++)
            right = make(&walk_caches[variant][level], sizes[level], sizes[level]) && right;
    }
    return right;
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    bool right = info->system_emulation && info->system.max_vcpus == 1;

    for (int i = 0; i < argc; i++)
        right = take(argv[i]) && right;
    pages = calloc(PAGES_MAX, sizeof(*pages));
    used_pages = calloc(PAGES_MAX, sizeof(*used_pages));
    if (!right || !file || !small.entries || !huge.entries || !walk_caches[1][2].entries || !pages || !used_pages) {
        fprintf(stderr, "kernel_walks: give out=FILE, tlb=, huge= and pwc=, in system emulation of one CPU\n");
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
    qemu_plugin_register_vcpu_page_walk_cb(id, on_walk);
    qemu_plugin_register_atexit_cb(id, at_end, NULL);
    return 0;
}
