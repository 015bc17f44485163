//! `gups`: random updates of a table, the RandomAccess benchmark of the HPC Challenge.
//!
//! Source: HPC Challenge 1.5, RandomAccess, single process: 128 lanes, each a stretch of one linear
//! feedback sequence over GF(2) with polynomial 7; every round advances each lane once:
//! ```text
//! ran[j] = (ran[j] << 1) ^ ((s64)ran[j] < 0 ? 7 : 0);  T[ran[j] & (N - 1)] ^= ran[j];
//! ```
//! 4 N updates in all. Departs from it: the table's initialisation is one populate event.

use flatwalk_trace::{BlockId, Slice, Source};

use crate::program::{
    Assembler, FLAGS, Kernel, LARGE_DATA, Plan, Program, SLICE_BLOCKS, SMALL_DATA,
};
use crate::{Arguments, Description, GREATEST, LEAST, Parameter, SEED};

pub(crate) const DESCRIPTION: Description = Description {
    name: "gups",
    description: "HPC Challenge RandomAccess: read-modify-write of random 8-byte words of a table; \
                  nearly every update misses the TLB",
    default_size_bytes: 1 << 30,
    least_bytes: LEAST,
    greatest_bytes: GREATEST,
    power_of_two: true,
    parameters: &[
        Parameter {
            name: "size_bytes",
            description: "table, in bytes: a power of two, 4 KiB to 64 TiB",
        },
        SEED,
    ],
    make,
};

const LANES: usize = 128;
const POLYNOMIAL: u64 = 7;
/// The sequence's period, as HPC Challenge gives it.
const PERIOD: u64 = 1_317_624_576_693_539_401;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let Arguments { size_bytes, seed, .. } = *arguments;
    let name = DESCRIPTION.name;
    let words = size_bytes / 8;
    let updates = 4 * words;
    let (mut assembler, lane) = (Assembler::new(), LANE);
    // One update.
    let update = assembler
        .load(&[LANES_BASE, lane], RANDOM)
        .operation(&[RANDOM], &[SHIFTED])
        .operation(&[RANDOM], &[FEEDBACK])
        .operation(&[SHIFTED, FEEDBACK], &[RANDOM])
        .store(&[LANES_BASE, lane, RANDOM])
        .operation(&[RANDOM, MASK], &[SLOT])
        .load(&[TABLE, SLOT], WORD)
        .operation(&[WORD, RANDOM], &[WORD])
        .store(&[TABLE, SLOT, WORD])
        .operation(&[lane], &[lane])
        .operation(&[lane, LANE_COUNT], &[FLAGS])
        .branch();
    // The end of a round of updates.
    let round = assembler
        .operation(&[], &[lane])
        .operation(&[ROUND], &[ROUND])
        .operation(&[ROUND, ROUNDS], &[FLAGS])
        .branch();
    let rounds = updates / LANES as u64;
    let plan = Plan {
        name,
        arguments: *arguments,
        instructions: Some(updates * assembler.length(update) + rounds * assembler.length(round)),
        data: vec![(SMALL_DATA, 8 * LANES as u64), (LARGE_DATA, size_bytes)],
    };
    let gups = Gups { lanes: Lanes::new(updates, seed), mask: words - 1, rounds, update, round };
    Box::new(Program::new(plan, assembler, gups))
}

// Registers.
const LANE: u8 = 1;
const LANE_COUNT: u8 = 2;
const LANES_BASE: u8 = 3;
const RANDOM: u8 = 4;
const SHIFTED: u8 = 5;
const FEEDBACK: u8 = 7;
const MASK: u8 = 8;
const SLOT: u8 = 9;
const TABLE: u8 = 10;
const WORD: u8 = 11;
const ROUND: u8 = 12;
const ROUNDS: u8 = 13;

struct Gups {
    lanes: Lanes,
    mask: u64,
    /// Rounds left.
    rounds: u64,
    update: BlockId,
    round: BlockId,
}

impl Kernel for Gups {
    fn run(&mut self, slice: &mut Slice) {
        let rounds = self.rounds.min((SLICE_BLOCKS / LANES) as u64);
        self.rounds -= rounds;
        for _ in 0..rounds {
            for (lane, random) in self.lanes.0.iter_mut().enumerate() {
                *random = step(*random);
                let state = SMALL_DATA + 8 * lane as u64;
                let slot = LARGE_DATA + 8 * (*random & self.mask);
                slice.addresses.extend_from_slice(&[state, state, slot, slot]);
            }
            slice.blocks.extend_from_slice(&[self.update; LANES]);
            slice.blocks.push(self.round);
        }
    }
}

/// The state of all lanes.
struct Lanes([u64; LANES]);

