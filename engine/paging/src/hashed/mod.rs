//! Page tables without a tree: entries found by hashing the page's number.
//!
//! A table for each page size holds the entries of that size's pages; those of large pages are made
//! when the first such page is mapped. What a walk reads is [`Hashed::probes`], lines that are asked
//! for at once, and [`Hashed::answer`] says what each led to: the step machine of [`crate::Walk`],
//! with several reads where that has one.
//!
//! Beside what stands in memory there is what the hardware has in registers (where the ways lie, how
//! far they are carried over) and what an operating system keeps of its own: how many pages are
//! mapped in each region.

mod chained;
mod cuckoo;
mod hash;
mod inverted;
mod line;
mod open;
mod walk;

use std::marker::PhantomData;

use rustc_hash::FxHashMap;

use crate::addr::{Address, Physical};
use crate::entry::{Attributes, Decoded, Entry};
use crate::geometry::{Geometry, Level};
use crate::memory::{EntryMemory, TableMemory};
use crate::table::{check_canonical, check_frame, check_page};
use crate::tree::{Flush, Mapping, NodeKind, NodeStatistics, TableError};
use crate::walk::{Fault, Leaf};

use chained::Chained;
use cuckoo::{Cuckoo, Moves};
use inverted::Inverted;
use line::{Format, HEADER_BITS, HEADERS, header, says_nothing, with_header, with_tag_of};
use open::Open;

pub use cuckoo::{Elasticity, Resizes};
pub use line::{LINE_BYTES, Line};
pub use walk::{Answer, Hint, Part, Probe, Probes, Where};

/// Bits of a page number that a tag has room for.
pub(crate) const TAG_BITS: u32 = line::ENTRIES_TAG_BITS;
/// log2 of the entries in a line.
pub(crate) const ENTRIES_SHIFT: u32 = 3;
/// The most ways.
pub(crate) const MOST_WAYS: usize = cuckoo::MOST_WAYS;

/// What the tables are made like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// Elastic cuckoo tables.
    Cuckoo {
        /// Ways of each table.
        ways: u8,
        /// log2 of the lines in a way of a new table.
        first_shift: u8,
        /// When tables are resized.
        elasticity: Elasticity,
        /// log2 of the lines in a way of the walk tables for levels 2 and 3; `None`: there are none.
        walk_tables: Option<[u8; 2]>,
    },
    /// Buckets with chains.
    Chained {
        /// log2 of the pages that a node has entries for.
        block_shift: u8,
        /// log2 of the buckets of a new table.
        first_shift: u8,
    },
    /// Lines in the first free place.
    Open {
        /// log2 of the lines of a new table.
        first_shift: u8,
    },
    /// An entry for each frame.
    Inverted,
}

/// Where the entries of one page size are.
#[derive(Clone, Debug)]
enum Store<Out> {
    Cuckoo(Cuckoo<Out>),
    Chained(Chained<Out>),
    Open(Open<Out>),
    Inverted(Inverted<Out>),
}

impl<Out: Physical> Store<Out> {
    fn entry(&self, memory: &impl EntryMemory<Out>, number: u64) -> Option<(Out, Entry)> {
        match self {
            Self::Cuckoo(table) => table.entry(memory, number),
            Self::Chained(table) => table.entry(memory, number),
            Self::Open(table) => table.entry(memory, number),
            Self::Inverted(table) => table.entry(memory, number),
        }
    }

    fn insert_entry(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        number: u64,
        entry: Entry,
        moves: &mut Moves,
    ) -> Result<(), TableError> {
        match self {
            Self::Cuckoo(table) => table.insert_entry(memory, number, entry, moves),
            Self::Chained(table) => table.insert_entry(memory, number, entry),
            Self::Open(table) => table.insert_entry(memory, number, entry),
            Self::Inverted(table) => table.insert_entry(memory, number, entry),
        }
    }

    fn remove_entry(&mut self, memory: &mut impl TableMemory<Out>, number: u64, moves: &mut Moves) {
        match self {
            Self::Cuckoo(table) => table.remove_entry(memory, number, moves),
            Self::Chained(table) => table.remove_entry(memory, number),
            Self::Open(table) => table.remove_entry(memory, number),
            Self::Inverted(table) => table.remove_entry(memory, number),
        }
    }

