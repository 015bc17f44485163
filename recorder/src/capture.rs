//! The hot path: [`on_block`] and [`on_access`] append one word and touch nothing but the vCPU's own
//! [`Slot`]. Everything else (a full buffer, an event somewhere in the process, a spent budget) is
//! noticed there by three comparisons and handled beside it.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use flatwalk_trace::Event;

use crate::channel::region::{BUFFER_WORDS, BUFFERS, Region, SLOTS, STATE_LIMIT, Slot, Stopped};
use crate::channel::word::{
    ADDRESS_MASK, SIZE_POSITION, STORE_POSITION, block_word, epoch_word, joins_word,
};
use crate::guest;
use crate::interest::start_recording;
use crate::lock::Lock;
use crate::options::Options;
use crate::process::{Mode, emit, mode, region, stop, warn, with_state};
use crate::qemu::{PluginId, Qemu};
use crate::sys;

/// A budget without end.
const UNLIMITED: i64 = i64::MAX / 2;
/// Instructions that a thread takes off the common budget at a time.
const GRANT: i64 = 1 << 16;

/// Instructions yet to skip and to record, in the whole process.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    skip: i64,
    record: i64,
}

impl Budget {
    /// What the user gave a process.
    fn of(options: &Options) -> Budget {
        let clamp = |instructions| i64::try_from(instructions).unwrap_or(UNLIMITED).min(UNLIMITED);
        Budget { skip: clamp(options.skip), record: options.limit.map_or(UNLIMITED, clamp) }
    }
}

/// Buffers that no vCPU holds.
struct Pool {
    free: Vec<u32>,
    fresh: u32,
}

static BUDGET: Lock<Budget> = Lock::new(Budget { skip: 0, record: UNLIMITED });
static POOL: Lock<Pool> = Lock::new(Pool { free: Vec::new(), fresh: 0 });
static THREADS: AtomicU32 = AtomicU32::new(0);
static THREAD_OF: [AtomicU32; SLOTS] = [const { AtomicU32::new(0) }; SLOTS];

/// At installation: what there is to record.
pub fn set_up(options: &Options) {
    BUDGET.renew(Budget::of(options));
}

/// What is left of the budget.
pub fn budget() -> Budget {
    BUDGET.with(|budget| *budget)
}

/// Whether instructions are yet to be skipped.
pub fn has_to_skip() -> bool {
    budget().skip > 0
}

/// In a forked child, with a new region: `vcpu` is its only thread, `parent` what its parent had
/// left. What is to be skipped it shares with its parent; what is to be recorded is its own.
pub fn renew(vcpu: c_uint, options: &Options, parent: Budget) {
    POOL.renew(Pool { free: Vec::new(), fresh: 0 });
    BUDGET.renew(Budget { skip: parent.skip, ..Budget::of(options) });
    region().vcpus.store(vcpu + 1, Ordering::Release);
    THREADS.store(1, Ordering::Relaxed);
    thread_of(vcpu).store(0, Ordering::Relaxed);
}

fn thread_of(vcpu: c_uint) -> &'static AtomicU32 {
    &THREAD_OF[vcpu as usize & (SLOTS - 1)]
}

#[inline]
fn slot(vcpu: c_uint) -> &'static Slot {
    // `on_vcpu_init` refuses higher indices; the mask saves a branch.
    &region().slots[vcpu as usize & (SLOTS - 1)]
}

/// A block begins: `data` is its number and, above 32 bits, its length in instructions.
///
/// # Safety
/// Called by QEMU with what `translate` gave it.
pub unsafe extern "C" fn on_block(vcpu: c_uint, data: *mut c_void) {
    let slot = slot(vcpu);
    let data = data as u64;
    let left = slot.left.load(Ordering::Relaxed) - (data >> 32) as i64;
    slot.left.store(left, Ordering::Relaxed);
    let next = slot.next.load(Ordering::Relaxed);
    if next >= slot.end.load(Ordering::Relaxed)
        || left < 0
        || slot.epoch.load(Ordering::Relaxed) != region().epoch.0.load(Ordering::Relaxed)
    {
        attend(vcpu, slot, data);
        return;
    }
    put(slot, next, block_word(data as u32));
}

