//! `stream`: the triad `a[i] = b[i] + s * c[i]` of McCalpin's STREAM: sequential, so that TLB misses
//! are rare and cheap. Three arrays of a third of the size each, one after another, ten iterations.

use flatwalk_trace::{BlockId, Slice, Source};

use crate::program::{Assembler, FLAGS, Kernel, LARGE_DATA, Plan, Program, SLICE_BLOCKS};
use crate::{Arguments, Description, GREATEST, LEAST, SIZE};

pub(crate) const DESCRIPTION: Description = Description {
    name: "stream",
    description: "STREAM triad over three arrays: sequential accesses that translation hardly slows",
    default_size_bytes: 1 << 30,
    least_bytes: LEAST,
    greatest_bytes: GREATEST,
    power_of_two: false,
    parameters: &[SIZE],
    make,
};

/// STREAM's NTIMES.
const ITERATIONS: u64 = 10;

// Registers.
const INDEX: u8 = 1;
const LENGTH: u8 = 2;
const A: u8 = 3;
const B: u8 = 4;
const C: u8 = 5;
const SCALAR: u8 = 7;
const LEFT: u8 = 8;
const RIGHT: u8 = 9;
const ITERATION: u8 = 10;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let size_bytes = arguments.size_bytes;
    let words = size_bytes / 24;
    let mut assembler = Assembler::new();
    let element = assembler
        .load(&[B, INDEX], LEFT)
        .load(&[C, INDEX], RIGHT)
        .operation(&[RIGHT, SCALAR], &[RIGHT])
        .operation(&[LEFT, RIGHT], &[LEFT])
        .store(&[A, INDEX, LEFT])
        .operation(&[INDEX], &[INDEX])
        .operation(&[INDEX, LENGTH], &[FLAGS])
        .branch();
    let iteration = assembler
        .operation(&[], &[INDEX])
        .operation(&[ITERATION], &[ITERATION])
        .operation(&[ITERATION], &[FLAGS])
        .branch();
    let plan = Plan {
        name: DESCRIPTION.name,
        arguments: *arguments,
        instructions: Some(
            ITERATIONS * (words * assembler.length(element) + assembler.length(iteration)),
        ),
        data: vec![(LARGE_DATA, size_bytes)],
    };
    let stream = Stream { words, next: 0, iterations: ITERATIONS, element, iteration };
    Box::new(Program::new(plan, assembler, stream))
}

struct Stream {
    /// Words in an array.
    words: u64,
    next: u64,
    /// Iterations left.
    iterations: u64,
    element: BlockId,
    iteration: BlockId,
}

impl Kernel for Stream {
    fn run(&mut self, slice: &mut Slice) {
        if self.iterations == 0 {
            return;
        }
        let end = self.words.min(self.next + SLICE_BLOCKS as u64);
        slice.blocks.resize((end - self.next) as usize, self.element);
        let array = 8 * self.words;
        slice.addresses.extend((self.next..end).flat_map(|index| {
            let a = LARGE_DATA + 8 * index;
            [a + array, a + 2 * array, a]
        }));
        self.next = end;
        if end == self.words {
            self.next = 0;
            self.iterations -= 1;
            slice.blocks.push(self.iteration);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open;
    use crate::program::{PAGE, tests::play};

    #[test]
    fn every_element_of_all_three_arrays_is_used_once_an_iteration() {
        let played = play(open("stream", &Arguments::new(3 * PAGE, 1)).unwrap()).1;
        let elements: Vec<_> = played.iter().filter(|(_, own)| !own.is_empty()).collect();
        assert_eq!(elements.len() as u64, ITERATIONS * 512);
        for (i, (_, own)) in elements.iter().enumerate() {
            let a = LARGE_DATA + 8 * (i as u64 % 512);
            assert_eq!(*own, [a + PAGE, a + 2 * PAGE, a]);
        }
    }
}
