//! DMT: the leaf entries of neighbouring pages stand in one area, and registers say where.
//!
//! Source: Zhang, Jia, Chai, Liu, Kim, Xu, "Direct Memory Translation for Virtualized Clouds", ASPLOS
//! 2024. The entries of a range of pages are contiguous in a translation entry area (TEA), so that the
//! place of an entry follows from the page's number. As a process has a handful of large ranges, a few
//! registers hold where their areas are, and a walk reads one entry.
//! ```text
//!   registers:  first page │ pages │ area ──► area:  entry │ entry │ entry │ …      by page number
//!   directory, by hash of the region's number:  number × 2 + 1 │ the region's entries
//! ```
//! A page that no register covers is found through the directory in memory: one descriptor for each
//! region of 512 pages leads to the region's entries in its area. There are areas for each page size, and
//! a walk asks for the entries of all sizes at once.
//!
//! Parameter: `registers` for each page size.
//!
//! Departs from the paper:
//! - An area has the entries of an aligned power of two of pages, and not those of a VMA, which a page
//!   table does not know. It begins with 512 entries. When its neighbour is there, too, both become one
//!   area, if memory has a block for it; the kernel copies the entries, and that is charged.
//! - What no register covers is found by the directory; the paper's machine walks the radix table, which
//!   is kept for that.
//! - Comparing a page's number with the registers takes as long as hashing it (`hash_cycles`), which is done
//!   at the same time for the directory: our source is silent.
//! - The registers hold the largest areas. How many there are is a parameter: our source says "a few".
//! - In a guest, areas of the guest are placed by the host's table like all its memory. The paper's
//!   paravirtual guest takes them from the host directly, which saves a reference.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

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
    Answer, Design, LineRead, MakeStore, Probe, ReadWords, Store, hash, leaf_of, statistics_of,
};
use crate::layout::Layout;
use crate::mapping::{NodeStatistics, Resizes};
use crate::memory::{EntryMemory, Line, TableMemory};
use crate::walk::Fault;

/// log2 of the entries of the smallest area, which takes a frame of 4 KiB: a region.
const REGION_SHIFT: u8 = 9;
/// log2 of the entries of the largest area: blocks of memory have 1 GiB at most.
const LARGEST_SHIFT: u8 = 27;
/// log2 of the bytes of an entry, and of a descriptor in the directory.
const ENTRY_SHIFT: u8 = 3;
const DESCRIPTOR_SHIFT: u8 = 4;
/// log2 of the descriptors of a new directory, which takes a frame.
const DIRECTORY_SHIFT: u8 = 8;

/// What a line is part of ([`Probe::kind`]): an area, or the directory.
const AREA: u8 = 0;
const DIRECTORY: u8 = 1;
/// The class of reads of the directory; those of entries have their level.
const DIRECTORY_CLASS: u8 = 4;

/// Parameters of DMT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Areas that the processor knows, for each page size.
    #[schemars(range(min = 0, max = 1024))]
    pub registers: u32,
}

impl NewLayout for Parameters {
    const NAME: &str = "dmt";

    fn layout(self, geometry: Geometry) -> Result<Layout, LayoutError> {
        if self.registers > 1024 {
            let problem = format!("must be 0 to 1024, not {}", self.registers);
            return Err(LayoutError::value(Self::NAME, "registers", problem));
        }
        Ok(Layout::keyed(geometry, Registers(self.registers as usize)))
    }

    fn examples() -> Vec<Value> {
        vec![json!({ "registers": 2 }), json!({ "registers": 0 })]
    }
}

/// So many, for each page size.
#[derive(Clone, Copy, Debug)]
struct Registers(usize);

impl<Out: Physical> MakeStore<Out> for Registers {
    fn make(&self, geometry: Geometry) -> Box<dyn Store<Out>> {
        Box::new(BySize::<Out, Areas<Out>>::new(geometry, *self))
    }
}

impl Design for Registers {
    fn read_names(&self) -> Vec<(u8, String)> {
        let pages = (1..=3).map(|level| (level, page_name(level).to_owned()));
        std::iter::once((DIRECTORY_CLASS, "TEA directory".to_owned())).chain(pages).collect()
    }

