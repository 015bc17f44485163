//! What an organisation without a tree is to the rest of the engine: [`Design`] says what its tables
//! are like, and makes them; [`Store`] is such a table.

use std::fmt::Debug;

use super::probe::{Answer, LineRead, Probe, Probes};
use super::regions::Regions;
use super::side::{SideLines, SideStructure};
use crate::addr::{Gpa, Hpa, Physical};
use crate::entry::{Decoded, Entry};
use crate::error::TableError;
use crate::geometry::{Geometry, Level, page_name};
use crate::mapping::{NodeStatistics, Resizes};
use crate::memory::{EntryMemory, Line, TableMemory};
use crate::walk::{Fault, Leaf};

/// Makes tables whose entries lead to addresses of one kind.
pub trait MakeStore<Out> {
    /// A table for which nothing was prepared yet.
    fn make(&self, geometry: Geometry) -> Box<dyn Store<Out>>;
}

/// What tables of an organisation are like, with its parameters.
pub trait Design: MakeStore<Gpa> + MakeStore<Hpa> + Debug + Send + Sync {
    /// Names of what walks read, by the class of the read ([`Probe::class`], 1 to 7), in the order of
    /// output.
    fn read_names(&self) -> Vec<(u8, String)> {
        (1..=3).map(|level| (level, page_name(level).to_owned())).collect()
    }

    /// The structures of side lines that its tables have, at most [`super::MOST_SIDE`].
    fn side_structures(&self) -> Vec<SideStructure> {
        Vec::new()
    }

    /// Explains a read; `bits` names those of the address that it depends on, such as `VA[47:15]`.
    fn explain(&self, read: &LineRead, bits: &str) -> ReadWords;

    /// log2 of the neighbouring pages that are looked for in the line of this read.
    fn pages_shift(&self, read: &LineRead) -> u8 {
        let _ = read;
        0
    }

    /// True if a table is made with the machine, for whatever runs there: no program pays for that.
    fn is_made_with_machine(&self) -> bool {
        false
    }
}

/// A read, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadWords {
    /// The table that was read, such as `4K`.
    pub table: String,
    /// Which of its lines, such as `way 0`.
    pub place: String,
    /// Number of the line, where that was computed.
    pub index: u64,
    /// How its address is known.
    pub found_by: String,
    /// What it holds; `None`: what the entry found there means.
    pub meaning: Option<String>,
}

/// What a change made stale in the walker's caches of side lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    /// Side lines for the page's address.
    pub here: bool,
    /// Side lines for any address.
    pub anywhere: bool,
}

impl Stale {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { here: self.here | other.here, anywhere: self.anywhere | other.anywhere }
    }
}

/// A page, by level and number ([`Geometry::number`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Level that pages of its size are leaves of.
    pub level: Level,
    /// Its number among these.
    pub number: u64,
}

/// A table that finds entries by the numbers of pages. What it holds is in memory; it keeps what
/// hardware has in registers, and what an operating system keeps of its own.
///
/// Pages are those of levels 1 to 3 of the table's geometry, and do not overlap: [`super::Keyed`] sees
/// to that. `input` is an address to translate.
pub trait Store<Out: Physical>: Debug + Send + Sync {
    /// The same table once more.
    fn clone_box(&self) -> Box<dyn Store<Out>>;

    /// Makes what pages of `level` need, if it is not there. Called first for level 1, and before each
    /// page goes in.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`] when there is no memory for it, however small.
    fn prepare(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        level: Level,
    ) -> Result<(), TableError>;

    /// The entry of a page, with the page's frame in it, if it is present.
    fn entry(&self, memory: &dyn EntryMemory<Out>, page: Page) -> Option<Entry>;

    /// Puts in the entry of a page that has none.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`], or what is wrong with the frame; every page translates as before
    /// then.
    fn insert(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        page: Page,
        entry: Entry,
    ) -> Result<Stale, TableError>;

    /// Takes the entry of a page away, which is present.
    fn remove(&mut self, memory: &mut dyn TableMemory<Out>, page: Page) -> Stale;

    /// Gives a page, whose entry is `leaf`, another, perhaps with another frame.
    ///
    /// # Errors
    /// What is wrong with the frame; nothing has changed then.
    fn change(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        page: Page,
        leaf: &Leaf<Out>,
        entry: Entry,
    ) -> Result<(), TableError>;

