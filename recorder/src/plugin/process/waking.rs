//! Which thread woke which. A thread that sleeps in a system call leaves nothing in its buffer, and what woke it
//! is in the kernel. But a thread of this process that did must have made a system call: so each sleeper says
//! what it sleeps for, and of those that make a call that may wake it the last one did.
//!
//! What only other processes, disks and clocks do is not known.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use flatwalk_trace::Event;

use crate::channel::region::SLOTS;
use crate::plugin::capture::thread;
use crate::plugin::connection::region;
use crate::plugin::phase::{Phase, phase};
use crate::plugin::process::threads;
use crate::plugin::state::{emit, with_space};
use crate::sys;

/// A thread in a system call in which it may sleep.
struct Sleep {
    /// [`AWAKE`], [`READABLE`] and the like, or the address of the futex that it waits at …
    reason: AtomicU64,
    /// … and the value there.
    value: AtomicU64,
    /// How often it had slept before.
    before: AtomicU64,
    /// The thread that may have woken it last, plus one; 0 for none.
    by: AtomicU32,
}

const AWAKE: u64 = 0;
/// A file, of which the other end may have another descriptor, can be read (semaphores and message queues are
/// like files here) …
const READABLE: u64 = 1;
/// … or written …
const WRITABLE: u64 = 2;
/// … or one of both. Futexes have addresses that are multiples of four.
const EITHER: u64 = READABLE | WRITABLE;

static SLEEPS: [Sleep; SLOTS] = [const {
    Sleep {
        reason: AtomicU64::new(AWAKE),
        value: AtomicU64::new(0),
        before: AtomicU64::new(0),
        by: AtomicU32::new(0),
    }
}; SLOTS];

/// Whom a system call may wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wakes {
    Nobody,
    /// For whom files can be read or written now.
    Files(u64),
    Futexes([u64; 2]),
    /// A thread that ends wakes whoever waits for its end, where its number stands until then.
    Joiners(u64),
    /// A signal ends any sleep.
    All,
}

impl Wakes {
    /// Whether a thread may be woken that sleeps for this, at a futex with this value.
    fn includes(self, reason: u64, value: u64) -> bool {
        match self {
            Wakes::Nobody => false,
            Wakes::Files(now) => reason & now != 0,
            Wakes::Futexes(addresses) => reason > EITHER && addresses.contains(&reason),
            Wakes::Joiners(number) => reason > EITHER && value == number,
            Wakes::All => reason != AWAKE,
        }
    }
}

/// `FUTEX_LOCK_PI2`, since Linux 5.14.
const LOCK_PI2: i32 = 13;

/// What the futex call with this operation does, by `linux/futex.h`: what it sleeps for, and whom it wakes.
fn of_futex(&[address, operation, _, _, second, _]: &[u64; 6]) -> (u64, Wakes) {
    let operation = operation as i32 & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    match operation {
        libc::FUTEX_WAIT
        | libc::FUTEX_WAIT_BITSET
        | libc::FUTEX_WAIT_REQUEUE_PI
        | libc::FUTEX_LOCK_PI
        | LOCK_PI2 => (address, Wakes::Nobody),
        libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET | libc::FUTEX_UNLOCK_PI => {
            (AWAKE, Wakes::Futexes([address; 2]))
        }
        libc::FUTEX_WAKE_OP
        | libc::FUTEX_REQUEUE
        | libc::FUTEX_CMP_REQUEUE
        | libc::FUTEX_CMP_REQUEUE_PI => (AWAKE, Wakes::Futexes([address, second])),
        _ => (AWAKE, Wakes::Nobody),
    }
}

/// What a system call sleeps for, and whom it may wake.
fn of_call(number: i64, arguments: &[u64; 6]) -> (u64, Wakes) {
    match number {
        libc::SYS_futex => of_futex(arguments),
        // Who reads makes room for who writes.
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_msgrcv
        | libc::SYS_mq_timedreceive => (READABLE, Wakes::Files(WRITABLE)),
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_connect
        | libc::SYS_msgsnd
        | libc::SYS_mq_timedsend => (WRITABLE, Wakes::Files(READABLE)),
        libc::SYS_sendfile
        | libc::SYS_splice
        | libc::SYS_tee
        | libc::SYS_vmsplice
        | libc::SYS_fcntl
        | libc::SYS_flock
        | libc::SYS_semop
        | libc::SYS_semtimedop
        | libc::SYS_io_uring_enter => (EITHER, Wakes::Files(EITHER)),
        libc::SYS_poll
        | libc::SYS_ppoll
        | libc::SYS_select
        | libc::SYS_pselect6
        | libc::SYS_epoll_wait
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2
        | libc::SYS_io_getevents
        | libc::SYS_pause
        | libc::SYS_rt_sigsuspend
        | libc::SYS_rt_sigtimedwait => (EITHER, Wakes::Nobody),
        libc::SYS_close
        | libc::SYS_close_range
        | libc::SYS_dup2
        | libc::SYS_dup3
        | libc::SYS_shutdown => (AWAKE, Wakes::Files(EITHER)),
        libc::SYS_exit => (AWAKE, Wakes::Joiners(sys::thread_number() as u64)),
        libc::SYS_kill
        | libc::SYS_tkill
        | libc::SYS_tgkill
        | libc::SYS_rt_sigqueueinfo
        | libc::SYS_rt_tgsigqueueinfo => (AWAKE, Wakes::All),
        _ => (AWAKE, Wakes::Nobody),
    }
}

