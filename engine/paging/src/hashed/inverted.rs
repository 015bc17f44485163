//! An inverted page table: one entry for each frame of memory, and anchors that lead to them.
//!
//! Source: Huck and Hays (ISCA 1993), section 2; see `organisations/inverted.rs`.
//!
//! ```text
//!   anchors, by hash:   the first frame of the chain + 1, or 0
//!   entries, by frame:  page number × 2 + 1, or 0 │ attributes, and the chain's next frame
//! ```
//! A frame's entry says nothing of where the frame is: its place does. The last of a chain names itself
//! as the next.

use super::cuckoo::Resizes;
use super::hash;
use super::line::{LINE_BYTES, Line};
use super::walk::{Answer, Part, Probe};
use crate::addr::Physical;
use crate::entry::Entry;
use crate::geometry::Level;
use crate::memory::{EntryMemory, TableMemory};
use crate::tree::TableError;
use crate::walk::{Fault, Leaf};

/// Entries in a chain at most.
const LONGEST: u8 = u8::MAX;
const ANCHOR_BYTES: u64 = 8;
const ENTRY_BYTES: u64 = 16;
/// log2 of the largest block of memory that an array is tried in.
const LARGEST_SHIFT: u8 = 30;
/// Blocks that an array can be in, each of which takes a register.
const MOST_BLOCKS: u64 = 1024;

/// The table for frames of one size.
#[derive(Clone, Debug)]
pub(super) struct Inverted<Out> {
    /// Level of the pages that have such frames.
    level: Level,
    /// log2 of a frame's bytes.
    frame_shift: u8,
    /// Frames that have an entry.
    frames: u64,
    entries: Array<Out>,
    /// log2 of the anchors.
    anchors_shift: u8,
    anchors: Array<Out>,
    salt: u64,
    /// Entries in use.
    used: u64,
}

