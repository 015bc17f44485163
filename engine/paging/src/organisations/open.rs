//! The page table with open addressing: lines of eight entries, in the first free place.
//!
//! Source: Yaniv and Tsafrir, "Hash, Don't Cache (the Page Table)", SIGMETRICS 2016; growing as in the
//! public simulator Virtuoso.
//! ```text
//!   line:  the entries of eight neighbouring pages, with their number's tag in spare bits (64 bytes)
//! ```
//! A walk reads the line that the number's hash names, and those behind it one after the other until one has
//! the tag, or is vacant. There are no links, so that a line of the caches is all entries. A table for each
//! page size is asked at once. Lines are tagged as in [`crate::keyed::line`].
//!
//! Parameter: `buckets`, lines of a new table.
//!
//! Departs from the paper:
//! - One table for each process, which doubles its lines, and enters all anew, when more than 0.6 of them
//!   are in use. Where there is no contiguous memory for that, more lines are behind others.
//! - Tags have 35 bits, so page tables of five levels do not fit.
//! - A line is at most 254 places behind its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::NewLayout;
use crate::addr::Physical;
use crate::entry::Entry;
use crate::error::{LayoutError, TableError};
use crate::geometry::{Geometry, Level, page_name};
use crate::keyed::by_size::{BySize, SizeTable};
use crate::keyed::chained::buckets_shift;
use crate::keyed::line::{
    ENTRIES_SHIFT, TaggedLine, fits_tag, is_vacant, key, lines_shift, matches, with_one,
    with_tag_of,
};
use crate::keyed::{
    Answer, Design, LineRead, MakeStore, Probe, ReadWords, Store, hash, largest_block, leaf_of,
    statistics_of,
};
use crate::layout::Layout;
use crate::mapping::{NodeStatistics, Resizes};
use crate::memory::{EntryMemory, LINE_BYTES, Line, TableMemory};
use crate::walk::Leaf;

/// Lines that are looked at for one page at most.
const FARTHEST: u64 = u8::MAX as u64;
/// Of 1000 lines, more in use than this make the table grow.
const GROW_PERMILLE: u64 = 600;
/// Where memory was refused for that, it is tried again when this share more of the lines is in use.
const RETRY_SHARE: u64 = 64;
/// The fewest lines: one frame of 4 KiB.
const LEAST_SHIFT: u8 = 6;

/// Parameters of page tables with open addressing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Lines of a new table; a power of two.
    #[schemars(range(min = 32, max = 4_194_304))]
    pub buckets: u32,
}

impl NewLayout for Parameters {
    const NAME: &str = "open";

    fn layout(self, geometry: Geometry) -> Result<Layout, LayoutError> {
        let first_shift = buckets_shift(Self::NAME, self.buckets)?;
        fits_tag(Self::NAME, geometry)?;
        Ok(Layout::keyed(geometry, OpenAddressing { first_shift }))
    }

    fn examples() -> Vec<Value> {
        vec![json!({ "buckets": 32 })]
    }
}

#[derive(Clone, Copy, Debug)]
struct OpenAddressing {
    /// log2 of the lines of a new table.
    first_shift: u8,
}

impl<Out: Physical> MakeStore<Out> for OpenAddressing {
    fn make(&self, geometry: Geometry) -> Box<dyn Store<Out>> {
        Box::new(BySize::<Out, Open<Out>>::new(geometry, *self))
    }
}

impl Design for OpenAddressing {
    fn pages_shift(&self, _read: &LineRead) -> u8 {
        ENTRIES_SHIFT as u8
    }

    fn explain(&self, read: &LineRead, bits: &str) -> ReadWords {
        let LineRead { level, way, number, found, .. } = *read;
        ReadWords {
            table: page_name(level).to_owned(),
            place: format!("line {way} looked at"),
            index: number,
            found_by: if way > 0 {
                "behind that before".to_owned()
            } else {
                format!("{bits} hashes to line {number}")
            },
            meaning: (!found).then(|| "does not hold the page".to_owned()),
        }
    }
}

/// The table for pages of one size. What it holds is in memory; here are the registers that hardware has
/// too, and the operating system's count of lines in use.
#[derive(Clone, Debug)]
struct Open<Out> {
    geometry: Geometry,
    level: Level,
    base: Out,
    /// log2 of the lines.
    shift: u8,
    salt: u64,
    used: u64,
    /// Lines in use at which growing is tried again.
    retry_at: u64,
    resizes: Resizes,
}

impl<Out: Physical> Open<Out> {
    /// Number of the line that `key` belongs in.
    fn home(&self, key: u64) -> u64 {
        hash::index(key, self.salt, self.shift)
    }

    /// Address of line `index`, counted on from the first after the last.
    fn line(&self, index: u64) -> Out {
        self.base.offset((index & ((1 << self.shift) - 1)) * LINE_BYTES)
    }

    fn vacant_at(memory: &dyn EntryMemory<Out>, at: Out) -> bool {
        is_vacant(memory.read(at.offset(56)))
    }

    /// Where the line for `key` is; else the place where it would be put, if that is near enough.
    fn find(&self, memory: &dyn EntryMemory<Out>, key: u64) -> Result<Out, Option<Out>> {
        let home = self.home(key);
        for at in (home..home + FARTHEST.min(1 << self.shift)).map(|i| self.line(i)) {
            let line = memory.read_line(at);
            if is_vacant(line[7]) {
                return Err(Some(at));
            }
            if matches(&line, key) {
                return Ok(at);
            }
        }
        Err(None)
    }