    fn pages_shift(&self, read: &LineRead) -> u8 {
        if read.kind == DIRECTORY { REGION_SHIFT } else { 0 }
    }

    fn explain(&self, read: &LineRead, bits: &str) -> ReadWords {
        let LineRead { level, kind, way, number, found } = *read;
        let table = page_name(level).to_owned();
        if kind == DIRECTORY {
            return ReadWords {
                table,
                place: format!("directory line {way} looked at"),
                index: number,
                found_by: format!("no register covers {bits}, which hashes to line {number}"),
                meaning: Some("may lead to the region's entries".to_owned()),
            };
        }
        ReadWords {
            table,
            place: "translation entry area".to_owned(),
            index: number,
            found_by: if way > 0 {
                "the directory leads there".to_owned()
            } else {
                format!("a register covers {bits}")
            },
            meaning: (!found).then(|| "does not hold the page".to_owned()),
        }
    }
}

/// The entries of an aligned range of pages.
#[derive(Clone, Copy, Debug)]
struct Area<Out> {
    base: Out,
    /// log2 of the entries.
    shift: u8,
    /// Entries that are present.
    used: u64,
}

impl<Out: Physical> Area<Out> {
    /// Address of the entry of page `number`, which is in the area.
    fn entry(&self, number: u64) -> Out {
        self.base.offset((number & ((1 << self.shift) - 1)) << ENTRY_SHIFT)
    }
}

/// The areas for pages of one size. What they hold is in memory; here are the registers that hardware has
/// too, and the operating system's list of areas.
#[derive(Clone, Debug)]
struct Areas<Out> {
    geometry: Geometry,
    level: Level,
    registers: usize,
    /// By the number of their first page.
    all: BTreeMap<u64, Area<Out>>,
    /// The same, largest first.
    by_size: BTreeSet<(Reverse<u8>, u64)>,
    /// What the registers hold: first page, and area.
    loaded: Vec<(u64, Area<Out>)>,
    directory: Directory<Out>,
    resizes: Resizes,
}

impl<Out: Physical> Areas<Out> {
    /// The area that has an entry for page `number`, and its first page.
    fn find(&self, number: u64) -> Option<(u64, Area<Out>)> {
        let (&first, area) = self.all.range(..=number).next_back()?;
        (number >> area.shift == first >> area.shift).then_some((first, *area))
    }

    /// The entry's address, if a register covers page `number`.
    fn covered(&self, number: u64) -> Option<Out> {
        let covers =
            |(first, area): &&(u64, Area<Out>)| number >> area.shift == first >> area.shift;
        self.loaded.iter().find(covers).map(|(_, area)| area.entry(number))
    }

    fn add(&mut self, first: u64, area: Area<Out>) {
        self.all.insert(first, area);
        self.by_size.insert((Reverse(area.shift), first));
        self.load();
    }

    fn take(&mut self, first: u64) -> Option<Area<Out>> {
        let area = self.all.remove(&first)?;
        self.by_size.remove(&(Reverse(area.shift), first));
        self.load();
        Some(area)
    }

    /// Loads the registers, as the operating system does whenever an area comes or goes.
    fn load(&mut self) {
        let largest = self.by_size.iter().take(self.registers);
        self.loaded = largest.map(|&(_, first)| (first, self.all[&first])).collect();
    }

    /// An area for the region of page `number`, which has none.
    fn make(&mut self, memory: &mut dyn TableMemory<Out>, number: u64) -> Result<(), TableError> {
        let size_shift = REGION_SHIFT + ENTRY_SHIFT;
        let base = memory.allocate(size_shift).ok_or(TableError::OutOfMemory)?;
        let region = number >> REGION_SHIFT;
        if let Err(error) = self.directory.insert(memory, region, base, &mut self.resizes) {
            memory.free(base, size_shift);
            return Err(error);
        }
        self.add(region << REGION_SHIFT, Area { base, shift: REGION_SHIFT, used: 0 });
        Ok(())
    }

