//! Which thread woke which. A thread that sleeps in a system call leaves nothing in its buffer, and
//! what woke it is in the kernel. But a thread of this process that did must have made a system
//! call.
//!
//! - Whoever reads from a pipe or a socket waited for the last write of another thread to it,
//!   asleep or not: had the reader come sooner, it would have slept.
//! - Before each other call in which it may sleep, a thread notes what for. Others' calls that may
//!   end that sleep are noted, and the last of them counts as what woke it.
//! - Whoever sleeps until any of several files is ready is taken to be woken by the last write to a
//!   file that this process reads.
//!
//! If the waker itself came to a call in which it may sleep before the other went on, that call
//! counts: what the waker did until then, often with a lock that the other wants next, was not at
//! the same time.
//!
//! What only other processes, disks and clocks do is not known.

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use flatwalk_trace::Event;

use crate::channel::region::SLOTS;
use crate::plugin::buffers::place;
use crate::plugin::capture::thread;
use crate::plugin::connection::region;
use crate::plugin::lock::Lock;
use crate::plugin::phase::{Phase, phase};
use crate::plugin::process::files::{self, FILE};
use crate::plugin::process::threads;
use crate::plugin::space::Space;
use crate::plugin::state::{emit, with_space};
use crate::sys;

/// A thread in a system call in which it may sleep.
struct Sleep {
    /// [`AWAKE`], [`UNLOCKED`] and the like, the address of the futex that it waits at, or what it [reads or
    /// writes](files::ends) …
    reason: AtomicU64,
    /// … and the futex's value …
    value: AtomicU64,
    /// … and where another thread may have moved it to.
    moved: AtomicU64,
    /// The kernel's number of the thread.
    tid: AtomicU64,
    /// How often it had slept before.
    before: AtomicU64,
    /// Number of the last call that may have woken it, 0 for none …
    woken: AtomicU64,
    /// … and the vCPU that made it.
    by: AtomicU32,
    /// Of the last call that it has waited for.
    seen: AtomicU64,
    /// It has made a call that may wake others since the last call in which it may sleep.
    has_woken: AtomicBool,
    /// Numbers of the last calls in which it may sleep, each the first after one that may wake others.
    parks: [AtomicU64; PARKS],
    parked: AtomicUsize,
}

/// How many of them are remembered.
const PARKS: usize = 8;

impl Sleep {
    const fn new() -> Sleep {
        Sleep {
            reason: AtomicU64::new(AWAKE),
            value: AtomicU64::new(0),
            moved: AtomicU64::new(AWAKE),
            tid: AtomicU64::new(0),
            before: AtomicU64::new(0),
            woken: AtomicU64::new(0),
            by: AtomicU32::new(0),
            seen: AtomicU64::new(0),
            has_woken: AtomicBool::new(false),
            parks: [const { AtomicU64::new(0) }; PARKS],
            parked: AtomicUsize::new(0),
        }
    }
}

/// No futex has an address as small as these.
const AWAKE: u64 = 0;
/// A file or a semaphore is no longer locked.
const UNLOCKED: u64 = 1;
/// A queue of messages has one, or room for one.
const QUEUED: u64 = 2;
/// Only a signal ends it, or something outside of the process.
const SIGNALLED: u64 = 3;
/// One of several files is ready.
const READY: u64 = 4;
const LAST: u64 = 4;

static SLEEPS: [Sleep; SLOTS] = [const { Sleep::new() }; SLOTS];

/// Calls so far that may have woken others.
static WAKES: AtomicU64 = AtomicU64::new(0);

/// Whom a system call may wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wakes {
    Nobody,
    /// Who waits for this.
    Reason(u64),
    /// Who reads what is written to this descriptor …
    Readers(u64),
    /// … or wants to write what is read from it.
    Writers(u64),
    Futexes([u64; 2]),
    /// Of those at the first futex some, and the others are moved to the second.
    Moves([u64; 2]),
    /// A thread that ends wakes whoever waits for its end, where its number stands until then.
    Joiners(u64),
    /// A signal ends any sleep of the thread with this number …
    Thread(u64),
    /// … or of any.
    Process,
}