    fn resizes(&self) -> Resizes {
        match self {
            Self::Cuckoo(table) => table.resizes(),
            Self::Chained(table) => table.resizes(),
            Self::Open(table) => table.resizes(),
            Self::Inverted(table) => table.resizes(),
        }
    }

    /// The first read of a walk for page `number`, where there is but one.
    #[inline]
    fn first(&self, number: u64, level: Level) -> Option<Probe<Out>> {
        match self {
            Self::Cuckoo(_) => None,
            Self::Chained(table) => Some(table.first(number, level)),
            Self::Open(table) => Some(table.first(number, level)),
            Self::Inverted(table) => Some(table.first(number)),
        }
    }

    /// The way of the line for the pages that the header `number` is for.
    fn way(&self, memory: &impl EntryMemory<Out>, number: u64) -> Option<u8> {
        match self {
            Self::Cuckoo(table) => table.find(memory, number).map(|(_, way)| way),
            Self::Chained(_) | Self::Open(_) | Self::Inverted(_) => None,
        }
    }

    fn statistics(&self, level: Level) -> Vec<NodeStatistics> {
        match self {
            Self::Cuckoo(table) => statistics(NodeKind::Way, level, table),
            Self::Chained(table) => {
                let kinds = [NodeKind::Buckets, NodeKind::Chain];
                of_blocks(kinds.into_iter().zip(table.blocks()), level, table.used())
            }
            Self::Open(table) => {
                of_blocks([(NodeKind::Lines, (table.bytes(), 1))], level, table.used())
            }
            Self::Inverted(table) => {
                let kinds = [NodeKind::Frames, NodeKind::Anchors];
                of_blocks(kinds.into_iter().zip(table.blocks()), level, table.used())
            }
        }
    }

    fn destroy(self, memory: &mut impl TableMemory<Out>) {
        match self {
            Self::Cuckoo(table) => table.destroy(memory),
            Self::Chained(table) => table.destroy(memory),
            Self::Open(table) => table.destroy(memory),
            Self::Inverted(table) => table.destroy(memory),
        }
    }
}

/// The ways of a cuckoo table.
fn statistics<Out: Physical>(
    kind: NodeKind,
    level: Level,
    table: &Cuckoo<Out>,
) -> Vec<NodeStatistics> {
    // Lines in use are all counted with the ways that are filled now.
    of_blocks(table.blocks().map(|blocks| (kind, blocks)), level, table.used())
}

/// Blocks by kind, each with its bytes and how many there are; `used` is counted with the first.
fn of_blocks(
    blocks: impl IntoIterator<Item = (NodeKind, (u64, u64))>,
    level: Level,
    mut used: u64,
) -> Vec<NodeStatistics> {
    let all = blocks.into_iter().map(|(kind, (node_bytes, nodes))| {
        let entries_used = std::mem::take(&mut used);
        NodeStatistics { kind, level, width: 1, node_bytes, nodes, entries_used }
    });
    all.filter(|blocks| blocks.nodes > 0).collect()
}

/// Ways of a walk table.
const WALK_TABLE_WAYS: usize = 2;

/// What a change made stale in hardware, beside the page itself.
#[derive(Clone, Copy, Debug, Default)]
struct Stale {
    /// Headers on the path of the page's address.
    headers: bool,
    /// Headers anywhere, because lines of large pages moved.
    moved: bool,
}

/// A page table whose entries are found by hashing.
#[derive(Clone, Debug)]
pub struct Hashed<In, Out> {
    geometry: Geometry,
    design: Design,
    /// By level, from 1.
    pages: [Option<Store<Out>>; 3],
    /// For levels 2 and 3.
    walk_tables: Option<[Cuckoo<Out>; 2]>,
    /// Pages of each level in each region that an entry of the level above would span.
    regions: [FxHashMap<u64, u32>; 3],
    input: PhantomData<In>,
}

impl<In: Address, Out: Physical> Hashed<In, Out> {
    /// An empty table.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`] when there is no memory for it, however small.
    pub fn new(
        geometry: Geometry,
        design: Design,
        memory: &mut impl TableMemory<Out>,
    ) -> Result<Self, TableError> {
        let mut table = Self {
            geometry,
            design,
            pages: [const { None }; 3],
            walk_tables: None,
            regions: [const { FxHashMap::with_hasher(rustc_hash::FxBuildHasher) }; 3],
            input: PhantomData,
        };
        let made = table.prepare(memory, 1).and_then(|()| {
            let Design::Cuckoo { elasticity, walk_tables: Some([second, third]), .. } = design
            else {
                return Ok(());
            };
            let new = |memory: &mut _, number, shift| {
                Cuckoo::new(memory, Format::Headers, number, WALK_TABLE_WAYS, shift, elasticity)
            };
            let second = new(memory, 4, second)?;
            match new(memory, 5, third) {
                Ok(third) => table.walk_tables = Some([second, third]),
                Err(error) => {
                    second.destroy(memory);
                    return Err(error);
                }
            }
            Ok(())
        });
        match made {
            Ok(()) => Ok(table),
            Err(error) => {
                table.destroy(memory);
                Err(error)
            }
        }
    }