/// Appends a word at `next`, which lies in the slot's buffer.
#[inline]
fn put(slot: &Slot, next: u64, word: u64) {
    // SAFETY: the caller compared `next` with the end of the slot's buffer, which only this thread
    // writes; the collector reads it as atomic words too.
    unsafe { (*(next as *const AtomicU64)).store(word, Ordering::Relaxed) };
    // The collector may look at any time: the word before the count.
    slot.next.store(next + 8, Ordering::Release);
}

/// An access: `data` is the fixed part of its word, to which size, kind and address are added.
///
/// `information` is taken apart here, since a call to QEMU for each access would cost as much as
/// all the rest; [`is_layout_known`] sees to it that this is right.
///
/// # Safety
/// Called by QEMU with what `translate` gave it.
pub unsafe extern "C" fn on_access(
    vcpu: c_uint,
    information: u32,
    address: u64,
    data: *mut c_void,
) {
    let slot = slot(vcpu);
    let word = data as u64
        | u64::from(information >> SIZE_IN_INFORMATION & 7) << SIZE_POSITION
        | address & ADDRESS_MASK;
    if information & UPDATE == UPDATE {
        // An atomic update is reported once: it loads, then stores.
        put(slot, room(vcpu, slot), word);
    }
    let store = u64::from(information & STORE != 0) << STORE_POSITION;
    put(slot, room(vcpu, slot), word | store);
}

/// Where the slot's next word goes.
#[inline]
fn room(vcpu: c_uint, slot: &Slot) -> u64 {
    let next = slot.next.load(Ordering::Relaxed);
    if next < slot.end.load(Ordering::Relaxed) { next } else { make_room(vcpu, slot) }
}

/// Position of the size within QEMU's access information …
const SIZE_IN_INFORMATION: u32 = 4;
/// … and what stands for a store there …
pub const STORE: u32 = 1 << 17;
/// … and for an atomic update: load and store.
const UPDATE: u32 = 3 << 16;

/// Whether this QEMU packs its access information as [`on_access`] takes it apart.
pub fn is_layout_known(qemu: &Qemu) -> bool {
    (0..4 << 16).all(|information: u32| {
        // SAFETY: pure functions of their argument.
        let (size, store) =
            unsafe { ((qemu.access_size_shift)(information), (qemu.access_is_store)(information)) };
        size == information >> SIZE_IN_INFORMATION & 7 && store == (information & STORE != 0)
    })
}

/// Starts a block when something has to be done first.
#[cold]
fn attend(vcpu: c_uint, slot: &Slot, data: u64) {
    let region = region();
    if mode() != Mode::Detached
        && let Err(why) = region.commanded()
    {
        stop(why);
    }
    loop {
        let recorded = slot.thread.load(Ordering::Relaxed) != 0;
        let joining = mode() == Mode::Record && !recorded;
        if joining {
            // What was left was of the skipped part, or unlimited: ask anew.
            slot.left.store(-((data >> 32) as i64), Ordering::Relaxed);
        }
        match mode() {
            Mode::Record => {
                if slot.left.load(Ordering::Relaxed) < 0
                    && !grant(slot, |budget| &mut budget.record)
                {
                    region.state.store(STATE_LIMIT, Ordering::Release);
                    guest::tell_checks();
                    sys::exit_now(0);
                }
                let room = slot
                    .end
                    .load(Ordering::Relaxed)
                    .wrapping_sub(slot.next.load(Ordering::Relaxed));
                if joining || room < 16 {
                    change_buffer(vcpu, slot, Some(thread_of(vcpu).load(Ordering::Relaxed)));
                }
                break;
            }
            Mode::Skip => {
                leave(vcpu, slot);
                if slot.left.load(Ordering::Relaxed) >= 0 || grant(slot, |budget| &mut budget.skip)
                {
                    break;
                }
                start_recording();
            }
            Mode::Wait | Mode::Detached => {
                leave(vcpu, slot);
                slot.left.store(UNLIMITED, Ordering::Relaxed);
                break;
            }
        }
    }
    let epoch = region.epoch.0.load(Ordering::Acquire);
    slot.epoch.store(epoch, Ordering::Relaxed);
    put(slot, slot.next.load(Ordering::Relaxed), epoch_word(epoch));
    put(slot, slot.next.load(Ordering::Relaxed), block_word(data as u32));
}

