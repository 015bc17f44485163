//! Memory to test tables in: sparse, poisoned where it was freed, with an allocator that can refuse.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::{FxHashMap, FxHashSet};

use super::sizes::Sizes;
use crate::addr::{Address, Hpa};
use crate::memory::{EntryMemory, EntryMemoryMut, NodeAllocator};

/// Word that freed nodes are filled with: a present, writable pointer (or base page) to nowhere.
const POISON: u64 = 0x000b_adba_dbad_b007;
/// Blocks up to this size are used again; larger ones have addresses to spare.
const REUSED_BYTES: u64 = 1 << 21;
/// Where the memory ends that tests map pages to.
const END_BYTES: u64 = 1 << 48;
/// Larger blocks than 1 GiB do not exist.
const LARGEST_SHIFT: u8 = 30;

/// Physical memory: words that are zero until written, and an allocator for nodes.
#[derive(Debug, Default)]
pub struct Memory {
    words: FxHashMap<u64, Box<[u64; 512]>>,
    written: BTreeSet<u64>,
    free: BTreeMap<u64, Vec<u64>>,
    /// Blocks given out: address and bytes.
    pub live: BTreeMap<u64, u64>,
    next: u64,
    /// Smallest node of the table under test; blocks above it are "large".
    pub small_bytes: u64,
    /// Which of the next allocations fail (bit 0: the very next).
    pub refuse: u32,
    /// Whether all large allocations fail.
    pub refuse_large: bool,
    /// What happened since [`Memory::begin`].
    pub counts: Counts,
    reads: Cell<u64>,
    /// Cache lines read since then, and the last of them: tables are read in order, millions of words at once.
    lines_read: RefCell<FxHashSet<u64>>,
    last_line: Cell<Option<u64>>,
}

/// What was asked of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Allocations refused.
    pub refused: u64,
    /// Of them, those for no more than the smallest node.
    pub refused_small: u64,
    /// Blocks given out.
    pub allocated: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// Blocks taken back.
    pub freed: u64,
    /// Words read.
    pub reads: u64,
    /// Words written.
    pub writes: u64,
}

impl Memory {
    /// Empty.
    pub fn new(sizes: Sizes) -> Self {
        let small_bytes = (sizes.fan * 8).max(4096);
        Self { next: 1 << 32, small_bytes, ..Self::default() }
    }

    /// Starts counting anew, with these refusals ahead.
    pub fn begin(&mut self, refuse: u32, refuse_large: bool) {
        self.counts = Counts::default();
        self.reads.set(0);
        self.lines_read.take();
        self.last_line.take();
        (self.refuse, self.refuse_large) = (refuse, refuse_large);
    }

    /// The counts; no more refusals.
    pub fn end(&mut self) -> Counts {
        (self.refuse, self.refuse_large) = (0, false);
        Counts { reads: self.reads.get(), ..self.counts }
    }

    /// The blocks given out, by address, that were read since [`Memory::begin`].
    pub fn blocks_read(&self) -> BTreeSet<u64> {
        let block = |&at: &u64| self.live.range(..=at).next_back().map(|(&start, _)| start);
        self.lines_read.borrow().iter().filter_map(block).collect()
    }

    /// Words other than zero from `start` on, with their addresses.
    pub fn words_in(&self, start: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.written.range(start..start + bytes).flat_map(move |&frame| {
            let words = self.words[&frame].iter().enumerate();
            words.filter(|(_, w)| **w != 0).map(move |(i, &w)| (frame + 8 * i as u64, w))
        })
    }

    /// Every word in every block that is given out.
    pub fn image(&self) -> BTreeMap<u64, u64> {
        self.live.iter().flat_map(|(&start, &bytes)| self.words_in(start, bytes)).collect()
    }

    fn forget(&mut self, start: u64, bytes: u64) {
        let frames: Vec<u64> = self.written.range(start..start + bytes).copied().collect();
        for frame in frames {
            self.written.remove(&frame);
            self.words.remove(&frame);
        }
    }

    /// Stores a word.
    pub fn set(&mut self, at: u64, value: u64) {
        assert_eq!(at % 8, 0);
        let frame = at & !4095;
        self.written.insert(frame);
        let words = self.words.entry(frame).or_insert_with(|| Box::new([0; 512]));
        words[(at % 4096 / 8) as usize] = value;
    }

    /// The word at `at`.
    pub fn get(&self, at: u64) -> u64 {
        assert_eq!(at % 8, 0);
        self.words.get(&(at & !4095)).map_or(0, |words| words[(at % 4096 / 8) as usize])
    }
}

impl EntryMemory<Hpa> for Memory {
    fn read(&self, at: Hpa) -> u64 {
        self.reads.set(self.reads.get() + 1);
        let line = at.raw() & !63;
        if self.last_line.replace(Some(line)) != Some(line) {
            self.lines_read.borrow_mut().insert(line);
        }
        self.get(at.raw())
    }
}

impl EntryMemoryMut<Hpa> for Memory {
    fn write(&mut self, at: Hpa, value: u64) {
        self.counts.writes += 1;
        self.set(at.raw(), value);
    }
}

impl NodeAllocator<Hpa> for Memory {
    fn allocate(&mut self, size_shift: u8) -> Option<Hpa> {
        let refused = self.refuse & 1 != 0;
        self.refuse >>= 1;
        let bytes = 1u64 << size_shift;
        if refused || size_shift > LARGEST_SHIFT || (self.refuse_large && bytes > self.small_bytes)
        {
            self.counts.refused += 1;
            self.counts.refused_small += u64::from(bytes == self.small_bytes);
            return None;
        }
        let at = self.free.get_mut(&bytes).and_then(Vec::pop).unwrap_or_else(|| {
            let at = self.next.next_multiple_of(bytes);
            self.next = at + bytes;
            at
        });
        self.forget(at, bytes);
        self.live.insert(at, bytes);
        self.counts.allocated += 1;
        self.counts.allocated_bytes += bytes;
        Some(Hpa::new(at))
    }

    fn end_bytes(&self) -> u64 {
        END_BYTES
    }

    fn free(&mut self, at: Hpa, size_shift: u8) {
        let (at, bytes) = (at.raw(), 1u64 << size_shift);
        assert_eq!(self.live.remove(&at), Some(bytes), "freed what was not given out: {at:#x}");
        self.counts.freed += 1;
        self.forget(at, bytes);
        if bytes <= REUSED_BYTES {
            for frame in (at..at + bytes).step_by(4096) {
                self.written.insert(frame);
                self.words.insert(frame, Box::new([POISON; 512]));
            }
            self.free.entry(bytes).or_default().push(at);
        }
    }
}
