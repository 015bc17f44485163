//! `chase`: a pointer chase through all cache lines of the memory in random order: each load needs
//! the one before, so that nothing hides its latency (the `lat_mem_rd` idea of lmbench, shuffled).
//!
//! The order is a single cycle, computed rather than stored. A linear congruential generator modulo
//! a power of two has full period (Hull and Dobell, 1962); a bijective mixer of its output makes the
//! order irregular in every bit; numbers beyond the last line are skipped.

use flatwalk_trace::{BlockId, Slice, Source};

use crate::program::{Assembler, FLAGS, Kernel, LARGE_DATA, Plan, Program, SLICE_BLOCKS};
use crate::rng::mix;
use crate::{Arguments, Description, GREATEST, LEAST, SEED, SIZE};

pub(crate) const DESCRIPTION: Description = Description {
    name: "chase",
    description: "dependent loads along one random cycle through all 64-byte lines: every walk delays \
                  the program in full",
    default_size_bytes: 1 << 30,
    least_bytes: LEAST,
    greatest_bytes: GREATEST,
    power_of_two: false,
    parameters: &[SIZE, SEED],
    make,
};

const LINE: u64 = 64;
/// Rounds of the cycle.
const ROUNDS: u64 = 4;

// Registers.
const POINTER: u8 = 1;
const COUNT: u8 = 2;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let Arguments { size_bytes, seed, .. } = *arguments;
    let lines = size_bytes / LINE;
    let mut assembler = Assembler::new();
    let block = assembler.load(&[POINTER], POINTER).operation(&[COUNT], &[COUNT, FLAGS]).branch();
    let plan = Plan {
        name: DESCRIPTION.name,
        arguments: *arguments,
        instructions: Some(ROUNDS * lines * assembler.length(block)),
        data: vec![(LARGE_DATA, size_bytes)],
    };
    let chase = Chase { cycle: Cycle::new(lines, seed), left: ROUNDS * lines, block };
    Box::new(Program::new(plan, assembler, chase))
}

struct Chase {
    cycle: Cycle,
    /// Loads left.
    left: u64,
    block: BlockId,
}

impl Kernel for Chase {
    fn run(&mut self, slice: &mut Slice) {
        let loads = self.left.min(SLICE_BLOCKS as u64);
        self.left -= loads;
        slice.blocks.resize(loads as usize, self.block);
        slice.addresses.extend((0..loads).map(|_| LARGE_DATA + LINE * self.cycle.next()));
    }
}

/// A random cyclic order of 0 to `length` - 1.
struct Cycle {
    length: u64,
    /// The least power of two not below `length`, less one.
    mask: u64,
    state: u64,
    multiplier: u64,
    increment: u64,
    /// Half the bits, for the mixer.
    half: u32,
}

impl Cycle {
    fn new(length: u64, seed: u64) -> Self {
        let mask = length.next_power_of_two() - 1;
        Self {
            length,
            mask,
            state: 0,
            // Full period: the multiplier is 1 modulo 4, the increment odd.
            multiplier: mix(seed) & !3 | 5,
            increment: mix(!seed) | 1,
            half: (64 - mask.leading_zeros()).div_ceil(2),
        }
    }

    fn next(&mut self) -> u64 {
        loop {
            self.state = self.state.wrapping_mul(self.multiplier).wrapping_add(self.increment);
            let mut line = self.state & self.mask;
            // Each step can be undone, and so is a bijection of the numbers up to `mask`.
            line ^= line >> self.half;
            line = line.wrapping_mul(0x9e37_79b9_7f4a_7c15) & self.mask;
            line ^= line >> self.half;
            if line < self.length {
                return line;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_cycle_passes_every_line_once_and_then_repeats(length in 1_u64..3000, seed: u64) {
            let mut cycle = Cycle::new(length, seed);
            let first: Vec<_> = (0..length).map(|_| cycle.next()).collect();
            let second: Vec<_> = (0..length).map(|_| cycle.next()).collect();
            prop_assert_eq!(first.iter().copied().collect::<BTreeSet<_>>(), (0..length).collect());
            prop_assert_eq!(first, second);
        }
    }

    #[test]
    fn the_order_is_irregular() {
        let mut cycle = Cycle::new(1 << 16, 1);
        let lines: Vec<_> = (0..1 << 16).map(|_| cycle.next()).collect();
        let strides: BTreeSet<_> =
            lines.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        assert!(strides.len() > 30_000, "only {} strides", strides.len());
        // Successive lines share a page of 64 lines about once in 1024.
        let near = lines.windows(2).filter(|pair| pair[0] / 64 == pair[1] / 64).count();
        assert!(near < 200, "{near}");
    }
}
