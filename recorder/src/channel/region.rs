//! The region: its layout, its state, and how its two sides wake each other.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::sys;

/// Most vCPUs (threads alive at once) in one process.
pub const SLOTS: usize = 4096;
/// Buffers in a region; memory is used only for those in use.
pub const BUFFERS: usize = SLOTS + 256;
/// Words in a buffer: 256 KiB.
pub const BUFFER_WORDS: usize = 32 * 1024;
/// Full buffers that may wait for the collector: 16 MiB; beyond it, the program waits.
pub const IN_FLIGHT: u64 = 64;
/// Words of the control ring: 4 MiB.
pub const CONTROL_WORDS: usize = 512 * 1024;

/// A vCPU's place in the region. Written by its thread alone; the collector looks on.
#[repr(C, align(128))]
pub struct Slot {
    /// Address, in the recorded process, of the next word to write.
    pub next: AtomicU64,
    /// Address of the end of the buffer.
    pub end: AtomicU64,
    /// Events the thread has taken note of.
    pub epoch: AtomicU64,
    /// Instructions it may still execute before it has to ask again.
    pub left: AtomicI64,
    /// Even; odd while `buffer`, `thread` and `next` change.
    pub sequence: AtomicU64,
    /// Index of its buffer.
    pub buffer: AtomicU32,
    /// Thread number plus one; 0 while its words are of no interest.
    pub thread: AtomicU32,
    /// Instructions of all its threads that were counted and not recorded.
    pub passed: AtomicU64,
    /// Which part of the budget `left` was taken from; the recorded process's own affair.
    pub part: AtomicU32,
}

/// A full (or final) buffer.
#[repr(C)]
pub struct Submission {
    /// Which vCPU.
    pub slot: AtomicU32,
    /// Which buffer.
    pub buffer: AtomicU32,
    /// Thread number.
    pub thread: AtomicU32,
    /// Words in use.
    pub words: AtomicU32,
    /// The slot's sequence number while the buffer was its own.
    pub sequence: AtomicU64,
}

/// A counter on a cache line of its own.
#[repr(C, align(128))]
pub struct Counter(pub AtomicU64);

/// All of the shared memory. Zero-filled is its valid beginning.
#[repr(C)]
pub struct Region {
    /// Address of this region in the recorded process.
    pub base: AtomicU64,
    /// The collector's process, which the recorded process watches while it waits.
    pub collector: AtomicI32,
    /// One of `STATE_…`, set by the recorded process.
    pub state: AtomicU32,
    /// One of `COMMAND_…`, set by the collector.
    pub command: AtomicU32,
    /// Slots below this one may be in use.
    pub vcpus: AtomicU32,
    /// Incremented by the recorded process: something was submitted.
    pub submitted: AtomicU32,
    /// Incremented by the collector: room was made.
    pub drained: AtomicU32,
    /// 1 while what passes is a gap in the recording; 0 before it begins, and while it pauses.
    pub gaps_count: AtomicU32,
    /// Instructions that were passed while it was 0.
    pub discarded: AtomicU64,
    /// Events so far in the whole process.
    pub epoch: Counter,
    pub(super) control_tail: Counter,
    pub(super) control_head: Counter,
    pub(super) full_tail: Counter,
    pub(super) full_head: Counter,
    pub(super) free_tail: Counter,
    pub(super) free_head: Counter,
    /// One per vCPU.
    pub slots: [Slot; SLOTS],
    pub(super) full: [Submission; BUFFERS],
    pub(super) free: [AtomicU32; BUFFERS],
    pub(super) control: [AtomicU64; CONTROL_WORDS],
    /// The buffers.
    pub buffers: [[AtomicU64; BUFFER_WORDS]; BUFFERS],
}

/// The process runs.
pub const STATE_RUNNING: u32 = 0;
/// The process is about to replace itself by another program.
pub const STATE_EXECUTING: u32 = 1;
/// The process ended itself because the limit was reached.
pub const STATE_LIMIT: u32 = 2;

/// Go on.
pub const COMMAND_RECORD: u32 = 0;
/// Nothing can be recorded any more: end.
pub const COMMAND_END: u32 = 1;
/// Recording is over: run on unrecorded.
pub const COMMAND_DETACH: u32 = 2;

/// Bytes of a region.
pub const REGION_BYTES: usize = size_of::<Region>();