impl Wakes {
    fn includes(self, sleep: &Sleep) -> bool {
        let reason = sleep.reason.load(Ordering::Acquire);
        let is_futex = reason > LAST && reason & FILE == 0;
        let places = [reason, sleep.moved.load(Ordering::Relaxed)];
        match self {
            Wakes::Nobody | Wakes::Readers(_) | Wakes::Writers(_) => false,
            Wakes::Reason(now) => reason == now,
            Wakes::Futexes(addresses) => is_futex && places.iter().any(|at| addresses.contains(at)),
            Wakes::Moves([address, _]) => is_futex && places.contains(&address),
            Wakes::Joiners(number) => is_futex && sleep.value.load(Ordering::Relaxed) == number,
            Wakes::Thread(number) => reason != AWAKE && sleep.tid.load(Ordering::Relaxed) == number,
            Wakes::Process => reason != AWAKE,
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
        libc::FUTEX_WAKE_OP => (AWAKE, Wakes::Futexes([address, second])),
        libc::FUTEX_REQUEUE | libc::FUTEX_CMP_REQUEUE | libc::FUTEX_CMP_REQUEUE_PI => {
            (AWAKE, Wakes::Moves([address, second]))
        }
        _ => (AWAKE, Wakes::Nobody),
    }
}

/// What the fcntl call does: those for locks, and no other.
fn of_fcntl(command: i32) -> (u64, Wakes) {
    match command {
        libc::F_SETLKW | libc::F_OFD_SETLKW => (UNLOCKED, Wakes::Reason(UNLOCKED)),
        libc::F_SETLK | libc::F_OFD_SETLK => (AWAKE, Wakes::Reason(UNLOCKED)),
        _ => (AWAKE, Wakes::Nobody),
    }
}

/// Whom a signal wakes that is sent to this process or to another.
fn of_signal(process: u64, signal: u64) -> Wakes {
    let is_ours = process as i32 <= 0 || process == u64::from(std::process::id());
    if signal == 0 || !is_ours { Wakes::Nobody } else { Wakes::Process }
}

/// Whether a system call reads from the descriptor that is its first argument.
fn reads(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
    )
}

/// What a system call sleeps for, and whom it may wake.
fn of_call(number: i64, arguments: &[u64; 6]) -> (u64, Wakes) {
    let &[first, second, third, ..] = arguments;
    match number {
        libc::SYS_futex => of_futex(arguments),
        libc::SYS_fcntl => of_fcntl(second as i32),
        _ if reads(number) => (FILE, Wakes::Writers(first)),
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_sendfile
        | libc::SYS_vmsplice => (FILE, Wakes::Readers(first)),
        libc::SYS_tee => (FILE, Wakes::Readers(second)),
        libc::SYS_splice => (FILE, Wakes::Readers(third)),
        // The end of what is read there.
        libc::SYS_close | libc::SYS_shutdown => (AWAKE, Wakes::Readers(first)),
        libc::SYS_dup2 | libc::SYS_dup3 => (AWAKE, Wakes::Readers(second)),
        libc::SYS_msgsnd
        | libc::SYS_msgrcv
        | libc::SYS_mq_timedsend
        | libc::SYS_mq_timedreceive => (QUEUED, Wakes::Reason(QUEUED)),
        libc::SYS_flock | libc::SYS_semop | libc::SYS_semtimedop => {
            (UNLOCKED, Wakes::Reason(UNLOCKED))
        }
        libc::SYS_poll
        | libc::SYS_ppoll
        | libc::SYS_select
        | libc::SYS_pselect6
        | libc::SYS_epoll_wait
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_io_getevents
        | libc::SYS_io_uring_enter => (READY, Wakes::Nobody),
        libc::SYS_pause
        | libc::SYS_rt_sigsuspend
        | libc::SYS_rt_sigtimedwait
        | libc::SYS_nanosleep
        | libc::SYS_clock_nanosleep
        | libc::SYS_wait4
        | libc::SYS_waitid => (SIGNALLED, Wakes::Nobody),
        libc::SYS_exit => (AWAKE, Wakes::Joiners(sys::thread_number() as u64)),
        libc::SYS_kill | libc::SYS_rt_sigqueueinfo => (AWAKE, of_signal(first, second)),
        libc::SYS_tkill if second != 0 => (AWAKE, Wakes::Thread(first)),
        libc::SYS_tgkill | libc::SYS_rt_tgsigqueueinfo if third != 0 => {
            (AWAKE, Wakes::Thread(second))
        }
        _ => (AWAKE, Wakes::Nobody),
    }
}

/// A system call begins on `vcpu`.
pub fn call_begins(vcpu: c_uint, number: i64, arguments: &[u64; 6]) {
    // By which others find it, also when it has ended.
    let vcpu = place(vcpu) as c_uint;
    if !threads::are_several() {
        return;
    }
    let (mut reason, wakes) = of_call(number, arguments);
    match wakes {
        Wakes::Nobody => {}
        Wakes::Readers(descriptor) => {
            let written = files::ends(descriptor).map(|ends| ends.written);
            if let Some(written) = written {
                write(vcpu, written);
            }
            reason = if reason == FILE { written.unwrap_or(AWAKE) } else { reason };
        }
        Wakes::Writers(descriptor) => {
            let read = files::ends(descriptor).map(|ends| ends.read);
            if let Some(read) = read {
                wake(vcpu, Wakes::Reason(read));
            }
            reason = read.unwrap_or(AWAKE);
        }
        _ => wake(vcpu, wakes),
    }
    if reason == AWAKE {
        return;
    }
    let sleep = of(vcpu);
    // A call that writes comes before the one that waits for the answer.
    if !matches!(wakes, Wakes::Readers(_)) && sleep.has_woken.load(Ordering::Relaxed) {
        while_recording(|space| sleep.park(emit_wake(space, vcpu)));
    }
    sleep.begin(reason, arguments[2]);
}