    /// The geometry.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    // ---- the walk -------------------------------------------------------------------------------

    /// What is known of `input` from the lines of the walk tables for levels 2 and 3 that have its
    /// headers, where a cache has them, and from which tables there are.
    #[inline]
    pub fn hint(&self, input: In, known: [Option<&Line>; 2]) -> Hint {
        let there = |table: &Option<_>| {
            if table.is_some() { Where::Anywhere } else { Where::Nowhere }
        };
        let mut hint = self.pages.each_ref().map(there);
        for (level, line) in (2..).zip(known) {
            let Some(line) = line else { continue };
            let bits = header(line, self.header_number(input, level) % HEADERS);
            for (below, place) in (1..=level).zip(&mut hint) {
                if bits >> (below - 1) & 1 == 0 {
                    *place = Where::Nowhere;
                } else if below == level && *place != Where::Nowhere {
                    *place = Where::Way(bits >> WAY_SHIFT & WAY_MASK);
                }
            }
        }
        Hint(hint)
    }

    /// The lines that a walk of `input` reads, all at once.
    #[inline]
    pub fn probes(&self, input: In, hint: Hint) -> Probes<Out> {
        let mut probes = Probes::none();
        for (level, table) in (1..).zip(&self.pages) {
            let table = match table {
                None => continue,
                Some(Store::Cuckoo(table)) => table,
                Some(table) => {
                    if hint.at(level) != Where::Nowhere {
                        probes.extend(table.first(self.number(input, level), level));
                    }
                    continue;
                }
            };
            let ways = match hint.at(level) {
                Where::Nowhere => 0..0,
                Where::Anywhere => 0..table.ways(),
                Where::Way(way) => way..way + 1,
            };
            let key = self.number(input, level) >> ENTRIES_SHIFT;
            for way in ways.start..ways.end.min(table.ways()) {
                let (at, base) = table.slot(way, key);
                probes.push(Probe::whole(at, Part::Pages(level), way, base));
            }
        }
        probes
    }

    /// What the `line` found at `probe`, one of [`Hashed::probes`] of `input`, led to.
    #[inline]
    pub fn answer(&self, input: In, probe: &Probe<Out>, line: &Line) -> Answer<Out> {
        let Some(level) = probe.part.pages() else { return Answer::Nothing };
        let number = self.number(input, level);
        let index = match &self.pages[usize::from(level) - 1] {
            Some(Store::Cuckoo(_)) => {
                if !Format::Entries.matches(line, number >> ENTRIES_SHIFT) {
                    return Answer::Nothing;
                }
                number % 8
            }
            Some(Store::Chained(table)) if !probe.entry => {
                return match table.follow(number, level, probe, line) {
                    // The entry stands in the line that has just been read.
                    Some(next) if next.at == probe.at && next.entry => {
                        self.answer(input, &next, line)
                    }
                    Some(next) => Answer::Follow(next),
                    None => Answer::Nothing,
                };
            }
            Some(Store::Chained(_)) => u64::from(probe.word),
            Some(Store::Open(table)) => {
                if !Format::Entries.matches(line, number >> ENTRIES_SHIFT) {
                    return table.follow(probe, line).map_or(Answer::Nothing, Answer::Follow);
                }
                number % 8
            }
            Some(Store::Inverted(table)) => return table.answer(number, probe, line),
            None => return Answer::Nothing,
        };
        let entry = Entry(line[index as usize]);
        let entry_address = probe.at.offset(index * 8);
        match entry.decode(self.geometry, level) {
            Decoded::Absent => Answer::Nothing,
            Decoded::Mapped { frame, level: found } if found == level => {
                Answer::Leaf(Leaf { frame, level, rights: entry.rights(), entry_address, entry })
            }
            _ => Answer::Fault(Fault::Reserved { level, entry_address }),
        }
    }

