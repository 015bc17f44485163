//! A table for each page size, all asked at once.

use std::fmt::Debug;

use super::probe::{Answer, Probe, Probes};
use super::side::SideLines;
use super::store::{Page, Stale, Store};
use crate::addr::Physical;
use crate::entry::Entry;
use crate::error::TableError;
use crate::geometry::{Geometry, Level};
use crate::mapping::{NodeStatistics, Resizes};
use crate::memory::{EntryMemory, Line, TableMemory};
use crate::walk::Leaf;

/// A table for pages of one size, whose walk begins with one read.
pub trait SizeTable<Out: Physical>: Clone + Debug + Send + Sync + Sized + 'static {
    /// What tables are made like.
    type Parameters: Clone + Debug + Send + Sync;

    /// An empty table for pages of `level`.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`] when there is no memory for it, however small.
    fn new(
        memory: &mut dyn TableMemory<Out>,
        parameters: &Self::Parameters,
        geometry: Geometry,
        level: Level,
    ) -> Result<Self, TableError>;

    /// As [`Store::entry`].
    fn entry(&self, memory: &dyn EntryMemory<Out>, number: u64) -> Option<Entry>;

    /// As [`Store::insert`].
    ///
    /// # Errors
    /// As [`Store::insert`].
    fn insert(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        number: u64,
        entry: Entry,
    ) -> Result<(), TableError>;

    /// As [`Store::remove`].
    fn remove(&mut self, memory: &mut dyn TableMemory<Out>, number: u64);

    /// As [`Store::change`]. Unless a table says otherwise, an entry takes the old one's place as it is.
    ///
    /// # Errors
    /// As [`Store::change`].
    fn change(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        _number: u64,
        leaf: &Leaf<Out>,
        entry: Entry,
    ) -> Result<(), TableError> {
        memory.write(leaf.entry_address, entry.0);
        Ok(())
    }

    /// As [`Store::statistics`].
    fn statistics(&self) -> Vec<NodeStatistics>;

    /// As [`Store::resizes`].
    fn resizes(&self) -> Resizes;

    /// Gives all memory back.
    fn destroy(self, memory: &mut dyn TableMemory<Out>);

    /// The first read of a walk for page `number`.
    fn first(&self, number: u64) -> Probe<Out>;

    /// What the `line` found at `probe` led to in a walk for page `number`.
    fn answer(&self, number: u64, probe: &Probe<Out>, line: &Line) -> Answer<Out>;
}

/// The tables of all page sizes; those of large pages are made when the first such page is mapped, if not
/// with the machine. A walk asks those in which something was ever mapped.
#[derive(Clone, Debug)]
pub struct BySize<Out: Physical, T: SizeTable<Out>> {
    geometry: Geometry,
    parameters: T::Parameters,
    /// By level, from 1.
    tables: [Option<T>; 3],
    /// Likewise: whether a page of that size was ever mapped, which walkers are told.
    asked: [bool; 3],
}

impl<Out: Physical, T: SizeTable<Out>> BySize<Out, T> {
    /// None yet.
    pub fn new(geometry: Geometry, parameters: T::Parameters) -> Self {
        Self { geometry, parameters, tables: [const { None }; 3], asked: [false; 3] }
    }

    /// The table for pages of `level`, which has been made.
    fn table(&mut self, level: Level) -> &mut T {
        self.tables[usize::from(level) - 1].as_mut().expect("it has been made")
    }
}

impl<Out: Physical, T: SizeTable<Out>> Store<Out> for BySize<Out, T> {
    fn clone_box(&self) -> Box<dyn Store<Out>> {
        Box::new(self.clone())
    }

    fn prepare(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        level: Level,
    ) -> Result<(), TableError> {
        let table = &mut self.tables[usize::from(level) - 1];
        if table.is_none() {
            *table = Some(T::new(memory, &self.parameters, self.geometry, level)?);
        }
        Ok(())
    }

    fn entry(&self, memory: &dyn EntryMemory<Out>, page: Page) -> Option<Entry> {
        self.tables[usize::from(page.level) - 1].as_ref()?.entry(memory, page.number)
    }

    fn insert(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        page: Page,
        entry: Entry,
    ) -> Result<Stale, TableError> {
        self.table(page.level).insert(memory, page.number, entry)?;
        self.asked[usize::from(page.level) - 1] = true;
        Ok(Stale::default())
    }

    fn remove(&mut self, memory: &mut dyn TableMemory<Out>, page: Page) -> Stale {
        self.table(page.level).remove(memory, page.number);
        Stale::default()
    }

    fn change(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        page: Page,
        leaf: &Leaf<Out>,
        entry: Entry,
    ) -> Result<(), TableError> {
        self.table(page.level).change(memory, page.number, leaf, entry)
    }

    fn statistics(&self) -> Vec<NodeStatistics> {
        self.tables.iter().flatten().flat_map(T::statistics).collect()
    }

    fn resizes(&self) -> Resizes {
        self.tables.iter().flatten().map(T::resizes).fold(Resizes::default(), Resizes::and)
    }

    fn destroy(self: Box<Self>, memory: &mut dyn TableMemory<Out>) {
        self.tables.into_iter().flatten().for_each(|table| table.destroy(memory));
    }

    fn probes(&self, input: u64, _known: &SideLines) -> Probes<Out> {
        let mut probes = Probes::default();
        for ((level, table), asked) in (1..).zip(&self.tables).zip(self.asked) {
            if let Some(table) = table.as_ref().filter(|_| asked) {
                probes.push(table.first(self.geometry.number(input, level)));
            }
        }
        probes
    }

    fn answer(&self, input: u64, probe: &Probe<Out>, line: &Line) -> Answer<Out> {
        let number = self.geometry.number(input, probe.level);
        let table = self.tables[usize::from(probe.level) - 1].as_ref();
        table.map_or(Answer::Nothing, |table| table.answer(number, probe, line))
    }
}
