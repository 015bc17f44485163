//! Sequential TLB prefetching: the translations of the next pages, walked for ahead of time.
//!
//! Source: Kandiraju and Sivasubramaniam, "Going the Distance for TLB Prefetching: An
//! Application-Driven Study", ISCA 2002, sequential prefetching; buffer and its place behind the
//! last-level TLB as in Vavouliotis et al., "Exploiting Page Table Locality for Agile TLB
//! Prefetching", ISCA 2021, whose baseline prefetcher SP this is. A miss of the L2 TLB looks in a
//! small, fully associative buffer. What is there moves to the TLB and takes no walk; else the page
//! table is walked. Either way the next `degree` pages are walked for afterwards, and what is found
//! goes into the buffer, where the oldest entry makes room.
//!
//! A prefetch walk begins when the miss is over, takes a page walker if one is free then, and reads
//! through the caches like any walk. It raises no fault: what is not mapped is not prefetched. Nor
//! does it call software, where a walk would need that (of Itanium, say).
//!
//! Departs from the papers: a prefetch walk sets accessed bits, as the speculative walks of x86 may;
//! one that finds no free walker is given up; the next page is as large as the page that missed. A
//! miss that the buffer answers is counted as a walk that reads nothing.

use std::collections::VecDeque;

use flatwalk_paging::{Address, Flush, Gva};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Registered, Section, Setup};
use crate::ConfigError;
use crate::counts::{Visitor, add};
use crate::mmu::event::{Found, Stopped};
use crate::mmu::mechanism::{Hooks, Mechanism, Miss, ResultView, figures};
use crate::mmu::tlb::Tlb;

const NAME: &str = "sequential_prefetcher";

pub(super) const MECHANISM: Registered = Registered {
    name: NAME,
    scheme: Some(Section::of::<Settings>()),
    host: None,
    machine: None,
    figures: Section::of::<Figures>(),
    build,
};

/// What a scheme says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Pages prefetched after a miss.
    #[schemars(range(min = 1, max = 16))]
    pub degree: u32,
    /// Entries of the prefetch buffer.
    #[schemars(range(min = 1, max = 4096))]
    pub buffer_entries: u32,
    /// Cycles that a look-up of the buffer takes, after the L2 TLB missed.
    #[schemars(range(min = 0, max = 1000))]
    pub buffer_latency_cycles: u64,
}

/// What it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[cfg_attr(test, derive(Deserialize))]
pub struct Figures {
    /// Misses of the L2 TLB that looked in the buffer.
    pub lookups: u64,
    /// Of those, found there.
    pub hits: u64,
    /// Prefetch walks that found a page.
    pub prefetches: u64,
    /// Entries that those read.
    pub accesses: u64,
    /// Prefetches given up: nothing was mapped, no page walker was free, or the walk would have
    /// needed software.
    pub dropped: u64,
    /// Translations that left the buffer without being used: for another one, as they were flushed,
    /// or as the access needed more than they permit.
    pub unused: u64,
}

add!(Figures { lookups, hits, prefetches, accesses, dropped, unused });

fn build(setup: &mut Setup<'_>) -> Result<Option<Box<dyn Mechanism>>, ConfigError> {
    let Some(settings) = setup.scheme.mechanisms.get::<Settings>(NAME)? else { return Ok(None) };
    setup.refuse_recorded(NAME)?;
    Ok(Some(Box::new(SequentialPrefetcher {
        settings,
        buffer: VecDeque::with_capacity(settings.buffer_entries as usize),
        statistics: Figures::default(),
    })))
}

/// A translation in the buffer.
#[derive(Clone, Copy, Debug)]
struct Prefetched {
    /// First and last address of its page.
    page: (u64, u64),
    found: Found,
}

impl Prefetched {
    fn translates(&self, address: Gva) -> bool {
        (self.page.0..=self.page.1).contains(&address.raw())
    }
}

/// The prefetcher and its buffer.
#[derive(Clone, Debug)]
struct SequentialPrefetcher {
    settings: Settings,
    /// Oldest first.
    buffer: VecDeque<Prefetched>,
    statistics: Figures,
}

