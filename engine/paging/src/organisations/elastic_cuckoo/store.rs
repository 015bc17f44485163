//! The tables of all page sizes, and the walk tables that say where to look.

use super::cuckoo::{Cuckoo, Elasticity, Moves};
use super::format::{
    Format, HEADER_BITS, HEADERS, header, line_of_headers, says_nothing, with_header,
};
use crate::addr::Physical;
use crate::entry::Entry;
use crate::error::TableError;
use crate::geometry::{Geometry, Level, page_name};
use crate::keyed::line::{ENTRIES_SHIFT, matches, with_tag_of};
use crate::keyed::{Answer, Page, Probe, Probes, Regions, SideLines, Stale, Store, leaf_of};
use crate::mapping::{NodeStatistics, Resizes};
use crate::memory::{EntryMemory, Line, TableMemory};
use crate::walk::Leaf;

/// Ways of a walk table.
const WALK_TABLE_WAYS: usize = 2;
/// Where a header says in which way the line of entries is.
const WAY_SHIFT: u32 = 3;
const WAY_MASK: u8 = 3;
/// [`Probe::kind`] of a line of a walk table; entries have 0.
pub(super) const WALK_TABLE: u8 = 1;

/// What the tables are made like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Ways of each table.
    pub(super) ways: u8,
    /// log2 of the lines in a way of a new table.
    pub(super) first_shift: u8,
    /// When tables are resized.
    pub(super) elasticity: Elasticity,
    /// log2 of the lines in a way of the walk tables for levels 2 and 3; `None`: there are none.
    pub(super) walk_tables: Option<[u8; 2]>,
}

/// Elastic cuckoo tables.
#[derive(Clone, Debug)]
pub(super) struct Ecpt<Out> {
    geometry: Geometry,
    shape: Shape,
    /// By level, from 1.
    pages: [Option<Cuckoo<Out>>; 3],
    /// Likewise: whether a page of that size was ever mapped, which walkers are told.
    asked: [bool; 3],
    /// For levels 2 and 3.
    walk_tables: Option<[Cuckoo<Out>; 2]>,
}

/// Where a page of one size can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// There is none.
    Nowhere,
    /// In any way.
    Anywhere,
    /// In this way, if there is one.
    Way(u8),
}

/// Name of the walk table for `level`.
pub(super) fn walk_table_name(level: Level) -> &'static str {
    if level == 2 { "PMD-CWT" } else { "PUD-CWT" }
}

/// Class of reads of the walk table for `level`, after those of entries.
pub(super) fn walk_table_class(level: Level) -> u8 {
    level + 2
}

impl<Out: Physical> Ecpt<Out> {
    /// None yet.
    pub(super) fn new(geometry: Geometry, shape: Shape) -> Self {
        Self { geometry, shape, pages: [const { None }; 3], asked: [false; 3], walk_tables: None }
    }

    /// Where pages at `input` can be, for levels 1 to 3: as the lines of the walk tables for levels 2 and
    /// 3 say, where they are known, and which sizes were ever mapped.
    #[inline]
    fn places(&self, input: u64, known: &SideLines) -> [Where; 3] {
        let there = |asked| if asked { Where::Anywhere } else { Where::Nowhere };
        let mut places = self.asked.map(there);
        for (level, line) in [(2, known.get(0)), (3, known.get(1))] {
            let Some(line) = line else { continue };
            let bits = header(line, self.header_number(input, level) % HEADERS);
            for (below, place) in (1..=level).zip(&mut places) {
                if bits >> (below - 1) & 1 == 0 {
                    *place = Where::Nowhere;
                } else if below == level && *place != Where::Nowhere {
                    *place = Where::Way(bits >> WAY_SHIFT & WAY_MASK);
                }
            }
        }
        places
    }

    /// Number of the header for `input` in the walk table of `level`: of its line of entries.
    #[inline]
    fn header_number(&self, input: u64, level: Level) -> u64 {
        self.geometry.number(input, level) >> ENTRIES_SHIFT
    }