impl Lanes {
    /// The lanes of a run of `updates`. Seed 1 is the benchmark's own run; any other starts where the
    /// run with the seed before it ends.
    fn new(updates: u64, seed: u64) -> Self {
        let before = u128::from(seed.wrapping_sub(1)) * u128::from(updates);
        let stretch = u128::from(updates / LANES as u64);
        Self(std::array::from_fn(|lane| {
            let start = (before + stretch * lane as u128) % u128::from(PERIOD);
            start_at(start as u64)
        }))
    }
}

/// The next number of the sequence: multiplies by x in GF(2)\[x\] modulo x^64 + x^2 + x + 1.
fn step(random: u64) -> u64 {
    (random << 1) ^ ((random.cast_signed() >> 63).cast_unsigned() & POLYNOMIAL)
}

/// The number at position `position` of the sequence that starts with 1: x^position, by squaring.
fn start_at(position: u64) -> u64 {
    let (mut power, mut square, mut left) = (1, 2, position);
    while left > 0 {
        if left & 1 == 1 {
            power = multiply(power, square);
        }
        square = multiply(square, square);
        left >>= 1;
    }
    power
}

/// The product in the same ring.
fn multiply(a: u64, b: u64) -> u64 {
    (0..64).rev().fold(0, |product, bit| step(product) ^ if b >> bit & 1 == 1 { a } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open;
    use crate::program::tests::play;

    #[test]
    fn the_jump_ahead_agrees_with_stepping_and_with_the_period() {
        let mut random = 1;
        for position in 0..100_000 {
            if position % 997 == 0 || position < 200 {
                assert_eq!(start_at(position), random, "{position}");
            }
            random = step(random);
        }
        for (a, b) in [(1 << 40, 12_345), (1 << 50, 1 << 49), (PERIOD - 5, 3)] {
            assert_eq!(multiply(start_at(a), start_at(b)), start_at(a + b));
        }
        assert_eq!(start_at(PERIOD), 1);
        assert_ne!(start_at(PERIOD / 2), 1);
    }

    #[test]
    fn the_jump_ahead_agrees_with_the_benchmarks_own_algorithm() {
        // As HPCC_starts computes it: squarings through a table of x^(2^i), bits from the top.
        let starts = |n: u64| -> u64 {
            if n == 0 {
                return 1;
            }
            let mut table = [0_u64; 64];
            let mut power = 1;
            for entry in &mut table {
                *entry = power;
                power = step(step(power));
            }
            let mut random = 2;
            for bit in (0..n.ilog2()).rev() {
                random = (0..64).filter(|j| random >> j & 1 == 1).fold(0, |sum, j| sum ^ table[j]);
                if n >> bit & 1 == 1 {
                    random = step(random);
                }
            }
            random
        };
        for n in [0, 1, 2, 3, 127, 128, 1 << 25, (1 << 32) / 128 * 77, PERIOD - 1] {
            assert_eq!(start_at(n), starts(n), "{n}");
        }
    }

    /// The benchmark's verification: the same updates from a single lane undo those of all lanes.
    #[test]
    fn the_emitted_updates_are_the_benchmarks() {
        let size_bytes = 1 << 16;
        let words = size_bytes / 8;
        let mut table: Vec<u64> = (0..words).collect();
        let mut lanes = Lanes::new(4 * words, 1).0;
        let mut next = 0;
        for (block, addresses) in play(open("gups", &Arguments::new(size_bytes, 1)).unwrap()).1 {
            if block.accesses.is_empty() {
                assert_eq!(next, LANES, "a round has all lanes");
                next = 0;
                continue;
            }
            lanes[next] = step(lanes[next]);
            let [state_load, state_store, load, store] = addresses.try_into().unwrap();
            assert_eq!((state_load, state_store), (SMALL_DATA + 8 * next as u64, state_load));
            assert_eq!(load, store);
            table[((load - LARGE_DATA) / 8) as usize] ^= lanes[next];
            next += 1;
        }
        assert!(table.iter().enumerate().any(|(i, &word)| word != i as u64));
        let mut random = 1;
        for _ in 0..4 * words {
            random = step(random);
            table[(random & (words - 1)) as usize] ^= random;
        }
        assert!(table.iter().enumerate().all(|(i, &word)| word == i as u64), "not undone");
    }

    #[test]
    fn seeds_continue_one_another() {
        let updates = 4 * 512;
        let mut random = 1;
        (0..updates).for_each(|_| random = step(random));
        assert_eq!(Lanes::new(updates, 1).0[0], 1);
        assert_eq!(Lanes::new(updates, 2).0[0], random);
    }

    #[test]
    fn a_table_that_is_no_power_of_two_is_refused_with_its_neighbours() {
        let error = open("gups", &Arguments::new(3 << 30, 1)).err().unwrap().to_string();
        assert!(error.contains("2GiB or 4GiB"), "{error}");
    }
}