    /// Makes one area of two neighbours, again and again, starting with the one of page `number`.
    fn unite(&mut self, memory: &mut dyn TableMemory<Out>, number: u64) {
        while let Some((first, area)) = self.find(number) {
            let shift = area.shift;
            let buddy = first ^ (1 << shift);
            let there = self.all.get(&buddy).is_some_and(|buddy| buddy.shift == shift);
            if !there || shift == LARGEST_SHIFT {
                return;
            }
            let Some(base) = memory.allocate(shift + 1 + ENTRY_SHIFT) else {
                self.resizes.refused += 1;
                return;
            };
            let mut united = Area { base, shift: shift + 1, used: 0 };
            for part in [first, buddy] {
                let Some(old) = self.take(part) else { continue };
                united.used += old.used;
                for page in part..part + (1 << shift) {
                    let entry = memory.read(old.entry(page));
                    if entry != 0 {
                        memory.write(united.entry(page), entry);
                    }
                }
                for region in part >> REGION_SHIFT..(part + (1 << shift)) >> REGION_SHIFT {
                    self.directory.set(memory, region, united.entry(region << REGION_SHIFT));
                }
                memory.free(old.base, shift + ENTRY_SHIFT);
            }
            self.resizes.grown += 1;
            self.add(first.min(buddy), united);
        }
    }
}

impl<Out: Physical> SizeTable<Out> for Areas<Out> {
    type Parameters = Registers;

    fn new(
        memory: &mut dyn TableMemory<Out>,
        &Registers(registers): &Registers,
        geometry: Geometry,
        level: Level,
    ) -> Result<Self, TableError> {
        Ok(Self {
            geometry,
            level,
            registers,
            all: BTreeMap::new(),
            by_size: BTreeSet::new(),
            loaded: Vec::new(),
            directory: Directory::new(memory, level)?,
            resizes: Resizes::default(),
        })
    }

    fn entry(&self, memory: &dyn EntryMemory<Out>, number: u64) -> Option<Entry> {
        let (_, area) = self.find(number)?;
        let entry = Entry(memory.read(area.entry(number)));
        entry.is_present().then_some(entry)
    }

    fn insert(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        number: u64,
        entry: Entry,
    ) -> Result<(), TableError> {
        let new = self.find(number).is_none();
        if new {
            self.make(memory, number)?;
        }
        let (first, area) = self.find(number).expect("it has just been made");
        memory.write(area.entry(number), entry.0);
        self.all.insert(first, Area { used: area.used + 1, ..area });
        if new {
            self.unite(memory, number);
        }
        Ok(())
    }

    fn remove(&mut self, memory: &mut dyn TableMemory<Out>, number: u64) {
        let Some((first, area)) = self.find(number) else { return };
        memory.write(area.entry(number), 0);
        if area.used > 1 {
            self.all.insert(first, Area { used: area.used - 1, ..area });
            return;
        }
        self.take(first);
        for region in first >> REGION_SHIFT..(first + (1 << area.shift)) >> REGION_SHIFT {
            self.directory.remove(memory, region);
        }
        memory.free(area.base, area.shift + ENTRY_SHIFT);
    }

    fn statistics(&self) -> Vec<NodeStatistics> {
        // By size: how many, and entries that are in use.
        let mut sizes = BTreeMap::new();
        for area in self.all.values() {
            let (count, used) = sizes.entry(Reverse(area.shift)).or_insert((0, 0));
            (*count, *used) = (*count + 1, *used + area.used);
        }
        let name = page_name(self.level);
        let areas = sizes.into_iter().flat_map(|(Reverse(shift), (count, used))| {
            let areas = (format!("{name} areas"), 1 << (shift + ENTRY_SHIFT), count);
            statistics_of([areas], self.level, used)
        });
        let directory = (format!("{name} TEA directory"), self.directory.bytes(), 1);
        areas.chain(statistics_of([directory], self.level, 0)).collect()
    }

    fn resizes(&self) -> Resizes {
        self.resizes
    }

    fn destroy(self, memory: &mut dyn TableMemory<Out>) {
        for area in self.all.into_values() {
            memory.free(area.base, area.shift + ENTRY_SHIFT);
        }
        self.directory.destroy(memory);
    }