    /// The fault of a walk none of whose reads led anywhere.
    pub fn not_present(&self, input: In) -> Fault<Out> {
        let number = self.number(input, 1);
        let entry_address = match &self.pages[0] {
            Some(Store::Cuckoo(table)) => {
                table.slot(0, number >> ENTRIES_SHIFT).0.offset(number % 8 * 8)
            }
            Some(table) => table.first(number, 1).map_or(Out::new(0), |probe| probe.at),
            None => Out::new(0),
        };
        Fault::NotPresent { level: 1, entry_address }
    }

    /// Number of the line with the header for `input` in the walk table of `level`, and the lines that
    /// are to be read for it; `None` if there are no walk tables.
    #[inline]
    pub fn walk_table_probes(&self, input: In, level: Level) -> Option<(u64, Probes<Out>)> {
        let key = self.walk_table_key(input, level)?;
        let table = &self.walk_tables.as_ref()?[usize::from(level) - 2];
        let mut probes = Probes::none();
        for way in 0..table.ways() {
            let (at, base) = table.slot(way, key);
            probes.push(Probe::whole(at, Part::WalkTable(level), way, base));
        }
        Some((key, probes))
    }

    /// True if `line` is line number `key` of a walk table.
    pub fn is_walk_table_line(line: &Line, key: u64) -> bool {
        Format::Headers.matches(line, key)
    }

    /// Number of the line of headers for `input` in the walk table of `level`, if there is one.
    #[inline]
    pub fn walk_table_key(&self, input: In, level: Level) -> Option<u64> {
        let there = self.walk_tables.is_some() && level <= self.largest();
        there.then(|| self.header_number(input, level) / HEADERS)
    }

    // ---- reading --------------------------------------------------------------------------------

    /// Translates as hardware would, without touching accessed bits.
    ///
    /// # Errors
    /// The fault that hardware would raise.
    pub fn translate(
        &self,
        memory: &impl EntryMemory<Out>,
        input: In,
    ) -> Result<Leaf<Out>, Fault<Out>> {
        if !self.geometry.is_canonical(input.raw()) {
            return Err(Fault::NotCanonical);
        }
        for first in self.probes(input, self.hint(input, [None, None])).as_slice() {
            let mut probe = *first;
            loop {
                match self.answer(input, &probe, &memory.read_line(probe.at)) {
                    Answer::Nothing => break,
                    Answer::Leaf(leaf) => return Ok(leaf),
                    Answer::Follow(next) => probe = next,
                    Answer::Fault(fault) => return Err(fault),
                }
            }
        }
        Err(self.not_present(input))
    }

    /// The page that `input` lies in.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] or [`TableError::Corrupt`].
    pub fn lookup(
        &self,
        memory: &impl EntryMemory<Out>,
        input: In,
    ) -> Result<Mapping<In, Out>, TableError> {
        let leaf = self.find(memory, input)?;
        Ok(self.mapping(self.number(input, leaf.level), &leaf))
    }

    /// True if no page lies in the page of `level` that `input` lies in.
    pub fn is_empty(&self, memory: &impl EntryMemory<Out>, input: In, level: Level) -> bool {
        let smaller = (1..level).any(|below| self.any_in(input, below, level));
        !smaller && matches!(self.translate(memory, input), Err(Fault::NotPresent { .. }))
    }

    /// Calls `visit` for each page that lies, in part at least, in `length_bytes` from `start`, in
    /// ascending order.
    ///
    /// # Errors
    /// [`TableError::NotCanonical`] for a range beyond the table.
    pub fn visit(
        &self,
        memory: &impl EntryMemory<Out>,
        start: In,
        length_bytes: u64,
        visit: &mut impl FnMut(Mapping<In, Out>),
    ) -> Result<(), TableError> {
        check_canonical(self.geometry, start.raw())?;
        if length_bytes == 0 {
            return Ok(());
        }
        let last = start.raw().saturating_add(length_bytes - 1);
        check_canonical(self.geometry, last)?;
        let mut found = Vec::new();
        for level in 1..=3 {
            self.collect(memory, level, start.raw(), last, &mut found);
        }
        found.sort_unstable_by_key(|mapping: &Mapping<In, Out>| mapping.input);
        found.into_iter().for_each(visit);
        Ok(())
    }