impl SequentialPrefetcher {
    /// Walks for the pages behind that of `address`, which `found` is, from its being known on.
    fn prefetch_after(&mut self, miss: &mut Miss<'_>, address: Gva, found: &Found) {
        let bytes = miss.geometry.span(found.level);
        let mut next = address.raw() & !(bytes - 1);
        let mut at = found.ready;
        for _ in 0..self.settings.degree {
            next = next.wrapping_add(bytes);
            let next = Gva::new(next);
            let known = |entry: &Prefetched| entry.translates(next);
            if !miss.geometry.is_canonical(next.raw())
                || miss.tlb.holds(next.raw())
                || self.buffer.iter().any(known)
            {
                continue;
            }
            let Some((found, accesses)) = miss.prefetch_walk(next, at) else {
                self.statistics.dropped += 1;
                continue;
            };
            self.statistics.prefetches += 1;
            self.statistics.accesses += accesses;
            // One walker makes them one after the other.
            at = found.ready;
            self.insert(miss, next, found);
        }
    }

    fn insert(&mut self, miss: &Miss<'_>, address: Gva, found: Found) {
        if self.buffer.len() == self.settings.buffer_entries as usize {
            self.buffer.pop_front();
            self.statistics.unused += 1;
        }
        let last = miss.geometry.span(found.level) - 1;
        let page = (address.raw() & !last, address.raw() | last);
        self.buffer.push_back(Prefetched { page, found });
    }
}

