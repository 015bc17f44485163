//! Looking ahead in the trace, so that the host has what simulating it will need.
//!
//! Where a program's accesses miss the TLB, those of the simulator miss the host's caches: the leaf
//! entry of each page, and the words that stand for the sets of a large cache. The trace says which
//! addresses come, so they are asked for in time. Nothing that is simulated changes.

use flatwalk_os::PhysicalMemory;
use flatwalk_paging::hashed::{Answer, Probe};
use flatwalk_paging::{Address, Decoded, Entry, EntryMemory, Gva, Hashed, Hpa, PageTable, Step};

use crate::hierarchy::Hierarchy;
use crate::space::Space;

/// How many accesses ahead.
const DISTANCE: usize = 48;
/// Pages between asking for a page's leaf entry and asking for what it leads to.
const DELAY: usize = 6;
/// Pages remembered, as many as a second-level TLB holds.
const PAGES: usize = 1024;
const PAGE_SHIFT: u32 = 12;

/// The accesses that come into sight when `passed` have been made and `remaining` are to come.
#[inline]
pub fn window(remaining: &[u64], passed: usize) -> &[u64] {
    let to = remaining.len().min(DISTANCE);
    &remaining[DISTANCE.saturating_sub(passed).min(to)..to]
}

/// What was looked at lately.
#[derive(Clone, Debug)]
pub struct Ahead {
    /// Page numbers, each at its place modulo their number.
    pages: Box<[u64; PAGES]>,
    /// Leaf entries asked for, with their addresses' offsets in the page; of a hashed table only the
    /// addresses.
    asked: [Option<(Hpa, u64)>; DELAY],
    next: usize,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { pages: Box::new([u64::MAX; PAGES]), asked: [None; DELAY], next: 0 }
    }
}

impl Ahead {
    /// `addresses` are soon to be accessed in `space`, through `caches` if there are any.
    #[inline]
    pub fn look(&mut self, addresses: &[u64], space: &Space, caches: Option<&Hierarchy>) {
        for &address in addresses {
            let page = address >> PAGE_SHIFT;
            let known = &mut self.pages[page as usize % PAGES];
            if *known != page {
                *known = page;
                self.ask(address, space, caches);
            }
        }
    }

    #[inline(never)]
    fn ask(&mut self, address: u64, space: &Space, caches: Option<&Hierarchy>) {
        // A guest's walks are long enough to hide what they miss.
        let Space::Native(process) = space else { return };
        let memory = process.memory();
        let tree = match process.table() {
            PageTable::Tree(tree) => tree,
            PageTable::Hashed(table) => return self.ask_hashed(address, table, memory, caches),
        };
        let mut walk = tree.walk(Gva::new(address));
        while walk.at().bottom() > 1 {
            let Step::Table(_) = walk.feed(Entry(memory.read(walk.entry_address()))) else {
                return;
            };
        }
        let entry_address = walk.entry_address();
        prefetch(memory.word(entry_address));
        let Some(caches) = caches else { return };
        caches.expect(entry_address);
        let within = address & ((1 << PAGE_SHIFT) - 1);
        let earlier = self.asked[self.next].replace((entry_address, within));
        self.next = (self.next + 1) % DELAY;
        if let Some((entry_address, within)) = earlier
            && let Decoded::Mapped { frame, .. } =
                Entry(memory.read(entry_address)).decode::<Hpa>(tree.geometry(), 1)
        {
            caches.expect(frame.offset(within));
        }
    }

    /// The same for a hashed table: the lines of base pages that a walk will read.
    fn ask_hashed(
        &mut self,
        address: u64,
        table: &Hashed<Gva, Hpa>,
        memory: &PhysicalMemory<Hpa>,
        caches: Option<&Hierarchy>,
    ) {
        let probes = |address| {
            let input = Gva::new(address);
            let probes = table.probes(input, table.hint(input, [None, None]));
            (input, probes)
        };
        let is_base = |probe: &&Probe<Hpa>| probe.part.pages() == Some(1);
        for probe in probes(address).1.as_slice().iter().filter(is_base) {
            prefetch(memory.word(probe.at));
            if let Some(caches) = caches {
                caches.expect(probe.at);
            }
        }
        let Some(caches) = caches else { return };
        let earlier = self.asked[self.next].replace((Hpa::new(0), address));
        self.next = (self.next + 1) % DELAY;
        let Some((_, earlier)) = earlier else { return };
        let (input, probes) = probes(earlier);
        for probe in probes.as_slice().iter().filter(is_base) {
            if let Answer::Leaf(leaf) = table.answer(input, probe, &memory.read_line(probe.at)) {
                caches.expect(leaf.frame.offset(earlier & ((1 << PAGE_SHIFT) - 1)));
                return;
            }
        }
    }
}

/// Asks the host for the line that `word` is in, without waiting for it.
#[inline]
pub fn prefetch<T>(word: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction, which changes no state that a program can
        // see and never faults, whatever the address.
        #[expect(unsafe_code, reason = "there is no safe way to ask for a line")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
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
