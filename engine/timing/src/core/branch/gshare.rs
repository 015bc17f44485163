//! Gshare: counters of two bits, found by the address and the latest outcomes of conditional branches
//! (McFarling, "Combining branch predictors", WRL TN-36, 1993).

/// The predictor.
#[derive(Clone, Debug)]
pub struct Gshare {
    mask: u64,
    /// Outcomes, the latest lowest.
    history: u64,
    /// 2 and 3 say taken.
    counters: Vec<u8>,
}

impl Gshare {
    /// With `2^history_bits` counters.
    pub fn new(history_bits: u32) -> Self {
        Self { mask: (1 << history_bits) - 1, history: 0, counters: vec![1; 1 << history_bits] }
    }

    /// Whether the conditional branch at `pc` was to be taken; learns that it was `taken` or not.
    #[inline]
    pub fn predict(&mut self, pc: u64, taken: bool) -> bool {
        let counter = &mut self.counters[((pc ^ self.history) & self.mask) as usize];
        let predicted = *counter >= 2;
        *counter = if taken { (*counter + 1).min(3) } else { counter.saturating_sub(1) };
        self.history = self.history << 1 | u64::from(taken);
        predicted
    }
}
