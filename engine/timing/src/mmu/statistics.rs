//! What the walkers did, counted.

use crate::counts::add;

/// Counts of walks that share something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkCount {
    /// Walks.
    pub walks: u64,
    /// Entries that they read.
    pub accesses: u64,
    /// Sum of their latencies in cycles, queueing included.
    pub latency_cycles: u64,
}

add!(WalkCount { walks, accesses, latency_cycles });

/// Classes of reads: 1 to 7 are the table's; the others are free for mechanisms.
pub const CLASSES: usize = 16;

/// Sub-buckets of the latency histogram per factor of two.
const STEPS_PER_OCTAVE: u32 = 4;
/// Buckets: latencies up to 2^20 cycles; the last takes all beyond.
const BUCKETS: usize = 80;

/// What the walkers did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkStatistics {
    /// Completed walks by level of the page found.
    pub by_page: [WalkCount; 4],
    /// Entries read by completed walks, by stage, class of the read and who served it.
    pub reads: [[[u64; 4]; CLASSES]; 2],
    /// Cycles that walks waited for a walker.
    pub queue_cycles: u64,
    /// Accesses that found their translation on its way.
    pub merged: u64,
    /// Walks made because a store found its page's dirty bit clear.
    pub dirty_updates: u64,
    /// Walks that ended in a fault.
    pub faulting: u64,
    /// Entries that those read.
    pub faulting_accesses: u64,
    /// Walks for instruction fetches.
    pub instruction_side: u64,
    /// L2 TLB misses (merged ones excluded).
    pub l2_tlb_misses: u64,
    pub(super) histogram: [u64; BUCKETS],
}

add!(WalkStatistics {
    by_page,
    reads,
    queue_cycles,
    merged,
    dirty_updates,
    faulting,
    faulting_accesses,
    instruction_side,
    l2_tlb_misses,
    histogram
});

impl Default for WalkStatistics {
    fn default() -> Self {
        Self {
            by_page: [WalkCount::default(); 4],
            reads: [[[0; 4]; CLASSES]; 2],
            queue_cycles: 0,
            merged: 0,
            dirty_updates: 0,
            faulting: 0,
            faulting_accesses: 0,
            instruction_side: 0,
            l2_tlb_misses: 0,
            histogram: [0; BUCKETS],
        }
    }
}

impl WalkStatistics {
    /// Completed walks of all page sizes.
    pub fn total(&self) -> WalkCount {
        self.by_page.iter().fold(WalkCount::default(), |sum, c| WalkCount {
            walks: sum.walks + c.walks,
            accesses: sum.accesses + c.accesses,
            latency_cycles: sum.latency_cycles + c.latency_cycles,
        })
    }

    pub(super) fn bucket(cycles: u64) -> usize {
        if cycles < u64::from(STEPS_PER_OCTAVE) {
            return cycles as usize;
        }
        let octave = cycles.ilog2();
        let step = (cycles >> (octave - 2)) & 3;
        ((octave - 1) * STEPS_PER_OCTAVE + step as u32).min(BUCKETS as u32 - 1) as usize
    }

    /// First latency of a bucket.
    fn bucket_start(bucket: usize) -> u64 {
        let bucket = bucket as u64;
        let steps = u64::from(STEPS_PER_OCTAVE);
        if bucket < steps { bucket } else { (steps + bucket % steps) << (bucket / steps - 1) }
    }

    /// Latency histogram: `(from, to, walks)` for latencies in `from..to` cycles, without the empty
    /// buckets at both ends.
    pub fn histogram(&self) -> Vec<(u64, u64, u64)> {
        let used = |b: &usize| self.histogram[*b] > 0;
        let Some(first) = (0..BUCKETS).find(used) else { return Vec::new() };
        let last = (0..BUCKETS).rfind(used).unwrap_or(first);
        (first..=last)
            .map(|b| (Self::bucket_start(b), Self::bucket_start(b + 1), self.histogram[b]))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_tile_the_latencies() {
        for bucket in 0..BUCKETS - 1 {
            let (from, to) =
                (WalkStatistics::bucket_start(bucket), WalkStatistics::bucket_start(bucket + 1));
            assert!(from < to);
            assert_eq!(WalkStatistics::bucket(from), bucket);
            assert_eq!(WalkStatistics::bucket(to - 1), bucket);
        }
    }
}