    /// Brings what is known of the pages around `input` into line with `regions`, which changed.
    /// True if that changed a side line.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`], but not after a page was taken away.
    fn refresh(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        input: u64,
        regions: &Regions,
    ) -> Result<bool, TableError> {
        let _ = (memory, input, regions);
        Ok(false)
    }

    /// Where pages are mapped one after the other: the tagged line ([`super::line`]), in use, that has
    /// room for the entry of base page `number`.
    fn line_in_use(&self, memory: &dyn EntryMemory<Out>, number: u64) -> Option<Out> {
        let _ = (memory, number);
        None
    }

    /// The memory that it takes, by kind.
    fn statistics(&self) -> Vec<NodeStatistics>;

    /// How often it was resized.
    fn resizes(&self) -> Resizes;

    /// Gives all memory back.
    fn destroy(self: Box<Self>, memory: &mut dyn TableMemory<Out>);

    // ---- the walk -------------------------------------------------------------------------------

    /// The lines that a walk of `input` reads, all at once, when so much is known.
    fn probes(&self, input: u64, known: &SideLines) -> Probes<Out>;

    /// What the `line` found at `probe`, one of those for `input`, led to.
    fn answer(&self, input: u64, probe: &Probe<Out>, line: &Line) -> Answer<Out>;

    /// Where the entry of the base page at `input` would be, as far as that can be said.
    fn place(&self, input: u64) -> Out {
        self.probes(input, &SideLines::default()).as_slice().first().map_or(Out::new(0), |p| p.at)
    }

    /// The key of the line of side structure `structure` that helps a walk of `input`, if there is one;
    /// `known` are those of the structures before it.
    fn side_key(&self, structure: usize, input: u64, known: &SideLines) -> Option<u64> {
        let _ = (structure, input, known);
        None
    }

    /// The lines one of which is line `key` of side structure `structure`.
    fn side_probes(&self, structure: usize, key: u64) -> Probes<Out> {
        let _ = (structure, key);
        Probes::default()
    }

    /// True if `line` is line `key` of side structure `structure`.
    fn is_side_line(&self, structure: usize, key: u64, line: &Line) -> bool {
        let _ = (structure, key, line);
        false
    }

    /// What is known of `input`, in words.
    fn explain_known(&self, input: u64, known: &SideLines) -> String {
        let _ = (input, known);
        String::new()
    }
}

/// What entry `index` of a `line` at `at` leads to, which is one for pages of `level`.
#[inline]
pub fn leaf_of<Out: Physical>(
    geometry: Geometry,
    level: Level,
    at: Out,
    line: &Line,
    index: u64,
) -> Answer<Out> {
    let entry = Entry(line[index as usize]);
    let entry_address = at.offset(index * 8);
    match entry.decode(geometry, level) {
        Decoded::Absent => Answer::Nothing,
        Decoded::Mapped { frame, level: found } if found == level => {
            Answer::Leaf(Leaf { frame, level, rights: entry.rights(), entry_address, entry })
        }
        _ => Answer::Fault(Fault::Reserved { level, entry_address }),
    }
}

/// Blocks of memory of pages of `level` by name, each with its bytes and how many there are, without
/// those of which there are none; `used` is counted with the first.
pub fn statistics_of(
    blocks: impl IntoIterator<Item = (String, u64, u64)>,
    level: Level,
    mut used: u64,
) -> Vec<NodeStatistics> {
    let all = blocks.into_iter().map(|(name, node_bytes, nodes)| {
        let entries_used = std::mem::take(&mut used);
        NodeStatistics { name, level, width: 1, node_bytes, nodes, entries_used }
    });
    all.filter(|blocks| blocks.nodes > 0).collect()
}

/// The largest block that memory has, of those whose log2 of the size is `bytes_shift` of something in
/// `shifts`; and of what.
pub fn largest_block<Out: Physical>(
    memory: &mut dyn TableMemory<Out>,
    shifts: std::ops::RangeInclusive<u8>,
    bytes_shift: impl Fn(u8) -> u8,
) -> Option<(Out, u8)> {
    let (least, most) = (*shifts.start(), *shifts.end());
    (least..=most.max(least))
        .rev()
        .find_map(|shift| Some((memory.allocate(bytes_shift(shift))?, shift)))
}
