//! Direct segment: one range of addresses that BASE, LIMIT and OFFSET registers translate beside the
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
//! Virtualization: Reducing Dimensionality of Nested Page Walks", MICRO 2014). The guest's lead to its own
//! memory, the host's take all of that to the host's. With the guest's alone (*guest direct*), what misses the
//! TLBs within the segment takes a walk of the host's table only; with the host's alone (*VMM direct*), a
//! walk of the guest's only; with both (*dual direct*), addresses in the guest's segment are translated beside
//! the L1 TLB.

use std::ops::Range;

use flatwalk_paging::{Address, Hpa, Physical};

/// Segments begin and end at multiples of this: a large page, so that none lies half in one.
const GRAIN_BYTES: u64 = 2 << 20;

/// The segment's registers.
#[derive(Clone, Debug)]
pub struct Segment<A = Hpa> {
    range: Range<u64>,
    base: A,
    /// Translations that it gave.
    pub translations: u64,
}

impl<A: Physical> Segment<A> {
    /// Addresses in `range` lie from `base` on.
    pub fn new(range: Range<u64>, base: A) -> Self {
        Self { range, base, translations: 0 }
    }

    /// Where `address` lies, if it is in the segment.
    #[inline]
    pub fn translate(&mut self, address: impl Address) -> Option<A> {
        let found = self.place(address)?;
        self.translations += 1;
        Some(found)
    }

    /// The same, not counted.
    #[inline]
    pub fn place(&self, address: impl Address) -> Option<A> {
        let inside = self.range.contains(&address.raw());
        inside.then(|| self.base.offset(address.raw() - self.range.start))
    }

    /// True if both ends of each of its pieces of `bytes` are aligned to that.
    pub fn is_aligned(&self, bytes: u64) -> bool {
        (self.range.start | self.range.end | self.base.raw()).is_multiple_of(bytes)
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The window of at most `most_bytes` that holds the most of `touched`, which are disjoint; of
/// windows that hold as much, the lowest. `None` where nothing is touched.
pub fn primary_region(touched: &[(u64, u64)], most_bytes: u64) -> Option<Range<u64>> {
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
    use crate::config::scheme::{DirectSegment, HostTable};
    use crate::driver::run::Run;
    use crate::memory::reader::NoClock;
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

    fn segmented(memory_fraction: f64, mapped: &[(u64, u64)]) -> Run {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.scheme.direct_segment = Some(DirectSegment { memory_fraction });
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
        assert_eq!(run.mmu.segment().unwrap().1, 2048);
        // It lies at the very end of memory.
        let top = Gva::new(DATA + 8 * MIB - 1);
        let answer =
            run.mmu.translate(top, AccessKind::Load, 0, &mut run.system, &mut NoClock).unwrap();
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
        scenario.scheme.direct_segment = own.then_some(DirectSegment { memory_fraction: 0.5 });
        let host = HostTable { direct_segment: hosts, ..host_table(4, &[]) };
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
                run.mmu.reset_statistics();
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
                let found =
                    run.mmu.translate(Gva::new(address), load, 0, &mut run.system, &mut NoClock);
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
        assert_eq!(time(Some(0.5)), 32 * (4 + 1), "L1D, and a cycle for the address");
    }
}
