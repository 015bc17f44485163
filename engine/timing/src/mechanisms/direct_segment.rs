//! Direct segment: one range of addresses that BASE, LIMIT and OFFSET registers translate next to the
//! L1 TLB, without any access; all else is paged.
//!
//! Source: Basu, Gandhi, Chang, Hill and Swift, "Efficient Virtual Memory for Big Memory Servers",
//! ISCA 2013. There a program asks for its primary region, and the kernel reserves contiguous
//! physical memory for it at boot. A trace does not ask: the region is the window, of at most a given
//! share of memory, that holds the most of what the trace touches.
//!
//! Departs from the paper: the region is backed from the start, so that its pages never fault, and
//! giving parts of it back changes nothing.
//!
//! In a guest there are two such sets of registers (Gandhi, Basu, Hill and Swift, "Efficient Memory
//! Virtualization: Reducing Dimensionality of Nested Page Walks", MICRO 2014). The guest's lead to
//! its own memory, the host's take all of that to the host's. With the guest's alone (*guest
//! direct*), what misses the TLBs within the segment takes a walk of the host's table only; with
//! the host's alone (*VMM direct*), a walk of the guest's only; with both (*dual direct*),
//! addresses in the guest's segment are translated next to the L1 TLB.

use std::ops::Range;

use flatwalk_paging::{Address, Gpa, Gva, Hpa};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Registered, Section, Setup};
use crate::ConfigError;
use crate::counts::Visitor;
use crate::mmu::mechanism::{Hooks, Mechanism, ResultView, figures};
use crate::mmu::segment::Segment;

const NAME: &str = "direct_segment";

pub(super) const MECHANISM: Registered = Registered {
    name: NAME,
    scheme: Some(Section::of::<Settings>()),
    host: Some(Section::of::<HostSettings>()),
    machine: None,
    figures: Section::of_figures::<Figures>(),
    build,
};

/// A range of addresses that registers translate, without pages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Share of physical memory that can be reserved for it: pages and page tables need the rest.
    #[schemars(range(min = 0, max = 0.9))]
    pub memory_fraction: f64,
}

/// In the host registers translate all of the guest's memory, and the host's table is not
/// needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostSettings {}

/// What a segment did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[cfg_attr(test, derive(Deserialize))]
pub struct SegmentFigures {
    /// Its size.
    pub bytes: u64,
    /// Translations that it gave.
    pub translations: u64,
}

/// What the segments did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[cfg_attr(test, derive(Deserialize))]
pub struct Figures {
    /// The process's own, or the guest's.
    pub own: Option<SegmentFigures>,
    /// The host's.
    pub host: Option<SegmentFigures>,
}

fn build(setup: &mut Setup<'_>) -> Result<Option<Box<dyn Mechanism>>, ConfigError> {
    let settings = setup.scheme.mechanisms.get::<Settings>(NAME)?;
    let host = match &setup.scheme.host {
        Some(host) => host.mechanisms.get::<HostSettings>(NAME)?,
        None => None,
    };
    if settings.is_none() && host.is_none() {
        return Ok(None);
    }
    setup.refuse_recorded(NAME)?;
    let guest_bytes = setup.memory_bytes;
    let host_base = host.map(|_| {
        setup.host_needs.segment = Some(0..guest_bytes);
        setup.reserve(guest_bytes)
    });
    setup.host_segment = host_base.map(|base| Segment::new(0..guest_bytes, base));
    let mut range = None;
    if let Some(Settings { memory_fraction }) = settings {
        // Between 0 and 1, as its schema has it.
        #[allow(clippy::cast_sign_loss)]
        let most_bytes = (guest_bytes as f64 * memory_fraction) as u64;
        range = primary_region(setup.touched, most_bytes);
    }
    let mut registers = None;
    if let Some(range) = range {
        setup.own_needs.segment = Some(range.clone());
        let bytes = range.end - range.start;
        if setup.host.is_none() {
            registers = Some(Segment::new(range, setup.reserve(bytes)));
        } else {
            // It lies at the end of the guest's memory.
            setup.own_needs.reserved_bytes += bytes;
            let at = guest_bytes - bytes;
            if let Some(base) = host_base {
                registers = Some(Segment::new(range, base.offset(at)));
            } else {
                setup.guest_segment = Some(Segment::new(range, Gpa::new(at)));
            }
        }
    }
    Ok(Some(Box::new(DirectSegment { registers, in_scheme: settings.is_some() })))
}

