//! Algorithms that yield a trace as they compute.
//!
//! An [`Algorithm`] is written once and generic over its [`Emitter`]. It says which block of its code
//! it enters and then makes exactly that block's accesses, in order, through [`Column`]s and
//! [`Array`]s. Those know where the simulated program's data lie; an [`Array`] also holds the values,
//! in as few bytes as the computation needs. With [`Native`] the same code only computes.

use flatwalk_trace::{BlockId, Slice, Source};

use crate::program::{Assembler, Kernel, LARGE_DATA, Plan, Program, SLICE_BLOCKS};

/// What receives an algorithm's blocks and accesses.
pub(crate) trait Emitter {
    /// The program runs `block`, whose accesses follow.
    fn enter(&mut self, block: BlockId);
    /// It loads `size` bytes.
    fn load(&mut self, address: u64, size: u16);
    /// It stores `size` bytes.
    fn store(&mut self, address: u64, size: u16);
}

/// An algorithm in steps of a few blocks each.
pub(crate) trait Algorithm: Send {
    /// Continues for about one iteration of its innermost loop; false at the end, and from then on.
    fn step(&mut self, out: &mut impl Emitter) -> bool;
}

/// Emits nothing: the algorithm only computes.
#[cfg(test)]
pub(crate) struct Native;

#[cfg(test)]
impl Emitter for Native {
    fn enter(&mut self, _: BlockId) {}
    fn load(&mut self, _: u64, _: u16) {}
    fn store(&mut self, _: u64, _: u16) {}
}

/// Where the values of one kind lie: an array, or one field of an array of records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    base: u64,
    stride: u64,
    size: u16,
}

impl Column {
    #[inline]
    pub(crate) fn address(&self, index: usize) -> u64 {
        self.base + self.stride * index as u64
    }

    #[inline]
    pub(crate) fn load(&self, out: &mut impl Emitter, index: usize) {
        out.load(self.address(index), self.size);
    }

    #[inline]
    pub(crate) fn store(&self, out: &mut impl Emitter, index: usize) {
        out.store(self.address(index), self.size);
    }

    /// The same column with its values.
    pub(crate) fn holding<T>(self, values: Vec<T>) -> Array<T> {
        Array { column: self, values }
    }
}

/// A column with its values.
#[derive(Clone, Debug)]
pub(crate) struct Array<T> {
    column: Column,
    pub(crate) values: Vec<T>,
}

impl<T: Copy> Array<T> {
    #[inline]
    pub(crate) fn load(&self, out: &mut impl Emitter, index: usize) -> T {
        self.column.load(out, index);
        self.values[index]
    }

    #[inline]
    pub(crate) fn store(&mut self, out: &mut impl Emitter, index: usize, value: T) {
        self.column.store(out, index);
        self.values[index] = value;
    }
}

/// An array of records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Records {
    base: u64,
    stride: u64,
}

impl Records {
    /// The field of `size` bytes at `offset`.
    pub(crate) fn field(self, offset: u64, size: u16) -> Column {
        debug_assert!(offset + u64::from(size) <= self.stride, "the field leaves its record");
        Column { base: self.base + offset, stride: self.stride, size }
    }

    /// All records together as values of `size` bytes.
    pub(crate) fn split(self, size: u16) -> Column {
        Column { base: self.base, stride: u64::from(size), size }
    }
}

/// Allocates the simulated program's memory, from one end of a single mapping to the other.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    end: u64,
}

impl Layout {
    pub(crate) fn new() -> Self {
        Self { end: LARGE_DATA }
    }

    /// `count` records of `bytes` each.
    pub(crate) fn records(&mut self, count: u64, bytes: u64) -> Records {
        let base = self.end;
        // The alignment of malloc.
        self.end = (base + count * bytes).next_multiple_of(16);
        Records { base, stride: bytes }
    }

    /// `count` values of `size` bytes, one after another.
    pub(crate) fn array(&mut self, count: u64, size: u16) -> Column {
        self.records(count, u64::from(size)).field(0, size)
    }

    /// Bytes allocated so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.end - LARGE_DATA
    }
}

/// A workload that runs an algorithm, which is built when its first block is needed.
pub(crate) fn program<A: Algorithm + 'static>(
    name: &'static str,
    (size_bytes, seed): (u64, u64),
    layout: &Layout,
    assembler: Assembler,
    build: impl FnOnce() -> A + Send + 'static,
) -> Box<dyn Source> {
    let plan = Plan {
        name,
        size_bytes,
        seed,
        instructions: None,
        data: vec![(LARGE_DATA, layout.bytes())],
    };
    let steps = Steps {
        #[cfg(test)]
        blocks: assembler.blocks(),
        build: Some(Box::new(build)),
        algorithm: None,
    };
    Box::new(Program::new(plan, assembler, steps))
}

struct Steps<A> {
    #[cfg(test)]
    blocks: Vec<std::sync::Arc<flatwalk_trace::Block>>,
    build: Option<Box<dyn FnOnce() -> A + Send>>,
    algorithm: Option<A>,
}

impl<A: Algorithm> Kernel for Steps<A> {
    fn run(&mut self, slice: &mut Slice) {
        if let Some(build) = self.build.take() {
            self.algorithm = Some(build());
        }
        let Some(algorithm) = &mut self.algorithm else { return };
        let mut recorder = Recorder {
            slice,
            #[cfg(test)]
            made: Vec::new(),
        };
        while recorder.slice.blocks.len() < SLICE_BLOCKS && algorithm.step(&mut recorder) {}
        #[cfg(test)]
        recorder.check(&self.blocks);
    }
}

/// Emits into a slice.
struct Recorder<'a> {
    slice: &'a mut Slice,
    /// The accesses made, to be compared with those of the blocks.
    #[cfg(test)]
    made: Vec<(BlockId, u16, bool)>,
}

#[cfg(test)]
impl Recorder<'_> {
    fn note(&mut self, size: u16, store: bool) {
        let block = self.slice.blocks.last().expect("an access belongs to a block");
        self.made.push((*block, size, store));
    }

    fn check(&self, blocks: &[std::sync::Arc<flatwalk_trace::Block>]) {
        let mut made = self.made.iter();
        for &id in &self.slice.blocks {
            for access in &blocks[id as usize].accesses {
                assert_eq!(made.next(), Some(&(id, access.size, access.store)), "block {id}");
            }
        }
        assert_eq!(made.next(), None, "one access too many");
    }
}

impl Emitter for Recorder<'_> {
    #[inline]
    fn enter(&mut self, block: BlockId) {
        self.slice.blocks.push(block);
    }

    #[inline]
    #[cfg_attr(not(test), expect(unused_variables, reason = "blocks say the size"))]
    fn load(&mut self, address: u64, size: u16) {
        self.slice.addresses.push(address);
        #[cfg(test)]
        self.note(size, false);
    }

    #[inline]
    #[cfg_attr(not(test), expect(unused_variables, reason = "blocks say the size"))]
    fn store(&mut self, address: u64, size: u16) {
        self.slice.addresses.push(address);
        #[cfg(test)]
        self.note(size, true);
    }
}
