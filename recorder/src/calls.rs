//! System calls: changes of the address space, children, programs that replace this one.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flatwalk_trace::Event;

use crate::capture::{self, Budget};
use crate::channel::region::{SLOTS, STATE_EXECUTING, STATE_RUNNING};
use crate::lock::Lock;
use crate::process::{
    self, Mode, Setup, State, emit, mode, populate, region, setup, warn, with_state,
};
use crate::qemu::PluginId;
use crate::space::is_mapping_call;
use crate::{exec, translate};

/// A system call under way.
struct Call {
    arguments: [AtomicU64; 6],
    /// Whether this thread holds [`MAPPING`].
    mapping: AtomicBool,
}

static CALLS: [Call; SLOTS] = [const {
    Call { arguments: [const { AtomicU64::new(0) }; 6], mapping: AtomicBool::new(false) }
}; SLOTS];

/// Held by a thread from a mapping call's start to its result, so that the results are noted in the
/// order in which the kernel gave them. A forking thread does not take it, nor does any code that
/// runs while QEMU regards the vCPU as running.
static MAPPING: Lock<()> = Lock::new(());

/// What a child process will need, taken before the fork.
struct BeforeFork {
    parent: u32,
    state: State,
    budget: Budget,
}

thread_local! {
    static BEFORE_FORK: RefCell<Option<BeforeFork>> = const { RefCell::new(None) };
}

/// A system call begins.
///
/// # Safety
/// Called by QEMU.
#[allow(clippy::too_many_arguments, reason = "QEMU's signature")]
pub unsafe extern "C" fn on_syscall(
    _: PluginId,
    vcpu: c_uint,
    number: i64,
    a1: u64,
    a2: u64,
    a3: u64,
    a4: u64,
    a5: u64,
    a6: u64,
    _: u64,
    _: u64,
) {
    let call = &CALLS[vcpu as usize & (SLOTS - 1)];
    for (kept, value) in call.arguments.iter().zip([a1, a2, a3, a4, a5, a6]) {
        kept.store(value, Ordering::Relaxed);
    }
    if is_mapping_call(number) {
        MAPPING.acquire();
        call.mapping.store(true, Ordering::Relaxed);
    } else if is_fork(number, a1) {
        BEFORE_FORK.set(Some(BeforeFork {
            parent: std::process::id(),
            state: with_state(|state| state.clone()),
            budget: capture::budget(),
        }));
    } else if let libc::SYS_execve | libc::SYS_execveat = number {
        // If the call succeeds, this is the last that the collector hears of this program.
        region().state.store(STATE_EXECUTING, Ordering::Release);
        if setup().options.follow_exec && mode() != Mode::Detached {
            let (directory, path, arguments, environment) = if number == libc::SYS_execve {
                (libc::AT_FDCWD, a1, a2, a3)
            } else {
                (a1 as c_int, a2, a3, a4)
            };
            let Setup { qemu, options, .. } = setup();
            if let Some(why) = exec::replace(directory, path, arguments, environment, qemu, options)
            {
                warn(&why);
            }
        }
    }
}

/// A system call returns.
///
/// # Safety
/// Called by QEMU.
pub unsafe extern "C" fn on_syscall_return(_: PluginId, vcpu: c_uint, number: i64, result: i64) {
    let call = &CALLS[vcpu as usize & (SLOTS - 1)];
    let failed = (-4095..0).contains(&result);
    if is_mapping_call(number) {
        let arguments: [u64; 6] =
            std::array::from_fn(|i| call.arguments[i].load(Ordering::Relaxed));
        if !failed {
            with_state(|state| {
                note(state, number, &arguments, result as u64);
                if number == libc::SYS_mmap
                    && arguments[2] & libc::PROT_EXEC as u64 != 0
                    && arguments[3] & libc::MAP_ANONYMOUS as u64 == 0
                {
                    state.wanted.look_in_library(arguments[4], arguments[5], result as u64);
                }
            });
        }
        if call.mapping.swap(false, Ordering::Relaxed) {
            MAPPING.release();
        }
    } else if is_fork(number, call.arguments[0].load(Ordering::Relaxed)) {
        if let Some(before) = BEFORE_FORK.take()
            && before.parent != std::process::id()
        {
            become_child(vcpu, before);
        }
    } else if let libc::SYS_execve | libc::SYS_execveat = number {
        region().state.store(STATE_RUNNING, Ordering::Release);
    }
}

/// Takes note of a mapping call that succeeded with `result`.
pub fn note(state: &mut State, number: i64, arguments: &[u64; 6], result: u64) {
    let left_behind = state.space.left_behind(number, arguments);
    let event = state.space.event_of(number, arguments, result);
    for event in event.iter().chain(&left_behind) {
        emit(state, event);
    }
}

/// True for system calls that make a process (QEMU carries out vfork as fork, too).
fn is_fork(number: i64, flags: u64) -> bool {
    match number {
        libc::SYS_fork | libc::SYS_vfork => true,
        libc::SYS_clone => flags & libc::CLONE_THREAD as u64 == 0,
        _ => false,
    }
}

/// In a forked child, before it executes anything: a region and a trace of its own.
fn become_child(vcpu: c_uint, before: BeforeFork) {
    MAPPING.renew(());
    let mappings = before.state.space.as_events();
    process::renew(before.state);
    capture::renew(vcpu, &setup().options, before.budget);
    translate::define_all();
    with_state(|state| {
        emit(state, &Event::ThreadStart { thread: 0 });
        for event in &mappings {
            emit(state, event);
        }
        populate(state);
    });
}
