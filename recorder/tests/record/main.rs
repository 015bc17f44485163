//! Records real programs under the installed `qemu-x86_64` and checks what comes out against what
//! the programs do, what they say of themselves, and what Valgrind sees.

mod accesses;
mod endings;
mod memory;
mod processes;
mod regions;
mod sampling;
mod support;
mod valgrind;
