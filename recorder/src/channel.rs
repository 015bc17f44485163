//! The shared memory through which a recorded process hands its execution to the collector.
//!
//! One [`Region`] per recorded process. Each vCPU appends 8-byte words to a buffer of its own
//! through its [`Slot`], with no lock; full buffers are submitted through a ring and come back
//! through another. Definitions of code and events travel through a third, the control ring.
//! The process keeps no descriptor open (the guest program shares its descriptor table and may
//! close or reuse any), and nothing has to happen at its end: whatever it wrote before it exited,
//! crashed or was killed is in the region, and the collector takes it from there.
//!
//! Producers are serialised by locks in the process's private memory, so that a process that dies
//! inside one cannot block the collector. The collector trusts nothing it reads here: the guest
//! could have overwritten it.

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
/// Bits of a virtual address: user space of x86-64 Linux, in which the host process, and so every
/// address that a guest accessed with success, lies.
pub const ADDRESS_BITS: u32 = 47;
/// Selects the address of an access word.
pub const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;

/// What a word of a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// A block with this number begins to execute.
    Block(u32),
    /// The thread has seen this many events.
    Epoch(u64),
    /// The latest block is of this epoch: the events before it came to pass while the block was under
    /// way, for its further accesses.
    Joins(u64),
    /// An access by the latest block: packed size, kind and instruction index, and the address.
    Access(u16, u64),
    /// Not a word that the recorder writes.
    Invalid,
}

const ACCESS: u64 = 1 << 63;
const BLOCK: u64 = 1 << 60;
const EPOCH: u64 = 2 << 60;
const JOINS: u64 = 3 << 60;
const PAYLOAD: u64 = (1 << 60) - 1;

/// The word that starts block `number`.
pub const fn block_word(number: u32) -> u64 {
    BLOCK | number as u64
}

/// The word that says that `epoch` events have been seen.
pub const fn epoch_word(epoch: u64) -> u64 {
    EPOCH | (epoch & PAYLOAD)
}

/// The word that says that the latest block is of `epoch`.
pub const fn joins_word(epoch: u64) -> u64 {
    JOINS | (epoch & PAYLOAD)
}

/// The fixed part of an access word: which instruction of the block.
pub const fn access_word(instruction: u16) -> u64 {
    ACCESS | (instruction as u64 & 0x1ff) << ADDRESS_BITS
}

/// Where an access word says whether it is of a store.
pub const STORE_POSITION: u32 = 62;

/// Where the size (log2 of bytes, 3 bits) stands in an access word.
pub const SIZE_POSITION: u32 = 59;

/// True for the word of an access.
#[inline]
pub const fn is_access(word: u64) -> bool {
    word & ACCESS != 0
}

/// The part of an access word above the address: the same for the same access of the same code.
#[inline]
pub const fn meta(word: u64) -> u32 {
    (word >> ADDRESS_BITS) as u32
}

/// Instruction index of a [`meta`].
pub const fn meta_instruction(meta: u32) -> u16 {
    (meta & 0x1ff) as u16
}

/// True if a [`meta`] is of a store.
pub const fn meta_store(meta: u32) -> bool {
    meta >> (STORE_POSITION - ADDRESS_BITS) & 1 != 0
}

/// Size in bytes of a [`meta`].
pub const fn meta_size(meta: u32) -> u16 {
    1 << (meta >> (SIZE_POSITION - ADDRESS_BITS) & 7)
}

/// Tells what a word other than an access is.
pub fn decode(word: u64) -> Word {
    if is_access(word) {
        Word::Access(meta(word) as u16, word & ADDRESS_MASK)
    } else if let (BLOCK, Ok(number)) = (word & !PAYLOAD, u32::try_from(word & PAYLOAD)) {
        Word::Block(number)
    } else if word & !PAYLOAD == EPOCH {
        Word::Epoch(word & PAYLOAD)
    } else if word & !PAYLOAD == JOINS {
        Word::Joins(word & PAYLOAD)
    } else {
        Word::Invalid
    }
}

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
    /// Rung by the recorded process: something was submitted.
    pub submitted: AtomicU32,
    /// Rung by the collector: room was made.
    pub drained: AtomicU32,
    /// Events so far in the whole process.
    pub epoch: Counter,
    control_tail: Counter,
    control_head: Counter,
    full_tail: Counter,
    full_head: Counter,
    free_tail: Counter,
    free_head: Counter,
    /// One per vCPU.
    pub slots: [Slot; SLOTS],
    full: [Submission; BUFFERS],
    free: [AtomicU32; BUFFERS],
    control: [AtomicU64; CONTROL_WORDS],
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

