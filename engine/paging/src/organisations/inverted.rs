//! The inverted page table: one entry for each frame of physical memory, found through anchors.
//!
//! Source: Huck and Hays, "Architectural Support for Translation Table Management in Large Address Space
//! Machines", ISCA 1993, which describes it as what the IBM System/38 and its followers have.
//! ```text
//!   anchor, by hash of the page's number ─► entry of a frame ─► entry of a frame ─► …
//!                                           page │ next         page │ next
//! ```
//! A walk reads the page's anchor, and then the entries of frames one after the other until one's page is
//! the one wanted: that is the frame. So the table is as large as memory asks, however much is mapped, and
//! a frame can have one page only.
//!
//! No parameters: there are as many anchors as frames, rounded up to a power of two.
//!
//! Departs from the paper:
//! - Frames of each page size have entries and anchors of their own, and are asked at once, if a page of
//!   that size was ever mapped.
//! - An entry has 16 bytes: the page's number, and a word with rights, accessed and dirty bits as in other
//!   tables, in which the next frame has the place of the page's own. Anchors have 8 bytes.
//! - Entries have no number of an address space, since what is simulated is one program's memory.
//! - Where memory has no block for the whole table, it is in up to 1024 pieces, without further cost.
//! - Chains have at most 255 entries.
//!
//! In memory:
//! ```text
//!   anchors, by hash:   the first frame of the chain + 1, or 0
//!   entries, by frame:  page number × 2 + 1, or 0 │ attributes, and the chain's next frame
//! ```
//! A frame's entry says nothing of where the frame is: its place does. The last of a chain names itself
//! as the next.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::NewLayout;
use crate::addr::Physical;
use crate::entry::Entry;
use crate::error::{LayoutError, TableError};
use crate::geometry::{Geometry, Level, page_name};
use crate::keyed::by_size::{BySize, SizeTable};
use crate::keyed::{
    Answer, Design, LineRead, MakeStore, Probe, ReadWords, Store, hash, statistics_of,
};
use crate::layout::Layout;
use crate::mapping::{NodeStatistics, Resizes};
use crate::memory::{EntryMemory, LINE_BYTES, Line, TableMemory};
use crate::walk::{Fault, Leaf};

/// Entries in a chain at most.
const LONGEST: u8 = u8::MAX;
const ANCHOR_BYTES: u64 = 8;
const ENTRY_BYTES: u64 = 16;
/// log2 of the largest block of memory that an array is tried in.
const LARGEST_SHIFT: u8 = 30;
/// Blocks that an array can be in, each of which takes a register.
const MOST_BLOCKS: u64 = 1024;

/// [`Probe::kind`] of the read of an anchor; that of a frame's entry has 0.
const ANCHOR: u8 = 1;

/// Inverted page tables have no parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {}

impl NewLayout for Parameters {
    const NAME: &str = "inverted";

    fn layout(self, geometry: Geometry) -> Result<Layout, LayoutError> {
        Ok(Layout::keyed(geometry, Frames))
    }

    fn examples() -> Vec<Value> {
        vec![json!({})]
    }
}

/// An entry for each frame.
#[derive(Clone, Copy, Debug)]
struct Frames;

impl<Out: Physical> MakeStore<Out> for Frames {
    fn make(&self, geometry: Geometry) -> Box<dyn Store<Out>> {
        Box::new(BySize::<Out, Inverted<Out>>::new(geometry, ()))
    }
}

impl Design for Frames {
    fn explain(&self, read: &LineRead, bits: &str) -> ReadWords {
        let LineRead { level, kind, way, number, found } = *read;
        let (place, meaning) = match (kind, found) {
            (ANCHOR, _) => ("anchor".to_owned(), "leads to the chain's first frame, or nowhere"),
            (_, true) => (
                format!("frame {way} of the chain"),
                "the page's: it lies in the frame of this entry",
            ),
            (_, false) => (format!("frame {way} of the chain"), "another page's, or nobody's"),
        };
        // Further entries stand where their frames do.
        let (index, found_by) = if way > 0 {
            (0, "linked to that before".to_owned())
        } else {
            (number, format!("{bits} hashes to line {number}"))
        };
        ReadWords {
            table: page_name(level).to_owned(),
            place,
            index,
            found_by,
            meaning: Some(meaning.to_owned()),
        }
    }

    fn is_made_with_machine(&self) -> bool {
        true
    }
}

/// The table for frames of one size.
#[derive(Clone, Debug)]
struct Inverted<Out> {
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
    fn find(&self, memory: &dyn EntryMemory<Out>, number: u64) -> Option<(Out, Option<Out>)> {
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

    /// Entries of the chain that begins at `frame`, up to the most there can be.
    fn length(&self, memory: &dyn EntryMemory<Out>, mut frame: Out) -> u8 {
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
}

impl<Out: Physical> SizeTable<Out> for Inverted<Out> {
    type Parameters = ();

    fn new(
        memory: &mut dyn TableMemory<Out>,
        (): &(),
        geometry: Geometry,
        level: Level,
    ) -> Result<Self, TableError> {
        let frame_shift = geometry.shift(level);
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

    fn entry(&self, memory: &dyn EntryMemory<Out>, number: u64) -> Option<Entry> {
        let (slot, _) = self.find(memory, number)?;
        Some(Entry(memory.read(slot.offset(8))).leading_to(self.frame(slot)))
    }

    fn insert(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
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

    fn remove(&mut self, memory: &mut dyn TableMemory<Out>, number: u64) {
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

    fn change(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        number: u64,
        _leaf: &Leaf<Out>,
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
        self.remove(memory, number);
        self.insert(memory, number, entry)
    }

    fn statistics(&self) -> Vec<NodeStatistics> {
        let page = page_name(self.level);
        let block = |what, array: &Array<Out>| {
            (format!("{page} {what}"), 1 << array.shift, array.blocks.len() as u64)
        };
        let blocks = [block("frames", &self.entries), block("anchors", &self.anchors)];
        statistics_of(blocks, self.level, self.used)
    }

    /// Never: there is an entry for every frame. An array in pieces counts as curtailed.
    fn resizes(&self) -> Resizes {
        let pieces = [&self.entries, &self.anchors].map(|array| u64::from(array.blocks.len() > 1));
        Resizes { curtailed: pieces.into_iter().sum(), ..Resizes::default() }
    }

    fn destroy(self, memory: &mut dyn TableMemory<Out>) {
        self.entries.destroy(memory);
        self.anchors.destroy(memory);
    }

    fn first(&self, number: u64) -> Probe<Out> {
        let at = self.anchor(number);
        Probe { kind: ANCHOR, ..Probe::word(at, self.anchors.block_of(at), self.level, 0) }
    }

    fn answer(&self, number: u64, probe: &Probe<Out>, line: &Line) -> Answer<Out> {
        let word = usize::from(probe.word);
        let next = if probe.kind == ANCHOR {
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
        Answer::Follow(Probe::word(slot, base, self.level, way))
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
    fn new(memory: &mut dyn TableMemory<Out>, bytes: u64) -> Option<Self> {
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

    fn destroy(self, memory: &mut dyn TableMemory<Out>) {
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
