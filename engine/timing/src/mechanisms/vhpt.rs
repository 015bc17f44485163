//! IA-64's walker: one access to a virtually mapped array of entries, and a handler in software behind it.
//!
//! Source: Intel Itanium Architecture Software Developer's Manual, volume 2, section 4.1.5 (VHPT, short
//! format); Linux, arch/ia64/kernel/ivt.S (`vhpt_miss`); Holt, "Re: [RFC] 4-level page table
//! directories", linux-ia64, 2005. Linux lays the lowest level of its page table out as one linear
//! array of virtual memory, so the entry of page n is word n there. On a TLB miss the walker reads it,
//! if the TLB holds the page of the array that it is in. Otherwise the processor traps: software walks
//! the table from the root, puts both translations into the TLB, and reads all entries but the root's
//! once more, in case someone changed them meanwhile.
//!
//! Walks for prefetchers are the walker's alone: where it would trap, there is no prefetch, as IA-64 drops an
//! `lfetch` that the walker has no translation for.
//!
//! Departs from it: accessed and dirty bits are set by the walker, where IA-64 traps for them; what is
//! younger than the miss goes on while the handler runs, as far as it has no need of its result; and
//! large pages are leaves of the same table, where Linux keeps them in a region of their own.

use flatwalk_paging::{Address, Flush, Geometry, Gva, Hpa, NodeRef};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Registered, Section, Setup};
use crate::ConfigError;
use crate::config::machine::Pwc;
use crate::config::require;
use crate::counts::{Visitor, add};
use crate::mmu::event::{Found, Read, Stopped};
use crate::mmu::mechanism::{Explained, Hooks, Mechanism, Miss, ResultView, figures};
use crate::mmu::tlb::{Tlb, Translation};

const NAME: &str = "vhpt";

pub(super) const MECHANISM: Registered = Registered {
    name: NAME,
    scheme: None,
    host: None,
    machine: Some(Section::of::<Settings>()),
    figures: Section::of_figures::<Figures>(),
    build,
};

/// IA-64's walker in place of page-walk caches: it finds level-1 entries through the TLB, and traps to a
/// handler if it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Cycles of a trap to the handler and of its instructions, its loads excluded.
    #[schemars(range(min = 0, max = 100_000))]
    pub handler_cycles: u64,
}

/// What the walker found in the TLB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Figures {
    /// Walks that looked for the page of the array in the TLB, those for prefetchers too.
    pub lookups: u64,
    /// Of those, found there.
    pub hits: u64,
}

add!(Figures { lookups, hits });

fn build(setup: &mut Setup<'_>) -> Result<Option<Box<dyn Mechanism>>, ConfigError> {
    let Some(settings) = setup.machine.mechanisms.get::<Settings>(NAME)? else { return Ok(None) };
    let Settings { handler_cycles } = settings;
    require(setup.machine.pwc == Pwc::None, NAME, || {
        "takes the place of page-walk caches: write `kind = \"none\"` in [pwc]".to_owned()
    })?;
    require(setup.host.is_none() && setup.own.is_tree, NAME, || {
        "walks the one table of a native system, by its levels: choose another scheme".to_owned()
    })?;
    Ok(Some(Box::new(Vhpt {
        geometry: setup.own.geometry,
        handler_cycles,
        handler: None,
        statistics: Figures::default(),
    })))
}

/// Where the array starts: beyond every address of a program's.
const ARRAY: u64 = 1 << 60;

/// The walker of one core.
#[derive(Clone, Debug)]
struct Vhpt {
    geometry: Geometry,
    handler_cycles: u64,
    /// What the handler read in the walk under way, if it makes it.
    handler: Option<Vec<Read>>,
    statistics: Figures,
}

impl Vhpt {
    /// Where the entry of the page that `address` lies in stands in the array.
    fn entry(&self, address: Gva) -> u64 {
        ARRAY + (address.raw() >> self.geometry.page_shift()) * 8
    }