/// A record of the control ring: a block's address, then length and bytes of each instruction.
pub const CONTROL_DEFINE: u64 = 1;
/// An event: epoch, then JSON.
pub const CONTROL_EVENT: u64 = 2;
/// Something the user should read.
pub const CONTROL_WARNING: u64 = 3;
/// Why the recording is worthless: text. The process ends.
pub const CONTROL_FAILURE: u64 = 4;
/// Of a guest: how many walks and how many accesses were checked, how many instructions its kernel executed
/// for the program while that was recorded, and how many of these were repetitions; each a `u64`.
pub const CONTROL_CHECKED: u64 = 5;

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
    fn wait_for_room(&self, ready: impl Fn() -> bool) -> Result<(), Stopped> {
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

    fn ring_submitted(&self) {
        self.submitted.fetch_add(1, Ordering::Release);
        sys::futex_wake(&self.submitted);
    }

    /// Hands a buffer over. The caller holds the process's pool lock.
    ///
    /// # Errors
    /// When the collector wants no more.
    pub fn submit(
        &self,
        slot: u32,
        buffer: u32,
        thread: u32,
        words: u32,
        sequence: u64,
    ) -> Result<(), Stopped> {
        let tail = self.full_tail.0.load(Ordering::Relaxed);
        if tail - self.full_head.0.load(Ordering::Acquire) >= IN_FLIGHT {
            self.wait_for_room(|| tail - self.full_head.0.load(Ordering::Acquire) < IN_FLIGHT)?;
        }
        let entry = &self.full[tail as usize % BUFFERS];
        entry.slot.store(slot, Ordering::Relaxed);
        entry.buffer.store(buffer, Ordering::Relaxed);
        entry.thread.store(thread, Ordering::Relaxed);
        entry.words.store(words, Ordering::Relaxed);
        entry.sequence.store(sequence, Ordering::Relaxed);
        self.full_tail.0.store(tail + 1, Ordering::Release);
        self.ring_submitted();
        Ok(())
    }

    /// How many submissions wait.
    ///
    /// # Errors
    /// A description, when the ring is not as the recorder leaves it.
    pub fn submissions(&self) -> Result<u64, &'static str> {
        let head = self.full_head.0.load(Ordering::Relaxed);
        let waiting = self.full_tail.0.load(Ordering::Acquire).wrapping_sub(head);
        if waiting <= IN_FLIGHT { Ok(waiting) } else { Err("its ring of buffers runs over") }
    }

    /// The submission that waits longest, if [`Region::submissions`] says that one does.
    pub fn next_submission(&self) -> &Submission {
        &self.full[self.full_head.0.load(Ordering::Relaxed) as usize % BUFFERS]
    }

    /// Whether a buffer of `slot` waits.
    ///
    /// # Errors
    /// As [`Region::submissions`].
    pub fn has_submission_of(&self, slot: usize) -> Result<bool, &'static str> {
        let head = self.full_head.0.load(Ordering::Relaxed);
        Ok((0..self.submissions()?).any(|waiting| {
            let submission = &self.full[head.wrapping_add(waiting) as usize % BUFFERS];
            submission.slot.load(Ordering::Relaxed) as usize == slot
        }))
    }

    /// Takes the submission just seen off the ring and gives its buffer back.
    pub fn submission_done(&self, buffer: u32) {
        let tail = self.free_tail.0.load(Ordering::Relaxed);
        self.free[tail as usize % BUFFERS].store(buffer, Ordering::Relaxed);
        self.free_tail.0.store(tail.wrapping_add(1), Ordering::Release);
        self.full_head.0.fetch_add(1, Ordering::Release);
        self.ring_drained();
    }

    /// Tells the process that there is room, or a new command.
    pub fn ring_drained(&self) {
        self.drained.fetch_add(1, Ordering::Release);
        sys::futex_wake(&self.drained);
    }

    /// A buffer that came back. The caller holds the process's pool lock.
    pub fn take_free(&self) -> Option<u32> {
        let head = self.free_head.0.load(Ordering::Relaxed);
        if self.free_tail.0.load(Ordering::Acquire) == head {
            return None;
        }
        let buffer = self.free[head as usize % BUFFERS].load(Ordering::Relaxed);
        self.free_head.0.store(head + 1, Ordering::Relaxed);
        Some(buffer)
    }

    /// Appends a control record. The caller holds the process's control lock.
    ///
    /// # Errors
    /// When the collector wants no more.
    pub fn push_control(&self, kind: u64, payload: &[u8]) -> Result<(), Stopped> {
        let words = 1 + payload.len().div_ceil(8) as u64;
        let tail = self.control_tail.0.load(Ordering::Relaxed);
        let room =
            || tail + words - self.control_head.0.load(Ordering::Acquire) <= CONTROL_WORDS as u64;
        if !room() {
            self.wait_for_room(room)?;
        }
        let put = |position: u64, word: u64| {
            self.control[position as usize % CONTROL_WORDS].store(word, Ordering::Relaxed);
        };
        put(tail, kind << 32 | payload.len() as u64);
        for (index, bytes) in payload.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            put(tail + 1 + index as u64, u64::from_le_bytes(word));
        }
        self.control_tail.0.store(tail + words, Ordering::Release);
        Ok(())
    }

    /// Takes the next control record: its kind, and its payload in `payload`.
    ///
    /// # Errors
    /// A description, when the ring is not as the recorder leaves it.
    pub fn take_control(&self, payload: &mut Vec<u8>) -> Result<Option<u64>, &'static str> {
        let head = self.control_head.0.load(Ordering::Relaxed);
        let available = self.control_tail.0.load(Ordering::Acquire).wrapping_sub(head);
        if available == 0 {
            return Ok(None);
        }
        if available > CONTROL_WORDS as u64 {
            return Err("its control ring runs over");
        }
        let get =
            |position: u64| self.control[position as usize % CONTROL_WORDS].load(Ordering::Relaxed);
        let header = get(head);
        let (kind, length) = (header >> 32, (header & 0xffff_ffff) as usize);
        let words = 1 + length.div_ceil(8) as u64;
        if words > available {
            return Err("a control record is longer than what was written");
        }
        payload.clear();
        for position in 1..words {
            payload.extend_from_slice(&get(head.wrapping_add(position)).to_le_bytes());
        }
        payload.truncate(length);
        self.control_head.0.store(head.wrapping_add(words), Ordering::Release);
        Ok(Some(kind))
    }

    /// What the collector has yet to take, for its decision whether to sleep.
    pub fn is_idle(&self) -> bool {
        self.submissions() == Ok(0)
            && self.control_tail.0.load(Ordering::Acquire)
                == self.control_head.0.load(Ordering::Relaxed)
    }
}

