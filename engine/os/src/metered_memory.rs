//! Physical memory as the operating system uses it. What it allocates, reads and writes is counted,
//! so that a page fault costs what it took.

use std::cell::Cell;
use std::ops::Range;

use flatwalk_paging::{EntryMemory, EntryMemoryMut, Level, Line, NodeAllocator, Physical};

use crate::buddy::FRAME_BYTES;
use crate::frames::Frames;
use crate::memory::PhysicalMemory;
use crate::ordered::OrderedNodes;
use crate::windows::Windows;

/// What a fault or an event took. The timing model charges for it, in addition to a fixed cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of data pages that were zeroed, or copied from a file.
    pub data_bytes: u64,
    /// Page-table nodes allocated.
    pub nodes: u64,
    /// Bytes of page-table nodes that were zeroed.
    pub node_bytes: u64,
    /// Page-table nodes freed.
    pub nodes_freed: u64,
    /// Page-table entries read: software walks, and looking through ranges. A line of a hashed table
    /// counts once.
    pub entries_read: u64,
    /// Page-table entries written.
    pub entries_written: u64,
    /// Page-table nodes merged with their children, or taken apart into them, because of their
    /// density. What that reads, writes and zeroes is not counted: it has one cost as a whole.
    pub density_changes: u64,
    /// Pages mapped, of any size.
    pub pages_mapped: u64,
    /// Pages unmapped and freed, of any size.
    pub pages_freed: u64,
}

/// Physical memory, its allocator, and the count of the work done on them.
pub(crate) struct MeteredMemory<A> {
    pub(crate) physical: PhysicalMemory<A>,
    pub(crate) frames: Frames,
    /// Everything but `entries_read`.
    pub(crate) work: Work,
    /// Addresses of the nodes that were made, until they are taken.
    pub(crate) made: Vec<Range<u64>>,
    /// The nodes that are kept in order, if there are any.
    pub(crate) ordered: Option<Box<OrderedNodes<A>>>,
    /// The windows through which entries are accessed, where the table is recursive.
    pub(crate) windows: Option<Box<Windows<A>>>,
    entries_read: Cell<u64>,
}

impl<A: Physical> MeteredMemory<A> {
    pub(crate) fn new(physical: PhysicalMemory<A>, frames: Frames) -> Self {
        let (work, entries_read) = (Work::default(), Cell::new(0));
        let made = Vec::new();
        Self { physical, frames, work, made, ordered: None, windows: None, entries_read }
    }

    /// Bytes that nothing has yet.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.frames.free_frames() * FRAME_BYTES
    }

    /// The work done since the last call.
    pub(crate) fn take_work(&mut self) -> Work {
        Work { entries_read: self.entries_read.take(), ..std::mem::take(&mut self.work) }
    }

    /// Runs `work`, of which only the nodes are counted, not the entries and bytes.
    pub(crate) fn unmetered<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.work_so_far();
        let result = work(self);
        self.forget_work_since(before);
        result
    }

    /// The work done so far.
    pub(crate) fn work_so_far(&self) -> Work {
        Work { entries_read: self.entries_read.get(), ..self.work }
    }

    /// Forgets what was done since `before` was all, but for the nodes.
    pub(crate) fn forget_work_since(&mut self, before: Work) {
        let Work { nodes, nodes_freed, .. } = self.work;
        self.entries_read.set(before.entries_read);
        self.work = Work { nodes, nodes_freed, entries_read: 0, ..before };
    }

    /// Blocks of 2^`size_shift` bytes that there are for data now.
    pub(crate) fn free_blocks(&self, size_shift: u8) -> u64 {
        self.frames.allocatable_blocks(order(size_shift))
    }

    /// Where an access to the entry at `at` goes; what the hardware reads for that is counted.
    #[inline]
    fn place(&self, at: A) -> A {
        let Some(windows) = &self.windows else { return at };
        let (place, walked) = windows.place(&self.physical, at);
        self.entries_read.set(self.entries_read.get() + walked);
        place
    }

    /// A block of 2^`size_shift` bytes for data, zeroed.
    pub(crate) fn allocate_data(&mut self, size_shift: u8) -> Option<A> {
        let at = self.place_of_data(size_shift)?;
        self.work.data_bytes += 1 << size_shift;
        Some(at)
    }

    /// The place of 2^`size_shift` bytes of a file that are in memory already: no work fills it.
    pub(crate) fn place_of_data(&mut self, size_shift: u8) -> Option<A> {
        let frame = self.frames.allocate_movable(order(size_shift))?;
        let at = A::new(frame * FRAME_BYTES);
        self.physical.zero(at, size_shift);
        self.work.pages_mapped += 1;
        Some(at)
    }

    /// A node at `at`, zeroed and counted.
    fn new_node(&mut self, at: A, size_shift: u8) -> A {
        self.physical.zero(at, size_shift.max(12));
        self.work.nodes += 1;
        self.work.node_bytes += 1 << size_shift;
        self.made.push(at.raw()..at.raw() + (1 << size_shift));
        at
    }

    pub(crate) fn free_data(&mut self, at: A, size_shift: u8) {
        self.frames.free(at.raw() / FRAME_BYTES, order(size_shift));
        self.work.pages_freed += 1;
    }
}

