//! Looks ahead in the trace, so that the machine that simulates has in its caches what it will need.
//!
//! Where a program's accesses miss the TLB, those of the simulator miss its own machine's caches: the leaf
//! entry of each page, and the words that stand for the sets of a large cache. The trace says which
//! addresses come, so they are asked for in time. Nothing that is simulated changes.

use std::ops::Range;

use flatwalk_os::{Piece, Process};
use flatwalk_paging::keyed::{Keyed, Probe};
use flatwalk_paging::{
    Address, Decoded, Entry, EntryMemory, Gpa, Gva, Hpa, PageTable, Physical, Step,
};

use crate::memory::hierarchy::Hierarchy;
use crate::memory::line::PAGE_SHIFT;
use crate::memory::simulator_prefetch::prefetch;
use crate::system::System;

/// How many accesses ahead.
const DISTANCE: usize = 48;
/// How many accesses behind those the list of addresses itself is asked for, which another thread
/// has written.
const FAR: usize = 128;
/// Pages between asking for a page's leaf entry and asking for what it leads to.
const DELAY: usize = 4;
/// Pages remembered, as many as a second-level TLB holds.
const PAGES: usize = 1024;
/// Regions remembered, those of a large page: as many as most programs use.
const REGIONS: usize = 4096;
/// log2 of a region's leaf entries, at most: a piece of memory holds so many.
const REGION_BITS: u8 = 9;

/// The accesses that come into sight when `passed` have been made and `remaining` are to come.
#[inline]
pub fn window(remaining: &[u64], passed: usize) -> &[u64] {
    if let Some(far) = remaining.get(DISTANCE + FAR) {
        prefetch(far);
    }
    let to = remaining.len().min(DISTANCE);
    &remaining[DISTANCE.saturating_sub(passed).min(to)..to]
}

/// The addresses of a part of a slice, and those behind it that come into sight before it ends.
pub fn with_sight(addresses: &[u64], part: Range<usize>) -> &[u64] {
    &addresses[part.start..(part.end + DISTANCE).min(addresses.len())]
}

/// What was looked at lately.
#[derive(Clone, Debug)]
pub struct LookAhead {
    /// Page numbers, each at its place modulo their number, by which it is divided.
    pages: Box<[u32; PAGES]>,
    own: Leaves<Hpa>,
    own_asked: Asked<Sought<Gva, Hpa>>,
    guest: Leaves<Gpa>,
    guest_asked: Asked<Sought<Gva, Gpa>>,
    host: Leaves<Hpa>,
    host_asked: Asked<Sought<Gpa, Hpa>>,
    /// Where pages lie.
    placed: Asked<Hpa>,
}

impl Default for LookAhead {
    fn default() -> Self {
        Self {
            pages: Box::new([u32::MAX; PAGES]),
            own: Leaves::default(),
            own_asked: Asked::default(),
            guest: Leaves::default(),
            guest_asked: Asked::default(),
            host: Leaves::default(),
            host_asked: Asked::default(),
            placed: Asked::default(),
        }
    }
}

impl LookAhead {
    /// `addresses` are soon to be accessed in `system`, through `caches` if there are any.
    #[inline]
    pub fn look(&mut self, addresses: &[u64], system: &System, caches: Option<&Hierarchy>) {
        for &address in addresses {
            let page = address >> PAGE_SHIFT;
            let known = &mut self.pages[page as usize % PAGES];
            // Of pages that are 2^54 bytes apart, one may be taken for the other, which is then not
            // asked for.
            let number = (page / PAGES as u64) as u32;
            if *known != number {
                *known = number;
                self.ask(Gva::new(address), system, caches);
            }
        }
    }

    #[inline(never)]
    fn ask(&mut self, address: Gva, system: &System, caches: Option<&Hierarchy>) {
        let hint = |place: Option<Hpa>| {
            if let (Some(caches), Some(place)) = (caches, place) {
                caches.prefetch_hint(place);
            }
        };
        match system {
            System::Native(process) => {
                let leaf = self.own.ask(process, address, |entry| hint(Some(entry)));
                if let Some(caches) = caches
                    && let Some(earlier) = self.own_asked.after((address, leaf))
                {
                    self.placed.bring(process, earlier, caches);
                }
            }
            System::Virtual(vm) => {
                let Self { guest, host, .. } = self;
                // Few pages hold the guest's table, so that the host's entries for them are at hand.
                let leaf = guest.ask(&vm.guest, address, |entry| {
                    let known = host.leaf(&vm.host, entry);
                    hint(Leaves::place(&vm.host, (entry, known)));
                });
                let Some(earlier) = self.guest_asked.after((address, leaf)) else { return };
                let Some(data) = Leaves::place(&vm.guest, earlier) else { return };
                let leaf = host.ask(&vm.host, data, |entry| hint(Some(entry)));
                if let Some(earlier) = self.host_asked.after((data, leaf))
                    && let Some(caches) = caches
                {
                    self.placed.bring(&vm.host, earlier, caches);
                }
            }
            System::Recorded(_) => {}
        }
    }
}

