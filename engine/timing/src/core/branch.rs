//! Branch prediction: gshare for directions, a last-target table for computed targets, and a stack
//! for returns (McFarling, WRL TN-36, 1993).

use crate::config::machine::{BranchPredictor, Core};
use crate::core::decode::Control;
use crate::counts::add;

const TARGETS: usize = 4096;
const RETURNS: usize = 16;

/// Branches and mispredictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BranchStatistics {
    /// Branches of all kinds.
    pub branches: u64,
    /// Of those, mispredicted.
    pub mispredictions: u64,
}

add!(BranchStatistics { branches, mispredictions });

/// The predictors of one core.
#[derive(Clone, Debug)]
pub struct Predictor {
    kind: BranchPredictor,
    history: u64,
    mask: u64,
    /// Two-bit counters, 2 and 3 say taken.
    counters: Vec<u8>,
    targets: Vec<u64>,
    returns: [u64; RETURNS],
    top: usize,
    /// Branches and mispredictions.
    pub statistics: BranchStatistics,
}

impl Predictor {
    /// Predictors as configured, that have seen nothing.
    pub fn new(config: &Core) -> Self {
        Self {
            kind: config.branch_predictor,
            history: 0,
            mask: (1 << config.branch_history_bits) - 1,
            counters: vec![1; 1 << config.branch_history_bits],
            targets: vec![0; TARGETS],
            returns: [0; RETURNS],
            top: 0,
            statistics: BranchStatistics::default(),
        }
    }

    /// A branch at `pc` that went to `next`; `fall_through` is the address behind it. True if that
    /// was predicted.
    #[inline]
    pub fn predict(
        &mut self,
        control: Control,
        pc: u64,
        fall_through: Option<u64>,
        next: u64,
    ) -> bool {
        if control == Control::None {
            return true;
        }
        self.statistics.branches += 1;
        if self.kind == BranchPredictor::Perfect {
            return true;
        }
        if matches!(control, Control::Call | Control::IndirectCall) {
            self.top = (self.top + 1) % RETURNS;
            self.returns[self.top] = fall_through.unwrap_or(0);
        }
        let right = match control {
            Control::None | Control::Jump | Control::Call => true,
            Control::Conditional => {
                let taken = fall_through != Some(next);
                let counter = &mut self.counters[((pc ^ self.history) & self.mask) as usize];
                let right = (*counter >= 2) == taken;
                *counter = if taken { (*counter + 1).min(3) } else { counter.saturating_sub(1) };
                self.history = self.history << 1 | u64::from(taken);
                right
            }
            Control::IndirectJump | Control::IndirectCall => {
                let target = &mut self.targets[((pc ^ self.history << 2) as usize) % TARGETS];
                std::mem::replace(target, next) == next
            }
            Control::Return => {
                let target = self.returns[self.top];
                self.top = (self.top + RETURNS - 1) % RETURNS;
                target == next
            }
        };
        self.statistics.mispredictions += u64::from(!right);
        right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predictor(kind: BranchPredictor) -> Predictor {
        let mut core = crate::tests::testing::machine().core.unwrap();
        core.branch_predictor = kind;
        Predictor::new(&core)
    }

    #[test]
    fn learns_a_loop_and_an_alternation() {
        let mut p = predictor(BranchPredictor::Gshare);
        let wrong = |p: &mut Predictor, pattern: fn(u32) -> bool| {
            (0..1000)
                .filter(|&i| {
                    let next = if pattern(i) { 0x2000 } else { 0x1002 };
                    !p.predict(Control::Conditional, 0x1000, Some(0x1002), next)
                })
                .count()
        };
        assert!(wrong(&mut p, |_| true) < 30);
        assert!(wrong(&mut p, |i| i % 2 == 0) < 30);
    }

    #[test]
    fn returns_go_back_to_their_calls() {
        let mut p = predictor(BranchPredictor::Gshare);
        for depth in 0..10u64 {
            p.predict(Control::Call, depth, Some(depth + 5), 0x9000);
        }
        for depth in (0..10u64).rev() {
            assert!(p.predict(Control::Return, 0x9000, None, depth + 5));
        }
    }

    #[test]
    fn perfect_is_never_wrong() {
        let mut p = predictor(BranchPredictor::Perfect);
        for i in 0..100 {
            assert!(p.predict(Control::IndirectJump, 0, None, i));
        }
        assert_eq!(p.statistics, BranchStatistics { branches: 100, mispredictions: 0 });
    }
}