/// The registers that lead to the machine's own memory, if there are any: those of a guest or a host
/// alone are the walker's.
#[derive(Clone, Debug)]
struct DirectSegment {
    registers: Option<Segment>,
    in_scheme: bool,
}

impl DirectSegment {
    fn figures(&self, view: &ResultView<'_>) -> Figures {
        let of = |bytes, translations| SegmentFigures { bytes, translations };
        let own = self.registers.as_ref().map(|s| of(s.bytes(), s.translations));
        let guests = view.walker.guest_segment().map(|s| of(s.bytes(), s.translations));
        let host = view.walker.host_segment().map(|s| of(s.bytes(), s.translations));
        Figures { own: own.or(guests), host }
    }
}

impl Mechanism for DirectSegment {
    fn clone_box(&self) -> Box<dyn Mechanism> {
        Box::new(self.clone())
    }

    fn name(&self) -> &'static str {
        NAME
    }

    fn hooks(&self) -> Hooks {
        Hooks { translate: self.registers.is_some(), ..Hooks::default() }
    }

    fn translate(&mut self, address: Gva) -> Option<Hpa> {
        self.registers.as_mut()?.translate(address)
    }

    fn peek(&self, address: Gva) -> Option<Hpa> {
        self.registers.as_ref()?.place(address)
    }

    fn counts(&mut self, visit: &mut Visitor<'_>) {
        if let Some(registers) = &mut self.registers {
            visit(&mut registers.translations);
        }
    }

    fn replaces_walks(&self) -> bool {
        self.in_scheme
    }

    fn result(&self, view: &ResultView<'_>) -> Option<Map<String, Value>> {
        Some(figures(&self.figures(view)))
    }

    fn words(&self, view: &ResultView<'_>) -> Vec<String> {
        let Figures { own, host } = self.figures(view);
        // Both together are registers next to the L1 TLB, and what they translate no walk asks the host's for.
        let over =
            if self.registers.is_some() && host.is_some() { ", over the host's," } else { "" };
        let further = if over.is_empty() { "" } else { "further " };
        let of = |whose, over, further, segment: Option<SegmentFigures>| {
            let SegmentFigures { bytes, translations } = segment?;
            let mib = bytes >> 20;
            Some(format!(
                "the {whose} segment of {mib} MiB{over} gave {translations} {further}translations"
            ))
        };
        [of("direct", over, "", own), of("host's", "", further, host)]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// Segments begin and end at multiples of this: a large page, so that none lies half in one.
const GRAIN_BYTES: u64 = 2 << 20;

/// The window of at most `most_bytes` that holds the most of `touched`, which are disjoint; of
/// windows that hold as much, the lowest. `None` where nothing is touched.
fn primary_region(touched: &[(u64, u64)], most_bytes: u64) -> Option<Range<u64>> {
    let down = |address: u64| address & !(GRAIN_BYTES - 1);
    let most_bytes = down(most_bytes);
    let mut touched = touched.to_vec();
    touched.sort_unstable();
    let mut best: Option<(u64, Range<u64>)> = None;
    let mut last = 0;
    for first in 0..touched.len() {
        let start = down(touched[first].0);
        // The window reaches from here to its full length, or to the end of what it holds.
        let limit = start.saturating_add(most_bytes);
        last = last.max(first);
        while last + 1 < touched.len() && touched[last + 1].0 < limit {
            last += 1;
        }
        let end = touched[last].1.min(limit);
        let held: u64 = touched[first..=last].iter().map(|&(from, to)| to.min(end) - from).sum();
        if held > best.as_ref().map_or(0, |&(most, _)| most) {
            let end = end.checked_next_multiple_of(GRAIN_BYTES).unwrap_or(down(end)).min(limit);
            best = Some((held, start..end));
        }
    }
    best.map(|(_, range)| range).filter(|range| !range.is_empty())
}

#[cfg(test)]
mod tests {
    use flatwalk_paging::{AccessKind, Gva};

    use super::*;
    use crate::config::machine::Pwc;
    use crate::counts::forget;
    use crate::driver::run::Run;
    use crate::memory::reader::NoClock;
    use crate::mmu::event::Request;
    use crate::system::System;
    use crate::tests::testing::{DATA, Do, Scenario, go, host_table, scheme};

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn the_region_is_the_window_that_holds_most() {
        let region = |touched: &[(u64, u64)], most| primary_region(touched, most);
        assert_eq!(region(&[], GIB), None);
        assert_eq!(region(&[(4096, 8192)], GIB), Some(0..2 * MIB));
        let gib = |n: u64| (n * GIB, n * GIB + 512 * MIB);
        let apart = [gib(9), gib(1), gib(2), (20 * GIB, 20 * GIB + 700 * MIB)];
        assert_eq!(region(&apart, GIB), Some(20 * GIB..20 * GIB + 700 * MIB));
        assert_eq!(region(&apart, 2 * GIB), Some(GIB..2 * GIB + 512 * MIB));
        assert_eq!(region(&apart, 300 * MIB), Some(GIB..GIB + 300 * MIB));
        assert_eq!(region(&apart, 64 * GIB), Some(GIB..20 * GIB + 700 * MIB));
        // The last page of all: a segment ends below it rather than beyond the end.
        let top = [(u64::MAX - 4095, u64::MAX)];
        assert!(region(&top, GIB).is_none_or(|range| range.end > range.start));
    }

    fn figures(run: &Run) -> Figures {
        crate::tests::testing::figures(run, NAME).unwrap()
    }

    fn segmented(memory_fraction: f64, mapped: &[(u64, u64)]) -> Run {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.scheme.mechanisms.set(NAME, Settings { memory_fraction });
        scenario.start(mapped, true)
    }

    #[test]
    fn a_segment_translates_in_no_time_and_without_a_table() {
        let mapped = [(DATA, 8 * MIB), (DATA + 64 * GIB, MIB)];
        let mut run = segmented(0.5, &mapped);
        let loads: Vec<_> = (0..2048).map(|page| Do::Load(DATA + page * 4096)).collect();
        go(&mut run, &loads);
        let statistics = &run.mmu.statistics;
        assert_eq!((statistics.total().walks, statistics.l2_tlb_misses), (0, 0));
        assert_eq!(figures(&run).own.unwrap().translations, 2048);
        // It lies at the very end of memory.
        let top = Gva::new(DATA + 8 * MIB - 1);
        let answer = run
            .mmu
            .translate(
                Request { address: top, kind: AccessKind::Load, at: 0 },
                || 0,
                &mut run.system,
                &mut NoClock,
            )
            .unwrap();
        assert_eq!(answer.physical, Hpa::new(run.configuration.machine.os.memory_bytes - 1));
        // The window reaches no further than half of the test machine's 32 GiB. What lies beyond is paged:
        // 1 MiB in one leaf node.
        go(&mut run, &[Do::Load(mapped[1].0)]);
        assert_eq!(run.mmu.statistics.total().walks, 1);
        let nodes: u64 = run.system.nodes().iter().map(|n| n.nodes).sum();
        assert_eq!((nodes, run.system.data_bytes()), (4, MIB));
    }

    /// A guest, with a segment of its own, of the host's, or both; nothing known of nodes in caches.
    fn guest(own: bool, hosts: bool) -> Scenario {
        let mut scenario = Scenario::new(scheme(4, &[]));
        if own {
            scenario.scheme.mechanisms.set(NAME, Settings { memory_fraction: 0.5 });
        }
        let mut host = host_table(4, &[]);
        if hosts {
            host.mechanisms.set(NAME, HostSettings {});
        }
        scenario.scheme.host = Some(host);
        scenario.machine.pwc = Pwc::None;
        let virtualisation = scenario.machine.virtualisation.as_mut().unwrap();
        (virtualisation.pwc, virtualisation.nested_tlb) = (Pwc::None, Vec::new());
        scenario
    }

    #[test]
    fn each_segment_takes_one_dimension_off_a_guests_walks() {
        // Beyond half of the 32 GiB of memory from the first, so not in the segment.
        let (near, far) = (DATA, DATA + 64 * GIB);
        let mapped = [(near, 8 * MIB), (far, MIB)];
        for (own, hosts, near_accesses, far_accesses) in
            [(false, false, 24, 24), (true, false, 4, 24), (false, true, 4, 4), (true, true, 0, 4)]
        {
            let mut run = guest(own, hosts).start(&mapped, true);
            let mut accesses = |address| {
                forget(|visit| run.mmu.counts(visit));
                go(&mut run, &[Do::Load(address)]);
                run.mmu.statistics.total().accesses
            };
            assert_eq!(accesses(near), near_accesses, "{own} {hosts}");
            assert_eq!(accesses(far), far_accesses, "{own} {hosts}");
        }
    }

    #[test]
    fn what_lies_in_a_guests_segments_lies_where_both_lead() {
        let mapped = [(DATA, 8 * MIB), (DATA + 64 * GIB, MIB)];
        let memory_bytes = Scenario::new(scheme(4, &[])).machine.os.memory_bytes;
        for (own, hosts) in [(true, false), (false, true), (true, true)] {
            let mut run = guest(own, hosts).start(&mapped, true);
            let mut place = |address| {
                go(&mut run, &[Do::Load(address)]);
                let load = AccessKind::Load;
                let found = run.mmu.translate(
                    Request { address: Gva::new(address), kind: load, at: 0 },
                    || 0,
                    &mut run.system,
                    &mut NoClock,
                );
                found.unwrap().physical.raw()
            };
            let pages: Vec<u64> = (0..2048 + 256)
                .map(|page| if page < 2048 { DATA } else { DATA + 64 * GIB } + page % 2048 * 4096)
                .collect();
            let places: Vec<u64> = pages.iter().map(|&page| place(page)).collect();
            let mut distinct = places.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(distinct.len(), places.len(), "no two pages share a frame: {own} {hosts}");
            // The host has twice the guest's memory; its segment is the upper half. A guest's is at the end
            // of its memory.
            assert!(places.iter().all(|&at| (at >= memory_bytes) == hosts || !hosts));
            if own && hosts {
                assert_eq!(places[0], 2 * memory_bytes - 8 * MIB);
                assert_eq!(place(DATA + 8 * MIB - 1), 2 * memory_bytes - 1);
            }
            let System::Virtual(vm) = &run.system else { panic!("there is no guest") };
            assert_eq!(vm.host.data_bytes() == 0, hosts, "a segment needs no pages");
        }
    }

    #[test]
    fn a_segment_is_as_fast_as_a_hit_of_the_l1_tlb() {
        let mapped = [(DATA, 4096)];
        let time = |fraction: Option<f64>| {
            let mut run = match fraction {
                Some(fraction) => segmented(fraction, &mapped),
                None => Scenario::new(scheme(4, &[])).start(&mapped, true),
            };
            go(&mut run, &[Do::Chase(DATA); 8]);
            let before = run.cycles().unwrap();
            go(&mut run, &[Do::Chase(DATA); 32]);
            run.cycles().unwrap() - before
        };
        assert_eq!(time(Some(0.5)), time(None));
        assert_eq!(time(Some(0.5)), 32 * 4, "L1D's latency alone");
    }
}