    /// Every page that is mapped, in ascending order of (unsigned) address.
    pub fn mappings(&self, memory: &impl EntryMemory<Out>) -> Vec<Mapping<In, Out>> {
        let mut found = Vec::new();
        for level in 1..=3 {
            self.collect(memory, level, 0, u64::MAX, &mut found);
        }
        found.sort_unstable_by_key(|mapping| mapping.input);
        found
    }

    /// The ways and walk tables that there are.
    pub fn statistics(&self) -> Vec<NodeStatistics> {
        let pages = (1..).zip(&self.pages).filter_map(|(level, t)| t.as_ref().map(|t| (level, t)));
        let walk_tables = self.walk_tables.iter().flat_map(|tables| (2..).zip(tables));
        walk_tables
            .flat_map(|(level, table)| statistics(NodeKind::WalkTable, level, table))
            .chain(pages.flat_map(|(level, table)| table.statistics(level)))
            .collect()
    }

    /// How often its tables were resized, walk tables included.
    pub fn resizes(&self) -> Resizes {
        let pages = self.pages.iter().flatten().map(Store::resizes);
        let walk_tables = self.walk_tables.iter().flatten().map(Cuckoo::resizes);
        pages.chain(walk_tables).fold(Resizes::default(), Resizes::and)
    }

    // ---- changing -------------------------------------------------------------------------------

    /// Maps the page of `level` at `input` to `frame`. What caches know of the walk tables may be
    /// stale afterwards.
    ///
    /// # Errors
    /// See [`TableError`]; everything translates as before then.
    pub fn map(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
        frame: Out,
        level: Level,
        attributes: Attributes,
    ) -> Result<Option<Flush<In>>, TableError> {
        check_page(self.geometry, input.raw(), level)?;
        check_frame(self.geometry, frame, level)?;
        if !self.is_empty(memory, input, level) {
            return Err(TableError::Occupied(input.raw()));
        }
        let entry = Entry::leaf(frame, level > 1, attributes);
        let stale = self.enter(memory, input, level, entry)?;
        Ok(self.flush(input, level, stale))
    }

    /// Maps up to `pages` base pages from `input` on, as far as that only takes entries written into
    /// one line that is there, and `frame` gives frames for them. Returns how many; the next is for
    /// [`Hashed::map`].
    ///
    /// # Errors
    /// What is wrong with a frame; the pages before it are mapped then.
    pub fn map_run<M: TableMemory<Out>>(
        &mut self,
        memory: &mut M,
        input: In,
        pages: u64,
        attributes: Attributes,
        mut frame: impl FnMut(&mut M) -> Option<Out>,
    ) -> Result<u64, TableError> {
        check_page(self.geometry, input.raw(), 1)?;
        let number = self.number(input, 1);
        let Some(Store::Cuckoo(table)) = &self.pages[0] else { return Ok(0) };
        let Some(line) = table.line(memory, number) else { return Ok(0) };
        let mut mapped = 0;
        let mut wrong = Ok(());
        for i in (number % 8..8).take(pages as usize) {
            if line.is_present(memory, i) {
                break;
            }
            let Some(frame) = frame(memory) else { break };
            wrong = check_frame(self.geometry, frame, 1);
            if wrong.is_err() {
                break;
            }
            line.write(memory, i, Entry::leaf(frame, false, attributes));
            mapped += 1;
        }
        if mapped > 0 {
            line.count_up(memory, mapped);
            // The line had pages, and so has its region: no header changes.
            let region = number >> self.geometry.index_bits();
            *self.regions[0].entry(region).or_default() += mapped as u32;
        }
        wrong.map(|()| mapped)
    }

    /// Takes away the page that `input` lies in.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] when there is none.
    pub fn unmap(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
    ) -> Result<(Mapping<In, Out>, Flush<In>), TableError> {
        let leaf = self.find(memory, input)?;
        let mapping = self.mapping(self.number(input, leaf.level), &leaf);
        let stale = self.withdraw(memory, input, leaf.level);
        Ok((mapping, self.page_flush(mapping.input, leaf.level, stale)))
    }