    /// The table for pages of `level`, which has been made.
    fn table(&mut self, level: Level) -> &mut Cuckoo<Out> {
        self.pages[usize::from(level) - 1].as_mut().expect("it has been made")
    }

    /// Lets the walk tables know in which ways lines of large pages are now.
    fn follow(&mut self, memory: &mut dyn TableMemory<Out>, level: Level, moves: &Moves) -> Stale {
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
                    stale.anywhere = true;
                }
            }
        }
        stale
    }

    /// Sets header `number` of the walk table of `level`. True if it was another.
    fn set_header(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
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
            let mut line = line_of_headers(key);
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
}

impl<Out: Physical> Store<Out> for Ecpt<Out> {
    fn clone_box(&self) -> Box<dyn Store<Out>> {
        Box::new(self.clone())
    }

    fn prepare(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        level: Level,
    ) -> Result<(), TableError> {
        let Shape { ways, first_shift, elasticity, walk_tables } = self.shape;
        if self.pages[usize::from(level) - 1].is_some() {
            return Ok(());
        }
        let (number, ways) = (u64::from(level), usize::from(ways));
        let table = Cuckoo::new(memory, Format::Entries, number, ways, first_shift, elasticity)?;
        self.pages[usize::from(level) - 1] = Some(table);
        let (1, Some([second, third])) = (level, walk_tables) else { return Ok(()) };
        let new = |memory: &mut dyn TableMemory<Out>, number, shift| {
            Cuckoo::new(memory, Format::Headers, number, WALK_TABLE_WAYS, shift, elasticity)
        };
        let second = new(memory, 4, second)?;
        match new(memory, 5, third) {
            Ok(third) => self.walk_tables = Some([second, third]),
            Err(error) => {
                second.destroy(memory);
                return Err(error);
            }
        }
        Ok(())
    }

    fn entry(&self, memory: &dyn EntryMemory<Out>, page: Page) -> Option<Entry> {
        let table = self.pages[usize::from(page.level) - 1].as_ref()?;
        let entry = table.line(memory, page.number)?.entry(memory, page.number & 7);
        entry.is_present().then_some(entry)
    }

    fn insert(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        page: Page,
        entry: Entry,
    ) -> Result<Stale, TableError> {
        let mut moves = Moves::new();
        let result = self.table(page.level).insert_entry(memory, page.number, entry, &mut moves);
        self.asked[usize::from(page.level) - 1] |= result.is_ok();
        let stale = self.follow(memory, page.level, &moves);
        result.map(|()| stale)
    }

    fn remove(&mut self, memory: &mut dyn TableMemory<Out>, page: Page) -> Stale {
        let mut moves = Moves::new();
        self.table(page.level).remove_entry(memory, page.number, &mut moves);
        self.follow(memory, page.level, &moves)
    }

    fn change(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        _page: Page,
        leaf: &Leaf<Out>,
        entry: Entry,
    ) -> Result<(), TableError> {
        memory.write(leaf.entry_address, with_tag_of(entry, leaf.entry.0).0);
        Ok(())
    }

    /// Brings the headers for `input` into line with what is mapped.
    fn refresh(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        input: u64,
        regions: &Regions,
    ) -> Result<bool, TableError> {
        if self.walk_tables.is_none() {
            return Ok(false);
        }
        let mut any = false;
        for level in 2..=self.geometry.largest() {
            let number = self.header_number(input, level);
            let mut bits = 0;
            for below in 1..level {
                let there = (number << ENTRIES_SHIFT..(number + 1) << ENTRIES_SHIFT)
                    .any(|page| regions.any_in(page, level, below));
                bits |= u8::from(there) << (below - 1);
            }
            let own = self.pages[usize::from(level) - 1].as_ref();
            if let Some((_, way)) = own.and_then(|table| table.find(memory, number)) {
                bits |= 1 << (level - 1) | way << WAY_SHIFT;
            }
            any |= self.set_header(memory, level, number, bits)?;
        }
        Ok(any)
    }

