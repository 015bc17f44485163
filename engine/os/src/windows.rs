//! A kernel that reads and writes its page-table entries by virtual addresses: see
//! [`flatwalk_paging::Recursion`].
//!
//! Each access to an entry is an access to its window, and goes where the page table itself leads. Windows
//! are not kept in TLBs here, so each access costs a walk. Nodes that are not linked into the table yet, or
//! no longer, have no window; a kernel maps them elsewhere for that time, and those accesses are counted.

use std::cell::Cell;
use std::collections::BTreeMap;

use flatwalk_paging::{
    Address, EntryMemory, EntryMemoryMut, Geometry, Gva, Level, NodeRef, Physical, Recursion, Walk,
};

use crate::memory::PhysicalMemory;

/// A node of the table.
#[derive(Clone, Copy, Debug)]
struct Node {
    size_shift: u8,
    /// Level of its entries.
    bottom: Level,
    /// An address whose path leads through it.
    input: u64,
}

/// The windows of one table.
#[derive(Debug)]
pub(crate) struct Windows<A> {
    recursion: Recursion,
    geometry: Geometry,
    root: NodeRef<A>,
    nodes: BTreeMap<A, Node>,
    /// Accesses through windows, entries that their walks read, and accesses without windows.
    accesses: Cell<u64>,
    walked: Cell<u64>,
    unlinked: Cell<u64>,
}

impl<A: Physical> Windows<A> {
    /// Makes the table at `root`, which is still empty, recursive.
    pub(crate) fn new(
        recursion: Recursion,
        geometry: Geometry,
        root: NodeRef<A>,
        memory: &mut PhysicalMemory<A>,
    ) -> Self {
        for (at, entry) in recursion.entries(root) {
            memory.write(at, entry.0);
        }
        let (accesses, walked, unlinked) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let nodes = BTreeMap::new();
        let mut windows = Self { recursion, geometry, root, nodes, accesses, walked, unlinked };
        let size_shift = geometry.node_shift(root.width);
        windows.add_node(root.base, size_shift, root.bottom(), 0);
        windows
    }

    pub(crate) fn recursion(&self) -> Recursion {
        self.recursion
    }

    /// Adds a node; see [`flatwalk_paging::NodeAllocator::is_node`].
    pub(crate) fn add_node(&mut self, at: A, size_shift: u8, bottom: Level, input: u64) {
        self.nodes.insert(at, Node { size_shift, bottom, input });
    }

    /// Removes the node at `at`.
    pub(crate) fn remove_node(&mut self, at: A) {
        self.nodes.remove(&at);
    }

    /// The window of the entry at `at`, if it is in a node.
    fn window(&self, at: A) -> Option<Gva> {
        let (&base, node) = self.nodes.range(..=at).next_back()?;
        let within = at.raw() - base.raw();
        if within >> node.size_shift != 0 {
            return None;
        }
        let shift = self.geometry.shift(node.bottom);
        let all = (1 << (node.size_shift - 3)) - 1;
        let path = node.input & !(all << shift) | ((within / 8) << shift);
        Some(self.recursion.window(Gva::new(path), node.bottom))
    }

    /// Where an access to the entry at `at` goes, and how many entries the hardware reads for that: through
    /// its window, or directly where it has none at the moment.
    pub(crate) fn place(&self, memory: &PhysicalMemory<A>, at: A) -> (A, u64) {
        let found = self.window(at).and_then(|window| self.translate(memory, window));
        match found {
            // A window that leads elsewhere shows what was linked there before, or soon will not be.
            Some((place, walked)) if place == at => {
                self.accesses.set(self.accesses.get() + 1);
                self.walked.set(self.walked.get() + walked);
                (place, walked)
            }
            _ => {
                self.unlinked.set(self.unlinked.get() + 1);
                (at, 0)
            }
        }
    }

    /// Where `window` leads, as hardware finds it, and how many entries it read.
    fn translate(&self, memory: &PhysicalMemory<A>, window: Gva) -> Option<(A, u64)> {
        let mut walked = 0;
        let walk: Walk<Gva, A> = Walk::from(self.geometry, self.root, window);
        let found = walk.finish(|at| {
            walked += 1;
            memory.read(at)
        });
        let leaf = found.ok()?;
        Some((leaf.frame.offset(self.geometry.within(window.raw(), leaf.level)), walked))
    }

    /// Accesses through windows, entries that their walks read, and accesses without windows.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [self.accesses.get(), self.walked.get(), self.unlinked.get()]
    }
}