    /// Ends a handler that found a page: puts the page of the array that has the leaf's node into the
    /// TLB and reads all entries but the root's again.
    fn finish(&self, reads: &[Read], found: &mut Found, miss: &mut Miss<'_>) {
        let at = found.ready;
        for read in reads.iter().skip(1) {
            let response = miss.port.read_entry(Hpa::new(read.entry_address), at, false);
            found.ready = found.ready.max(response.ready);
            miss.log.read(&Read { asked: at, response, ..*read });
        }
        // A node of level 1 is a page of the array. One that spans more levels is as many of them, in order.
        if let Some(read) = reads.last().filter(|read| read.level == 1) {
            let within = self.geometry.index(read.input, 1, 1) * 8;
            let page = Translation {
                frame: Hpa::new(read.entry_address - within),
                level: 1,
                rights: read.rights,
                dirty: true,
                requested: at,
                ready: found.ready,
                waited: 0,
            };
            miss.tlb.insert(self.entry(miss.request.address), page);
        }
    }
}

impl Mechanism for Vhpt {
    fn clone_box(&self) -> Box<dyn Mechanism> {
        Box::new(self.clone())
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn hooks(&self) -> Hooks {
        Hooks { part_of_walker: true, ..Hooks::default() }
    }

    fn before_walk(&mut self, miss: &mut Miss<'_>) {
        self.statistics.lookups += 1;
        let timed = miss.port.is_timed();
        let start = miss.start;
        if let Some((page, latency)) = miss.tlb.look_up(self.entry(miss.request.address)) {
            self.statistics.hits += 1;
            let node = NodeRef { base: page.frame, level: 1, width: 1, rights: page.rights };
            miss.start = if timed { page.ready.max(start + latency) } else { start };
            miss.walker.start_at(Some(node));
            return;
        }
        miss.start = if timed { start + miss.tlb.latency() + self.handler_cycles } else { start };
        self.handler = Some(Vec::with_capacity(8));
    }

    fn entry_read(&mut self, read: &Read) {
        if let Some(reads) = &mut self.handler {
            reads.push(*read);
        }
    }

    fn after_walk(&mut self, miss: &mut Miss<'_>, result: &mut Result<Found, Stopped>) {
        miss.walker.start_at(None);
        if let (Some(reads), Ok(found)) = (self.handler.take(), result) {
            self.finish(&reads, found, miss);
        }
    }

    /// Drops the pages of the array that have entries for the range.
    fn flush(&mut self, flush: &Flush<Gva>, tlb: &mut Tlb) {
        tlb.flush(self.entry(flush.start), self.entry(flush.last) + 7);
    }

    fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.statistics);
    }

    fn result(&self, _view: &ResultView<'_>) -> Option<Map<String, Value>> {
        Some(figures(&self.statistics))
    }

    fn words(&self, _view: &ResultView<'_>) -> Vec<String> {
        let Figures { lookups, hits } = self.statistics;
        let software = lookups - hits;
        vec![format!("software made {software} of the {lookups} walks")]
    }

    fn walks_in_software(&self, address: Gva, tlb: &Tlb) -> bool {
        !tlb.holds(self.entry(address))
    }

    fn explain(&self, address: Gva, tlb: &Tlb) -> Option<Explained> {
        let entry = self.entry(address);
        let known = tlb.clone().look_up(entry).map(|(page, _)| page.frame);
        let text = match known {
            Some(node) => format!(
                "VHPT: the entry at {entry:#x} of the array is in a page that the L2 TLB knows, the L1 \
                 node at {node:#x}."
            ),
            None => format!(
                "VHPT: the entry at {entry:#x} of the array is in a page that the L2 TLB does not know. \
                 Software walks the table, {} cycles later, and reads all entries but the first again.",
                self.handler_cycles
            ),
        };
        Some(Explained { text, name: "VHPT", hit: known.is_some() })
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_trace::Event;
    use serde_json::{Value, json};

    use crate::config::machine::Pwc;
    use crate::config::sections::Sections;
    use crate::config::table::Pages;
    use crate::counts::forget;
    use crate::driver::piece::Piece;
    use crate::driver::run::{Mode, Run};
    use crate::report::explain::{ExplainStep, explain};
    use crate::tests::testing::{
        DATA, Do, Scenario, cuckoo_scheme, figures, go, host_table, scheme, walk,
    };

    const LARGE: u64 = 2 << 20;
    const GIB: u64 = 1 << 30;

    fn scenario(levels: u8, pages: Option<Pages>) -> Scenario {
        let mut scenario = Scenario::new(scheme(levels, &[]));
        scenario.scheme.table.geometry = pages;
        scenario.machine.pwc = Pwc::None;
        scenario.machine.mechanisms.set("vhpt", super::Settings { handler_cycles: 50 });
        let l1d = scenario.machine.l1d.as_mut().unwrap();
        (l1d.size_bytes, l1d.ways, l1d.mshrs) = (32 << 10, 8, 12);
        scenario
    }

    #[test]
    fn latencies_by_hand() {
        let mut run = scenario(4, None).start(&[(DATA, GIB)], true);
        // The array's page is looked for in the L2 TLB (9 cycles), the handler starts (50), loads the
        // root's entry from L2 (12: it shares its line with the code) and three more from memory, and
        // has those three once more out of L1D, at once.
        assert_eq!(walk(&mut run, DATA), (4 + 3, 9 + 50 + 12 + 3 * 142 + 4));
        // The array's page is known now: one access, to another line of it.
        assert_eq!(walk(&mut run, DATA + 64 * 4096), (1, 9 + 142));
        // Another page of the array, whose entries of levels 4 and 3 are in L1D.
        assert_eq!(walk(&mut run, DATA + 9 * LARGE), (7, 9 + 50 + 4 + 4 + 2 * 142 + 4));
    }

    #[test]
    fn a_flattened_node_is_many_pages_of_the_array() {
        for flatten in [&["L2L1"][..], &["L4L3", "L2L1"]] {
            let mut scenario = scenario(4, None);
            scenario.scheme = scheme(4, flatten);
            let mut run = scenario.start(&[(DATA, GIB)], true);
            let nodes = 4 - flatten.len() as u64;
            let software = nodes + (nodes - 1);
            for page in [0, 9, 511] {
                let at = DATA + page * LARGE;
                assert_eq!(walk(&mut run, at + 4096).0, software, "{flatten:?}");
                assert_eq!(walk(&mut run, at + 64 * 4096).0, 1, "{flatten:?}");
                assert_eq!(walk(&mut run, at + LARGE - 4096).0, 1, "{flatten:?}");
            }
        }
    }

    #[test]
    fn tables_that_are_no_tree_or_in_a_guest_are_refused() {
        let mut hashed = scenario(4, None);
        hashed.scheme = cuckoo_scheme(64, false);
        let mut guest = scenario(4, None);
        guest.scheme.host = Some(host_table(4, &[]));
        for scenario in [hashed, guest] {
            let refused = scenario.refused();
            assert!(refused.contains("`vhpt`: walks the one table"), "{refused}");
        }
    }

    #[test]
    fn walks_ahead_are_the_walkers_alone() {
        let mut scenario = scenario(4, None);
        let settings = json!({ "degree": 1, "buffer_entries": 64, "buffer_latency_cycles": 2 });
        let mechanism = json!({ "sequential_prefetcher": settings });
        scenario.scheme.mechanisms = serde_json::from_value(mechanism).unwrap();
        let mut run = scenario.start(&[(DATA, GIB)], true);
        let of = |run: &Run| -> [u64; 5] {
            let ahead: Value = figures(run, "sequential_prefetcher").unwrap();
            let vhpt: Value = figures(run, "vhpt").unwrap();
            let ahead = ["prefetches", "accesses", "dropped"].map(|name| &ahead[name]);
            let vhpt = ["lookups", "hits"].map(|name| &vhpt[name]);
            let all: Vec<_> = ahead.into_iter().chain(vhpt).map(|n| n.as_u64().unwrap()).collect();
            all.try_into().unwrap()
        };
        // The handler has put the page of the array into the TLB, so the walk ahead reads one entry.
        assert_eq!(walk(&mut run, DATA).0, 4 + 3);
        assert_eq!(of(&run), [1, 1, 0, 2, 1]);
        // The page behind the last of a node has its entry in a page of the array that is not known.
        assert_eq!(walk(&mut run, DATA + LARGE - 4096).0, 1);
        assert_eq!(of(&run), [0, 0, 1, 1, 1]);
        // So with data prefetchers.
        scenario.scheme.mechanisms = Sections::default();
        let next = json!({ "kind": "next_line", "page_crossing": "walk", "degree": 1 });
        let next = vec![serde_json::from_value(next).unwrap()];
        scenario.machine.l1d.as_mut().unwrap().prefetcher = next;
        let mut run = scenario.start(&[(DATA, GIB)], true);
        let of = |run: &Run| {
            let (_, caches) = run.timed.as_ref().unwrap();
            let [(_, one)] = caches.prefetchers().collect::<Vec<_>>().try_into().unwrap();
            (one.figures.walks, one.figures.walk_accesses, one.figures.dropped)
        };
        go(&mut run, &[Do::Chase(DATA + 4096 - 64)]);
        assert_eq!(of(&run), (1, 1, 0));
        go(&mut run, &[Do::Chase(DATA + LARGE - 64)]);
        assert_eq!(of(&run), (1, 1, 1));
    }

    #[test]
    fn a_level_more_costs_its_two_loads() {
        let pages = Some(Pages { page_shift: 14, index_bits: 11 });
        let [three, four] = [3, 4].map(|levels| {
            let mut run = scenario(levels, pages).start(&[(DATA, GIB)], true);
            [walk(&mut run, DATA), walk(&mut run, DATA + (512 << 14))]
        });
        assert_eq!((three[0].0, four[0].0), (3 + 2, 4 + 3));
        // Three loads from memory each; the root of four levels is known to L2, because its entry
        // shares a line with the code's. The loads that are made again overlap.
        assert_eq!(three[0].1, 9 + 50 + 3 * 142 + 4);
        assert_eq!(four[0].1, 9 + 50 + 12 + 3 * 142 + 4);
        assert_eq!(
            (three[1], four[1]),
            ((1, 9 + 142), (1, 9 + 142)),
            "one node, one page of the array"
        );
    }

    #[test]
    fn a_change_of_the_table_drops_the_page_of_the_array() {
        let mut scenario = scenario(4, None);
        scenario.mode = Mode::Functional;
        let mut run = scenario.start(&[(DATA, GIB)], true);
        assert_eq!(walk(&mut run, DATA).0, 7);
        assert_eq!(walk(&mut run, DATA + 4096).0, 1);
        run.take(&Piece::Event(Event::Unmap { address: DATA + 8 * 4096, length: 4096 })).unwrap();
        assert_eq!(walk(&mut run, DATA + 2 * 4096).0, 7);
        // It competes with data's pages for the TLB of 16 entries.
        let others: Vec<_> =
            (3..7).chain(16..64).map(|page| Do::Load(DATA + page * 4096)).collect();
        go(&mut run, &others);
        forget(|visit| run.mmu.counts(visit));
        go(&mut run, &(100..116).map(|i| Do::Load(DATA + i * LARGE)).collect::<Vec<_>>());
        assert_eq!(walk(&mut run, DATA + 9 * 4096).0, 7);
    }

    #[test]
    fn the_explanation_tells_both_ways() {
        let scenario = scenario(4, None);
        let mut seen = [false; 2];
        // A table of 64 MiB has 32 nodes of level 1, of which the TLB cannot hold all.
        for address in ((64 * GIB)..64 * GIB + 32 * LARGE).step_by(LARGE as usize) {
            let mut source =
                flatwalk_workloads::open("gups", &flatwalk_workloads::Arguments::new(64 << 20, 1))
                    .unwrap();
            let configuration = scenario.configuration();
            let explanation =
                explain(&mut *source, configuration, 10_000, Some(address), 1).unwrap();
            let said = |text: &str| {
                explanation.steps.iter().any(
                    |step| matches!(step, ExplainStep::Pwc { text: own, .. } if own.contains(text)),
                )
            };
            let known = said("a page that the L2 TLB knows");
            assert_ne!(known, said("Software walks the table, 50 cycles later"));
            assert_eq!(explanation.accesses, if known { 1 } else { 7 });
            seen[usize::from(known)] = true;
        }
        assert_eq!(seen, [true; 2]);
    }
}
