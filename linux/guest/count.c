/*
 * A QEMU plugin that counts, for guests of one CPU: instructions of the kernel and of programs, and how many
 * entries the page walks of programs' own accesses read, in each phase of a program. A program begins phase N by
 * touching the page MARK + N * 4 KiB. At the guest's end the plugin writes one line for each count:
 *
 *   PHASE instructions user N | PHASE instructions timer|syscall|fault|other N | PHASE walks ENTRIES N
 *
 * Walks that fault, and walks of the kernel, are left out. Arguments: out=FILE, and addresses of the kernel:
 * timer=, syscall=, fault=, other= where it is entered for that; back= where it goes on with what an entry has
 * interrupted in the kernel itself; switch= where it turns to another thread; tick= what it calls only in interrupts of
 * a timer, whatever the entry. An instruction counts for the entry nearest to it; what a thread does after it was
 * switched to, until the next entry, is other.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <qemu-plugin.h>

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

enum { ENTRIES_MAX = 8, PHASES = 4, PLACES_MAX = 64, NESTED_MAX = 16 };
#define MARK UINT64_C(0x100000000000) /* as in linux/tests/gups.c */

enum cause { OTHER, TIMER, SYSCALL, FAULT, CAUSES, BACK = CAUSES, SWITCH, TICK };
static const char *const names[] = { "other", "timer", "syscall", "fault", "back", "switch", "tick" };
enum { NAMES = sizeof(names) / sizeof(names[0]) };

static FILE *file;
static uint64_t kernel, user, kernel_before, user_before, user_at_entry, walks[ENTRIES_MAX + 1];
static uint64_t spent[CAUSES];
static uint64_t phase;

/* Where the kernel is entered, and left. */
static struct {
    uint64_t address;
    int what;
} places[PLACES_MAX];
static int place_count;

/* Why the kernel runs: the latest cause, and those that it has interrupted. */
static int causes[NESTED_MAX], depth;

static void account(void)
{
    spent[depth ? causes[depth - 1] : OTHER] += kernel - kernel_before;
    kernel_before = kernel;
}

static void end_phase(void)
{
    account();
    fprintf(file, "%" PRIu64 " instructions user %" PRIu64 "\n", phase, user - user_before);
    for (int cause = 0; cause < CAUSES; cause++)
        fprintf(file, "%" PRIu64 " instructions %s %" PRIu64 "\n", phase, names[cause], spent[cause]);
    for (int entries = 0; entries <= ENTRIES_MAX; entries++) {
        if (walks[entries])
            fprintf(file, "%" PRIu64 " walks %d %" PRIu64 "\n", phase, entries, walks[entries]);
    }
    memset(walks, 0, sizeof(walks));
    memset(spent, 0, sizeof(spent));
    user_before = user;
}

static void on_place(unsigned int vcpu, void *data)
{
    int what = (intptr_t)data;

    (void)vcpu;
    account();
    if (what == SWITCH) {
        depth = 0;
    } else if (what == TICK) {
        if (depth)
            causes[depth - 1] = TIMER;
    } else if (what == BACK) {
        depth -= depth > 0;
    } else {
        /* It comes from a program if one has run since. */
        if (user != user_at_entry)
            depth = 0;
        user_at_entry = user;
        if (depth < NESTED_MAX)
            causes[depth++] = what;
    }
}

static void on_block(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    uint64_t address = qemu_plugin_tb_vaddr(block);
    /* The kernel lives in the upper half of the address space. */
    bool upper = address >> 63;

    (void)id;
    for (int i = 0; i < place_count; i++) {
        if (places[i].address == address)
            qemu_plugin_register_vcpu_tb_exec_cb(block, on_place, QEMU_PLUGIN_CB_NO_REGS,
                                                 (void *)(intptr_t)places[i].what);
    }
    qemu_plugin_register_vcpu_tb_exec_inline(block, QEMU_PLUGIN_INLINE_ADD_U64, upper ? &kernel : &user,
                                             qemu_plugin_tb_n_insns(block));
}

static void on_walk(qemu_plugin_id_t id, unsigned int vcpu, const struct qemu_plugin_page_walk *walk)
{
    (void)id;
    (void)vcpu;
    if (walk->vaddr >> 12 == (MARK >> 12) + phase + 1 && phase + 1 < PHASES) {
        end_phase();
        phase++;
    } else if (walk->is_user && !walk->faulted && walk->n_entries <= ENTRIES_MAX)
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
            places[place_count++].what = what;
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
