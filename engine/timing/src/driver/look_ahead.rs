//! Looks ahead in the trace, so that the machine that simulates has in its caches what it will need.
//!
//! Where a program's accesses miss the TLB, those of the simulator miss
//! its own machine's caches: the leaf
//! entry of each page, and the words that stand for the sets of a large cache. The trace says which
//! addresses come, so they are asked for in time. Nothing that is simulated changes.

use std::ops::Range;

use flatwalk_os::Process;
use flatwalk_paging::keyed::{Keyed, Probe};
use flatwalk_paging::{
    Address, Decoded, Entry, EntryMemory, Gpa, Gva, Hpa, PageTable, Physical, Step,
};

use crate::memory::hierarchy::Hierarchy;
use crate::memory::simulator_prefetch::prefetch;
use crate::system::System;

/// How many accesses ahead.
const DISTANCE: usize = 48;
/// Pages between asking for a page's leaf entry and asking for what it leads to.
const DELAY: usize = 4;
/// Pages remembered, as many as a second-level TLB holds.
const PAGES: usize = 1024;
const PAGE_SHIFT: u32 = 12;
/// Regions remembered, those of a large page: as many as most programs use.
const REGIONS: usize = 4096;

/// The accesses that come into sight when `passed` have been made and `remaining` are to come.
#[inline]
pub fn window(remaining: &[u64], passed: usize) -> &[u64] {
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
    /// Page numbers, each at its place modulo their number.
    pages: Box<[u64; PAGES]>,
    own: Leaves<Hpa>,
    own_asked: Asked<Gva, Hpa>,
    guest: Leaves<Gpa>,
    guest_asked: Asked<Gva, Gpa>,
    host: Leaves<Hpa>,
    host_asked: Asked<Gpa, Hpa>,
}

impl Default for LookAhead {
    fn default() -> Self {
        Self {
            pages: Box::new([u64::MAX; PAGES]),
            own: Leaves::default(),
            own_asked: Asked::default(),
            guest: Leaves::default(),
            guest_asked: Asked::default(),
            host: Leaves::default(),
            host_asked: Asked::default(),
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
            if *known != page {
                *known = page;
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
                let entry = self.own.ask(process, address, |entry| hint(Some(entry)));
                if caches.is_some()
                    && let Some(earlier) = self.own_asked.after((address, entry))
                {
                    hint(Leaves::place(process, earlier));
                }
            }
            System::Virtual(vm) => {
                let Self { guest, host, .. } = self;
                // Few pages hold the guest's table, so that the host's entries for them are at hand.
                let entry = guest.ask(&vm.guest, address, |entry| {
                    let known = host.entry(&vm.host, entry);
                    hint(Leaves::place(&vm.host, (entry, known)));
                });
                let Some(earlier) = self.guest_asked.after((address, entry)) else { return };
                let Some(data) = Leaves::place(&vm.guest, earlier) else { return };
                let entry = host.ask(&vm.host, data, |entry| hint(Some(entry)));
                if let Some(earlier) = self.host_asked.after((data, entry)) {
                    hint(Leaves::place(&vm.host, earlier));
                }
            }
            System::Recorded(_) => {}
        }
    }
}

/// An address, and where its leaf entry is in a table that is a tree, if in a node for base pages.
type Sought<In, Out> = (In, Option<Out>);

/// Addresses whose leaf entries were asked for, until these are there.
#[derive(Clone, Debug)]
struct Asked<In, Out> {
    asked: [Option<Sought<In, Out>>; DELAY],
    next: usize,
}

impl<In: Copy, Out: Copy> Default for Asked<In, Out> {
    fn default() -> Self {
        Self { asked: [None; DELAY], next: 0 }
    }
}

impl<In: Copy, Out: Copy> Asked<In, Out> {
    /// Adds an address; returns the one that was added before the last few.
    fn after(&mut self, address: Sought<In, Out>) -> Option<Sought<In, Out>> {
        let earlier = self.asked[self.next].replace(address);
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

/// Where one table's leaf entries of base pages are.
#[derive(Clone, Debug)]
struct Leaves<Out> {
    /// Of a tree: numbers of regions, each at its place modulo their number, and where their leaf
    /// entries were when they were last looked for. If they are elsewhere now, lines are prefetched in
    /// vain.
    regions: Vec<(u64, Out)>,
}

impl<Out> Default for Leaves<Out> {
    fn default() -> Self {
        Self { regions: Vec::new() }
    }
}

impl<Out: Physical> Leaves<Out> {
    /// Asks for the leaf entry of `address`, or for all lines that it may be in, and calls `found` with where
    /// that is. Returns where the entry is in a tree.
    #[inline]
    fn ask<In: Address>(
        &mut self,
        process: &Process<In, Out>,
        address: In,
        mut found: impl FnMut(Out),
    ) -> Option<Out> {
        let mut ask = |place| {
            prefetch(process.memory().word(place));
            found(place);
        };
        match process.table() {
            PageTable::Tree(_) => self.entry(process, address).inspect(|&place| ask(place)),
            PageTable::Keyed(table) => {
                base_probes(table, process.memory(), address).for_each(|probe| ask(probe.at));
                None
            }
        }
    }

    /// Where `address` lies, if in a base page.
    #[inline]
    fn place<In: Address>(
        process: &Process<In, Out>,
        (address, entry): Sought<In, Out>,
    ) -> Option<Out> {
        let memory = process.memory();
        let geometry = process.table().geometry();
        let frame = match process.table() {
            PageTable::Tree(_) => {
                let entry = Entry(memory.read(entry?));
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

    /// Where the leaf entry of `address` is in a tree, if in a node for base pages.
    #[inline]
    fn entry<In: Address>(&mut self, process: &Process<In, Out>, address: In) -> Option<Out> {
        let tree = process.table().tree()?;
        let geometry = tree.geometry();
        let region = address.raw() >> geometry.shift(2);
        self.regions.resize(REGIONS, (u64::MAX, Out::new(0)));
        let known = &mut self.regions[region as usize % REGIONS];
        if known.0 != region {
            let mut walk = tree.walk(In::new(region << geometry.shift(2)));
            while walk.at().bottom() > 1 {
                let entry = Entry(process.memory().read(walk.entry_address()));
                let Step::Table(_) = walk.feed(entry) else { return None };
            }
            *known = (region, walk.entry_address());
        }
        Some(known.1.offset(geometry.index(address.raw(), 1, 1) * 8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