/// The order of a block of 2^`size_shift` bytes; a smaller block takes a whole frame.
fn order(size_shift: u8) -> u32 {
    u32::from(size_shift).saturating_sub(FRAME_BYTES.ilog2())
}

impl<A: Physical> EntryMemory<A> for MeteredMemory<A> {
    #[inline]
    fn read(&self, at: A) -> u64 {
        self.entries_read.set(self.entries_read.get() + 1);
        self.physical.read(self.place(at))
    }

    /// A line is one access, as an entry is.
    #[inline]
    fn read_line(&self, at: A) -> Line {
        self.entries_read.set(self.entries_read.get() + 1);
        self.physical.read_line(at)
    }
}

impl<A: Physical> EntryMemoryMut<A> for MeteredMemory<A> {
    #[inline]
    fn write(&mut self, at: A, value: u64) {
        self.work.entries_written += 1;
        let place = self.place(at);
        self.physical.write(place, value);
    }
}

impl<A: Physical> NodeAllocator<A> for MeteredMemory<A> {
    fn allocate(&mut self, size_shift: u8) -> Option<A> {
        let frame = self.frames.allocate_unmovable(order(size_shift))?;
        Some(self.new_node(A::new(frame * FRAME_BYTES), size_shift))
    }

    fn allocate_for(&mut self, size_shift: u8, bottom: Level, input: u64) -> Option<A> {
        let Some(ordered) = &mut self.ordered else { return self.allocate(size_shift) };
        if let Some(at) = ordered.place(&mut self.frames, size_shift, bottom, input) {
            return Some(self.new_node(at, size_shift));
        }
        let at = self.allocate(size_shift)?;
        if let Some(ordered) = &mut self.ordered {
            ordered.note_elsewhere(bottom);
        }
        Some(at)
    }

    fn is_node(&mut self, at: A, size_shift: u8, bottom: Level, input: u64) {
        if let Some(windows) = &mut self.windows {
            windows.add_node(at, size_shift, bottom, input);
        }
    }

    fn end_bytes(&self) -> u64 {
        self.physical.size_bytes()
    }

    fn free(&mut self, at: A, size_shift: u8) {
        self.work.nodes_freed += 1;
        if let Some(windows) = &mut self.windows {
            windows.remove_node(at);
        }
        if let Some(ordered) = &mut self.ordered
            && ordered.vacate(&mut self.frames, at)
        {
            return;
        }
        self.frames.free(at.raw() / FRAME_BYTES, order(size_shift));
    }
}