impl Mechanism for SequentialPrefetcher {
    fn clone_box(&self) -> Box<dyn Mechanism> {
        Box::new(self.clone())
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn hooks(&self) -> Hooks {
        Hooks { look_up: true, walk: true, ..Hooks::default() }
    }

    fn look_up(&mut self, miss: &mut Miss<'_>) -> Result<Found, u64> {
        self.statistics.lookups += 1;
        let address = miss.request.address;
        let timed = miss.port.is_timed();
        let latency = if timed { self.settings.buffer_latency_cycles } else { 0 };
        let now = miss.request.at + latency;
        let Some(place) = self.buffer.iter().position(|entry| entry.translates(address)) else {
            return Err(now);
        };
        let Some(Prefetched { mut found, .. }) = self.buffer.remove(place) else { return Err(now) };
        if !found.permits(miss.request.kind) {
            // The walk that follows is what the next pages are walked for after.
            self.statistics.unused += 1;
            return Err(now);
        }
        self.statistics.hits += 1;
        found.ready = found.ready.max(now);
        self.prefetch_after(miss, address, &found);
        Ok(found)
    }

    fn after_walk(&mut self, miss: &mut Miss<'_>, result: &mut Result<Found, Stopped>) {
        if let Ok(found) = *result {
            self.prefetch_after(miss, miss.request.address, &found);
        }
    }

    fn flush(&mut self, flush: &Flush<Gva>, _tlb: &mut Tlb) {
        if !flush.leaves {
            return;
        }
        let (start, last) = (flush.start.raw(), flush.last.raw());
        let before = self.buffer.len();
        self.buffer.retain(|entry| entry.page.1 < start || entry.page.0 > last);
        self.statistics.unused += (before - self.buffer.len()) as u64;
    }

    fn switch_context(&mut self) {
        self.statistics.unused += self.buffer.len() as u64;
        self.buffer.clear();
    }

    fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.statistics);
    }

    fn result(&self, _view: &ResultView<'_>) -> Option<Map<String, Value>> {
        Some(figures(&self.statistics))
    }

    fn words(&self, _view: &ResultView<'_>) -> Vec<String> {
        let Figures { lookups, hits, prefetches, accesses, unused, .. } = self.statistics;
        if lookups == 0 {
            return vec!["nothing was looked up in the prefetch buffer".to_owned()];
        }
        let percent = 100.0 * hits as f64 / lookups as f64;
        vec![format!(
            "the prefetch buffer had {percent:.1} % of what the L2 TLB missed, for {prefetches} walks \
             ahead of {accesses} accesses, {unused} of them in vain"
        )]
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_paging::{AccessKind, Address, Attributes, Entry, EntryMemoryMut, Gva, Rights};
    use flatwalk_trace::Event;

    use super::{Figures, NAME, Settings};
    use crate::config::machine::Pwc;
    use crate::driver::piece::Piece;
    use crate::driver::run::{Mode, Run};
    use crate::mmu::event::Request;
    use crate::system::System;
    use crate::tests::testing::{DATA, Do, Scenario, go, host_table, scheme, walk};

    const PAGE: u64 = 4096;
    const LARGE: u64 = 2 << 20;
    const MIB: u64 = 1 << 20;

    fn scenario(degree: u32, buffer_entries: u32) -> Scenario {
        let mut scenario = Scenario::new(scheme(4, &[]));
        let settings = Settings { degree, buffer_entries, buffer_latency_cycles: 2 };
        scenario.scheme.mechanisms.set(NAME, settings);
        // Nothing that a test reads is evicted.
        let l1d = scenario.machine.l1d.as_mut().unwrap();
        (l1d.size_bytes, l1d.ways, l1d.mshrs) = (32 << 10, 8, 12);
        scenario
    }

    fn figures(run: &Run) -> Figures {
        crate::tests::testing::figures(run, NAME).unwrap()
    }

    #[test]
    fn latencies_by_hand() {
        let mut run = scenario(1, 64).start(&[(DATA, 4 * MIB)], true);
        // The buffer for 2 cycles, the page-walk cache for 1, the root's entry out of L2 for 12 (it
        // shares its line with the code), then three of 142 each.
        assert_eq!(walk(&mut run, DATA), (4, 2 + 1 + 12 + 3 * 142));
        // The walk ahead read one entry, in the line that the first had brought.
        let ahead = Figures { lookups: 1, prefetches: 1, accesses: 1, ..Figures::default() };
        assert_eq!(figures(&run), ahead);
        // The next page is in the buffer, and the one behind it is walked for.
        assert_eq!(walk(&mut run, DATA + PAGE), (0, 2));
        let next = Figures { hits: 1, ..ahead };
        assert_eq!(figures(&run), next);
        // A page further on is not: a walk as ever, behind the buffer.
        assert_eq!(walk(&mut run, DATA + 64 * PAGE), (1, 2 + 1 + 142));
    }

    #[test]
    fn a_sweep_over_pages_walks_once() {
        for mode in [Mode::Timing, Mode::Functional] {
            let mut scenario = scenario(2, 8);
            scenario.mode = mode;
            let mut run = scenario.start(&[(DATA, 4 * MIB)], true);
            go(&mut run, &(0..512).map(|page| Do::Chase(DATA + page * PAGE)).collect::<Vec<_>>());
            let Figures { lookups, hits, .. } = figures(&run);
            assert_eq!((lookups, hits), (512, 511), "{mode:?}");
            let total = run.mmu.statistics.total();
            assert_eq!((total.walks, total.accesses), (512, 4), "{mode:?}");
        }
    }

    #[test]
    fn what_is_not_mapped_is_not_prefetched_and_does_not_fault() {
        let mut run = scenario(4, 8).start(&[(DATA, 2 * PAGE)], true);
        let faults = run.system.statistics().faults;
        go(&mut run, &[Do::Chase(DATA)]);
        assert_eq!((figures(&run).prefetches, figures(&run).dropped), (1, 3));
        assert_eq!(run.system.statistics().faults, faults);
        assert_eq!(run.mmu.statistics.faulting, 0);
    }

    #[test]
    fn the_oldest_makes_room_and_what_is_flushed_is_gone() {
        let mut run = scenario(4, 4).start(&[(DATA, 4 * MIB)], true);
        // Far apart, so that each miss brings four more pages.
        go(&mut run, &[Do::Chase(DATA), Do::Chase(DATA + 100 * PAGE)]);
        assert_eq!((figures(&run).prefetches, figures(&run).unused), (8, 4));
        // Two of the four in the buffer are unmapped.
        let gone = Event::Unmap { address: DATA + 101 * PAGE, length: 2 * PAGE };
        run.take(&Piece::Event(gone)).unwrap();
        assert_eq!(figures(&run).unused, 6);
        let faults = run.system.statistics().faults;
        go(&mut run, &[Do::Chase(DATA + 101 * PAGE)]);
        assert_eq!(run.system.statistics().faults, faults + 1, "a stale translation was used");
    }

    #[test]
    fn a_store_to_a_page_prefetched_clean_walks_to_set_the_dirty_bit() {
        let mut run = scenario(1, 8).start(&[(DATA, 4 * MIB)], true);
        let at = Gva::new(DATA + PAGE);
        let leaf = |run: &Run| {
            let System::Native(process) = &run.system else { panic!("there is a guest") };
            process.table().translate(process.memory(), at).unwrap()
        };
        // As after the kernel cleaned the page for write-back.
        let clean = Entry::leaf(leaf(&run).frame, false, Attributes::new(Rights::ALL));
        let entry_address = leaf(&run).entry_address;
        let System::Native(process) = &mut run.system else { panic!("there is a guest") };
        process.memory_mut().write(entry_address, clean.0);
        go(&mut run, &[Do::Chase(DATA)]);
        assert!(!leaf(&run).entry.is_dirty(), "a walk ahead stores nothing");
        go(&mut run, &[Do::Store(at.raw())]);
        assert!(leaf(&run).entry.is_dirty());
        let Figures { lookups, hits, unused, .. } = figures(&run);
        assert_eq!((lookups, hits, unused), (2, 0, 1));
        // It does not wait until the walk ahead is over, after which its own would need a read only.
        assert_eq!(run.mmu.statistics.total().accesses, 4 + 4);
    }

    #[test]
    fn a_translation_that_may_not_be_used_delays_no_walk() {
        let mut alone = scenario(1, 8);
        alone.scheme.mechanisms.remove(NAME);
        // When a store knows its page, which it asks for a cycle after a load has asked for the page before.
        let store = |scenario: &Scenario, asked: u64| {
            let mut run = scenario.start(&[(DATA, 4 * MIB)], true);
            let at = Gva::new(DATA + PAGE);
            let System::Native(process) = &mut run.system else { panic!("there is a guest") };
            let leaf = process.table().translate(process.memory(), at).unwrap();
            let clean = Entry::leaf(leaf.frame, false, Attributes::new(Rights::ALL));
            process.memory_mut().write(leaf.entry_address, clean.0);
            let Run { mmu, system, timed, .. } = &mut run;
            let (_, caches) = timed.as_mut().expect("it is timed");
            let mut translate = |address, kind, at| {
                let request = Request { address, kind, at };
                mmu.translate(request, || 0, system, &mut **caches).unwrap().ready
            };
            translate(Gva::new(DATA), AccessKind::Load, asked);
            translate(at, AccessKind::Store, asked + 1)
        };
        // The buffer is looked up for 2 cycles, and that is all.
        assert_eq!(store(&scenario(1, 8), 1000), store(&alone, 1002));
    }

    #[test]
    fn large_pages_and_guests_are_prefetched_for() {
        let mut large = scenario(1, 8);
        large.large_pages = 100;
        let mut run = large.start(&[(DATA, 64 * LARGE)], true);
        go(&mut run, &[Do::Chase(DATA), Do::Chase(DATA + LARGE + 5 * PAGE)]);
        assert_eq!((figures(&run).lookups, figures(&run).hits), (2, 1));
        let mut guest = scenario(1, 8);
        guest.scheme.host = Some(host_table(4, &[]));
        guest.machine.pwc = Pwc::None;
        let mut run = guest.start(&[(DATA, 4 * MIB)], true);
        go(&mut run, &(0..64).map(|page| Do::Chase(DATA + page * PAGE)).collect::<Vec<_>>());
        let Figures { lookups, hits, .. } = figures(&run);
        // Each page misses once, and once more after each fault of the host's.
        assert_eq!(lookups, 64 + run.mmu.statistics.faulting);
        assert!(hits > 32, "{hits}");
    }
}
