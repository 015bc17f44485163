//! The vCPUs' buffers: each vCPU appends words to its own, and submits it when it is full.

use std::ffi::c_uint;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::channel::region::{BUFFER_WORDS, BUFFERS, Region, SLOTS, Slot, Stopped};
use crate::plugin::connection::{fail, region, stop, warn};
use crate::plugin::lock::Lock;
use crate::sys;

/// Buffers that no vCPU holds.
struct Pool {
    free: Vec<u32>,
    fresh: u32,
}

static POOL: Lock<Pool> = Lock::new(Pool { free: Vec::new(), fresh: 0 });

/// In a forked child, with a new region: all buffers are free.
pub fn renew() {
    POOL.renew(Pool { free: Vec::new(), fresh: 0 });
}

/// The vCPU of each slot: its number plus one, or 0.
static OWNERS: [AtomicU32; SLOTS] = [const { AtomicU32::new(0) }; SLOTS];

/// Where `vcpu` has its slot, and everything else that there is one of for each thread. A place is
/// its own place.
///
/// QEMU gives a vCPU the number above the highest there is: numbers go beyond all bounds where a
/// thread starts the next before it ends.
#[inline]
pub fn place(vcpu: c_uint) -> usize {
    if (vcpu as usize) < SLOTS { vcpu as usize } else { find_place(vcpu) }
}

/// Where a vCPU beyond the slots was last found, by its number modulo their number.
static HINTS: [AtomicU32; SLOTS] = [const { AtomicU32::new(0) }; SLOTS];

#[inline(never)]
fn find_place(vcpu: c_uint) -> usize {
    let is_its = |&place: &usize| OWNERS[place].load(Ordering::Relaxed) == vcpu + 1;
    let hint = &HINTS[vcpu as usize % SLOTS];
    let hinted = hint.load(Ordering::Relaxed) as usize;
    if is_its(&hinted) {
        return hinted;
    }
    let Some(place) = places(vcpu).find(is_its) else {
        fail("a thread has no place in the recorder's memory");
    };
    hint.store(place as u32, Ordering::Relaxed);
    place
}

/// Where a vCPU may have its slot, best first.
fn places(vcpu: c_uint) -> impl Iterator<Item = usize> {
    let fits = (vcpu as usize) < SLOTS;
    (0..if fits { 1 } else { SLOTS }).map(move |further| (vcpu as usize + further) % SLOTS)
}

/// Gives `vcpu` a place; `None` if all are taken.
pub fn take_place(vcpu: c_uint) -> Option<usize> {
    let take = |&place: &usize| {
        OWNERS[place].compare_exchange(0, vcpu + 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    places(vcpu).find(take)
}

/// `vcpu` is gone: another may have its place.
pub fn leave_place(vcpu: c_uint) {
    // Its last words first.
    OWNERS[place(vcpu)].store(0, Ordering::Release);
}

/// In a forked child: only `vcpu` has a place, the one that it had.
pub fn renew_places(vcpu: c_uint) {
    let kept = place(vcpu);
    for (place, owner) in OWNERS.iter().enumerate() {
        owner.store(if place == kept { vcpu + 1 } else { 0 }, Ordering::Relaxed);
    }
}

/// The slot of `vcpu`.
#[inline]
pub fn slot(vcpu: c_uint) -> &'static Slot {
    &region().slots[place(vcpu)]
}

/// Appends a word at `next`, which lies in the slot's buffer.
#[inline]
pub fn put(slot: &Slot, next: u64, word: u64) {
    // SAFETY: the caller compared `next` with the end of the slot's buffer, which only this thread
    // writes; the collector reads it as atomic words too.
    unsafe { (*(next as *const AtomicU64)).store(word, Ordering::Relaxed) };
    // The collector may look at any time: the word before the count.
    slot.next.store(next + 8, Ordering::Release);
}

/// Where the slot's next word goes.
#[inline]
pub fn room(vcpu: c_uint, slot: &Slot) -> u64 {
    let next = slot.next.load(Ordering::Relaxed);
    if next < slot.end.load(Ordering::Relaxed) { next } else { make_room(vcpu, slot) }
}

/// Whether two words fit in the slot's buffer: the beginning of a block with its epoch.
pub fn has_room_for_two(slot: &Slot) -> bool {
    slot.end.load(Ordering::Relaxed).wrapping_sub(slot.next.load(Ordering::Relaxed)) >= 16
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
pub fn change_buffer(vcpu: c_uint, slot: &Slot, thread: Option<u32>) {
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
    let place = place(vcpu) as u32;
    POOL.with(|_| region.submit(place, buffer, thread, words as u32, sequence)).map(|()| true)
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

/// The vCPU's thread ends: submits what its slot holds, and frees its buffer.
pub fn release(vcpu: c_uint) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_a_place_of_its_own_however_high_its_number() {
        let most = SLOTS as u32;
        assert_eq!((take_place(0), take_place(1)), (Some(0), Some(1)));
        // Each starts the next before it ends, three times round.
        for vcpu in 1..3 * most {
            let next = take_place(vcpu + 1).unwrap();
            assert!(next != 0 && next != place(vcpu) && next == place(vcpu + 1));
            assert_eq!(place(next as u32), next);
            leave_place(vcpu);
        }
        let last = 3 * most;
        renew_places(last);
        // As many more as there is room for.
        let found: Vec<_> = (last + 1..last + most).filter_map(take_place).collect();
        assert_eq!(found.len(), SLOTS - 1);
        assert!(!found.contains(&place(last)));
        assert_eq!(take_place(last + most), None);
    }
}
