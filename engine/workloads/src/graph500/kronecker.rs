//! The edge generator.

use crate::rng::{Permutation, Random};

/// The edge generator. Each level of the recursion adds one bit to both ends; four levels are drawn
/// at once, from an alias table (Walker, 1977) of their 256 outcomes.
pub(super) struct Kronecker {
    scale: u32,
    /// For each cell: the limit below which it stands for itself, and what it stands for above.
    cells: Vec<(u32, u8)>,
    labels: Permutation,
    seed: u64,
}

const LEVELS: u32 = 4;
const INITIATOR: [f64; 4] = [0.57, 0.19, 0.19, 0.05];
/// A draw is a cell (8 bits) and a number to compare with its limit.
const LIMIT_BITS: u32 = 24;

impl Kronecker {
    pub(super) fn new(scale: u32, seed: u64) -> Self {
        let outcomes = 1 << (2 * LEVELS);
        let chance = |outcome: usize| -> f64 {
            (0..LEVELS).map(|level| INITIATOR[outcome >> (2 * level) & 3]).product()
        };
        // Shares of a cell's worth: cells with less are filled up from cells with more.
        let mut shares: Vec<_> = (0..outcomes).map(|o| chance(o) * outcomes as f64).collect();
        let (mut less, mut more): (Vec<_>, Vec<_>) = (0..outcomes).partition(|&o| shares[o] < 1.0);
        let mut cells = vec![(1 << LIMIT_BITS, 0); outcomes];
        while let (Some(poor), Some(&rich)) = (less.pop(), more.last()) {
            cells[poor] = ((shares[poor] * f64::from(1 << LIMIT_BITS)) as u32, rich as u8);
            shares[rich] -= 1.0 - shares[poor];
            if shares[rich] < 1.0 {
                less.push(rich);
                more.pop();
            }
        }
        Self { scale, cells, labels: Permutation::new(1 << scale, seed), seed }
    }

    /// The first `count` edges of the list. They are drawn anew each time, so that none is held.
    pub(super) fn edges(&self, count: u64) -> impl Iterator<Item = (u32, u32)> {
        let mut random = self.start();
        (0..count).map(move |_| self.edge(&mut random))
    }

    /// The random numbers at the beginning of the list.
    pub(super) fn start(&self) -> Random {
        Random::new(self.seed, 0)
    }

    /// The list's next edge.
    #[inline]
    pub(super) fn edge(&self, random: &mut Random) -> (u32, u32) {
        let (from, to) = self.draw(random);
        (self.labels.at(from) as u32, self.labels.at(to) as u32)
    }

    /// An edge between vertices that are not yet relabelled.
    fn draw(&self, random: &mut Random) -> (u64, u64) {
        let (mut from, mut to) = (0, 0);
        let mut level = 0;
        while level < self.scale {
            let word = random.word();
            for draw in [word as u32, (word >> 32) as u32] {
                let cell = draw >> LIMIT_BITS;
                let (limit, other) = self.cells[cell as usize];
                let below = draw & ((1 << LIMIT_BITS) - 1) < limit;
                let outcome = if below { cell } else { u32::from(other) };
                from = from << LEVELS | spread(outcome >> 1);
                to = to << LEVELS | spread(outcome);
                level += LEVELS;
            }
        }
        // The levels are independent, so the superfluous ones can be dropped.
        let mask = (1 << self.scale) - 1;
        (from & mask, to & mask)
    }
}

/// The even bits of a byte, together.
fn spread(outcome: u32) -> u64 {
    let bits = outcome & 0x55;
    let bits = (bits | bits >> 1) & 0x33;
    u64::from((bits | bits >> 2) & 0x0f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_have_the_initiators_proportions_at_every_level() {
        let generator = Kronecker::new(11, 5);
        let (mut counts, draws) = ([[0_u32; 4]; 11], 200_000);
        let mut random = Random::new(3, 0);
        for _ in 0..draws {
            let (from, to) = generator.draw(&mut random);
            for (level, counts) in counts.iter_mut().enumerate() {
                counts[((from >> level & 1) << 1 | to >> level & 1) as usize] += 1;
            }
        }
        for counts in counts {
            for (count, share) in counts.into_iter().zip([0.57, 0.19, 0.19, 0.05]) {
                let expected = share * f64::from(draws);
                let difference = (f64::from(count) - expected).abs();
                assert!(difference < 6.0 * expected.sqrt(), "{counts:?}");
            }
        }
    }
}
