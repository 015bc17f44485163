/*
 * A QEMU plugin that counts what nested paging costs, for machines of one CPU whose Linux has a guest: the entries that page
 * walks of the guest's unprivileged accesses read, and the instructions of the guest and of its host, in each phase. A phase
 * ends, and another begins, with each marker of recorder/flatwalk.h, whichever program executes it. At the end the plugin
 * writes, for each phase:
 *
 *   PHASE began MARKER            its number in flatwalk.h; 0 for the first phase
 *   PHASE cold GUEST NESTED N     walks that read GUEST entries of the guest's tables, and NESTED of nested ones
 *   PHASE warm N                  other walks
 *   PHASE exits fault|other N     exits from the guest because of a nested page fault, and all others
 *   PHASE host fault|other N      instructions of the host's kernel from such an exit to the next entry
 *   PHASE monitor N               instructions of the host's programs
 *   PHASE guest kernel|user N     instructions of the guest
 *   PHASE repeated fault|other|guest N   repetitions of string instructions, not included in these
 *
 * A walk is cold if the nested tables were walked for each of the guest's entries and for the page; for others QEMU had
 * some of these translations. Walks that end in a fault are left out. The guest runs from VMRUN up to the POP with which
 * KVM continues behind it (arch/x86/kvm/svm/vmenter.S). Argument: out=FILE.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include <qemu-plugin.h>

#include "executed.h"
#include "marker.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

enum { GUEST_MAX = 5, NESTED_MAX = (GUEST_MAX + 1) * 5 };

/* Why the guest was left. */
enum cause { OTHER, FAULT, CAUSES };
static const char *const names[] = { "other", "fault" };

static FILE *file;
static uint64_t phase, warm, cold[GUEST_MAX + 1][NESTED_MAX + 1];
static int marker;
/* Nested walks since the latest walk of a guest's tables, their entries, and whether one of them faulted. */
static uint32_t nested_walks, nested_entries;
static bool nested_faulted;

static uint64_t exits[CAUSES], host[CAUSES], host_repeated[CAUSES];
static uint64_t monitor, guest_kernel, guest_user, guest_repeated;
static uint64_t kernel_before, user_before, repeated_before;
/* Whether the guest runs; the address behind VMRUN; whether the guest has met a nested page fault; why it was left. */
static bool in_guest, met_fault;
static uint64_t behind;
static enum cause cause;

/* Gives what was executed since the last call to whoever ran. */
static void account(void)
{
    uint64_t of_kernel = kernel - kernel_before, of_user = user - user_before, again = repeated - repeated_before;

    *(in_guest ? &guest_kernel : &host[cause]) += of_kernel;
    *(in_guest ? &guest_user : &monitor) += of_user;
    *(in_guest ? &guest_repeated : &host_repeated[cause]) += again;
    kernel_before = kernel;
    user_before = user;
    repeated_before = repeated;
}

static void on_entry(unsigned int vcpu, void *next)
{
    (void)vcpu;
    account();
    in_guest = true;
    met_fault = false;
    behind = (uintptr_t)next;
}

/* At a block that begins with a POP. The guest's own kernel must have none at the address behind VMRUN. */
static void on_exit(unsigned int vcpu, void *address)
{
    (void)vcpu;
    if (!in_guest || (uintptr_t)address != behind)
        return;
    account();
    in_guest = false;
    cause = met_fault ? FAULT : OTHER;
    exits[cause]++;
}

static void write_count(const char *what, const char *of, uint64_t *number)
{
    fprintf(file, "%" PRIu64 " %s%s%s %" PRIu64 "\n", phase, what, *of ? " " : "", of, *number);
    *number = 0;
}

static void end_phase(void)
{
    account();
    fprintf(file, "%" PRIu64 " began %d\n", phase, marker);
    for (int guest = 0; guest <= GUEST_MAX; guest++) {
        for (int nested = 0; nested <= NESTED_MAX; nested++) {
            if (cold[guest][nested])
                fprintf(file, "%" PRIu64 " cold %d %d %" PRIu64 "\n", phase, guest, nested, cold[guest][nested]);
        }
    }
    memset(cold, 0, sizeof(cold));
    write_count("warm", "", &warm);
    for (int i = 0; i < CAUSES; i++) {
        write_count("exits", names[i], &exits[i]);
        write_count("host", names[i], &host[i]);
        write_count("repeated", names[i], &host_repeated[i]);
    }
    write_count("monitor", "", &monitor);
    write_count("guest", "kernel", &guest_kernel);
    write_count("guest", "user", &guest_user);
    write_count("repeated", "guest", &guest_repeated);
}

static void on_marker(unsigned int vcpu, void *data)
{
    (void)vcpu;
    end_phase();
    phase++;
    marker = (intptr_t)data;
}

/* Whether an instruction begins with these bytes. */
static bool is(const struct qemu_plugin_insn *instruction, const char *bytes, size_t length)
{
    return qemu_plugin_insn_size(instruction) >= length && !memcmp(qemu_plugin_insn_data(instruction), bytes, length);
}

static void on_block(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    /* Called before the block is counted. */
    if (is(qemu_plugin_tb_get_insn(block, 0), "\x58", 1)) /* pop %rax */
        qemu_plugin_register_vcpu_tb_exec_cb(block, on_exit, QEMU_PLUGIN_CB_NO_REGS,
                                             (void *)(uintptr_t)qemu_plugin_tb_vaddr(block));
    count_executed(block);
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        int number = marker_of(instruction);

        if (is(instruction, "\x0f\x01\xd8", 3)) /* vmrun */
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_entry, QEMU_PLUGIN_CB_NO_REGS,
                                                   (void *)(uintptr_t)(qemu_plugin_insn_vaddr(instruction) + 3));
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
        met_fault |= walk->faulted;
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
