/* What QEMU's callbacks cost before they do anything: a plugin that is called for every block and
 * every access, and returns. No recorder that QEMU 7.2 calls so can be faster.
 *
 * SPDX-License-Identifier: GPL-2.0-or-later
 */
#include <stddef.h>
#include <stdint.h>

/* The few lines of QEMU's plugin interface that it takes; Debian packages no header. */
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*translate)(uint64_t, struct qemu_plugin_tb *);
typedef void (*block)(unsigned, void *);
typedef void (*accessed)(unsigned, uint32_t, uint64_t, void *);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t, translate);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, block, int, void *);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, accessed, int, int, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);

int qemu_plugin_version = 1;

static void on_block(unsigned vcpu, void *data) { (void)vcpu, (void)data; }

static void on_access(unsigned vcpu, uint32_t what, uint64_t address, void *data) {
    (void)vcpu, (void)what, (void)address, (void)data;
}

static void on_translate(uint64_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, 0, NULL);
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++)
        qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(tb, i), on_access, 0, 3, NULL);
}

int qemu_plugin_install(uint64_t id, const void *info, int count, char **arguments) {
    (void)info, (void)count, (void)arguments;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
    return 0;
}