impl<Out: Physical> Inverted<Out> {
    /// An empty table for pages of `level`, whose frames have 2^`frame_shift` bytes, anywhere in `memory`.
    pub(super) fn new(
        memory: &mut impl TableMemory<Out>,
        level: Level,
        frame_shift: u8,
    ) -> Result<Self, TableError> {
        let frames = memory.end_bytes().div_ceil(1 << frame_shift).max(1);
        // An anchor for each frame, and a whole number of lines.
        let anchors_shift = frames.next_power_of_two().ilog2().max(3) as u8;
        let entries = Array::new(memory, frames * ENTRY_BYTES).ok_or(TableError::OutOfMemory)?;
        let Some(anchors) = Array::new(memory, ANCHOR_BYTES << anchors_shift) else {
            entries.destroy(memory);
            return Err(TableError::OutOfMemory);
        };
        let salt = hash::salt(level.into());
        Ok(Self { level, frame_shift, frames, entries, anchors_shift, anchors, salt, used: 0 })
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Never: there is an entry for every frame. An array in pieces counts as curtailed.
    pub(super) fn resizes(&self) -> Resizes {
        let pieces = [&self.entries, &self.anchors].map(|array| u64::from(array.blocks.len() > 1));
        Resizes { curtailed: pieces.into_iter().sum(), ..Resizes::default() }
    }

    /// Bytes and number of blocks: of entries, and of anchors.
    pub(super) fn blocks(&self) -> [(u64, u64); 2] {
        [&self.entries, &self.anchors].map(|array| (1 << array.shift, array.blocks.len() as u64))
    }

    /// Where the anchor for page `number` stands.
    fn anchor(&self, number: u64) -> Out {
        let hash = hash::index(number, self.salt, self.anchors_shift);
        self.anchors.at(hash * ANCHOR_BYTES)
    }

    /// Where the entry of `frame` stands, if there is such a frame.
    fn slot(&self, frame: Out) -> Option<Out> {
        let index = frame.raw() >> self.frame_shift;
        let exists = index < self.frames && frame.raw() == index << self.frame_shift;
        exists.then(|| self.entries.at(index * ENTRY_BYTES))
    }

    /// The frame whose entry stands at `slot`.
    fn frame(&self, slot: Out) -> Out {
        Out::new((self.entries.offset(slot) / ENTRY_BYTES) << self.frame_shift)
    }

    /// The frame that the anchor's `word` leads to.
    fn first_frame(word: u64) -> Option<Out> {
        (word & 1 != 0).then(|| Out::new(word - 1))
    }

    /// The slot of page `number`, and of the one before it in the chain.
    fn find(&self, memory: &impl EntryMemory<Out>, number: u64) -> Option<(Out, Option<Out>)> {
        let mut before = None;
        let mut at = self.slot(Self::first_frame(memory.read(self.anchor(number)))?)?;
        for _ in 0..LONGEST {
            if memory.read(at) == tag(number) {
                return Some((at, before));
            }
            let next = self.slot(link(memory.read(at.offset(8))))?;
            if next == at {
                return None;
            }
            (before, at) = (Some(at), next);
        }
        None
    }

    /// The entry of page `number`, with the frame in it, and where it stands.
    pub(super) fn entry(
        &self,
        memory: &impl EntryMemory<Out>,
        number: u64,
    ) -> Option<(Out, Entry)> {
        let (slot, _) = self.find(memory, number)?;
        let entry = Entry(memory.read(slot.offset(8))).leading_to(self.frame(slot));
        Some((slot.offset(8), entry))
    }

    /// Puts in the entry of page `number`, which has none.
    ///
    /// # Errors
    /// [`TableError::FrameTaken`], [`TableError::FrameTooHigh`], or [`TableError::OutOfMemory`] for a
    /// chain that is too long.
    pub(super) fn insert_entry(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        number: u64,
        entry: Entry,
    ) -> Result<(), TableError> {
        let frame: Out = link(entry.0);
        let slot = self.slot(frame).ok_or(TableError::FrameTooHigh(frame.raw()))?;
        if memory.read(slot) != 0 {
            return Err(TableError::FrameTaken(frame.raw()));
        }
        let anchor = self.anchor(number);
        let first = Self::first_frame(memory.read(anchor));
        if first.is_some_and(|first| self.length(memory, first) == LONGEST) {
            return Err(TableError::OutOfMemory);
        }
        memory.write(slot.offset(8), entry.leading_to(first.unwrap_or(frame)).0);
        memory.write(slot, tag(number));
        memory.write(anchor, frame.raw() + 1);
        self.used += 1;
        Ok(())
    }

    /// Entries of the chain that begins at `frame`, up to the most there can be.
    fn length(&self, memory: &impl EntryMemory<Out>, mut frame: Out) -> u8 {
        for length in 1..LONGEST {
            let Some(slot) = self.slot(frame) else { return length };
            let next = link(memory.read(slot.offset(8)));
            if next == frame {
                return length;
            }
            frame = next;
        }
        LONGEST
    }

    /// Takes the entry of page `number` away, if it has one.
    pub(super) fn remove_entry(&mut self, memory: &mut impl TableMemory<Out>, number: u64) {
        let Some((slot, before)) = self.find(memory, number) else { return };
        let (frame, next) = (self.frame(slot), link(memory.read(slot.offset(8))));
        let more = next != frame;
        match before {
            Some(before) => {
                let last = self.frame(before);
                let entry = Entry(memory.read(before.offset(8)));
                let next = if more { next } else { last };
                memory.write(before.offset(8), entry.leading_to(next).0);
            }
            None => memory.write(self.anchor(number), if more { next.raw() + 1 } else { 0 }),
        }
        memory.write(slot, 0);
        memory.write(slot.offset(8), 0);
        self.used -= 1;
    }

    /// Gives the page `number`, which has one, another entry, perhaps for another frame.
    ///
    /// # Errors
    /// As [`Inverted::insert_entry`]; nothing has changed then.
    pub(super) fn change_entry(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        number: u64,
        entry: Entry,
    ) -> Result<(), TableError> {
        let Some((slot, _)) = self.find(memory, number) else { return Ok(()) };
        let frame: Out = link(entry.0);
        if frame == self.frame(slot) {
            let next: Out = link(memory.read(slot.offset(8)));
            memory.write(slot.offset(8), entry.leading_to(next).0);
            return Ok(());
        }
        let new = self.slot(frame).ok_or(TableError::FrameTooHigh(frame.raw()))?;
        if memory.read(new) != 0 {
            return Err(TableError::FrameTaken(frame.raw()));
        }
        self.remove_entry(memory, number);
        self.insert_entry(memory, number, entry)
    }

    /// Gives all memory back.
    pub(super) fn destroy(self, memory: &mut impl TableMemory<Out>) {
        self.entries.destroy(memory);
        self.anchors.destroy(memory);
    }

    // ---- the walk -------------------------------------------------------------------------------

    /// The first read of a walk for page `number`: the anchor.
    pub(super) fn first(&self, number: u64) -> Probe<Out> {
        let at = self.anchor(number);
        Probe::word(at, Part::Anchor(self.level), 0, self.anchors.block_of(at))
    }

    /// What the `line` read at `probe` leads to.
    pub(super) fn answer(&self, number: u64, probe: &Probe<Out>, line: &Line) -> Answer<Out> {
        let word = usize::from(probe.word);
        let next = if probe.part == Part::Anchor(self.level) {
            let Some(first) = Self::first_frame(line[word]) else { return Answer::Nothing };
            first
        } else {
            let slot = probe.at.offset(word as u64 * 8);
            let (frame, entry) = (self.frame(slot), Entry(line[word + 1]));
            if line[word] == tag(number) {
                let (rights, entry_address) = (entry.rights(), slot.offset(8));
                return Answer::Leaf(Leaf {
                    frame,
                    level: self.level,
                    rights,
                    entry_address,
                    entry,
                });
            }
            let next = link(entry.0);
            if next == frame {
                return Answer::Nothing;
            }
            next
        };
        let Some(way) = probe.way.checked_add(1) else { return Answer::Nothing };
        let Some(slot) = self.slot(next) else {
            // Something else wrote to the table.
            let entry_address = probe.at.offset(word as u64 * 8);
            return Answer::Fault(Fault::Reserved { level: self.level, entry_address });
        };
        let base = self.entries.block_of(slot);
        Answer::Follow(Probe::word(slot, Part::Frame(self.level), way, base))
    }
}

/// Memory in one block, or in pieces of equal size where there is none as large.
#[derive(Clone, Debug)]
struct Array<Out> {
    /// log2 of a block's bytes.
    shift: u8,
    blocks: Box<[Out]>,
}

impl<Out: Physical> Array<Out> {
    fn new(memory: &mut impl TableMemory<Out>, bytes: u64) -> Option<Self> {
        let whole = (bytes.next_power_of_two().ilog2() as u8).clamp(12, LARGEST_SHIFT);
        let fits = (12..=whole).rev().map(|shift| (shift, bytes.div_ceil(1 << shift)));
        for (shift, count) in fits.take_while(|&(_, count)| count <= MOST_BLOCKS) {
            let mut blocks = Vec::new();
            while blocks.len() as u64 != count {
                let Some(block) = memory.allocate(shift) else { break };
                blocks.push(block);
            }
            let array = Self { shift, blocks: blocks.into() };
            if array.blocks.len() as u64 == count {
                return Some(array);
            }
            array.destroy(memory);
        }
        None
    }

    /// Address of byte `offset`.
    fn at(&self, offset: u64) -> Out {
        let within = offset & ((1 << self.shift) - 1);
        self.blocks[(offset >> self.shift) as usize].offset(within)
    }

    /// Where the block begins that `at` lies in.
    fn block_of(&self, at: Out) -> Out {
        Out::new(at.raw() & !((1 << self.shift) - 1))
    }

    /// Which byte of the array `at` is.
    fn offset(&self, at: Out) -> u64 {
        let block = self.block_of(at);
        let number = self.blocks.iter().position(|&known| known == block).unwrap_or(0);
        ((number as u64) << self.shift) + (at.raw() - block.raw())
    }

    fn destroy(self, memory: &mut impl TableMemory<Out>) {
        for block in self.blocks {
            memory.free(block, self.shift);
        }
    }
}

/// The first word of the entry for page `number`.
fn tag(number: u64) -> u64 {
    number << 1 | 1
}

/// The frame that an entry's second word leads to.
fn link<Out: Physical>(word: u64) -> Out {
    Out::new(word & Entry::FRAME)
}

const _: () = assert!(LINE_BYTES.is_multiple_of(ENTRY_BYTES), "an entry is within one line");
