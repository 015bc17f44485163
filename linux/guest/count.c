/*
 * A QEMU plugin that counts, for guests of one CPU: instructions of the kernel and of programs, how often the kernel
 * was entered, and how many entries page walks read, in each phase. A phase ends, and another begins, with each marker
 * of recorder/flatwalk.h, whichever program executes it. At the guest's end the plugin writes, for each phase:
 *
 *   PHASE began MARKER                              its number in flatwalk.h; 0 for the first phase
 *   PHASE instructions user N
 *   PHASE instructions timer|syscall|fault|other N  of the kernel
 *   PHASE repeated timer|syscall|fault|other N      repetitions of string instructions, not included in these
 *   PHASE entered timer|syscall|fault|other N       how often
 *   PHASE walks ENTRIES N                           of the marker's program
 *   PHASE walks-of-all ENTRIES N                    of all programs
 *
 * Walks that fault, and walks of the kernel, are left out, and so are those with nested paging (nested.c has them). A
 * walk belongs to the marker's program if it begins at the same CR3. That changes when the kernel flattens the root of the
 * program's tables, and when another program takes its place: then it is that of the thread that executed the marker, as
 * long as there is this thread. Arguments: out=FILE, and addresses of the kernel:
 * timer=, syscall=, fault=, other= where it is entered for that; back= where it continues what an entry has interrupted
 * in the kernel itself; switch= where it has switched to another thread's stack (__switch_to); fresh= where a new
 * thread begins; tick= what it calls only in interrupts of a timer, whatever the entry. An instruction counts for the
 * latest entry in its own thread; instructions of the kernel's own threads are other. What one instruction is, executed.h
 * says.
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

enum { ENTRIES_MAX = 8, PLACES_MAX = 64, NESTED_MAX = 16, THREADS_MAX = 1 << 16 };
/* Bytes of code from switch= on in which something is pushed, and the alignment of kernel stacks. */
enum { SWITCH_BYTES = 16, STACK_BYTES = 1 << 14 };

enum cause { OTHER, TIMER, SYSCALL, FAULT, CAUSES, BACK = CAUSES, SWITCH, FRESH, TICK };
static const char *const names[] = { "other", "timer", "syscall", "fault", "back", "switch", "fresh", "tick" };
enum { NAMES = sizeof(names) / sizeof(names[0]) };

static FILE *file;
static uint64_t kernel_before, user_before, repeated_before;
static uint64_t spent[CAUSES], repeats[CAUSES], entered[CAUSES];
static uint64_t walks[ENTRIES_MAX + 1], walks_of_all[ENTRIES_MAX + 1];
/* Where tables begin: of the latest walk of a program, and of the program whose marker began the phase. */
static uint64_t root, marked_root;
static uint64_t phase;
static int marker;

/* Where the kernel is entered, and left. */
static struct {
    uint64_t address;
    int what;
} places[PLACES_MAX];
static int place_count;

/* Why the kernel runs in a thread: the latest cause, and those that it has interrupted. */
static struct thread {
    /* Its kernel stack. */
    uint64_t stack;
    int causes[NESTED_MAX], depth;
    /* Instructions of programs up to its latest entry; while other threads run, how many were its own since. */
    uint64_t user_at_entry;
} threads[THREADS_MAX], *current = &threads[0];
/* Who executed the marker that began the phase, if it is still there. */
static struct thread *marking;
/* Whether the kernel has switched to another thread that is not known yet; and where it switches. */
static bool switching;
static uint64_t switch_address;

static void account(void)
{
    int cause = current->depth ? current->causes[current->depth - 1] : OTHER;

    spent[cause] += kernel - kernel_before;
    kernel_before = kernel;
    repeats[cause] += repeated - repeated_before;
    repeated_before = repeated;
}

/* The thread of that stack; a place is shared only if there are more threads than places. */
static struct thread *thread_of(uint64_t stack)
{
    struct thread *home = &threads[stack / STACK_BYTES * UINT64_C(0x9e3779b97f4a7c15) >> 48], *at = home;

    do {
        if (at->stack == stack || !at->stack) {
            at->stack = stack;
            return at;
        }
        at = at + 1 < threads + THREADS_MAX ? at + 1 : threads;
    } while (at != home);
    return home;
}

static void on_push(unsigned int vcpu, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
    (void)vcpu;
    (void)info;
    (void)data;
    if (!switching)
        return;
    switching = false;
    current->user_at_entry = user - current->user_at_entry;
    current = thread_of(address & -(uint64_t)STACK_BYTES);
    current->user_at_entry = user - current->user_at_entry;
}

static void write_walks(const char *whose, uint64_t *counts)
{
    for (int entries = 0; entries <= ENTRIES_MAX; entries++) {
        if (counts[entries])
            fprintf(file, "%" PRIu64 " %s %d %" PRIu64 "\n", phase, whose, entries, counts[entries]);
        counts[entries] = 0;
    }
}