/// How long a process waits for room before it checks that the collector is still there.
const PATIENCE: Duration = Duration::from_millis(200);

/// Why nothing can be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The collector failed, or is gone.
    End,
    /// The collector wants no more.
    Detach,
}

impl Region {
    /// Offset of buffer `index` within the region.
    pub const fn buffer_offset(index: usize) -> usize {
        std::mem::offset_of!(Region, buffers) + index * BUFFER_WORDS * 8
    }

    /// Whether the collector wants more.
    ///
    /// # Errors
    /// What it wants instead.
    pub fn commanded(&self) -> Result<(), Stopped> {
        match self.command.load(Ordering::Acquire) {
            COMMAND_RECORD => Ok(()),
            COMMAND_DETACH => Err(Stopped::Detach),
            _ => Err(Stopped::End),
        }
    }

    /// Waits until `ready`, or the collector wants no more or is gone.
    pub(super) fn wait_for_room(&self, ready: impl Fn() -> bool) -> Result<(), Stopped> {
        loop {
            let seen = self.drained.load(Ordering::Acquire);
            self.commanded()?;
            if ready() {
                return Ok(());
            }
            self.ring_submitted();
            sys::futex_wait(&self.drained, seen, PATIENCE);
            if !sys::process_exists(self.collector.load(Ordering::Relaxed)) {
                return Err(Stopped::End);
            }
        }
    }

    /// Wakes the collector: something was submitted.
    pub(super) fn ring_submitted(&self) {
        self.submitted.fetch_add(1, Ordering::Release);
        sys::futex_wake(&self.submitted);
    }

    /// Wakes the process: there is room, or a new command.
    pub fn ring_drained(&self) {
        self.drained.fetch_add(1, Ordering::Release);
        sys::futex_wake(&self.drained);
    }

    /// The slots that may be in use.
    pub fn used_slots(&self) -> &[Slot] {
        &self.slots[..(self.vcpus.load(Ordering::Acquire) as usize).min(SLOTS)]
    }

    /// Instructions that were counted and not recorded, of all threads.
    pub fn passed(&self) -> u64 {
        let passed = self.used_slots().iter().map(|slot| slot.passed.load(Ordering::Relaxed));
        passed.fold(0, u64::wrapping_add)
    }

    /// Whether the collector has taken everything, for its decision whether to sleep.
    pub fn is_idle(&self) -> bool {
        let is_empty = |tail: &Counter, head: &Counter| {
            tail.0.load(Ordering::Acquire) == head.0.load(Ordering::Relaxed)
        };
        is_empty(&self.full_tail, &self.full_head)
            && is_empty(&self.control_tail, &self.control_head)
    }
}

/// Runs `work` on a new region.
#[cfg(test)]
pub(super) fn with_region(work: impl FnOnce(&Region)) {
    let memory = sys::shared_memory(REGION_BYTES).unwrap();
    // SAFETY: a new mapping of zeros, a valid region, used until it is unmapped.
    unsafe {
        let address = sys::map_shared(&memory, REGION_BYTES, std::ptr::null_mut()).unwrap();
        work(&*address.cast::<Region>());
        sys::unmap(address, REGION_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_overwrites_the_rings_is_found_out() {
        for garbage in [1 << 20, u64::MAX, u64::MAX / 2] {
            with_region(|region| {
                region.full_tail.0.store(garbage, Ordering::Relaxed);
                region.control_tail.0.store(garbage, Ordering::Relaxed);
                assert!(region.submissions().is_err());
                assert!(region.has_submission_of(0).is_err());
                assert!(region.take_control(&mut Vec::new()).is_err());
            });
            with_region(|region| {
                region.full_head.0.store(garbage, Ordering::Relaxed);
                region.full_tail.0.store(garbage.wrapping_add(1), Ordering::Relaxed);
                region.control_head.0.store(garbage, Ordering::Relaxed);
                region.control_tail.0.store(garbage.wrapping_add(2), Ordering::Relaxed);
                region.control[garbage as usize % CONTROL_WORDS].store(u64::MAX, Ordering::Relaxed);
                assert_eq!(region.has_submission_of(0), Ok(true));
                assert!(region.take_control(&mut Vec::new()).is_err());
                region.submission_done(0);
                assert_eq!(region.submissions(), Ok(0));
            });
        }
    }
}