    /// Changes the page that `input` lies in; `change` may give it another frame or attributes.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] when there is none, or what says that it cannot have that frame.
    pub fn update(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
        change: impl FnOnce(&mut Mapping<In, Out>),
    ) -> Result<(Mapping<In, Out>, Flush<In>), TableError> {
        let leaf = self.find(memory, input)?;
        let old = self.mapping(self.number(input, leaf.level), &leaf);
        let mut new = old;
        change(&mut new);
        check_frame(self.geometry, new.frame, leaf.level)?;
        let entry = Entry::leaf(new.frame, leaf.level > 1, new.attributes);
        let number = self.number(input, leaf.level);
        match self.table(leaf.level) {
            Store::Inverted(table) => table.change_entry(memory, number, entry)?,
            _ => memory.write(leaf.entry_address, with_tag_of(entry, leaf.entry.0).0),
        }
        Ok((old, self.page_flush(old.input, leaf.level, Stale::default())))
    }

    /// Splits the large page that `input` lies in into pages of the level below.
    ///
    /// # Errors
    /// [`TableError::NotMapped`], [`TableError::NoSuchPage`] when it is a base page already, or
    /// [`TableError::OutOfMemory`]; everything translates as before then.
    pub fn split(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
    ) -> Result<Flush<In>, TableError> {
        let leaf = self.find(memory, input)?;
        if leaf.level == 1 {
            return Err(TableError::NoSuchPage(0));
        }
        let old = self.mapping(self.number(input, leaf.level), &leaf);
        let (below, bytes) = (leaf.level - 1, self.geometry.span(leaf.level - 1));
        let mut stale = Stale::default();
        for i in 0..self.geometry.node_entries(1) {
            let piece = Entry::leaf(old.frame.offset(i * bytes), below > 1, old.attributes);
            match self.enter(memory, old.input.offset(i * bytes), below, piece) {
                Ok(more) => stale = stale.and(more),
                Err(error) => {
                    for i in 0..i {
                        self.withdraw(memory, old.input.offset(i * bytes), below);
                    }
                    return Err(error);
                }
            }
        }
        stale = stale.and(self.withdraw(memory, old.input, leaf.level));
        Ok(self.page_flush(old.input, leaf.level, stale))
    }

    /// Gives all memory back. Pages are the caller's.
    pub fn destroy(self, memory: &mut impl TableMemory<Out>) {
        self.pages.into_iter().flatten().for_each(|table| table.destroy(memory));
        self.walk_tables.into_iter().flatten().for_each(|table| table.destroy(memory));
    }

    // ---- inside ---------------------------------------------------------------------------------

    /// `input` without the bits that only repeat its sign.
    #[inline]
    fn offset(&self, input: u64) -> u64 {
        let unused = 64 - u32::from(self.geometry.address_bits());
        input << unused >> unused
    }

    /// Number of the page of `level` that `input` lies in.
    #[inline]
    fn number(&self, input: In, level: Level) -> u64 {
        if level > self.geometry.levels() {
            return 0;
        }
        self.offset(input.raw()) >> self.geometry.shift(level)
    }

    /// Number of the header for `input` in the walk table of `level`: of its line of entries.
    #[inline]
    fn header_number(&self, input: In, level: Level) -> u64 {
        self.number(input, level) >> ENTRIES_SHIFT
    }

    /// Address of page `number` of `level`.
    fn address(&self, number: u64, level: Level) -> In {
        let unused = 64 - u32::from(self.geometry.address_bits());
        let at = (number << self.geometry.shift(level) << unused).cast_signed() >> unused;
        In::new(at.cast_unsigned())
    }

    /// The largest level that has pages.
    fn largest(&self) -> Level {
        self.geometry.levels().min(3)
    }

    fn find(&self, memory: &impl EntryMemory<Out>, input: In) -> Result<Leaf<Out>, TableError> {
        self.translate(memory, input).map_err(|fault| match fault {
            Fault::NotPresent { .. } => TableError::NotMapped(input.raw()),
            Fault::Reserved { .. } => TableError::Corrupt(input.raw()),
            Fault::NotCanonical => {
                let bits = self.geometry.address_bits();
                TableError::NotCanonical { address: input.raw(), bits }
            }
        })
    }

    fn mapping(&self, number: u64, leaf: &Leaf<Out>) -> Mapping<In, Out> {
        let (level, attributes) = (leaf.level, leaf.entry.attributes());
        Mapping { input: self.address(number, level), frame: leaf.frame, level, attributes }
    }

    /// True if pages of level `below` lie in the page of `level` that `input` lies in.
    fn any_in(&self, input: In, below: Level, level: Level) -> bool {
        let shift = self.geometry.index_bits() * (level - below - 1);
        let first = self.number(input, level) << shift;
        let regions = &self.regions[usize::from(below) - 1];
        let count = 1 << shift;
        if regions.len() as u64 <= count {
            return regions.keys().any(|&region| region >> shift == first >> shift);
        }
        (first..first + count).any(|region| regions.contains_key(&region))
    }