    fn line_in_use(&self, memory: &dyn EntryMemory<Out>, number: u64) -> Option<Out> {
        Some(self.pages[0].as_ref()?.line(memory, number)?.0)
    }

    fn statistics(&self) -> Vec<NodeStatistics> {
        let walk_tables = (2..).zip(self.walk_tables.iter().flatten());
        let walk_tables =
            walk_tables.flat_map(|(level, table)| table.statistics(walk_table_name(level), level));
        let pages = (1..).zip(&self.pages).filter_map(|(level, t)| t.as_ref().map(|t| (level, t)));
        let pages = pages.flat_map(|(level, table)| table.statistics(page_name(level), level));
        walk_tables.chain(pages).collect()
    }

    fn resizes(&self) -> Resizes {
        let all = self.pages.iter().flatten().chain(self.walk_tables.iter().flatten());
        all.map(Cuckoo::resizes).fold(Resizes::default(), Resizes::and)
    }

    fn destroy(self: Box<Self>, memory: &mut dyn TableMemory<Out>) {
        self.pages.into_iter().flatten().for_each(|table| table.destroy(memory));
        self.walk_tables.into_iter().flatten().for_each(|table| table.destroy(memory));
    }

    // ---- the walk -------------------------------------------------------------------------------

    #[inline]
    fn probes(&self, input: u64, known: &SideLines) -> Probes<Out> {
        let mut probes = Probes::default();
        let places = self.places(input, known);
        for (level, (table, place)) in (1..).zip(self.pages.iter().zip(places)) {
            let Some(table) = table else { continue };
            let ways = match place {
                Where::Nowhere => 0..0,
                Where::Anywhere => 0..table.ways(),
                Where::Way(way) => way..way + 1,
            };
            let key = self.geometry.number(input, level) >> ENTRIES_SHIFT;
            for way in ways.start..ways.end.min(table.ways()) {
                let (at, base) = table.slot(way, key);
                probes.push(Probe::whole(at, base, level, way));
            }
        }
        probes
    }

    #[inline]
    fn answer(&self, input: u64, probe: &Probe<Out>, line: &Line) -> Answer<Out> {
        let number = self.geometry.number(input, probe.level);
        if matches(line, number >> ENTRIES_SHIFT) {
            leaf_of(self.geometry, probe.level, probe.at, line, number % 8)
        } else {
            Answer::Nothing
        }
    }

    fn place(&self, input: u64) -> Out {
        let number = self.geometry.number(input, 1);
        let slot = |table: &Cuckoo<Out>| table.slot(0, number >> ENTRIES_SHIFT).0;
        self.pages[0].as_ref().map_or(Out::new(0), |table| slot(table).offset(number % 8 * 8))
    }

    #[inline]
    fn side_key(&self, structure: usize, input: u64, _known: &SideLines) -> Option<u64> {
        let level = structure as Level + 2;
        let there = self.walk_tables.is_some() && level <= self.geometry.largest();
        there.then(|| self.header_number(input, level) / HEADERS)
    }

    fn side_probes(&self, structure: usize, key: u64) -> Probes<Out> {
        let mut probes = Probes::default();
        let Some(tables) = &self.walk_tables else { return probes };
        let (table, level) = (&tables[structure], structure as Level + 2);
        for way in 0..table.ways() {
            let (at, base) = table.slot(way, key);
            let (class, kind) = (walk_table_class(level), WALK_TABLE);
            probes.push(Probe { class, kind, ..Probe::whole(at, base, level, way) });
        }
        probes
    }

    fn is_side_line(&self, _structure: usize, key: u64, line: &Line) -> bool {
        Format::Headers.matches(line, key)
    }

    fn explain_known(&self, input: u64, known: &SideLines) -> String {
        let places =
            (1..).zip(self.places(input, known)).filter_map(|(level, place)| match place {
                Where::Nowhere => None,
                Where::Anywhere => Some(format!("{} pages in any way", page_name(level))),
                Where::Way(way) => Some(format!("{} pages in way {way}", page_name(level))),
            });
        places.collect::<Vec<_>>().join(", ")
    }
}