/// Takes instructions off a budget for this thread; false if it is spent.
fn grant(slot: &Slot, of: impl Fn(&mut Budget) -> &mut i64) -> bool {
    let left = slot.left.load(Ordering::Relaxed);
    let granted = BUDGET.with(|budget| {
        let available = of(budget);
        if *available >= UNLIMITED {
            return UNLIMITED;
        }
        let granted = (*available).min(GRANT.max(-left));
        *available -= granted;
        granted
    });
    slot.left.store(left.max(-UNLIMITED) + granted, Ordering::Relaxed);
    left + granted >= 0
}

/// The thread's words are of no interest from here on, until it joins again.
fn leave(vcpu: c_uint, slot: &Slot) {
    if slot.thread.load(Ordering::Relaxed) != 0 {
        let unspent = slot.left.swap(-1, Ordering::Relaxed);
        BUDGET.with(|budget| {
            if budget.record < UNLIMITED {
                budget.record += unspent.max(0);
            }
        });
        change_buffer(vcpu, slot, None);
    } else if slot.end.load(Ordering::Relaxed).wrapping_sub(slot.next.load(Ordering::Relaxed)) < 16
    {
        change_buffer(vcpu, slot, None);
    }
}

/// In a guest, where one vCPU runs all threads: `thread` runs from here on, or (`None`) something that is
/// not recorded. To be called before the mode changes.
pub fn switch(vcpu: c_uint, thread: Option<u32>) {
    let slot = slot(vcpu);
    let Some(thread) = thread else {
        if mode() == Mode::Skip {
            let unspent = slot.left.load(Ordering::Relaxed).max(0);
            BUDGET.with(|budget| {
                if budget.skip < UNLIMITED {
                    budget.skip += unspent;
                }
            });
        }
        leave(vcpu, slot);
        slot.left.store(-1, Ordering::Relaxed);
        return;
    };
    thread_of(vcpu).store(thread, Ordering::Relaxed);
    match slot.thread.load(Ordering::Relaxed).checked_sub(1) {
        None if mode() == Mode::Wait => slot.left.store(-1, Ordering::Relaxed),
        Some(other) if other != thread => {
            change_buffer(vcpu, slot, Some(thread));
            // It has its own count of events, which its next block brings up to date.
            slot.epoch.store(u64::MAX, Ordering::Relaxed);
        }
        _ => {}
    }
}

/// In a guest: the events so far concern the block under way, if it is recorded.
pub fn join(vcpu: c_uint) {
    let slot = slot(vcpu);
    if slot.thread.load(Ordering::Relaxed) != 0 {
        let epoch = region().epoch.0.load(Ordering::Acquire);
        put(slot, room(vcpu, slot), joins_word(epoch));
        slot.epoch.store(epoch, Ordering::Relaxed);
    }
}

/// A block's access finds the buffer full.
#[cold]
fn make_room(vcpu: c_uint, slot: &Slot) -> u64 {
    let thread = slot.thread.load(Ordering::Relaxed);
    change_buffer(vcpu, slot, thread.checked_sub(1));
    slot.next.load(Ordering::Relaxed)
}

