//! The hashed perceptron (Tarjan and Skadron, "Merging path and gshare indexing in perceptron branch
//! prediction", ACM TACO, 2005), with history lengths in a geometric series and a threshold that adapts
//! (Seznec, "Analysis of the O-GEometric History Length branch predictor", ISCA 2005).
//!
//! Sizes, lengths and thresholds are those of ChampSim's predictor of this name, its default, and so is
//! that all branches train it: 16 tables of 4096 weights of 8 bits, 64 KiB.

use super::history::{Folded, History};

const INDEX_BITS: u32 = 12;
const LENGTHS: [u32; 16] = [0, 3, 4, 6, 8, 10, 14, 19, 26, 36, 49, 67, 91, 125, 170, 232];
/// Least sum of weights that says taken.
const TAKEN: i32 = 1;
/// Weak sums train it; those below this, at first.
const WEAK: i32 = 10;
/// So many more mispredictions than weak sums that were right, or fewer, change what is weak by 1.
const PATIENCE: i32 = 18;

/// The predictor.
#[derive(Clone, Debug)]
pub struct HashedPerceptron {
    weights: Vec<[i8; 1 << INDEX_BITS]>,
    folds: [Folded; LENGTHS.len()],
    history: History,
    weak: i32,
    balance: i32,
}

impl Default for HashedPerceptron {
    fn default() -> Self {
        Self {
            weights: vec![[0; 1 << INDEX_BITS]; LENGTHS.len()],
            folds: LENGTHS.map(|length| Folded::new(length, INDEX_BITS)),
            history: History::default(),
            weak: WEAK,
            balance: 0,
        }
    }
}

impl HashedPerceptron {
    /// Whether the branch at `pc` was to be taken; learns that it was `taken` or not.
    #[inline(never)]
    pub fn predict(&mut self, pc: u64, taken: bool) -> bool {
        let low = pc as u32 & ((1 << INDEX_BITS) - 1);
        let indices = self.folds.map(|fold| (fold.value ^ low) as usize);
        let chosen = self.weights.iter().zip(indices);
        let sum: i32 = chosen.map(|(weights, index)| i32::from(weights[index])).sum();
        let predicted = sum >= TAKEN;
        for fold in &mut self.folds {
            fold.push(&self.history, taken);
        }
        self.history.push(taken);
        if predicted != taken || sum.abs() < self.weak {
            for (weights, index) in self.weights.iter_mut().zip(indices) {
                let weight = &mut weights[index];
                *weight = weight.saturating_add(if taken { 1 } else { -1 });
            }
            self.balance += if predicted == taken { -1 } else { 1 };
            if self.balance.abs() == PATIENCE {
                self.weak += self.balance.signum();
                self.balance = 0;
            }
        }
        predicted
    }
}
