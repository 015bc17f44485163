//! `random`: independent loads of random words: as much memory-level parallelism as the core allows.
//!
//! The program draws its addresses from a 64-bit linear congruential generator (Knuth's MMIX
//! multiplier) and uses the high half of a product with the number of words, so that any size is
//! covered uniformly. One load for each word of the memory, on average, each with seven instructions.
//! `instructions_per_access` adds independent work on registers, so that fewer loads fit into the core's
//! window.

use flatwalk_trace::{BlockId, Slice, Source};

use crate::program::{Assembler, FLAGS, Kernel, LARGE_DATA, Plan, Program, SLICE_BLOCKS};
use crate::rng::mix;
use crate::{
    Arguments, Description, GREATEST, INSTRUCTIONS, INSTRUCTIONS_PER_ACCESS, LEAST, SEED, SIZE,
};

pub(crate) const DESCRIPTION: Description = Description {
    name: "random",
    description: "independent loads of random 8-byte words: walks overlap as far as the core lets them",
    default_size_bytes: 1 << 30,
    least_bytes: LEAST,
    greatest_bytes: GREATEST,
    power_of_two: false,
    parameters: &[SIZE, SEED, INSTRUCTIONS],
    make,
};

// Registers.
const STATE: u8 = 1;
const MULTIPLIER: u8 = 2;
const WORDS: u8 = 3;
const INDEX: u8 = 4;
const BASE: u8 = 5;
const WORD: u8 = 7;
const SUM: u8 = 8;
const COUNT: u8 = 9;
const WORK: u8 = 10;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let Arguments { size_bytes, seed, instructions_per_access, .. } = *arguments;
    let words = size_bytes / 8;
    let mut assembler = Assembler::new();
    let block = assembler
        .operation(&[STATE, MULTIPLIER], &[STATE])
        .operation(&[STATE], &[STATE])
        .operation(&[STATE, WORDS], &[INDEX])
        .load(&[BASE, INDEX], WORD)
        .operation(&[SUM, WORD], &[SUM])
        // It reads what nothing writes, so that it waits for neither a load nor other work.
        .then(|assembler| {
            (INSTRUCTIONS_PER_ACCESS..instructions_per_access)
                .fold(assembler, |assembler, _| assembler.operation(&[MULTIPLIER], &[WORK]))
        })
        .operation(&[COUNT], &[COUNT, FLAGS])
        .branch();
    let plan = Plan {
        name: DESCRIPTION.name,
        arguments: *arguments,
        instructions: Some(words * assembler.length(block)),
        data: vec![(LARGE_DATA, size_bytes)],
    };
    let random = Random { state: mix(seed), words, left: words, block };
    Box::new(Program::new(plan, assembler, random))
}

struct Random {
    state: u64,
    words: u64,
    /// Loads left.
    left: u64,
    block: BlockId,
}

impl Kernel for Random {
    fn run(&mut self, slice: &mut Slice) {
        let loads = self.left.min(SLICE_BLOCKS as u64);
        self.left -= loads;
        slice.blocks.resize(loads as usize, self.block);
        slice.addresses.extend((0..loads).map(|_| {
            self.state =
                self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let index = ((u128::from(self.state) * u128::from(self.words)) >> 64) as u64;
            LARGE_DATA + 8 * index
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open;
    use crate::program::tests::play;

    #[test]
    fn every_page_is_as_likely_as_any_other() {
        let pages = 100;
        let mut loads = vec![0_u32; pages];
        for (_, addresses) in
            play(open("random", &Arguments::new(4096 * pages as u64, 3)).unwrap()).1
        {
            loads[((addresses[0] - LARGE_DATA) / 4096) as usize] += 1;
        }
        // 512 expected on each, with a standard deviation of 23.
        assert!(loads.iter().all(|count| (400..630).contains(count)), "{loads:?}");
    }

    #[test]
    fn an_access_has_as_many_instructions_as_are_asked_for() {
        let usual = Arguments::new(64 << 10, 3);
        let played = |instructions_per_access| {
            let source = open("random", &Arguments { instructions_per_access, ..usual }).unwrap();
            let instructions = source.info().instructions;
            (instructions, play(source).1)
        };
        let (_, by_default) = played(7);
        assert_eq!(by_default, play(open("random", &usual).unwrap()).1);
        for each in [7, 30, 60, 1000] {
            let (instructions, blocks) = played(each);
            assert_eq!(instructions, Some(each * 8192));
            assert_eq!(blocks.len(), 8192);
            for ((block, addresses), (_, expected)) in blocks.iter().zip(&by_default) {
                assert_eq!(block.instructions.len() as u64, each);
                assert_eq!((addresses, addresses.len()), (expected, 1));
            }
        }
    }

    #[test]
    fn a_number_of_instructions_out_of_range_is_an_error() {
        for instructions_per_access in [0, 6, 1001] {
            let arguments = Arguments { instructions_per_access, ..Arguments::new(4096, 1) };
            let message = open("random", &arguments).err().unwrap().to_string();
            let expected = format!(
                "random cannot have instructions_per_access of {instructions_per_access}: \
                 give 7 to 1000"
            );
            assert_eq!(message, expected);
        }
    }
}
