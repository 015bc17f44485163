//! The hot path: [`on_block`] and [`on_access`] append one word and touch nothing but the vCPU's own
//! [`Slot`]. Everything else (a full buffer, an event somewhere in the process, a spent budget) is
//! noticed there by three comparisons and handled apart.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use flatwalk_trace::ThreadId;

use crate::channel::region::{SLOTS, STATE_LIMIT, Slot};
use crate::channel::word::{
    ADDRESS_MASK, SIZE_POSITION, STORE_POSITION, block_word, epoch_word, joins_word,
};
use crate::plugin::budget::{GRANT, Part, UNLIMITED, give_back, grant, has_grant, lend, pass};
use crate::plugin::buffers::{change_buffer, has_room_for_two, place, put, release, room, slot};
use crate::plugin::connection::{region, stop};
use crate::plugin::phase::{Phase, phase};
use crate::plugin::qemu::Qemu;
use crate::plugin::setup::setup;
use crate::plugin::state::{end_paused_skip, end_segment, start_recording};
use crate::sys;

/// The thread that each vCPU runs.
static THREADS: [AtomicU32; SLOTS] = [const { AtomicU32::new(0) }; SLOTS];

/// The thread that `vcpu` runs.
pub fn thread(vcpu: c_uint) -> ThreadId {
    THREADS[place(vcpu)].load(Ordering::Relaxed)
}

/// From here on `vcpu` runs `thread`.
pub fn set_thread(vcpu: c_uint, thread: ThreadId) {
    THREADS[place(vcpu)].store(thread, Ordering::Relaxed);
}

/// The data that [`on_block`] gets of a block: its number and, above 32 bits, its length in instructions.
#[inline]
pub fn block_data(number: u32, length: u32) -> *mut c_void {
    (u64::from(number) | u64::from(length) << 32) as *mut c_void
}

/// A block begins; `data` is its [`block_data`].
///
/// # Safety
/// Called by QEMU with the data that was registered.
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

/// An access: `data` is the fixed part of its word, to which size, kind and address are added.
///
/// `information` is taken apart here, since a call to QEMU for each access would cost as much as
/// all the rest; [`is_layout_known`] checks that this is right.
///
/// # Safety
/// Called by QEMU with the data that was registered.
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

/// A block begins of which only the length is of interest, which `data` is.
///
/// # Safety
/// Called by QEMU with the data that was registered.
pub unsafe extern "C" fn on_counted(vcpu: c_uint, data: *mut c_void) {
    let slot = slot(vcpu);
    let length = data as u64;
    slot.passed.store(slot.passed.load(Ordering::Relaxed) + length, Ordering::Relaxed);
    let left = slot.left.load(Ordering::Relaxed) - length as i64;
    slot.left.store(left, Ordering::Relaxed);
    if left < 0 {
        attend_counted(vcpu, slot);
    }
}

/// A thread that is only counted has used up what it was granted.
#[cold]
fn attend_counted(vcpu: c_uint, slot: &Slot) {
    if phase() != Phase::Detached
        && let Err(why) = region().commanded()
    {
        stop(why);
    }
    leave(vcpu, slot);
    let enough = match phase() {
        Phase::Skip if grant(slot, Part::Skip) => true,
        Phase::Skip if end_paused_skip() => {
            lend(slot, GRANT);
            true
        }
        Phase::Skip => false,
        Phase::Gap => grant(slot, Part::Gap),
        // For the moment until translations are others.
        Phase::Record => {
            (setup().hooks.watch)();
            lend(slot, MEANWHILE);
            true
        }
        Phase::Wait => {
            lend(slot, GRANT);
            true
        }
        Phase::Detached => {
            lend(slot, UNLIMITED);
            true
        }
    };
    if !enough {
        (setup().hooks.begin)();
        lend(slot, MEANWHILE);
    }
}

/// Instructions that a thread executes before it asks again what is wanted of it.
const MEANWHILE: i64 = 1 << 12;