static void end_phase(void)
{
    account();
    fprintf(file, "%" PRIu64 " began %d\n", phase, marker);
    fprintf(file, "%" PRIu64 " instructions user %" PRIu64 "\n", phase, user - user_before);
    for (int cause = 0; cause < CAUSES; cause++) {
        fprintf(file, "%" PRIu64 " instructions %s %" PRIu64 "\n", phase, names[cause], spent[cause]);
        fprintf(file, "%" PRIu64 " repeated %s %" PRIu64 "\n", phase, names[cause], repeats[cause]);
        fprintf(file, "%" PRIu64 " entered %s %" PRIu64 "\n", phase, names[cause], entered[cause]);
    }
    write_walks("walks", walks);
    write_walks("walks-of-all", walks_of_all);
    memset(spent, 0, sizeof(spent));
    memset(repeats, 0, sizeof(repeats));
    memset(entered, 0, sizeof(entered));
    user_before = user;
}

static void on_place(unsigned int vcpu, void *data)
{
    int what = (intptr_t)data;

    (void)vcpu;
    account();
    if (what == SWITCH) {
        switching = true;
    } else if (what == FRESH) {
        current->depth = 0;
        /* Whoever had this stack before is gone. */
        if (current == marking)
            marking = NULL;
    } else if (what == TICK) {
        if (current->depth)
            current->causes[current->depth - 1] = TIMER;
    } else if (what == BACK) {
        current->depth -= current->depth > 0;
    } else {
        /* It comes from a program if one has run since. */
        if (user != current->user_at_entry)
            current->depth = 0;
        current->user_at_entry = user;
        entered[what]++;
        if (current->depth < NESTED_MAX)
            current->causes[current->depth++] = what;
    }
}

static void on_marker(unsigned int vcpu, void *data)
{
    (void)vcpu;
    end_phase();
    phase++;
    marker = (intptr_t)data;
    marked_root = root;
    marking = current;
}

static void on_block(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    uint64_t address = qemu_plugin_tb_vaddr(block);
    size_t length = qemu_plugin_tb_n_insns(block);
    /* The kernel lives in the upper half of the address space. */
    bool upper = address >> 63;

    (void)id;
    for (int i = 0; upper && i < place_count; i++) {
        if (places[i].address == address)
            qemu_plugin_register_vcpu_tb_exec_cb(block, on_place, QEMU_PLUGIN_CB_NO_REGS,
                                                 (void *)(intptr_t)places[i].what);
    }
    for (size_t i = 0; i < length; i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        int number = upper ? 0 : marker_of(instruction);

        if (qemu_plugin_insn_vaddr(instruction) - switch_address < SWITCH_BYTES)
            qemu_plugin_register_vcpu_mem_cb(instruction, on_push, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_W, NULL);
        if (number)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_marker, QEMU_PLUGIN_CB_NO_REGS,
                                                   (void *)(intptr_t)number);
    }
    count_executed(block);
}

static void on_walk(qemu_plugin_id_t id, unsigned int vcpu, const struct qemu_plugin_page_walk *walk)
{
    (void)id;
    (void)vcpu;
    if (!walk->is_user || walk->stage != QEMU_PLUGIN_PAGE_WALK_SINGLE)
        return;
    root = walk->root;
    if (current == marking)
        marked_root = root;
    if (walk->faulted || walk->n_entries > ENTRIES_MAX)
        return;
    walks_of_all[walk->n_entries]++;
    if (root == marked_root)
        walks[walk->n_entries]++;
}

static void at_end(qemu_plugin_id_t id, void *unused)
{
    (void)id;
    (void)unused;
    end_phase();
    fclose(file);
}

static bool take(const char *argument)
{
    const char *value = strchr(argument, '=');

    if (!value)
        return false;
    if (!strncmp(argument, "out=", 4)) {
        file = fopen(value + 1, "w");
        if (!file)
            perror(value + 1);
        return file;
    }
    for (int what = 0; what < NAMES && place_count < PLACES_MAX; what++) {
        if (strlen(names[what]) == (size_t)(value - argument) && !strncmp(argument, names[what], value - argument)) {
            places[place_count].address = strtoull(value + 1, NULL, 16);
            places[place_count].what = what;
            if (what == SWITCH)
                switch_address = places[place_count].address;
            place_count++;
            return true;
        }
    }
    return false;
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    bool right = info->system_emulation && info->system.max_vcpus == 1;

    for (int i = 0; i < argc; i++)
        right = take(argv[i]) && right;
    if (!right || !file) {
        fprintf(stderr, "count: give out=FILE and the kernel's addresses, in system emulation of one CPU\n");
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
    qemu_plugin_register_vcpu_page_walk_cb(id, on_walk);
    qemu_plugin_register_atexit_cb(id, at_end, NULL);
    return 0;
}
