//! Direct segment: one range of addresses that BASE, LIMIT and OFFSET registers translate beside the
//! L1 TLB, without any access; all else is paged.
//!
//! Source: Basu, Gandhi, Chang, Hill and Swift, "Efficient Virtual Memory for Big Memory Servers",
//! ISCA 2013. There a program asks for its primary region, and the kernel reserves contiguous
//! physical memory for it at boot. A trace does not ask: the region is the window, of at most a given
//! share of memory, that holds the most of what the trace touches.
//!
//! Departs from the paper: the region is backed from the start, so that its pages never fault, and
//! giving parts of it back changes nothing. Not modelled: a segment in a guest.

use std::ops::Range;

use flatwalk_paging::{Address, Gva, Hpa};

/// Segments begin and end at multiples of this: a large page, so that none lies half in one.
const GRAIN_BYTES: u64 = 2 << 20;

/// The segment's registers.
#[derive(Clone, Debug)]
pub struct Segment {
    range: Range<u64>,
    base: Hpa,
    /// Translations that it gave.
    pub translations: u64,
}

impl Segment {
    /// Addresses in `range` lie from `base` on.
    pub fn new(range: Range<u64>, base: Hpa) -> Self {
        Self { range, base, translations: 0 }
    }

    /// Where `address` lies, if it is in the segment.
    #[inline]
    pub fn translate(&mut self, address: Gva) -> Option<Hpa> {
        if !self.range.contains(&address.raw()) {
            return None;
        }
        self.translations += 1;
        Some(self.base.offset(address.raw() - self.range.start))
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
    use super::*;
    use crate::machine::DirectSegment;
    use crate::mmu::{NoClock, Purpose};
    use crate::run::Run;
    use crate::testing::{DATA, Do, Scenario, go, scheme};

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
        assert_eq!(run.mmu.segment().unwrap().translations, 2048);
        // It lies at the very end of memory.
        let top = Gva::new(DATA + 8 * MIB - 1);
        let answer =
            run.mmu.translate(top, Purpose::Load, 0, &mut run.space, &mut NoClock).unwrap();
        assert_eq!(answer.physical, Hpa::new(run.configuration.machine.os.memory_bytes - 1));
        // The window reaches no further than half of the test machine's 32 GiB. What lies beyond is paged:
        // 1 MiB in one leaf node.
        go(&mut run, &[Do::Load(mapped[1].0)]);
        assert_eq!(run.mmu.statistics.total().walks, 1);
        let nodes: u64 = run.space.nodes().iter().map(|n| n.nodes).sum();
        assert_eq!((nodes, run.space.data_bytes()), (4, MIB));
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