    /// Moves lines up, so that none that has been put behind line `gap` for want of room is missed when
    /// that is vacant.
    fn close_gap(&self, memory: &mut dyn TableMemory<Out>, mut gap: u64) {
        let mask = (1 << self.shift) - 1;
        for i in (gap + 1..).take(mask as usize) {
            let at = self.line(i);
            if Self::vacant_at(memory, at) {
                break;
            }
            let line = memory.read_line(at);
            let home = self.home(key(&line));
            // Its way from home leads past the gap.
            if i.wrapping_sub(home) & mask >= (i - gap) & mask {
                memory.write_line(self.line(gap), &line);
                gap = i;
            }
        }
        memory.write_line(self.line(gap), &[0; 8]);
    }

    /// Twice the lines; false if there is no memory for them, or a line finds no place.
    fn grow(&mut self, memory: &mut dyn TableMemory<Out>) -> bool {
        let shift = self.shift + 1;
        let Some(base) = memory.allocate(lines_shift(shift)) else { return false };
        let new = Self { base, shift, retry_at: 0, ..self.clone() };
        for i in 0..1 << self.shift {
            let line = memory.read_line(self.line(i));
            if is_vacant(line[7]) {
                continue;
            }
            let Err(Some(place)) = new.find(memory, key(&line)) else {
                new.destroy(memory);
                return false;
            };
            memory.write_line(place, &line);
        }
        std::mem::replace(self, new).destroy(memory);
        self.resizes.grown += 1;
        true
    }
}

impl<Out: Physical> SizeTable<Out> for Open<Out> {
    type Parameters = OpenAddressing;

    /// An empty table with as many lines as its parameters say, or fewer where memory has no such block.
    fn new(
        memory: &mut dyn TableMemory<Out>,
        &OpenAddressing { first_shift }: &OpenAddressing,
        geometry: Geometry,
        level: Level,
    ) -> Result<Self, TableError> {
        let most = first_shift.max(LEAST_SHIFT);
        let (base, shift) = largest_block(memory, LEAST_SHIFT..=most, lines_shift)
            .ok_or(TableError::OutOfMemory)?;
        let resizes = Resizes { curtailed: u64::from(shift < most), ..Resizes::default() };
        let salt = hash::salt(level.into());
        Ok(Self { geometry, level, base, shift, salt, used: 0, retry_at: 0, resizes })
    }

    fn entry(&self, memory: &dyn EntryMemory<Out>, number: u64) -> Option<Entry> {
        let line = TaggedLine(self.find(memory, number >> ENTRIES_SHIFT).ok()?);
        let entry = line.entry(memory, number & 7);
        entry.is_present().then_some(entry)
    }

    fn insert(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        number: u64,
        entry: Entry,
    ) -> Result<(), TableError> {
        let key = number >> ENTRIES_SHIFT;
        let place = match self.find(memory, key) {
            Ok(at) => {
                TaggedLine(at).write(memory, number & 7, entry);
                TaggedLine(at).count_up(memory, 1);
                return Ok(());
            }
            Err(place) => place,
        };
        let crowded = (self.used + 1) * 1000 > GROW_PERMILLE << self.shift;
        let due = place.is_none() || (crowded && self.used >= self.retry_at);
        let grown = due && self.grow(memory);
        if due && !grown {
            self.resizes.refused += 1;
            self.retry_at = self.used + (1_u64 << self.shift).div_ceil(RETRY_SHARE);
        }
        let place = if grown { self.find(memory, key).err().flatten() } else { place };
        memory.write_line(place.ok_or(TableError::OutOfMemory)?, &with_one(number, entry));
        self.used += 1;
        Ok(())
    }

    fn remove(&mut self, memory: &mut dyn TableMemory<Out>, number: u64) {
        let Ok(at) = self.find(memory, number >> ENTRIES_SHIFT) else { return };
        if !TaggedLine(at).take(memory, number & 7) {
            self.close_gap(memory, (at.raw() - self.base.raw()) / LINE_BYTES);
            self.used -= 1;
        }
    }

    fn change(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        _number: u64,
        leaf: &Leaf<Out>,
        entry: Entry,
    ) -> Result<(), TableError> {
        memory.write(leaf.entry_address, with_tag_of(entry, leaf.entry.0).0);
        Ok(())
    }

    fn statistics(&self) -> Vec<NodeStatistics> {
        let name = format!("{} lines", page_name(self.level));
        statistics_of([(name, LINE_BYTES << self.shift, 1)], self.level, self.used)
    }

    fn resizes(&self) -> Resizes {
        self.resizes
    }

    fn destroy(self, memory: &mut dyn TableMemory<Out>) {
        memory.free(self.base, lines_shift(self.shift));
    }

    fn first(&self, number: u64) -> Probe<Out> {
        Probe::whole(self.line(self.home(number >> ENTRIES_SHIFT)), self.base, self.level, 0)
    }

    fn answer(&self, number: u64, probe: &Probe<Out>, line: &Line) -> Answer<Out> {
        if matches(line, number >> ENTRIES_SHIFT) {
            return leaf_of(self.geometry, self.level, probe.at, line, number % 8);
        }
        match probe.way.checked_add(1) {
            Some(way) if !is_vacant(line[7]) => {
                Answer::Follow(Probe { at: self.line(probe.line() + 1), way, ..*probe })
            }
            _ => Answer::Nothing,
        }
    }
}
