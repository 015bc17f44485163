//! `spread`: dependent loads from pages that lie 64 GiB apart, and between groups of them a sweep that
//! empties the caches: the cost of a page walk when everything that it reads is far away.
//!
//! Source: Holt, "Re: [RFC] 4-level page table directories", linux-ia64, 2005: a timing of TLB misses
//! that "drags twice the cache-size worth of data through the processor between each reference to a
//! group of pages spaced through the users address space at `PAGE_SIZE` * 2048 * 2048 steps". The size
//! is that of the sweep: twice the last-level cache is what the post used. A group has 128 pages, as
//! many as fit an address space with room to spare; 125 groups make the post's 16,000 references.

use flatwalk_trace::{BlockId, Slice, Source};

use crate::program::{
    Assembler, FLAGS, Kernel, LARGE_DATA, Plan, Program, SLICE_BLOCKS, SMALL_DATA,
};
use crate::{Arguments, Description, LEAST, Parameter};

pub(crate) const DESCRIPTION: Description = Description {
    name: "spread",
    description: "dependent loads from 128 pages 64 GiB apart, after a sweep over the memory that \
                  empties the caches: cold walks through as many nodes as there can be",
    default_size_bytes: 32 << 20,
    least_bytes: LEAST,
    greatest_bytes: 32 << 30,
    power_of_two: false,
    parameters: &[Parameter {
        name: "size_bytes",
        description: "what the sweep covers, in bytes: 4 KiB to 32 GiB; twice the last-level cache empties it",
    }],
    make,
};

/// 16 KiB · 2048 · 2048.
const STRIDE: u64 = 1 << 36;
pub(crate) const PAGES: u64 = 128;
const GROUPS: u64 = 125;
const LINE: u64 = 64;
/// What is mapped of each page: a page of any size up to this.
pub(crate) const MAPPED: u64 = 64 << 10;

// Registers.
const POINTER: u8 = 1;
const COUNT: u8 = 2;
const INDEX: u8 = 3;
const SWEPT: u8 = 4;
const VALUE: u8 = 5;
const GROUP: u8 = 7;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let size_bytes = arguments.size_bytes;
    let lines = size_bytes / LINE;
    let mut assembler = Assembler::new();
    let sweep =
        assembler.store(&[SWEPT, INDEX, VALUE]).operation(&[INDEX], &[INDEX, FLAGS]).branch();
    let reference =
        assembler.load(&[POINTER], POINTER).operation(&[COUNT], &[COUNT, FLAGS]).branch();
    let group = assembler.operation(&[], &[INDEX]).operation(&[GROUP], &[GROUP, FLAGS]).branch();
    let length = lines * assembler.length(sweep)
        + PAGES * assembler.length(reference)
        + assembler.length(group);
    let pages = (0..PAGES).map(|page| (LARGE_DATA + page * STRIDE, MAPPED));
    let plan = Plan {
        name: DESCRIPTION.name,
        arguments: *arguments,
        instructions: Some(GROUPS * length),
        data: std::iter::once((SMALL_DATA, size_bytes)).chain(pages).collect(),
    };
    let spread = Spread { lines, swept: 0, groups: GROUPS, sweep, reference, group };
    Box::new(Program::new(plan, assembler, spread))
}

struct Spread {
    lines: u64,
    /// Lines of this group's sweep that were read.
    swept: u64,
    /// Groups left.
    groups: u64,
    sweep: BlockId,
    reference: BlockId,
    group: BlockId,
}

impl Kernel for Spread {
    fn run(&mut self, slice: &mut Slice) {
        if self.groups == 0 {
            return;
        }
        let end = self.lines.min(self.swept + SLICE_BLOCKS as u64);
        slice.blocks.resize((end - self.swept) as usize, self.sweep);
        slice.addresses.extend((self.swept..end).map(|line| SMALL_DATA + LINE * line));
        self.swept = end;
        if end == self.lines {
            slice.blocks.extend((0..PAGES).map(|_| self.reference));
            slice.addresses.extend((0..PAGES).map(|page| LARGE_DATA + page * STRIDE));
            slice.blocks.push(self.group);
            self.swept = 0;
            self.groups -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open;
    use crate::program::{PAGE, tests::play};

    #[test]
    fn every_group_comes_after_a_sweep_over_all_lines() {
        let played = play(open("spread", &Arguments::new(2 * PAGE, 1)).unwrap()).1;
        let addresses: Vec<u64> = played.iter().flat_map(|(_, own)| own.iter().copied()).collect();
        let group: Vec<u64> = (0..2 * PAGE / LINE)
            .map(|line| SMALL_DATA + line * LINE)
            .chain((0..PAGES).map(|page| LARGE_DATA + page * STRIDE))
            .collect();
        assert_eq!(addresses.len(), GROUPS as usize * group.len());
        assert!(addresses.chunks(group.len()).all(|made| made == group));
    }
}
