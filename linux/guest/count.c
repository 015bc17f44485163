/*
 * A QEMU plugin that counts, for guests of one CPU: instructions of the kernel and of programs, and how many
 * entries the page walks of programs' own accesses read, in each phase of a program. A program begins phase N by
 * touching the page MARK + N * 4 KiB. At the guest's end the plugin writes one line for each count:
 *
 *   PHASE instructions kernel N | PHASE instructions user N | PHASE walks ENTRIES N
 *
 * Walks that fault, and walks of the kernel, are left out. Argument: out=FILE.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <qemu-plugin.h>

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

enum { ENTRIES_MAX = 8, PHASES = 4 };
#define MARK UINT64_C(0x100000000000) /* as in linux/tests/gups.c */

static FILE *file;
static uint64_t kernel, user, kernel_before, user_before, walks[ENTRIES_MAX + 1];
static uint64_t phase;

static void end_phase(void)
{
    fprintf(file, "%" PRIu64 " instructions kernel %" PRIu64 "\n", phase, kernel - kernel_before);
    fprintf(file, "%" PRIu64 " instructions user %" PRIu64 "\n", phase, user - user_before);
    for (int entries = 0; entries <= ENTRIES_MAX; entries++) {
        if (walks[entries])
            fprintf(file, "%" PRIu64 " walks %d %" PRIu64 "\n", phase, entries, walks[entries]);
    }
    memset(walks, 0, sizeof(walks));
    kernel_before = kernel;
    user_before = user;
}

static void on_block(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    /* The kernel lives in the upper half of the address space. */
    bool upper = qemu_plugin_tb_vaddr(block) >> 63;

    (void)id;
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

static void on_exit(qemu_plugin_id_t id, void *unused)
{
    (void)id;
    (void)unused;
    end_phase();
    fclose(file);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    if (argc != 1 || strncmp(argv[0], "out=", 4) || !info->system_emulation || info->system.max_vcpus > 1) {
        fprintf(stderr, "count: give out=FILE, in system emulation of one CPU\n");
        return 1;
    }
    file = fopen(argv[0] + 4, "w");
    if (!file) {
        perror(argv[0] + 4);
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_block);
    qemu_plugin_register_vcpu_page_walk_cb(id, on_walk);
    qemu_plugin_register_atexit_cb(id, on_exit, NULL);
    return 0;
}