/// Starts a block when something has to be done first.
#[cold]
fn attend(vcpu: c_uint, slot: &Slot, data: u64) {
    let region = region();
    if phase() != Phase::Detached
        && let Err(why) = region.commanded()
    {
        stop(why);
    }
    let mut joining = false;
    loop {
        if phase() == Phase::Record && !joining && slot.thread.load(Ordering::Relaxed) == 0 {
            // What was left was of the skipped part, or unlimited: ask anew.
            lend(slot, -((data >> 32) as i64));
            joining = true;
        }
        match phase() {
            Phase::Record => {
                if slot.left.load(Ordering::Relaxed) < 0 && !grant(slot, Part::Record) {
                    if end_segment() {
                        continue;
                    }
                    region.state.store(STATE_LIMIT, Ordering::Release);
                    (setup().hooks.before_exit)();
                    sys::exit_now(0);
                }
                if joining || !has_room_for_two(slot) {
                    change_buffer(vcpu, slot, Some(thread(vcpu)));
                }
                break;
            }
            Phase::Skip => {
                leave(vcpu, slot);
                if slot.left.load(Ordering::Relaxed) >= 0 || grant(slot, Part::Skip) {
                    break;
                }
                start_recording();
            }
            Phase::Gap => {
                // For the moment until translations are others: nothing is granted, so that each block
                // comes here.
                leave(vcpu, slot);
                let length = data >> 32;
                slot.passed.store(slot.passed.load(Ordering::Relaxed) + length, Ordering::Relaxed);
                pass(length as i64);
                give_back(slot);
                (setup().hooks.count)();
                break;
            }
            Phase::Wait => {
                leave(vcpu, slot);
                lend(slot, GRANT);
                break;
            }
            Phase::Detached => {
                leave(vcpu, slot);
                lend(slot, UNLIMITED);
                break;
            }
        }
    }
    let epoch = region.epoch.0.load(Ordering::Acquire);
    slot.epoch.store(epoch, Ordering::Relaxed);
    put(slot, slot.next.load(Ordering::Relaxed), epoch_word(epoch));
    put(slot, slot.next.load(Ordering::Relaxed), block_word(data as u32));
}

/// The thread's words are of no interest from here on, until it joins again.
fn leave(vcpu: c_uint, slot: &Slot) {
    if slot.thread.load(Ordering::Relaxed) != 0 {
        // Its latest block is complete: the collector need not wait for the thread's next, before
        // which much may happen.
        let epoch = slot.epoch.load(Ordering::Relaxed);
        put(slot, room(vcpu, slot), epoch_word(epoch));
    }
    drop_words(vcpu, slot);
}

/// The same within a block.
fn drop_words(vcpu: c_uint, slot: &Slot) {
    if slot.thread.load(Ordering::Relaxed) != 0 {
        give_back(slot);
        change_buffer(vcpu, slot, None);
    } else if !has_room_for_two(slot) {
        change_buffer(vcpu, slot, None);
    }
}

/// `vcpu`'s thread ends: others may have what it did not spend.
pub fn end(vcpu: c_uint) {
    give_back(slot(vcpu));
    release(vcpu);
}

/// `vcpu`'s thread may sleep now: meanwhile others may have what it did not spend.
pub fn may_sleep(vcpu: c_uint) {
    let slot = slot(vcpu);
    if has_grant(slot) {
        give_back(slot);
    }
}

/// `vcpu`'s thread is to ask what is wanted of it as its next block begins.
pub fn ask_again(vcpu: c_uint) {
    give_back(slot(vcpu));
}

/// All threads are, none of which executes anything now.
pub fn all_ask_again() {
    region().used_slots().iter().for_each(give_back);
}

/// In a guest, where one vCPU runs all threads: `thread` runs from here on, or (`None`) something that is
/// not recorded. To be called before the phase changes.
pub fn switch(vcpu: c_uint, thread: Option<ThreadId>) {
    let slot = slot(vcpu);
    let Some(thread) = thread else {
        give_back(slot);
        drop_words(vcpu, slot);
        return;
    };
    set_thread(vcpu, thread);
    match slot.thread.load(Ordering::Relaxed).checked_sub(1) {
        None if phase() == Phase::Wait => give_back(slot),
        Some(other) if other != thread => {
            change_buffer(vcpu, slot, Some(thread));
            // It has its own count of events, which its next block brings up to date.
            slot.epoch.store(u64::MAX, Ordering::Relaxed);
        }
        _ => {}
    }
}

/// In a guest: the events so far are of the block under way, if it is recorded.
pub fn join(vcpu: c_uint) {
    let slot = slot(vcpu);
    if slot.thread.load(Ordering::Relaxed) != 0 {
        let epoch = region().epoch.0.load(Ordering::Acquire);
        put(slot, room(vcpu, slot), joins_word(epoch));
        slot.epoch.store(epoch, Ordering::Relaxed);
    }
}