/// Submits what the slot holds, if it is recorded, and gives it an empty buffer for `thread`
/// (`None`: one that nobody will look at).
fn change_buffer(vcpu: c_uint, slot: &Slot, thread: Option<u32>) {
    let region = region();
    let submitted = submit(vcpu, slot);
    if let Err(why) = submitted {
        stop(why);
    }
    // After words that the collector did not get, it must get no further ones.
    let thread = thread.filter(|_| submitted.is_ok());
    let sequence = slot.sequence.load(Ordering::Relaxed);
    slot.sequence.store(sequence + 1, Ordering::SeqCst);
    if submitted == Ok(true) || slot.end.load(Ordering::Relaxed) == 0 {
        let Some(buffer) = POOL.with(|pool| take_buffer(region, pool)) else {
            warn("more threads at once than the recorder has buffers for; the program was ended");
            sys::exit_now(1);
        };
        slot.buffer.store(buffer, Ordering::Relaxed);
    }
    let index = slot.buffer.load(Ordering::Relaxed) as usize;
    let start = ptr::from_ref(&region.buffers[index % BUFFERS]) as u64;
    slot.next.store(start, Ordering::Relaxed);
    slot.end.store(start + BUFFER_WORDS as u64 * 8, Ordering::Relaxed);
    slot.thread.store(thread.map_or(0, |thread| thread + 1), Ordering::Relaxed);
    slot.sequence.store(sequence + 2, Ordering::SeqCst);
}

/// Submits the slot's words; true if its buffer is no longer its own.
fn submit(vcpu: c_uint, slot: &Slot) -> Result<bool, Stopped> {
    let Some(thread) = slot.thread.load(Ordering::Relaxed).checked_sub(1) else { return Ok(false) };
    let region = region();
    let buffer = slot.buffer.load(Ordering::Relaxed);
    let start = ptr::from_ref(&region.buffers[buffer as usize % BUFFERS]) as u64;
    let words = (slot.next.load(Ordering::Relaxed) - start) / 8;
    let sequence = slot.sequence.load(Ordering::Relaxed);
    POOL.with(|_| region.submit(vcpu, buffer, thread, words as u32, sequence)).map(|()| true)
}

fn take_buffer(region: &Region, pool: &mut Pool) -> Option<u32> {
    while let Some(buffer) = region.take_free() {
        pool.free.push(buffer);
    }
    pool.free.pop().or_else(|| {
        let fresh = pool.fresh;
        ((fresh as usize) < BUFFERS).then(|| {
            pool.fresh += 1;
            fresh
        })
    })
}

/// A thread starts.
///
/// # Safety
/// Called by QEMU.
pub unsafe extern "C" fn on_vcpu_init(_: PluginId, vcpu: c_uint) {
    let Some(number) = THREAD_OF.get(vcpu as usize) else {
        warn(&format!(
            "the program has more than {SLOTS} threads at once, more than can be recorded; it was ended"
        ));
        sys::exit_now(1);
    };
    region().vcpus.fetch_max(vcpu + 1, Ordering::Release);
    let thread = THREADS.fetch_add(1, Ordering::Relaxed);
    number.store(thread, Ordering::Relaxed);
    with_state(|state| emit(state, &Event::ThreadStart { thread }));
}

/// A thread ends.
///
/// # Safety
/// Called by QEMU.
pub unsafe extern "C" fn on_vcpu_exit(_: PluginId, vcpu: c_uint) {
    let slot = slot(vcpu);
    match submit(vcpu, slot) {
        // Not recorded: the buffer is still the slot's own.
        Ok(false) if slot.end.load(Ordering::Relaxed) != 0 => {
            POOL.with(|pool| pool.free.push(slot.buffer.load(Ordering::Relaxed)));
        }
        Ok(_) => {}
        Err(why) => stop(why),
    }
    let sequence = slot.sequence.load(Ordering::Relaxed);
    slot.sequence.store(sequence + 1, Ordering::SeqCst);
    slot.thread.store(0, Ordering::Relaxed);
    slot.next.store(0, Ordering::Relaxed);
    slot.end.store(0, Ordering::Relaxed);
    slot.sequence.store(sequence + 2, Ordering::SeqCst);
    let thread = thread_of(vcpu).load(Ordering::Relaxed);
    with_state(|state| emit(state, &Event::ThreadExit { thread }));
}
