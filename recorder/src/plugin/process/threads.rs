//! The process's threads: each has a vCPU of its own, and a number by the order in which they started.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicU32, Ordering};

use flatwalk_trace::{Event, ThreadId};

use crate::channel::region::SLOTS;
use crate::plugin::buffers::{leave_place, place, renew_places, take_place};
use crate::plugin::capture::{end, set_thread, thread};
use crate::plugin::connection::{fail, region, warn};
use crate::plugin::process::watching;
use crate::plugin::qemu::PluginId;
use crate::plugin::state::{emit, with_space};
use crate::sys;

/// How many there have been.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// How many have not asked for their end.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// In a forked child, with a new region: `vcpu` runs its only thread.
pub fn renew(vcpu: c_uint) {
    renew_places(vcpu);
    region().vcpus.store(place(vcpu) as u32 + 1, Ordering::Release);
    COUNT.store(1, Ordering::Relaxed);
    LEFT.store(1, Ordering::Relaxed);
    set_thread(vcpu, 0);
}

/// A thread starts.
///
/// # Safety
/// Called by QEMU.
pub unsafe extern "C" fn on_vcpu_init(_: PluginId, vcpu: c_uint) {
    let Some(place) = take_place(vcpu) else {
        warn(&format!(
            "the program has more than {SLOTS} threads at once, more than can be recorded; it was ended"
        ));
        sys::exit_now(1);
    };
    if !watching::is_installed() {
        fail(
            "the plugin is to be given to QEMU twice, the second time by another path and without options",
        );
    }
    region().vcpus.fetch_max(place as u32 + 1, Ordering::Release);
    LEFT.fetch_add(1, Ordering::Relaxed);
    let thread: ThreadId = COUNT.fetch_add(1, Ordering::Relaxed);
    set_thread(vcpu, thread);
    with_space(|space| emit(space, &Event::ThreadStart { thread }));
}

/// A thread asks for its end; true of the last.
pub fn is_last_to_leave() -> bool {
    LEFT.fetch_sub(1, Ordering::Relaxed) == 1
}

/// The system call for a thread's end returned: it is to be made again.
pub fn has_not_left() {
    LEFT.fetch_add(1, Ordering::Relaxed);
}

/// Whether more than one thread still runs.
pub fn are_several() -> bool {
    LEFT.load(Ordering::Relaxed) > 1
}

/// A thread ends.
///
/// # Safety
/// Called by QEMU.
pub unsafe extern "C" fn on_vcpu_exit(_: PluginId, vcpu: c_uint) {
    end(vcpu);
    let thread = thread(vcpu);
    with_space(|space| emit(space, &Event::ThreadExit { thread }));
    leave_place(vcpu);
}