/// A leaf entry of a base page in a table that is a tree: where it is, and in which piece of the memory.
#[derive(Clone, Copy, Debug)]
struct Leaf<Out> {
    at: Out,
    piece: Piece,
}

/// An address, and its leaf entry if that is one of a base page in a tree.
type Sought<In, Out> = (In, Option<Leaf<Out>>);

/// What was asked for last, until it is there.
#[derive(Clone, Debug)]
struct Asked<T> {
    asked: [Option<T>; DELAY],
    next: usize,
}

impl<T: Copy> Default for Asked<T> {
    fn default() -> Self {
        Self { asked: [None; DELAY], next: 0 }
    }
}

impl Asked<Hpa> {
    /// Asks for the sets of the line that is sought, whose leaf entry is there, as its sets are.
    /// Where sets are there, those of what will have to go for their line follow.
    fn bring<In: Address>(
        &mut self,
        process: &Process<In, Hpa>,
        sought: Sought<In, Hpa>,
        caches: &Hierarchy,
    ) {
        if let (_, Some(leaf)) = sought {
            caches.prefetch_victim(leaf.at);
        }
        let Some(place) = Leaves::place(process, sought) else { return };
        caches.prefetch_hint(place);
        if let Some(earlier) = self.after(place) {
            caches.prefetch_victim(earlier);
        }
    }
}

impl<T: Copy> Asked<T> {
    /// Adds something; returns what was added before the last few.
    fn after(&mut self, asked: T) -> Option<T> {
        let earlier = self.asked[self.next].replace(asked);
        self.next = (self.next + 1) % DELAY;
        earlier
    }
}

/// The lines of a table without a tree that a walk of `address` reads for base pages.
#[inline]
fn base_probes<In: Address, Out: Physical>(
    table: &Keyed<In, Out>,
    memory: &impl EntryMemory<Out>,
    address: In,
) -> impl Iterator<Item = Probe<Out>> {
    let probes = table.first_probes(address, |at| memory.read_line(at));
    let all = (0..probes.as_slice().len()).map(move |number| probes.as_slice()[number]);
    all.filter(|probe| probe.level == 1)
}

/// Where the leaf entries of a region were when they were last looked for.
#[derive(Clone, Copy, Debug)]
struct Region<Out> {
    /// Its number, divided by how many regions are remembered.
    number: u32,
    /// The piece of memory that all of them are in; `None` where none were found.
    piece: Option<Piece>,
    /// The first of them.
    first: Out,
}

/// Where one table's leaf entries of base pages are.
#[derive(Clone, Debug)]
struct Leaves<Out> {
    /// Of a tree, each at its number's place modulo theirs. If leaf entries are elsewhere now, lines are
    /// prefetched in vain.
    regions: Vec<Region<Out>>,
}

impl<Out> Default for Leaves<Out> {
    fn default() -> Self {
        Self { regions: Vec::new() }
    }
}

impl<Out: Physical> Leaves<Out> {
    /// Asks for the leaf entry of `address`, or for all lines that it may be in, and calls `found` with where
    /// that is. Returns the entry if it is in a tree.
    #[inline]
    fn ask<In: Address>(
        &mut self,
        process: &Process<In, Out>,
        address: In,
        mut found: impl FnMut(Out),
    ) -> Option<Leaf<Out>> {
        let memory = process.memory();
        match process.table() {
            PageTable::Tree(_) => {
                let leaf = self.leaf(process, address)?;
                prefetch(memory.word_in(leaf.piece, leaf.at));
                // The walk looks there for the piece.
                prefetch(memory.note(leaf.at));
                found(leaf.at);
                Some(leaf)
            }
            PageTable::Keyed(table) => {
                for probe in base_probes(table, memory, address) {
                    prefetch(memory.word(probe.at));
                    found(probe.at);
                }
                None
            }
        }
    }

