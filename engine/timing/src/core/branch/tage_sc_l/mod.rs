//! TAGE-SC-L (Seznec, "TAGE-SC-L branch predictors again", CBP-5, 2016): TAGE, a predictor of loops, and a
//! corrector that overrules them where the statistics are against them.
//!
//! The parts and their rules are the paper's; the sizes are ours, within its budget of 64 KiB:
//!
//! | part      | what                                                                            | bits    |
//! |-----------|---------------------------------------------------------------------------------|---------|
//! | base      | 8192 counters of 2 bits                                                         | 16,384  |
//! | TAGE      | 12 tables of 2048: counter 3, useful 2, tag 8 to 13; histories of 5 to 987 bits | 380,928 |
//! | loops     | 16 sets of 4: tag 10, iterations 2 × 10, confidence 4, age 4, direction 1       | 2,496   |
//! | corrector | 3 tables of 256 biases, 17 of 256 to 1024 weights, 6 bits; histories, thresholds | 87,667  |
//!
//! The first history is of 5 bits and each next is longer by the golden ratio: the Fibonacci numbers, a
//! geometric series. Conditional branches give a history their outcome, all others a bit of their target.

mod corrector;
mod loops;
mod tage;

use corrector::Corrector;
use loops::Loops;
use tage::Tage;

/// The predictor.
#[derive(Clone, Debug, Default)]
pub struct TageScL {
    tage: Tage,
    loops: Loops,
    corrector: Corrector,
}

impl TageScL {
    /// Whether the conditional branch at `pc` was to be taken; learns that it was `taken` or not, and
    /// went to `next`.
    #[inline(never)]
    pub fn predict(&mut self, pc: u64, next: u64, taken: bool) -> bool {
        let found = self.tage.look_up(pc);
        let looped = self.loops.look_up(pc);
        let before = looped.prediction.unwrap_or(found.prediction);
        let opinion = self.corrector.look_up(pc, before, &found);
        self.loops.learn(looped, taken, found.prediction, opinion.prediction != taken);
        self.corrector.learn(pc, &opinion, &found, taken, next);
        self.tage.learn(&found, taken, opinion.prediction);
        self.tage.pass(pc, taken);
        opinion.prediction
    }

    /// A branch that is always taken went from `pc` to `next`.
    #[inline(never)]
    pub fn pass(&mut self, pc: u64, next: u64) {
        self.tage.pass(pc, (next >> 2 ^ next >> 7 ^ pc) & 1 == 1);
        self.corrector.pass(pc);
    }
}
