//! Algorithms that yield a trace as they compute.
//!
//! An [`Algorithm`] is written once and generic over its [`Emitter`]. It says which block of its code
//! it enters and then makes exactly that block's accesses, in order, through [`Column`]s and
//! [`Array`]s. Those know where the simulated program's data lie; an [`Array`] also holds the values,
//! in as few bytes as the computation needs. With [`Native`] the same code only computes.

use std::ops::Range;

use flatwalk_trace::{BlockId, Slice, Source};

use crate::program::{
    Assembler, Kernel, LARGE_DATA, PAGE, Plan, Program, SLICE_BLOCKS, SMALL_DATA,
};
use crate::{Arguments, ArrayOrder};

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
pub(crate) struct Native;

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

/// Allocates the simulated program's memory as glibc and Linux do it: large arrays are mapped, each next
/// to the one before, and what is small lies on the heap, which grows upwards.
///
/// Sources: mallopt(3) on `M_MMAP_THRESHOLD`; Linux, `mm/mmap.c`, `arch_get_unmapped_area_topdown` and,
/// for the legacy layout, `arch_get_unmapped_area`. The emulation of system calls of gem5 does the same
/// (`Process::mmapGrowsDown`). Not modelled: glibc raises its threshold when a program frees a mapping.
#[derive(Debug)]
pub(crate) struct Layout {
    order: ArrayOrder,
    /// What was asked for, in bytes, each rounded up to malloc's alignment.
    bytes: u64,
    /// Where the heap ends.
    heap_end: u64,
    /// Where arrays are mapped.
    mapped: Range<u64>,
}

/// From so many bytes on, malloc maps what it is asked for.
const MMAP_THRESHOLD: u64 = 128 << 10;
/// Malloc's alignment, and its header at the beginning of a mapping.
const ALIGNMENT: u64 = 16;
/// Where mappings begin within their gibibyte without randomisation: 128 MiB and the guard page below the
/// end of user space.
const MAPPED_OFFSET: u64 = (1 << 30) - (128 << 20) - PAGE;

impl Layout {
    pub(crate) fn new(arguments: &Arguments) -> Self {
        // Whatever is on the heap and whatever is mapped, they do not meet.
        let start = LARGE_DATA + arguments.size_bytes.next_multiple_of(1 << 30) + MAPPED_OFFSET;
        Self { order: arguments.array_order, bytes: 0, heap_end: SMALL_DATA, mapped: start..start }
    }

    /// An array of `count` records of `bytes` each.
    pub(crate) fn records(&mut self, count: u64, bytes: u64) -> Records {
        self.aligned_records(count, bytes, ALIGNMENT)
    }

    /// The same, aligned to a line, as `posix_memalign` does it.
    pub(crate) fn line_records(&mut self, count: u64, bytes: u64) -> Records {
        self.aligned_records(count, bytes, 64)
    }

    fn aligned_records(&mut self, count: u64, stride: u64, alignment: u64) -> Records {
        let bytes = count * stride;
        if bytes < MMAP_THRESHOLD {
            self.heap_end = self.heap_end.next_multiple_of(alignment);
            return self.objects(count, stride);
        }
        self.bytes += bytes.next_multiple_of(ALIGNMENT);
        // The header takes as much as the alignment needs.
        let length = (alignment + bytes).next_multiple_of(PAGE);
        let page = match self.order {
            ArrayOrder::Downwards => {
                self.mapped.start -= length;
                self.mapped.start
            }
            ArrayOrder::Upwards => {
                self.mapped.end += length;
                self.mapped.end - length
            }
        };
        Records { base: page + alignment, stride }
    }

    /// `count` objects of `bytes` each, which are allocated one after another on the heap.
    pub(crate) fn objects(&mut self, count: u64, bytes: u64) -> Records {
        let base = self.heap_end;
        let length = (count * bytes).next_multiple_of(ALIGNMENT);
        self.bytes += length;
        self.heap_end += length;
        Records { base, stride: bytes }
    }

    /// `count` values of `size` bytes, one after another.
    pub(crate) fn array(&mut self, count: u64, size: u16) -> Column {
        self.records(count, u64::from(size)).field(0, size)
    }

    /// Bytes allocated so far, without headers.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the program has mapped, `(address, bytes)`, ascending: neighbours are one area, as in Linux.
    pub(crate) fn mappings(&self) -> Vec<(u64, u64)> {
        let heap = SMALL_DATA..self.heap_end;
        let ranges = [heap, self.mapped.clone()].into_iter().filter(|range| !range.is_empty());
        ranges.map(|range| (range.start, range.end - range.start)).collect()
    }
}

/// A workload with its data at these places (see [`Layout::mappings`]) that runs an algorithm. `code`
/// writes its blocks at once, and says which they are; `build` makes the algorithm, when its first
/// block is needed.
pub(crate) fn program<C: Send + 'static, A: Algorithm + 'static>(
    name: &'static str,
    arguments: &Arguments,
    data: Vec<(u64, u64)>,
    code: impl FnOnce(&mut Assembler) -> C,
    build: impl FnOnce(C) -> A + Send + 'static,
) -> Box<dyn Source> {
    let mut assembler = Assembler::new();
    let code = code(&mut assembler);
    let plan = Plan { name, arguments: *arguments, instructions: None, data };
    let steps = Steps {
        #[cfg(test)]
        blocks: assembler.blocks(),
        build: Some(Box::new(move || build(code))),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The addresses of two arrays, of an object and of a small array, and the mappings.
    fn laid_out(array_order: ArrayOrder) -> ([u64; 4], Vec<(u64, u64)>) {
        let arguments = Arguments { array_order, ..Arguments::new(1 << 20, 1) };
        let mut layout = Layout::new(&arguments);
        let first = layout.array(MMAP_THRESHOLD / 8, 8);
        let second = layout.line_records(3 * PAGE, 64).field(0, 8);
        let (object, small) = (layout.objects(100, 40).field(0, 8), layout.array(7, 8));
        assert_eq!(layout.bytes(), MMAP_THRESHOLD + 192 * PAGE + 4000 + 64);
        ([first, second, object, small].map(|column| column.address(0)), layout.mappings())
    }

    #[test]
    fn arrays_are_mapped_from_the_top_and_the_heap_grows_upwards() {
        // 64 GiB, the size rounded up to 1 GiB, and 128 MiB and a page below the next.
        let top = (66 << 30) - (128 << 20) - 4096;
        let (addresses, mappings) = laid_out(ArrayOrder::Downwards);
        let bottom = top - (33 + 193) * 4096;
        let expected = [top - 33 * 4096 + 16, bottom + 64, 0x60_0000, 0x60_0000 + 4000];
        assert_eq!(addresses, expected);
        assert_eq!(mappings, [(0x60_0000, 4064), (bottom, top - bottom)]);

        let (addresses, mappings) = laid_out(ArrayOrder::Upwards);
        let expected = [top + 16, top + 33 * 4096 + 64, 0x60_0000, 0x60_0000 + 4000];
        assert_eq!(addresses, expected);
        assert_eq!(mappings, [(0x60_0000, 4064), (top, (33 + 193) * 4096)]);
    }
}