fn of(vcpu: c_uint) -> &'static Sleep {
    &SLEEPS[place(vcpu)]
}

impl Sleep {
    fn begin(&self, reason: u64, value: u64) {
        for (field, value) in [
            // A futex has 32 bits.
            (&self.value, value & u64::from(u32::MAX)),
            (&self.moved, AWAKE),
            (&self.tid, sys::thread_number() as u64),
            (&self.before, sys::times_slept()),
            (&self.woken, 0),
        ] {
            field.store(value, Ordering::Relaxed);
        }
        // From here on others may say that they wake it.
        self.reason.store(reason, Ordering::Release);
    }

    /// Its thread comes to the call of this number, in which it may sleep.
    fn park(&self, number: u64) {
        let place = self.parked.fetch_add(1, Ordering::Relaxed) % PARKS;
        self.parks[place].store(number, Ordering::Relaxed);
        self.has_woken.store(false, Ordering::Relaxed);
    }

    /// The first call in which it may sleep after the one of this number, if it has come to one.
    fn park_after(&self, number: u64) -> Option<u64> {
        let parks = self.parks.iter().map(|park| park.load(Ordering::Relaxed));
        parks.filter(|&park| park > number).min()
    }

    fn has_slept(&self) -> bool {
        sys::times_slept() > self.before.load(Ordering::Relaxed)
    }
}

/// The last writes to files: number and vCPU, and whether what was written is read in this process.
static WRITES: Lock<BTreeMap<u64, (u64, c_uint, bool)>> = Lock::new(BTreeMap::new());
/// Files of which it is known who wrote to them last.
const MOST_FILES: usize = 4096;

/// `vcpu`'s thread writes to what is read as `file`.
fn write(vcpu: c_uint, file: u64) {
    if phase() != Phase::Record {
        return;
    }
    while_recording(|space| {
        let number = emit_wake(space, vcpu);
        WRITES.with(|writes| {
            if writes.len() >= MOST_FILES {
                writes.clear();
            }
            let write = writes.entry(file).or_insert((number, vcpu, false));
            (write.0, write.1) = (number, vcpu);
        });
    });
}

/// Number and vCPU of the last write by another vCPU than `vcpu`: to `file`, or to any that is read
/// in this process.
fn last_write(file: Option<u64>, vcpu: c_uint) -> Option<(u64, c_uint)> {
    let by_another = |&(number, by, _): &(u64, c_uint, bool)| (by != vcpu).then_some((number, by));
    WRITES.with(|writes| match file {
        Some(file) => writes.get_mut(&file).and_then(|write| {
            write.2 = true;
            by_another(write)
        }),
        None => writes.values().filter(|(_, _, is_read)| *is_read).filter_map(by_another).max(),
    })
}

/// Phases change with the address space in hand: `work` is of what is recorded, or is not done.
fn while_recording(work: impl FnOnce(&mut Space)) {
    with_space(|space| {
        if phase() == Phase::Record {
            work(space);
        }
    });
}

fn emit_wake(space: &mut Space, vcpu: c_uint) -> u64 {
    let number = WAKES.fetch_add(1, Ordering::Relaxed) + 1;
    emit(space, &Event::Wake { thread: thread(vcpu), number });
    of(vcpu).has_woken.store(true, Ordering::Relaxed);
    number
}

/// `vcpu`'s thread may wake others, if there are any.
fn wake(vcpu: c_uint, wakes: Wakes) {
    let used = (region().vcpus.load(Ordering::Acquire) as usize).min(SLOTS);
    let sleepers = || SLEEPS[..used].iter().filter(|sleep| wakes.includes(sleep));
    if phase() == Phase::Record && sleepers().next().is_some() {
        while_recording(|space| {
            let number = emit_wake(space, vcpu);
            for sleep in sleepers() {
                sleep.by.store(vcpu, Ordering::Relaxed);
                sleep.woken.store(number, Ordering::Release);
            }
        });
    }
    if let Wakes::Moves([_, to]) = wakes {
        for sleep in sleepers() {
            sleep.moved.store(to, Ordering::Relaxed);
        }
    }
}

