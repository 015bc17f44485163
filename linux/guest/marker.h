/* Finds the markers of recorder/flatwalk.h, for plugins. */
#ifndef MARKER_H
#define MARKER_H

#include <stdint.h>
#include <string.h>

#include <qemu-plugin.h>

/* The number of the marker that an instruction is, or 0. */
static inline int marker_of(const struct qemu_plugin_insn *instruction)
{
    /* nopl 0x464c57NN(%rax,%rax,1) */
    static const uint8_t head[] = { 0x0f, 0x1f, 0x84, 0x00 }, tail[] = { 0x57, 0x4c, 0x46 };
    const uint8_t *bytes = qemu_plugin_insn_data(instruction);

    if (qemu_plugin_insn_size(instruction) != 8 || memcmp(bytes, head, sizeof(head)) ||
        memcmp(bytes + 5, tail, sizeof(tail)))
        return 0;
    return bytes[4];
}

#endif
