/*
 * Counts the instructions that a machine of one CPU executes, for plugins. A repeated string instruction (rep stos) is one
 * instruction, as for a processor's counter, though QEMU executes each repetition separately: all but the first are counted
 * apart. One that is interrupted counts once more when it continues. A block that is left in the middle, by a page fault,
 * counts as a whole, and the rest of it once more when it continues.
 */
#ifndef EXECUTED_H
#define EXECUTED_H

#include <stdbool.h>
#include <stdint.h>

#include <qemu-plugin.h>

/* Instructions so far: of kernels, which live in the upper half of the address space, and of programs. */
static uint64_t kernel, user;
/* Repetitions of string instructions of kernels, which are not among these. */
static uint64_t repeated;
/* The latest repeated string instruction that was executed, and the number of instructions executed before it. */
static uint64_t string, string_at;

/* A repetition is an execution of the same instruction directly after itself. */
static void on_string(unsigned int vcpu, void *data)
{
    uint64_t address = (uintptr_t)data;
    bool upper = address >> 63;

    (void)vcpu;
    if (address == string && kernel + user == string_at + 1) {
        *(upper ? &kernel : &user) -= 1;
        repeated += upper;
    }
    string = address;
    string_at = kernel + user;
}

/* Whether an instruction of 64-bit code is a repeated string instruction. */
static bool repeats_itself(const struct qemu_plugin_insn *instruction)
{
    const uint8_t *bytes = qemu_plugin_insn_data(instruction);
    size_t length = qemu_plugin_insn_size(instruction);
    bool prefixed = false;

    for (size_t i = 0; i < length; i++) {
        uint8_t byte = bytes[i];

        if (byte == 0xf2 || byte == 0xf3)
            prefixed = true;
        else if (byte != 0x66 && byte != 0x67 && (byte & 0xf0) != 0x40)
            /* ins, outs; movs, cmps; stos, lods, scas */
            return prefixed && ((byte >= 0x6c && byte <= 0x6f) || (byte >= 0xa4 && byte <= 0xa7) ||
                                (byte >= 0xaa && byte <= 0xaf));
    }
    return false;
}

/* Has a block that is being translated counted, each time when it begins. */
static void count_executed(struct qemu_plugin_tb *block)
{
    size_t length = qemu_plugin_tb_n_insns(block);
    bool upper = qemu_plugin_tb_vaddr(block) >> 63;

    for (size_t i = 0; i < length; i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);

        if (repeats_itself(instruction))
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_string, QEMU_PLUGIN_CB_NO_REGS,
                                                   (void *)(uintptr_t)qemu_plugin_insn_vaddr(instruction));
    }
    qemu_plugin_register_vcpu_tb_exec_inline(block, QEMU_PLUGIN_INLINE_ADD_U64, upper ? &kernel : &user, length);
}

#endif