    fn first(&self, number: u64) -> Probe<Out> {
        match self.covered(number) {
            Some(at) => Probe::word(at, at, self.level, 0),
            None => self.directory.first(number >> REGION_SHIFT, self.level),
        }
    }

    fn answer(&self, number: u64, probe: &Probe<Out>, line: &Line) -> Answer<Out> {
        if probe.kind == AREA {
            return leaf_of(self.geometry, self.level, probe.at, line, probe.word.into());
        }
        let Some(way) = probe.way.checked_add(1) else { return Answer::Nothing };
        for slot in line[usize::from(probe.word)..].as_chunks::<2>().0 {
            match *slot {
                [0, _] => return Answer::Nothing,
                [tag, entries] if tag == Directory::<Out>::tag(number >> REGION_SHIFT) => {
                    if entries % 4096 != 0 {
                        // Something else wrote to the table.
                        let entry_address = probe.at.offset(u64::from(probe.word) * 8);
                        return Answer::Fault(Fault::Reserved { level: self.level, entry_address });
                    }
                    let within = number & ((1 << REGION_SHIFT) - 1);
                    let at = Out::new(entries).offset(within << ENTRY_SHIFT);
                    return Answer::Follow(Probe::word(at, Out::new(entries), self.level, way));
                }
                _ => {}
            }
        }
        Answer::Follow(self.directory.line_after(probe, way))
    }
}

/// Where the entries of each region are, found by hashing the region's number: descriptors of two words,
/// each in the first free place from its own on.
#[derive(Clone, Debug)]
struct Directory<Out> {
    base: Out,
    /// log2 of the descriptors.
    shift: u8,
    salt: u64,
    used: u64,
}

impl<Out: Physical> Directory<Out> {
    fn new(memory: &mut dyn TableMemory<Out>, level: Level) -> Result<Self, TableError> {
        let size_shift = DIRECTORY_SHIFT + DESCRIPTOR_SHIFT;
        let base = memory.allocate(size_shift).ok_or(TableError::OutOfMemory)?;
        Ok(Self { base, shift: DIRECTORY_SHIFT, salt: hash::salt(level.into()), used: 0 })
    }

    /// The first word of a region's descriptor.
    fn tag(region: u64) -> u64 {
        region << 1 | 1
    }

    fn bytes(&self) -> u64 {
        1 << (self.shift + DESCRIPTOR_SHIFT)
    }

    /// Number of the place that a region's descriptor belongs in.
    fn home(&self, region: u64) -> u64 {
        hash::index(region, self.salt, self.shift)
    }

    /// Address of place `index`, counted on from the first after the last.
    fn place(&self, index: u64) -> Out {
        self.base.offset((index & ((1 << self.shift) - 1)) << DESCRIPTOR_SHIFT)
    }

    /// The place of a region's descriptor, or the free one that it would be put in.
    fn find(&self, memory: &dyn EntryMemory<Out>, region: u64) -> (u64, bool) {
        let mut index = self.home(region);
        loop {
            let tag = memory.read(self.place(index));
            if tag == 0 || tag == Self::tag(region) {
                return (index, tag != 0);
            }
            index += 1;
        }
    }

    /// Puts in the descriptor of a region that has none.
    fn insert(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        region: u64,
        entries: Out,
        resizes: &mut Resizes,
    ) -> Result<(), TableError> {
        // At most half full, or a little fuller where there is no memory for more.
        if (self.used + 1) * 2 > 1 << self.shift {
            if self.grow(memory) {
                resizes.grown += 1;
            } else if (self.used + 1) * 8 > 7 << self.shift {
                return Err(TableError::OutOfMemory);
            } else {
                resizes.refused += 1;
            }
        }
        let (index, _) = self.find(memory, region);
        memory.write(self.place(index).offset(8), entries.raw());
        memory.write(self.place(index), Self::tag(region));
        self.used += 1;
        Ok(())
    }

    /// Changes where the entries of a region are, if it has a descriptor.
    fn set(&mut self, memory: &mut dyn TableMemory<Out>, region: u64, entries: Out) {
        if let (index, true) = self.find(memory, region) {
            memory.write(self.place(index).offset(8), entries.raw());
        }
    }

