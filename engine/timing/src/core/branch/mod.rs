//! Branch prediction: directions, by the machine's predictor; targets that are computed, by a table of the
//! last ones; and returns, by a stack.
//!
//! Each branch is predicted, and learnt at once, in program order. Targets of direct branches are always
//! known: there is no branch target buffer.

mod counter;
mod gshare;
mod hashed_perceptron;
mod history;
mod tage_sc_l;

use crate::config::machine::{BranchPredictor, Core};
use crate::core::decode::{Control, DecodedBlock};
use crate::counts::add;
use gshare::Gshare;
use hashed_perceptron::HashedPerceptron;
use tage_sc_l::TageScL;

const TARGETS: usize = 4096;
const RETURNS: usize = 16;
/// Most bytes of an instruction.
const MAX_LENGTH: u64 = 15;

/// Branches and mispredictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BranchStatistics {
    /// Branches of all kinds.
    pub branches: u64,
    /// Of those, mispredicted.
    pub mispredictions: u64,
}

add!(BranchStatistics { branches, mispredictions });

/// A branch, before it is known where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// What it does.
    pub control: Control,
    /// Its virtual address.
    pub pc: u64,
    /// The address behind it, if it is known.
    pub fall_through: Option<u64>,
}

impl Branch {
    /// It went to `next`: true if `predictor` predicted that.
    #[inline]
    pub fn is_predicted(self, predictor: &mut Predictor, next: u64) -> bool {
        predictor.predict(self.control, self.pc, self.fall_through, next)
    }

    /// The one at the end of `block`, if there is one.
    #[inline]
    pub fn ending(block: &DecodedBlock) -> Option<Self> {
        let DecodedBlock { control, fall_through, ref ops, .. } = *block;
        (control != Control::None).then(|| Self {
            control,
            pc: ops[ops.len() - 1].pc,
            fall_through,
        })
    }
}

/// The predictor of directions.
#[derive(Clone, Debug)]
enum Directions {
    Gshare(Gshare),
    HashedPerceptron(Box<HashedPerceptron>),
    TageScL(Box<TageScL>),
    Perfect,
}

impl Directions {
    fn new(config: &Core) -> Self {
        match config.branch_predictor {
            // Without history bits, which a valid machine does not lack, there is one counter.
            BranchPredictor::Gshare => {
                Self::Gshare(Gshare::new(config.branch_history_bits.unwrap_or(0)))
            }
            BranchPredictor::HashedPerceptron => Self::HashedPerceptron(Box::default()),
            BranchPredictor::TageScL => Self::TageScL(Box::default()),
            BranchPredictor::Perfect => Self::Perfect,
        }
    }

    /// A conditional branch at `pc` was `taken` or not, and went to `next`: whether that was predicted.
    #[inline]
    fn conditional(&mut self, pc: u64, next: u64, taken: bool) -> bool {
        match self {
            Self::Gshare(gshare) => gshare.predict(pc, taken) == taken,
            Self::HashedPerceptron(perceptron) => perceptron.predict(pc, taken) == taken,
            Self::TageScL(tage) => tage.predict(pc, next, taken) == taken,
            Self::Perfect => true,
        }
    }

    /// Another branch went from `pc` to `next`.
    #[inline]
    fn other(&mut self, pc: u64, next: u64) {
        match self {
            Self::Gshare(_) | Self::Perfect => {}
            Self::HashedPerceptron(perceptron) => drop(perceptron.predict(pc, true)),
            Self::TageScL(tage) => tage.pass(pc, next),
        }
    }
}

/// The predictors of one core.
#[derive(Clone, Debug)]
pub struct Predictor {
    directions: Directions,
    /// Outcomes of conditional branches, the latest lowest.
    history: u64,
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
            directions: Directions::new(config),
            history: 0,
            targets: vec![0; TARGETS],
            returns: [0; RETURNS],
            top: 0,
            statistics: BranchStatistics::default(),
        }
    }

    /// Continues as `other`, with counts of its own.
    pub fn continue_as(&mut self, other: &Self) {
        *self = Self { statistics: self.statistics, ..other.clone() };
    }

    /// Counts a branch that was predicted in its place, `right` or not.
    #[inline]
    pub fn count(&mut self, right: bool) {
        self.statistics.branches += 1;
        self.statistics.mispredictions += u64::from(!right);
    }

    /// A branch at `pc` that went to `next`; `fall_through` is the address behind it, if it is known.
    /// True if that was predicted.
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
        let right = matches!(self.directions, Directions::Perfect)
            || self.learn(control, pc, fall_through, next);
        self.count(right);
        right
    }

    #[inline]
    fn learn(&mut self, control: Control, pc: u64, fall_through: Option<u64>, next: u64) -> bool {
        if matches!(control, Control::Call | Control::IndirectCall) {
            self.top = (self.top + 1) % RETURNS;
            self.returns[self.top] = fall_through.unwrap_or(0);
        }
        let right = match control {
            Control::None | Control::Jump | Control::Call => true,
            Control::Conditional => {
                let falls = || (1..=MAX_LENGTH).contains(&next.wrapping_sub(pc));
                let taken = fall_through.map_or_else(|| !falls(), |behind| behind != next);
                self.history = self.history << 1 | u64::from(taken);
                self.directions.conditional(pc, next, taken)
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
        if control != Control::Conditional {
            self.directions.other(pc, next);
        }
        right
    }
}

#[cfg(test)]
mod tests;
