//! Dynamic energy of the data caches: accesses times a machine's figure for each, as Park et al.
//! compute it (ASPLOS 2022, section 7.3): L1D, L2 and last-level cache, data and page walks. Memory is
//! given as off-chip accesses.
//!
//! An access is a look-up, whoever makes it, prefetchers included, or a dirty line that comes down from the
//! cache above.
//! What a fill writes is taken to be part of its miss's look-up. Leakage is not modelled.

use schemars::JsonSchema;
use serde::Serialize;

use crate::config::machine::Energy;
use crate::memory::hierarchy::{CacheStatistics, Hierarchy};

/// What a run's accesses took, in nanojoules.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct EnergyResult {
    /// In the first-level data cache.
    pub l1d_nj: f64,
    /// In the second-level cache.
    pub l2_nj: f64,
    /// In the last-level cache.
    pub llc_nj: f64,
    /// In all three.
    pub cache_nj: f64,
}

impl EnergyResult {
    /// What went through `caches`, at these figures.
    pub fn new(figures: &Energy, caches: &Hierarchy) -> Self {
        let [_, (_, l1d), (_, l2), (_, llc)] = caches.caches();
        Self::of(figures, [l1d, l2, llc])
    }

    /// The same of what was counted in L1D, L2 and the last-level cache.
    pub fn of(figures: &Energy, [l1d, l2, llc]: [CacheStatistics; 3]) -> Self {
        let accesses = |s: CacheStatistics, from_above: u64| {
            (s.data_accesses + s.table_accesses + s.prefetch_accesses + from_above) as f64
        };
        let l1d_nj = accesses(l1d, 0) * figures.l1d_pj / 1000.0;
        let l2_nj = accesses(l2, l1d.writebacks) * figures.l2_pj / 1000.0;
        let llc_nj = accesses(llc, l2.writebacks) * figures.llc_pj / 1000.0;
        Self { l1d_nj, l2_nj, llc_nj, cache_nj: l1d_nj + l2_nj + llc_nj }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_access_costs_what_the_machine_says() {
        let cache = |data_accesses, table_accesses, writebacks| CacheStatistics {
            data_accesses,
            table_accesses,
            writebacks,
            ..CacheStatistics::default()
        };
        let figures = Energy { l1d_pj: 1.0, l2_pj: 10.0, llc_pj: 100.0 };
        let mut caches = [cache(5000, 1000, 200), cache(600, 100, 30), cache(60, 10, 7)];
        caches[1].prefetch_accesses = 100;
        let energy = EnergyResult::of(&figures, caches);
        // 6000 look-ups; 800 and 200 lines written back from L1D; 70 and 30 from L2.
        let expected = EnergyResult { l1d_nj: 6.0, l2_nj: 10.0, llc_nj: 10.0, cache_nj: 26.0 };
        assert_eq!(energy, expected);
    }
}