    /// Takes a region's descriptor away, and moves those up that stand behind it for want of room.
    fn remove(&mut self, memory: &mut dyn TableMemory<Out>, region: u64) {
        let (mut gap, true) = self.find(memory, region) else { return };
        self.used -= 1;
        let mask = (1 << self.shift) - 1;
        for index in gap + 1.. {
            let tag = memory.read(self.place(index));
            if tag == 0 {
                break;
            }
            // Its way from home leads past the gap.
            if index.wrapping_sub(self.home(tag >> 1)) & mask >= (index - gap) & mask {
                let entries = memory.read(self.place(index).offset(8));
                memory.write(self.place(gap).offset(8), entries);
                memory.write(self.place(gap), tag);
                gap = index;
            }
        }
        memory.write(self.place(gap), 0);
        memory.write(self.place(gap).offset(8), 0);
    }

    /// Twice the descriptors; false if there is no memory for them.
    fn grow(&mut self, memory: &mut dyn TableMemory<Out>) -> bool {
        let shift = self.shift + 1;
        let Some(base) = memory.allocate(shift + DESCRIPTOR_SHIFT) else { return false };
        let new = Self { base, shift, ..self.clone() };
        for index in 0..1 << self.shift {
            let tag = memory.read(self.place(index));
            if tag != 0 {
                let entries = memory.read(self.place(index).offset(8));
                let (to, _) = new.find(memory, tag >> 1);
                memory.write(new.place(to).offset(8), entries);
                memory.write(new.place(to), tag);
            }
        }
        std::mem::replace(self, new).destroy(memory);
        true
    }

    fn destroy(self, memory: &mut dyn TableMemory<Out>) {
        memory.free(self.base, self.shift + DESCRIPTOR_SHIFT);
    }

    /// The first read for a region's descriptor.
    fn first(&self, region: u64, level: Level) -> Probe<Out> {
        let probe = Probe::word(self.place(self.home(region)), self.base, level, 0);
        Probe { kind: DIRECTORY, class: DIRECTORY_CLASS, ..probe }
    }

    /// The read of the line after `probe`, number `way` of the walk.
    fn line_after(&self, probe: &Probe<Out>, way: u8) -> Probe<Out> {
        let next = (probe.line() + 1) << (6 - DESCRIPTOR_SHIFT);
        Probe { at: self.place(next), word: 0, way, ..*probe }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Address, Gva, Hpa};
    use crate::conformance::{Memory, Sizes};
    use crate::entry::{Attributes, Rights};
    use crate::table::PageTable;

    #[test]
    fn entries_in_use_are_counted_with_the_areas_that_they_are_in() {
        let layout = Parameters { registers: 16 }.layout(Geometry::X86_4).expect("it is valid");
        let mut memory = Memory::new(Sizes::of(Geometry::X86_4));
        let mut table = PageTable::<Gva, Hpa>::new(&layout, &layout, &mut memory).expect("room");
        // Four regions next to each other, which have one area, and one apart.
        for page in (0..4 << REGION_SHIFT).chain([64 << REGION_SHIFT]) {
            let attributes = Attributes::new(Rights::ALL);
            let (input, frame) = (Gva::new(page << 12), Hpa::new(1 << 40 | page << 12));
            let mapped = table.map(&mut memory, &layout, input, frame, 1, attributes);
            assert!(mapped.is_ok(), "nothing is there");
        }
        let areas = table.statistics();
        let areas = areas.iter().filter(|blocks| blocks.name == "4K areas");
        let found: Vec<_> = areas.map(|a| (a.node_bytes / 8, a.nodes, a.entries_used)).collect();
        let entries = 1 << REGION_SHIFT;
        assert_eq!(found, [(4 * entries, 1, 4 * entries), (entries, 1, 1)]);
    }

    #[test]
    fn parameters_are_checked() {
        let layout = |registers| Parameters { registers }.layout(Geometry::X86_4);
        assert!(layout(16).is_ok_and(|layout| !layout.is_tree()));
        assert!(matches!(layout(1025), Err(LayoutError::Value { key: "registers", .. })));
    }
}