    /// Where `address` lies, if in a base page.
    #[inline]
    fn place<In: Address>(
        process: &Process<In, Out>,
        (address, leaf): Sought<In, Out>,
    ) -> Option<Out> {
        let memory = process.memory();
        let geometry = process.table().geometry();
        let frame = match process.table() {
            PageTable::Tree(_) => {
                let leaf = leaf?;
                let entry = Entry(u64::from_le_bytes(*memory.word_in(leaf.piece, leaf.at)));
                let Decoded::Mapped { frame, .. } = entry.decode::<Out>(geometry, 1) else {
                    return None;
                };
                frame
            }
            PageTable::Keyed(table) => {
                let leaf = |probe: Probe<Out>| {
                    table.answer(address, &probe, &memory.read_line(probe.at)).leaf()
                };
                base_probes(table, memory, address).find_map(leaf)?.frame
            }
        };
        Some(frame.offset(geometry.within(address.raw(), 1)))
    }

    /// The leaf entry of `address` in a tree, if in a node for base pages.
    #[inline]
    fn leaf<In: Address>(&mut self, process: &Process<In, Out>, address: In) -> Option<Leaf<Out>> {
        let tree = process.table().tree()?;
        let geometry = tree.geometry();
        let shift = geometry.page_shift() + geometry.index_bits().min(REGION_BITS);
        let region = address.raw() >> shift;
        let number = (region / REGIONS as u64) as u32;
        self.regions.resize(REGIONS, Region { number: 0, piece: None, first: Out::new(0) });
        let known = &mut self.regions[region as usize % REGIONS];
        if known.number != number || known.piece.is_none() {
            let mut walk = tree.walk(In::new(region << shift));
            while walk.at().bottom() > 1 {
                let entry = Entry(process.memory().read(walk.entry_address()));
                let Step::Table(_) = walk.feed(entry) else { return None };
            }
            let first = walk.entry_address();
            *known = Region { number, piece: process.memory().piece(first), first };
        }
        let entry = (address.raw() - (region << shift)) >> geometry.page_shift();
        Some(Leaf { at: known.first.offset(entry * 8), piece: known.piece? })
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_os::Random;
    use serde_json::json;

    use super::*;
    use crate::tests::testing::{DATA, Scenario, cuckoo_scheme, scheme, scheme_with};

    #[test]
    fn pages_are_found_where_they_are_mapped() {
        let of_geometry = |levels: u8, page_shift: u8, index_bits: u8| {
            let geometry = json!({ "page_shift": page_shift, "index_bits": index_bits });
            let table = json!({ "organisation": "radix", "levels": levels, "geometry": geometry });
            scheme_with(&table)
        };
        let schemes = [
            scheme(4, &[]),
            scheme(4, &["L4L3", "L2L1"]),
            scheme(4, &["L4L3L2"]),
            // Nodes of several pieces of memory, and several in one.
            of_geometry(3, 14, 11),
            of_geometry(5, 12, 7),
            cuckoo_scheme(64, true),
        ];
        let bytes = 64 << 20;
        for scheme in schemes {
            let run = Scenario::new(scheme.clone()).start(&[(DATA, bytes)], true);
            let System::Native(process) = &run.system else { panic!("there is a guest") };
            let (mut leaves, mut random) = (Leaves::default(), Random::new(1));
            for _ in 0..2000 {
                let address = Gva::new(DATA + random.below(bytes));
                let mut asked = Vec::new();
                let leaf = leaves.ask(process, address, |entry| asked.push(entry));
                assert!(!asked.is_empty(), "{scheme:?}");
                let found = process.table().translate(process.memory(), address).unwrap();
                let within = process.table().geometry().within(address.raw(), found.level);
                let place = Leaves::place(process, (address, leaf));
                assert_eq!(place, Some(found.frame.offset(within)), "{scheme:?}, {address:?}");
            }
            let elsewhere = Gva::new(DATA + (8 << 30));
            let leaf = leaves.ask(process, elsewhere, |_| ());
            assert_eq!(Leaves::place(process, (elsewhere, leaf)), None, "{scheme:?}");
        }
    }

    #[test]
    fn a_line_has_four_regions() {
        assert_eq!(size_of::<Region<Hpa>>(), 16);
    }

    #[test]
    fn every_access_comes_into_sight_once_and_in_time() {
        let all: Vec<u64> = (0..500).collect();
        let mut seen = Vec::new();
        let mut made = 0;
        for passed in [3, 0, 7, 1, 40, 13].into_iter().cycle().take(60) {
            let passed = passed.min(all.len() - made);
            made += passed;
            seen.extend_from_slice(window(&all[made..], passed));
        }
        assert_eq!(made, all.len());
        // The first pass shows the first that it does not make itself.
        let expected: Vec<u64> = (DISTANCE as u64..500).collect();
        assert_eq!(seen, expected);
    }
}
