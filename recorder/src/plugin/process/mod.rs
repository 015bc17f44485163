//! A process under user-mode QEMU, where the plugin shares the process with the program.
//!
//! The program's system calls say how its address space changes (`calls`). A fork or an exec makes
//! another recording (`fork`, `exec`). What is recorded is between places that the user names or that
//! the program marks (`roi`).

mod calls;
pub mod elf;
mod exec;
mod fork;
mod initial;
mod memory;
mod pagemap;
mod roi;
mod threads;
mod translate;

use crate::plugin::phase::set_phase;
use crate::plugin::qemu::PluginId;
use crate::plugin::setup::{Hooks, setup};

/// What is particular to this mode.
pub const HOOKS: Hooks = Hooks { populate: pagemap::populate, before_exit: || {} };

/// Has QEMU call from now on.
///
/// # Safety
/// `id` is this plugin's, and QEMU is at its installation.
pub unsafe fn install(id: PluginId) {
    let qemu = &setup().qemu;
    set_phase(roi::first_phase(&setup().options));
    // SAFETY: the caller's promise; the callbacks have QEMU's signatures.
    unsafe {
        (qemu.on_vcpu_init)(id, threads::on_vcpu_init);
        (qemu.on_vcpu_exit)(id, threads::on_vcpu_exit);
        (qemu.on_translate)(id, translate::on_translate);
        (qemu.on_syscall)(id, calls::on_syscall);
        (qemu.on_syscall_return)(id, calls::on_syscall_return);
    }
}
