/*
 * A QEMU plugin that counts the entries that page walks with nested paging read, for machines of one CPU: those of
 * unprivileged accesses of guests, in each phase. A phase ends, and another begins, with each marker of
 * recorder/flatwalk.h, whichever program executes it. At the end the plugin writes, for each phase:
 *
 *   PHASE began MARKER          its number in flatwalk.h; 0 for the first phase
 *   PHASE cold GUEST NESTED N   walks that read GUEST entries of the guest's tables, and NESTED of nested ones
 *   PHASE warm N                other walks
 *
 * A walk is cold if the nested tables were walked for each of the guest's entries and for the page; for others QEMU had
 * some of these translations. Walks that end in a fault are left out. Argument: out=FILE.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include <qemu-plugin.h>

#include "marker.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

enum { GUEST_MAX = 5, NESTED_MAX = (GUEST_MAX + 1) * 5 };

static FILE *file;
static uint64_t phase, warm, cold[GUEST_MAX + 1][NESTED_MAX + 1];
static int marker;
/* Nested walks since the latest walk of a guest's tables, their entries, and whether one of them faulted. */
static uint32_t nested_walks, nested_entries;
static bool nested_faulted;

static void end_phase(void)
{
    fprintf(file, "%" PRIu64 " began %d\n", phase, marker);
    for (int guest = 0; guest <= GUEST_MAX; guest++) {
        for (int nested = 0; nested <= NESTED_MAX; nested++) {
            if (cold[guest][nested])
                fprintf(file, "%" PRIu64 " cold %d %d %" PRIu64 "\n", phase, guest, nested, cold[guest][nested]);
        }
    }
    fprintf(file, "%" PRIu64 " warm %" PRIu64 "\n", phase, warm);
    memset(cold, 0, sizeof(cold));
    warm = 0;
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
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        int number = marker_of(instruction);

        if (number)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_marker, QEMU_PLUGIN_CB_NO_REGS,
                                                   (void *)(intptr_t)number);
    }
}

static void count(const struct qemu_plugin_page_walk *walk)
{
    if (!walk->is_user || walk->faulted || nested_faulted)
        return;
    if (nested_walks == walk->n_entries + 1 && walk->n_entries <= GUEST_MAX && nested_entries <= NESTED_MAX)
        cold[walk->n_entries][nested_entries]++;
    else
        warm++;
}

static void on_walk(qemu_plugin_id_t id, unsigned int vcpu, const struct qemu_plugin_page_walk *walk)
{
    (void)id;
    (void)vcpu;
    if (walk->stage == QEMU_PLUGIN_PAGE_WALK_NESTED) {
        nested_walks++;
        nested_entries += walk->n_entries;
        nested_faulted |= walk->faulted;
        return;
    }
    if (walk->stage == QEMU_PLUGIN_PAGE_WALK_GUEST)
        count(walk);
    nested_walks = 0;
    nested_entries = 0;
    nested_faulted = false;
}

static void at_end(qemu_plugin_id_t id, void *unused)
{
    (void)id;
    (void)unused;
    end_phase();
    fclose(file);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    if (argc == 1 && !strncmp(argv[0], "out=", 4))
        file = fopen(argv[0] + 4, "w");
    if (!file || !info->system_emulation || info->system.max_vcpus != 1) {
        fprintf(stderr, "nested: give out=FILE, in system emulation of one CPU\n");
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
    qemu_plugin_register_vcpu_page_walk_cb(id, on_walk);
    qemu_plugin_register_atexit_cb(id, at_end, NULL);
    return 0;
}
