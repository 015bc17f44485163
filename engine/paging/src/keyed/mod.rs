//! Page tables without a tree: entries found by the number of the page, such as by hashing it.
//!
//! What a walk reads is [`Keyed::probes`], lines that are asked for at once, and [`Keyed::answer`] says
//! what each led to: the step machine of [`crate::Walk`], with several reads where that has one. Lines
//! next to the entries ([`side`]) can help: the walker has caches of them.
//!
//! How entries are found is the affair of an organisation's [`Store`]. What all have in common is here:
//! that pages do not overlap, and how many there are in which region.

pub mod by_size;
pub mod chained;
mod edit;
pub mod hash;
pub mod line;
mod probe;
mod regions;
mod side;
mod store;

use std::marker::PhantomData;

use crate::addr::{Address, Physical};
use crate::entry::Decoded;
use crate::error::{TableError, check_canonical};
use crate::geometry::{Geometry, Level};
use crate::mapping::{Mapping, NodeStatistics, Resizes};
use crate::memory::{EntryMemory, Line, TableMemory};
use crate::walk::{Fault, Leaf};

pub use probe::{Answer, LineRead, Probe, Probes};
pub use regions::Regions;
pub use side::{MOST_SIDE, SideLineCount, SideLines, SideStructure};
pub use store::{
    Design, MakeStore, Page, ReadWords, Stale, Store, largest_block, leaf_of, statistics_of,
};

/// A page table whose entries are found by the numbers of pages.
#[derive(Debug)]
pub struct Keyed<In, Out> {
    geometry: Geometry,
    store: Box<dyn Store<Out>>,
    /// Of each structure of side lines: whether a walk needs its lines.
    needed: Box<[bool]>,
    regions: Regions,
    input: PhantomData<In>,
}

impl<In, Out: Physical> Clone for Keyed<In, Out> {
    fn clone(&self) -> Self {
        let (store, needed) = (self.store.clone_box(), self.needed.clone());
        Self { store, needed, regions: self.regions.clone(), ..*self }
    }
}

