//! What an organisation needs of memory. Consumers implement these for what they have.

use crate::addr::Physical;
use crate::geometry::Level;

/// The words of one line of memory.
pub type Line = [u64; 8];

/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;

/// Memory that holds page-table entries.
pub trait EntryMemory<A: Physical> {
    /// The 8-byte word at `at`, which is 8-byte aligned.
    fn read(&self, at: A) -> u64;
    /// The eight words at `at`, which is 64-byte aligned.
    #[inline]
    fn read_line(&self, at: A) -> Line {
        std::array::from_fn(|i| self.read(at.offset(8 * i as u64)))
    }
}

/// Memory whose entries can be changed.
pub trait EntryMemoryMut<A: Physical>: EntryMemory<A> {
    /// Stores the 8-byte word at `at`, which is 8-byte aligned.
    fn write(&mut self, at: A, value: u64);
    /// Stores the eight words at `at`, which is 64-byte aligned.
    #[inline]
    fn write_line(&mut self, at: A, line: &Line) {
        for (i, &word) in (0..).zip(line) {
            self.write(at.offset(8 * i), word);
        }
    }
}

/// Gives out naturally aligned blocks of memory for page-table nodes.
pub trait NodeAllocator<A: Physical> {
    /// A zeroed block of `2^size_shift` bytes, aligned to its size; `None` when there is none.
    /// Failure is ordinary: an organisation falls back to smaller nodes.
    fn allocate(&mut self, size_shift: u8) -> Option<A>;
    /// As [`NodeAllocator::allocate`], for a node with entries of level `bottom` on the path of
    /// `input`: who wants nodes to stand in the order of what they translate places them here.
    fn allocate_for(&mut self, size_shift: u8, bottom: Level, input: u64) -> Option<A> {
        let _ = (bottom, input);
        self.allocate(size_shift)
    }
    /// Learns that the block at `at`, of `2^size_shift` bytes, is a node with entries of level `bottom` on
    /// the path of `input`.
    fn is_node(&mut self, at: A, size_shift: u8, bottom: Level, input: u64) {
        let _ = (at, size_shift, bottom, input);
    }
    /// End of the memory that pages' frames can lie in, which begins at 0, in bytes: a table with an
    /// entry for each frame is as long as that.
    fn end_bytes(&self) -> u64;
    /// Takes back a block from [`NodeAllocator::allocate`].
    fn free(&mut self, at: A, size_shift: u8);
}

/// All that building a page table needs.
pub trait TableMemory<A: Physical>: EntryMemoryMut<A> + NodeAllocator<A> {}
impl<A: Physical, M: EntryMemoryMut<A> + NodeAllocator<A> + ?Sized> TableMemory<A> for M {}

impl<A: Physical, M: EntryMemory<A> + ?Sized> EntryMemory<A> for &M {
    #[inline]
    fn read(&self, at: A) -> u64 {
        (**self).read(at)
    }

    #[inline]
    fn read_line(&self, at: A) -> Line {
        (**self).read_line(at)
    }
}
