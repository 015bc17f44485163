/* flatwalk.h: marks a region of interest in a program that is recorded with `flatwalk record`.
 *
 *   flatwalk_start();           recording goes on from here (with --start-at marker: begins here)
 *   flatwalk_stop();            recording pauses here
 *   flatwalk_mark("phase 2");   the trace gets an event of this name (a string literal)
 *
 * Each is a few no-operation instructions, so a marked program also runs as ever without flatwalk.
 * The jump ends QEMU's block, so that a region starts and stops exactly there.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef FLATWALK_H
#define FLATWALK_H

#ifndef __x86_64__
#error "flatwalk records x86-64 programs"
#endif

#define FLATWALK_MARKER_(number) "nopl 0x464c57" number "(%%rax,%%rax,1)\n\t"

#define flatwalk_start() __asm__ volatile(FLATWALK_MARKER_("01") "jmp 1f\n1:" ::: "memory")
#define flatwalk_stop() __asm__ volatile(FLATWALK_MARKER_("02") "jmp 1f\n1:" ::: "memory")
#define flatwalk_mark(name)                                            \
    __asm__ volatile(".pushsection .rodata.flatwalk, \"a\", @progbits\n" \
                     "7: .asciz \"" name "\"\n"                        \
                     ".popsection\n\t" FLATWALK_MARKER_("03")          \
                     "nopl 7b(%%rip)\n\tjmp 1f\n1:" ::: "memory")

#endif