/// What a recorded process tells the collector when it attaches, with its region's descriptor.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Hello {
    /// Layout of the region: both sides must be of the same build.
    pub version: String,
    /// Process number.
    pub pid: i32,
    /// How it came to be.
    pub origin: Origin,
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// How a recorded process came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// It was started, by the user or through an exec.
    Start,
    /// Another recorded process forked.
    Fork,
    /// It is a machine, and one of its programs is recorded.
    Guest,
}

/// Names the layout of [`Region`] and the meaning of its words.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "/3");

#[cfg(test)]
mod tests {
    use super::*;

    fn with_region(work: impl FnOnce(&Region)) {
        let memory = sys::shared_memory(REGION_BYTES).unwrap();
        // SAFETY: a new mapping of zeros, a valid region, used until it is unmapped.
        unsafe {
            let address = sys::map_shared(&memory, REGION_BYTES, std::ptr::null_mut()).unwrap();
            work(&*address.cast::<Region>());
            sys::unmap(address, REGION_BYTES);
        }
    }

    #[test]
    fn control_records_arrive_as_they_were_sent() {
        with_region(|region| {
            let mut payload = Vec::new();
            // Several times round the ring.
            for number in 0..50_000_u32 {
                let sent: Vec<u8> = (0..number % 700).map(|byte| (byte ^ number) as u8).collect();
                region.push_control(CONTROL_EVENT, &sent).unwrap();
                assert_eq!(region.take_control(&mut payload), Ok(Some(CONTROL_EVENT)));
                assert_eq!(payload, sent);
            }
            assert_eq!(region.take_control(&mut payload), Ok(None));
            assert!(region.is_idle());
        });
    }

    #[test]
    fn buffers_are_taken_in_order_and_come_back() {
        with_region(|region| {
            assert_eq!(region.take_free(), None);
            for buffer in 0..10 {
                region.submit(buffer % 3, buffer, 7, 100 + buffer, 2).unwrap();
            }
            assert_eq!(region.has_submission_of(2), Ok(true));
            assert_eq!(region.has_submission_of(3), Ok(false));
            for buffer in 0..10 {
                assert_eq!(region.submissions(), Ok(10 - u64::from(buffer)));
                let submission = region.next_submission();
                assert_eq!(submission.buffer.load(Ordering::Relaxed), buffer);
                assert_eq!(submission.words.load(Ordering::Relaxed), 100 + buffer);
                region.submission_done(buffer);
                assert_eq!(region.take_free(), Some(buffer));
            }
            assert_eq!(region.submissions(), Ok(0));
        });
    }

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