/// A system call begins on `vcpu`.
pub fn call_begins(vcpu: c_uint, number: i64, arguments: &[u64; 6]) {
    if !threads::are_several() {
        return;
    }
    let (reason, wakes) = of_call(number, arguments);
    if wakes != Wakes::Nobody {
        wake(vcpu, wakes);
    }
    if reason != AWAKE {
        let sleep = &SLEEPS[vcpu as usize & (SLOTS - 1)];
        sleep.value.store(arguments[2], Ordering::Relaxed);
        sleep.before.store(sys::times_slept(), Ordering::Relaxed);
        sleep.by.store(0, Ordering::Relaxed);
        // From here on others may say that they wake it.
        sleep.reason.store(reason, Ordering::Release);
    }
}

/// `vcpu`'s thread may wake others, if there are any.
fn wake(vcpu: c_uint, wakes: Wakes) {
    let used = (region().vcpus.load(Ordering::Acquire) as usize).min(SLOTS);
    let sleepers = || {
        let all = SLEEPS[..used].iter();
        all.filter(|sleep| {
            let reason = sleep.reason.load(Ordering::Acquire);
            wakes.includes(reason, sleep.value.load(Ordering::Relaxed))
        })
    };
    if phase() != Phase::Record || sleepers().next().is_none() {
        return;
    }
    let thread = thread(vcpu);
    with_space(|space| {
        if phase() == Phase::Record {
            emit(space, &Event::Wake { thread });
            for sleep in sleepers() {
                sleep.by.store(thread + 1, Ordering::Release);
            }
        }
    });
}

/// A system call returns on `vcpu`.
pub fn call_returns(vcpu: c_uint) {
    let sleep = &SLEEPS[vcpu as usize & (SLOTS - 1)];
    if sleep.reason.load(Ordering::Relaxed) == AWAKE {
        return;
    }
    sleep.reason.store(AWAKE, Ordering::Relaxed);
    let by = sleep.by.swap(0, Ordering::Acquire).checked_sub(1);
    if let Some(by) = by
        && sys::times_slept() > sleep.before.load(Ordering::Relaxed)
    {
        let thread = thread(vcpu);
        with_space(|space| {
            if phase() == Phase::Record {
                emit(space, &Event::Woken { thread, by });
            }
        });
    }
}

/// In a forked child: nobody else sleeps.
pub fn renew() {
    for sleep in &SLEEPS {
        sleep.reason.store(AWAKE, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_woken_slept_for_what_was_done() {
        let futex = |operation: i32, address: u64, second: u64| {
            of_call(libc::SYS_futex, &[address, operation as u64, 1, 0, second, 0])
        };
        let private = libc::FUTEX_PRIVATE_FLAG;
        let realtime = private | libc::FUTEX_CLOCK_REALTIME;
        let (sleeps, _) = futex(libc::FUTEX_WAIT_BITSET | realtime, 0x1000, 0);
        assert_eq!(sleeps, 0x1000);
        let (reads, _) = of_call(libc::SYS_read, &[0; 6]);
        let own = sys::thread_number() as u64;
        let (writes, _) = of_call(libc::SYS_write, &[0; 6]);
        let (polls, _) = of_call(libc::SYS_poll, &[0; 6]);
        // A thread at the futex, one that waits for this one's end, one that reads, writes, polls.
        let sleepers = [(sleeps, 5), (0x2000, own), (reads, own), (writes, own), (polls, own)];
        let cases = [
            (futex(libc::FUTEX_WAKE | private, 0x1000, 0), [true, false, false, false, false]),
            (futex(libc::FUTEX_WAKE | private, 0x1004, 0x1000), [false; 5]),
            (futex(libc::FUTEX_WAKE_OP, 0x1004, 0x1000), [true, false, false, false, false]),
            // Who waits at the same place wakes nobody.
            (futex(libc::FUTEX_WAIT | private, 0x1000, 0), [false; 5]),
            (of_call(libc::SYS_write, &[1; 6]), [false, false, true, false, true]),
            (of_call(libc::SYS_read, &[1; 6]), [false, false, false, true, true]),
            (of_call(libc::SYS_close, &[1; 6]), [false, false, true, true, true]),
            (of_call(libc::SYS_poll, &[1; 6]), [false; 5]),
            (of_call(libc::SYS_exit, &[0; 6]), [false, true, false, false, false]),
            (of_call(libc::SYS_tgkill, &[0; 6]), [true; 5]),
            (of_call(libc::SYS_getpid, &[0; 6]), [false; 5]),
        ];
        for ((_, wakes), expected) in cases {
            let found = sleepers.map(|(reason, value)| wakes.includes(reason, value));
            assert_eq!(found, expected, "{wakes:?}");
            assert!(!wakes.includes(AWAKE, own));
        }
    }
}