    /// The pages of `level` from address `first` to `last`, in no order.
    fn collect(
        &self,
        memory: &impl EntryMemory<Out>,
        level: Level,
        first: u64,
        last: u64,
        found: &mut Vec<Mapping<In, Out>>,
    ) {
        let Some(table) = &self.pages[usize::from(level) - 1] else { return };
        let bits = self.geometry.index_bits();
        let bytes = self.geometry.span(level);
        let regions = &self.regions[usize::from(level) - 1];
        let look_through = |region: u64| {
            for number in region << bits..(region + 1) << bits {
                let input = self.address(number, level);
                let outside = input.raw() > last || input.raw() + (bytes - 1) < first;
                let there = (!outside).then(|| table.entry(memory, number)).flatten();
                if let Some((_, entry)) = there
                    && let Decoded::Mapped { frame, level } = entry.decode(self.geometry, level)
                {
                    let attributes = entry.attributes();
                    found.push(Mapping { input, frame, level, attributes });
                }
            }
        };
        // By the regions of the range, or by those that have pages, whichever are fewer.
        let shift = self.geometry.shift(level) + bits;
        let whole = |address: u64| self.offset(address).checked_shr(shift.into()).unwrap_or(0);
        let (low, high) = (whole(first), whole(last));
        if low <= high && high - low < regions.len() as u64 && first >> 63 == last >> 63 {
            (low..=high).filter(|region| regions.contains_key(region)).for_each(look_through);
        } else {
            regions.keys().copied().for_each(look_through);
        }
    }

    /// Makes the table for pages of `level`, if there is none.
    fn prepare(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        level: Level,
    ) -> Result<(), TableError> {
        let table = &mut self.pages[usize::from(level) - 1];
        if table.is_some() {
            return Ok(());
        }
        let number = u64::from(level);
        *table = Some(match self.design {
            Design::Cuckoo { ways, first_shift, elasticity, .. } => {
                let (format, ways) = (Format::Entries, usize::from(ways));
                let cuckoo = Cuckoo::new(memory, format, number, ways, first_shift, elasticity)?;
                Store::Cuckoo(cuckoo)
            }
            Design::Chained { block_shift, first_shift } => {
                Store::Chained(Chained::new(memory, number, block_shift, first_shift)?)
            }
            Design::Open { first_shift } => Store::Open(Open::new(memory, number, first_shift)?),
            Design::Inverted => {
                let frame_shift = self.geometry.shift(level);
                Store::Inverted(Inverted::new(memory, level, frame_shift)?)
            }
        });
        Ok(())
    }

    /// Puts in the entry of a page that is not mapped.
    fn enter(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
        level: Level,
        entry: Entry,
    ) -> Result<Stale, TableError> {
        self.prepare(memory, level)?;
        let number = self.number(input, level);
        let mut moves = Moves::new();
        let result = self.table(level).insert_entry(memory, number, entry, &mut moves);
        let mut stale = self.follow(memory, level, &moves);
        result?;
        let count = self.regions[usize::from(level) - 1]
            .entry(number >> self.geometry.index_bits())
            .or_default();
        *count += 1;
        if *count == 1 || level > 1 {
            match self.refresh(memory, input) {
                Ok(changed) => stale.headers |= changed,
                Err(error) => {
                    self.withdraw(memory, input, level);
                    return Err(error);
                }
            }
        }
        Ok(stale)
    }

    /// Takes the entry of a page away that is mapped.
    fn withdraw(&mut self, memory: &mut impl TableMemory<Out>, input: In, level: Level) -> Stale {
        let number = self.number(input, level);
        let mut moves = Moves::new();
        self.table(level).remove_entry(memory, number, &mut moves);
        let mut stale = self.follow(memory, level, &moves);
        let region = number >> self.geometry.index_bits();
        let regions = &mut self.regions[usize::from(level) - 1];
        let left = regions.get_mut(&region).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if left == 0 {
            regions.remove(&region);
        }
        if left == 0 || level > 1 {
            let changed = self.refresh(memory, input);
            stale.headers |= changed.expect("taking away needs no memory");
        }
        stale
    }

