//! Guests: one program of a machine that QEMU emulates whole is recorded.
//!
//! What runs in user mode is known from how the kernel returns there: on both its ways out (`sysretq` and
//! `iretq`), whose addresses System.map has, it restores the program's registers from the thread's
//! `pt_regs`, beginning with the first ([`registers::RESTORE`]). Those stand at the top of the thread's
//! kernel stack, so that their address names the thread. They also hold a system call's number, arguments
//! and result: so mapping calls are known as in a process that is recorded alone.
//!
//! Who is recorded is found out as the guest runs ([`tracker`]): the command, the first process that
//! starts a program of a name, or the one that executes a marker. That one may have run for long,
//! unwatched: its mappings are then not known, but all pages that its tables hold are.
//!
//! All walks of QEMU's, and some of the program's accesses, are compared with the engine's walker
//! ([`check`]).

mod blocks;
mod callbacks;
mod check;
mod kernel_work;
mod memory;
mod program;
mod ram;
mod registers;
mod tracker;

use crate::plugin::qemu::{PluginId, System};
use crate::plugin::setup::{Hooks, setup};

/// What is particular to this mode.
pub const HOOKS: Hooks = Hooks {
    populate: tracker::populate,
    watch: || {},
    count: || {},
    begin: || {},
    before_exit: callbacks::report_counts,
};

/// Has QEMU call from now on.
///
/// # Safety
/// `id` is this plugin's, and QEMU is at its installation.
pub unsafe fn install(id: PluginId, system: System) {
    callbacks::set_up(system);
    // SAFETY: the caller's promise; the callback has QEMU's signature.
    unsafe {
        (setup().qemu.on_vcpu_init)(id, callbacks::on_vcpu_init);
        callbacks::register(id);
    }
}
