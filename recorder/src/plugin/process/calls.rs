//! System calls: changes of the address space, children, programs that replace this one.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flatwalk_trace::Advice;

use crate::channel::control::CONTROL_FORK;
use crate::channel::region::{SLOTS, STATE_EXECUTING, STATE_RUNNING};
use crate::plugin::buffers::place;
use crate::plugin::capture::may_sleep;
use crate::plugin::connection::{region, send, warn};
use crate::plugin::lock::Lock;
use crate::plugin::phase::{Phase, phase};
use crate::plugin::process::{exec, fork, memory, naming, pagemap, roi, threads, waking, watching};
use crate::plugin::qemu::PluginId;
use crate::plugin::setup::{Setup, setup};
use crate::plugin::space::is_mapping_call;
use crate::plugin::state::{emit, emit_advice, emit_mapping_call, end_gap, with_space};
use crate::sys;

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
/// order in which the kernel gave them, and while it forks, so that the child has the mappings that were noted before.
/// No code takes it that runs while QEMU regards the vCPU as running.
static MAPPING: Lock<()> = Lock::new(());

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
    let call = &CALLS[place(vcpu)];
    let arguments = [a1, a2, a3, a4, a5, a6];
    for (kept, value) in call.arguments.iter().zip(arguments) {
        kept.store(value, Ordering::Relaxed);
    }
    // Before a thread that ends is counted as gone.
    waking::call_begins(vcpu, number, &arguments);
    if threads::are_several() {
        may_sleep(vcpu);
    }
    if may_end_program(number, &arguments) {
        end_gap();
    }
    if is_made(number) {
        watching::hold();
    } else if number == libc::SYS_exit {
        watching::leave();
    }
    if is_mapping_call(number) {
        MAPPING.acquire();
        call.mapping.store(true, Ordering::Relaxed);
        if phase() == Phase::Gap {
            with_space(|space| pagemap::populate_taken(space, number, &arguments));
        }
    } else if fork::is_fork(number, a1) {
        MAPPING.acquire();
        fork::prepare();
    } else if let libc::SYS_execve | libc::SYS_execveat = number {
        // If the call succeeds, this is the last that the collector hears of this program.
        region().state.store(STATE_EXECUTING, Ordering::Release);
        if setup().options.follow_exec && phase() != Phase::Detached {
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
    let call = &CALLS[place(vcpu)];
    waking::call_returns(vcpu, number, result);
    if number == libc::SYS_exit {
        threads::has_not_left();
    }
    let failed = (-4095..0).contains(&result);
    if is_mapping_call(number) {
        let arguments: [u64; 6] =
            std::array::from_fn(|i| call.arguments[i].load(Ordering::Relaxed));
        if !failed {
            let named = (number == libc::SYS_mmap)
                .then(|| naming::of_file(&arguments, result as u64))
                .flatten();
            with_space(|space| {
                for range in space.left_by_qemu(number, &arguments, result as u64) {
                    memory::give_up_pages(range);
                }
                match space.given_back(number, &arguments) {
                    Some(ranges) => emit_advice(space, ranges, Advice::DontNeed),
                    None => emit_mapping_call(space, number, &arguments, result as u64),
                }
                if let Some(event) = &named {
                    emit(space, event);
                }
            });
            if number == libc::SYS_mmap
                && arguments[2] & libc::PROT_EXEC as u64 != 0
                && arguments[3] & libc::MAP_ANONYMOUS as u64 == 0
            {
                roi::look_in_library(arguments[4], arguments[5], result as u64);
            }
        }
        if call.mapping.swap(false, Ordering::Relaxed) {
            MAPPING.release();
        }
    } else if number == libc::SYS_prctl {
        let arguments: [u64; 6] =
            std::array::from_fn(|i| call.arguments[i].load(Ordering::Relaxed));
        if let Some(event) = naming::of_anonymous(&arguments) {
            with_space(|space| emit(space, &event));
        }
    } else if fork::is_fork(number, call.arguments[0].load(Ordering::Relaxed)) {
        if let Some(before) = fork::take_in_child() {
            MAPPING.renew(());
            fork::become_child(vcpu, before);
            return;
        }
        MAPPING.release();
        if !failed {
            // This process may end before the child introduces itself.
            send(CONTROL_FORK, &result.to_le_bytes());
        }
    } else if let libc::SYS_execve | libc::SYS_execveat = number {
        region().state.store(STATE_RUNNING, Ordering::Release);
    }
    if is_made(number) {
        watching::release();
    }
}

/// Whether this may be the program's last system call. What it goes on with if it is not is the rest of the
/// same gap.
fn may_end_program(number: i64, arguments: &[u64; 6]) -> bool {
    let &[first, second, third, ..] = arguments;
    match number {
        libc::SYS_exit_group | libc::SYS_execve | libc::SYS_execveat => true,
        libc::SYS_exit => threads::is_last_to_leave(),
        // Whoever raises a signal may end by it, as `abort` does.
        libc::SYS_kill | libc::SYS_rt_sigqueueinfo => is_own(first) && may_end(second),
        libc::SYS_tgkill | libc::SYS_rt_tgsigqueueinfo => is_own(first) && may_end(third),
        libc::SYS_tkill => sys::thread_exists(first as i32) && may_end(second),
        _ => false,
    }
}

/// Whether a process number of `kill` may mean this process: those from 0 down are of groups.
fn is_own(process: u64) -> bool {
    let process = process as i32;
    process <= 0 || process as u32 == std::process::id()
}

/// Whether a signal may end a process that does nothing against it.
fn may_end(signal: u64) -> bool {
    !matches!(
        signal as i32,
        0 | libc::SIGCHLD
            | libc::SIGCONT
            | libc::SIGSTOP
            | libc::SIGTSTP
            | libc::SIGTTIN
            | libc::SIGTTOU
            | libc::SIGURG
            | libc::SIGWINCH
    )
}

/// True for system calls that make a process or a thread.
fn is_made(number: i64) -> bool {
    matches!(number, libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone)
}