/// The system call `call` returns on `vcpu`.
pub fn call_returns(vcpu: c_uint, call: i64, result: i64) {
    let vcpu = place(vcpu) as c_uint;
    let sleep = of(vcpu);
    let reason = sleep.reason.load(Ordering::Relaxed);
    if reason == AWAKE {
        return;
    }
    sleep.reason.store(AWAKE, Ordering::Relaxed);
    let woken = sleep.woken.swap(0, Ordering::Acquire);
    let waker = if reads(call) {
        (result >= 0).then(|| last_write(Some(reason), vcpu)).flatten()
    } else if !sleep.has_slept() {
        None
    } else if reason == READY {
        last_write(None, vcpu)
    } else {
        Some((woken, sleep.by.load(Ordering::Relaxed)))
    };
    let seen = sleep.seen.load(Ordering::Relaxed);
    if let Some((number, by)) = waker.filter(|&(number, _)| number > seen) {
        sleep.seen.store(number, Ordering::Relaxed);
        while_recording(|space| {
            let number = of(by).park_after(number).unwrap_or(number);
            emit(space, &Event::Woken { thread: thread(vcpu), number });
        });
    }
}

/// In a forked child: nobody else sleeps.
pub fn renew() {
    WRITES.renew(BTreeMap::new());
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
            of_call(libc::SYS_futex, &[address, operation as u64, 7, 0, second, 0])
        };
        let private = libc::FUTEX_PRIVATE_FLAG;
        let realtime = private | libc::FUTEX_CLOCK_REALTIME;
        let own = sys::thread_number() as u64;
        let sleeping = |(reason, _): (u64, Wakes), value: u64| {
            let sleep = Sleep::new();
            sleep.begin(reason, value);
            sleep
        };
        let file = |number: i64| of_call(number, &[1; 6]);
        // At a futex, joining, writing to a full pipe, polling, waiting for a lock, for a signal, and awake.
        let pipe = FILE | 0x1001;
        let sleepers = [
            sleeping(futex(libc::FUTEX_WAIT_BITSET | realtime, 0x1000, 0), 7),
            sleeping(futex(libc::FUTEX_WAIT, 0x2000, 0), own | 5 << 32),
            sleeping((pipe, Wakes::Nobody), own),
            sleeping(file(libc::SYS_poll), own),
            sleeping(file(libc::SYS_flock), own),
            sleeping(file(libc::SYS_rt_sigtimedwait), own),
            sleeping(file(libc::SYS_getpid), own),
        ];
        let process = u64::from(std::process::id());
        let lock = |command: i32| of_call(libc::SYS_fcntl, &[3, command as u64, 0, 0, 0, 0]);
        let signal = |number: i64, arguments: [u64; 3]| {
            let [first, second, third] = arguments;
            of_call(number, &[first, second, third, 0, 0, 0])
        };
        for ((_, wakes), expected) in [
            (futex(libc::FUTEX_WAKE | private, 0x1000, 0), "f......"),
            (futex(libc::FUTEX_WAKE | private, 0x1004, 0x1000), "......."),
            (futex(libc::FUTEX_WAKE_OP, 0x1004, 0x1000), "f......"),
            (futex(libc::FUTEX_REQUEUE, 0x1000, 0x3000), "f......"),
            (futex(libc::FUTEX_REQUEUE, 0x3000, 0x1000), "......."),
            // Who waits at the same place wakes nobody.
            (futex(libc::FUTEX_WAIT | private, 0x1000, 0), "......."),
            ((AWAKE, Wakes::Reason(pipe)), "..w...."),
            (file(libc::SYS_poll), "......."),
            (lock(libc::F_SETLK), "....l.."),
            (lock(libc::F_GETFL), "......."),
            (file(libc::SYS_exit), ".j....."),
            (signal(libc::SYS_tgkill, [process, own, 10]), "fjwpls."),
            (signal(libc::SYS_tgkill, [process, own + 1, 10]), "......."),
            (signal(libc::SYS_tgkill, [process, own, 0]), "......."),
            (signal(libc::SYS_kill, [process, 10, 0]), "fjwpls."),
            (signal(libc::SYS_kill, [1, 10, 0]), "......."),
            (file(libc::SYS_getpid), "......."),
        ] {
            let found = sleepers.iter().zip("fjwpls.".chars());
            let found: String =
                found.map(|(sleep, name)| if wakes.includes(sleep) { name } else { '.' }).collect();
            assert_eq!(found, expected, "{wakes:?}");
        }
        // Of the calls in which a waker may sleep, the first counts after it woke somebody.
        let parking = Sleep::new();
        assert_eq!(parking.park_after(3), None);
        (1..=12).for_each(|number| parking.park(10 * number));
        assert_eq!(
            [70, 95, 120].map(|number| parking.park_after(number)),
            [Some(80), Some(100), None]
        );
        // One that was moved is woken where it is now.
        sleepers[0].moved.store(0x3000, Ordering::Relaxed);
        let (_, wakes) = futex(libc::FUTEX_WAKE, 0x3000, 0);
        assert!(wakes.includes(&sleepers[0]) && !wakes.includes(&sleepers[1]));
    }
}