impl<In: Address, Out: Physical> Keyed<In, Out> {
    /// An empty table, with room for small pages; one that is made with the machine is whole.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`] when there is no memory for it, however small.
    pub fn new(
        geometry: Geometry,
        design: &(dyn Design + 'static),
        memory: &mut dyn TableMemory<Out>,
    ) -> Result<Self, TableError>
    where
        dyn Design: MakeStore<Out>,
    {
        let mut store = <dyn Design as MakeStore<Out>>::make(design, geometry);
        let made = if design.is_made_with_machine() { geometry.largest() } else { 1 };
        for level in 1..=made {
            if let Err(error) = store.prepare(memory, level) {
                store.destroy(memory);
                return Err(error);
            }
        }
        let needed = design.side_structures().iter().map(|side| side.needed).collect();
        Ok(Self { geometry, store, needed, regions: Regions::new(geometry), input: PhantomData })
    }

    /// The geometry.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    // ---- the walk -------------------------------------------------------------------------------

    /// The lines that a walk of `input` reads, all at once, when so much is known.
    #[inline]
    pub fn probes(&self, input: In, known: &SideLines) -> Probes<Out> {
        self.store.probes(input.raw(), known)
    }

    /// What the `line` found at `probe`, one of [`Keyed::probes`] of `input`, led to.
    #[inline]
    pub fn answer(&self, input: In, probe: &Probe<Out>, line: &Line) -> Answer<Out> {
        self.store.answer(input.raw(), probe, line)
    }

    /// The fault of a walk none of whose reads led anywhere.
    pub fn not_present(&self, input: In) -> Fault<Out> {
        Fault::NotPresent { level: 1, entry_address: self.store.place(input.raw()) }
    }

    /// The key of the line of side structure `structure` that helps a walk of `input`, if there is one;
    /// `known` are those of the structures before it.
    #[inline]
    pub fn side_key(&self, structure: usize, input: In, known: &SideLines) -> Option<u64> {
        self.store.side_key(structure, input.raw(), known)
    }

    /// The lines one of which is line `key` of side structure `structure`.
    pub fn side_probes(&self, structure: usize, key: u64) -> Probes<Out> {
        self.store.side_probes(structure, key)
    }

    /// True if `line` is line `key` of side structure `structure`.
    pub fn is_side_line(&self, structure: usize, key: u64, line: &Line) -> bool {
        self.store.is_side_line(structure, key, line)
    }

    /// Of each structure of side lines: whether a walk needs its lines.
    #[inline]
    pub fn side_needed(&self) -> &[bool] {
        &self.needed
    }

    /// What is known of `input`, in words.
    pub fn explain_known(&self, input: In, known: &SideLines) -> String {
        self.store.explain_known(input.raw(), known)
    }

    /// The lines that a walk of `input` without any caches reads for entries. `read` gives the line at
    /// an address: side lines that a walk needs are looked up.
    #[inline]
    pub fn first_probes(&self, input: In, mut read: impl FnMut(Out) -> Line) -> Probes<Out> {
        let mut known = SideLines::default();
        for (structure, _) in self.needed.iter().enumerate().filter(|&(_, &needed)| needed) {
            let Some(key) = self.side_key(structure, input, &known) else { continue };
            for probe in self.side_probes(structure, key).as_slice() {
                let line = read(probe.at);
                if self.is_side_line(structure, key, &line) {
                    known.set(structure, line);
                }
            }
        }
        self.probes(input, &known)
    }

    /// Walks without any caches; `read` gives the line at an address.
    ///
    /// # Errors
    /// The fault that hardware would raise.
    pub fn walk(
        &self,
        input: In,
        mut read: impl FnMut(Out) -> Line,
    ) -> Result<Leaf<Out>, Fault<Out>> {
        for first in self.first_probes(input, &mut read).as_slice() {
            let mut probe = *first;
            loop {
                match self.answer(input, &probe, &read(probe.at)) {
                    Answer::Nothing => break,
                    Answer::Leaf(leaf) => return Ok(leaf),
                    Answer::Follow(next) => probe = next,
                    Answer::Fault(fault) => return Err(fault),
                }
            }
        }
        Err(self.not_present(input))
    }

    // ---- reading --------------------------------------------------------------------------------

    /// Translates as hardware would, without touching accessed bits.
    ///
    /// # Errors
    /// The fault that hardware would raise.
    pub fn translate(
        &self,
        memory: &(impl EntryMemory<Out> + ?Sized),
        input: In,
    ) -> Result<Leaf<Out>, Fault<Out>> {
        if !self.geometry.is_canonical(input.raw()) {
            return Err(Fault::NotCanonical);
        }
        self.walk(input, |at| memory.read_line(at))
    }

    /// The page that `input` lies in.
    ///
    /// # Errors
    /// [`TableError::NotMapped`] or [`TableError::Corrupt`].
    pub fn lookup(
        &self,
        memory: &(impl EntryMemory<Out> + ?Sized),
        input: In,
    ) -> Result<Mapping<In, Out>, TableError> {
        self.find(memory, input).map(|(mapping, _)| mapping)
    }

    /// True if no page lies in the page of `level` that `input` lies in.
    pub fn is_empty(
        &self,
        memory: &(impl EntryMemory<Out> + ?Sized),
        input: In,
        level: Level,
    ) -> bool {
        let number = self.geometry.number(input.raw(), level);
        let smaller = (1..level).any(|below| self.regions.any_in(number, level, below));
        !smaller && matches!(self.translate(memory, input), Err(Fault::NotPresent { .. }))
    }

    /// Calls `visit` for each page that lies, in part at least, in `length_bytes` from `start`, in
    /// ascending order.
    ///
    /// # Errors
    /// [`TableError::NotCanonical`] for a range beyond the table.
    pub fn visit(
        &self,
        memory: &dyn EntryMemory<Out>,
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
        self.between(memory, start.raw(), last).into_iter().for_each(visit);
        Ok(())
    }

    /// Every page that is mapped, in ascending order of (unsigned) address.
    pub fn mappings(&self, memory: &dyn EntryMemory<Out>) -> Vec<Mapping<In, Out>> {
        self.between(memory, 0, u64::MAX)
    }

    /// The memory that it takes, by kind.
    pub fn statistics(&self) -> Vec<NodeStatistics> {
        self.store.statistics()
    }

    /// How often it was resized.
    pub fn resizes(&self) -> Resizes {
        self.store.resizes()
    }

    // ---- inside ---------------------------------------------------------------------------------

    /// The page that `input` lies in, which is mapped, and its leaf.
    fn find(
        &self,
        memory: &(impl EntryMemory<Out> + ?Sized),
        input: In,
    ) -> Result<(Mapping<In, Out>, Leaf<Out>), TableError> {
        let leaf = self.translate(memory, input).map_err(|fault| match fault {
            Fault::NotPresent { .. } => TableError::NotMapped(input.raw()),
            Fault::Reserved { .. } => TableError::Corrupt(input.raw()),
            Fault::NotCanonical => {
                let bits = self.geometry.address_bits();
                TableError::NotCanonical { address: input.raw(), bits }
            }
        })?;
        let Leaf { frame, level, entry, .. } = leaf;
        let input = In::new(input.raw() - self.geometry.within(input.raw(), level));
        Ok((Mapping { input, frame, level, attributes: entry.attributes() }, leaf))
    }

    /// The pages from address `first` to `last`, in ascending order.
    fn between(
        &self,
        memory: &dyn EntryMemory<Out>,
        first: u64,
        last: u64,
    ) -> Vec<Mapping<In, Out>> {
        let mut found = Vec::new();
        for level in 1..=self.geometry.largest() {
            let (bits, bytes) = (self.geometry.index_bits(), self.geometry.span(level));
            for region in self.regions.between(level, first, last) {
                for number in region << bits..(region + 1) << bits {
                    let input = self.geometry.canonical(number << self.geometry.shift(level));
                    if input > last || input + (bytes - 1) < first {
                        continue;
                    }
                    let Some(entry) = self.store.entry(memory, Page { level, number }) else {
                        continue;
                    };
                    if let Decoded::Mapped { frame, level } = entry.decode(self.geometry, level) {
                        let (input, attributes) = (In::new(input), entry.attributes());
                        found.push(Mapping { input, frame, level, attributes });
                    }
                }
            }
        }
        found.sort_unstable_by_key(|mapping: &Mapping<In, Out>| mapping.input);
        found
    }
}