    /// The table for pages of `level`, which has been made.
    fn table(&mut self, level: Level) -> &mut Store<Out> {
        self.pages[usize::from(level) - 1].as_mut().expect("it has been made")
    }

    /// Lets the walk tables know in which ways lines of large pages are now.
    fn follow(&mut self, memory: &mut impl TableMemory<Out>, level: Level, moves: &Moves) -> Stale {
        let Some(tables) = self.walk_tables.as_mut().filter(|_| level > 1) else {
            return Stale::default();
        };
        let table = &mut tables[usize::from(level) - 2];
        let mut stale = Stale::default();
        for &(number, way) in moves {
            if let Some((at, _)) = table.find(memory, number / HEADERS) {
                let i = number % HEADERS;
                let at = at.offset(i / 8 * 8);
                let word = memory.read(at);
                let known = (word >> (i % 8 * 8)) as u8 & ((1 << WAY_SHIFT) - 1);
                // The line of a page that is being mapped has no header yet.
                if known >> (level - 1) & 1 == 1 {
                    memory.write(at, with_header(word, i, known | way << WAY_SHIFT));
                    stale.moved = true;
                }
            }
        }
        stale
    }

    /// Brings the headers for `input` into line with what is mapped. True if that changed any.
    fn refresh(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        input: In,
    ) -> Result<bool, TableError> {
        if self.walk_tables.is_none() {
            return Ok(false);
        }
        let mut any = false;
        for level in 2..=self.largest() {
            let number = self.header_number(input, level);
            let mut bits = 0;
            for below in 1..level {
                let there = (number << ENTRIES_SHIFT..(number + 1) << ENTRIES_SHIFT)
                    .any(|page| self.any_in(self.address(page, level), below, level));
                bits |= u8::from(there) << (below - 1);
            }
            let own = self.pages[usize::from(level) - 1].as_ref();
            if let Some(way) = own.and_then(|table| table.way(memory, number)) {
                bits |= 1 << (level - 1) | way << WAY_SHIFT;
            }
            any |= self.set_header(memory, level, number, bits)?;
        }
        Ok(any)
    }

    /// Sets header `number` of the walk table of `level`. True if it was another.
    fn set_header(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        level: Level,
        number: u64,
        bits: u8,
    ) -> Result<bool, TableError> {
        let Some(tables) = &mut self.walk_tables else { return Ok(false) };
        let table = &mut tables[usize::from(level) - 2];
        let (key, i) = (number / HEADERS, number % HEADERS);
        let word = (i / 8) as usize;
        // Caches know lines by their number, wherever they are.
        let mut moves = Moves::new();
        let Some((at, _)) = table.find(memory, key) else {
            if bits == 0 {
                return Ok(false);
            }
            let mut line = Format::Headers.tagged(key);
            line[word] = with_header(line[word], i, bits);
            table.insert(memory, line, &mut moves)?;
            return Ok(true);
        };
        let mut line = memory.read_line(at);
        let before = header(&line, i) & ((1 << HEADER_BITS) - 1);
        line[word] = with_header(line[word], i, bits);
        if line.iter().all(|&word| says_nothing(word)) {
            table.remove(memory, at, &mut moves);
        } else if before != bits {
            memory.write(at.offset(8 * word as u64), line[word]);
        }
        Ok(before != bits)
    }

    /// What is to be flushed after a change to the page of `level` at `input` that left no
    /// translation behind.
    fn flush(&self, input: In, level: Level, stale: Stale) -> Option<Flush<In>> {
        if stale.moved {
            let start = In::new(0);
            return Some(Flush { start, length_bytes: u64::MAX, leaves: false, tables: true });
        }
        let length_bytes = self.geometry.span(level);
        stale.headers.then_some(Flush { start: input, length_bytes, leaves: false, tables: true })
    }

    /// What is to be flushed after a change to the page of `level` at `input`, which was mapped.
    fn page_flush(&self, input: In, level: Level, stale: Stale) -> Flush<In> {
        let length_bytes = self.geometry.span(level);
        let page = Flush { start: input, length_bytes, leaves: false, tables: false };
        Flush { leaves: true, ..self.flush(input, level, stale).unwrap_or(page) }
    }
}

/// Where a header says in which way the line of entries is.
const WAY_SHIFT: u32 = 3;
const WAY_MASK: u8 = 3;

impl Stale {
    fn and(self, other: Self) -> Self {
        Self { headers: self.headers | other.headers, moved: self.moved | other.moved }
    }
}
