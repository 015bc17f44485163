//! A process under user-mode QEMU, where the plugin shares the process with the program.
//!
//! The program's system calls say how its address space changes (`calls`), and which thread woke
//! which (`waking`). A fork or an exec makes another recording (`fork`, `exec`). What is recorded
//! is between places that the user names or that the program marks (`roi`).

mod calls;
pub mod elf;
mod exec;
mod files;
mod fork;
mod initial;
mod memory;
mod naming;
pub mod pagemap;
mod roi;
mod threads;
mod translate;
mod waking;
mod watched;
pub mod watching;

use crate::plugin::connection::warn;
use crate::plugin::phase::{Phase, phase, set_phase};
use crate::plugin::qemu::PluginId;
use crate::plugin::setup::{Hooks, Setup, setup};
use crate::plugin::state::{begin_sample, with_space};

/// What is particular to this mode.
pub const HOOKS: Hooks = Hooks {
    populate: pagemap::populate,
    watch: watching::watch,
    count: watching::count,
    begin: watching::begin,
    before_exit: || {},
};

/// Has QEMU call from now on.
///
/// # Safety
/// `id` is this plugin's, and QEMU is at its installation.
pub unsafe fn install(id: PluginId) {
    let Setup { qemu, options, .. } = setup();
    // A large page of the host's would say of all its pages that the program touched them.
    // SAFETY: it changes nothing but how this process and its children get memory.
    if unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } != 0 {
        warn(
            "large pages of the host could not be switched off: more pages may look touched than were",
        );
    }
    if phase() != Phase::Detached {
        set_phase(roi::first_phase(options));
    }
    if phase() == Phase::Record {
        with_space(begin_sample);
    } else {
        watching::count_first();
    }
    // SAFETY: the caller's promise; the callbacks have QEMU's signatures.
    unsafe {
        (qemu.on_vcpu_init)(id, threads::on_vcpu_init);
        (qemu.on_vcpu_exit)(id, threads::on_vcpu_exit);
        (qemu.on_syscall)(id, calls::on_syscall);
        (qemu.on_syscall_return)(id, calls::on_syscall_return);
    }
}
