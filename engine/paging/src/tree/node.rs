//! What is known of a node, and of the entries of a page in it.

use crate::addr::Physical;
use crate::entry::{Attributes, Entry};
use crate::error::TableError;
use crate::geometry::{Geometry, Level, Width};
use crate::memory::TableMemory;
use crate::walk::NodeRef;

/// What an operating system knows of a frame that is a node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) level: Level,
    pub(super) width: Width,
    pub(super) used: u32,
    /// It was to be wider, but there was no memory for that.
    pub(super) is_fallback: bool,
    /// Entries in use of each conventional node that this one stands for, where the table merges
    /// nodes by how full they are; else empty.
    pub(super) parts: Box<[u16]>,
}

/// The nodes on the way to an address, root first.
#[derive(Clone, Copy)]
pub(super) struct Path<Out> {
    nodes: [Option<NodeRef<Out>>; 6],
    pub(super) length: usize,
}

impl<Out: Physical> Path<Out> {
    pub(super) fn from(root: NodeRef<Out>) -> Self {
        let mut path = Self { nodes: [None; 6], length: 0 };
        path.push(root);
        path
    }

    pub(super) fn push(&mut self, node: NodeRef<Out>) {
        self.nodes[self.length] = Some(node);
        self.length += 1;
    }

    /// Adds a node that the walk passed by.
    pub(super) fn add(&mut self, node: NodeRef<Out>) {
        if !self.nodes[..self.length].iter().flatten().any(|there| there.level == node.level) {
            self.push(node);
            self.nodes[..self.length]
                .sort_unstable_by_key(|node| std::cmp::Reverse(node.map(|node| node.level)));
        }
    }

    pub(super) fn last(&self) -> NodeRef<Out> {
        self.nodes[self.length - 1].expect("a path has at least the root")
    }

    pub(super) fn pop(&mut self) -> Option<NodeRef<Out>> {
        self.length = self.length.checked_sub(1)?;
        self.nodes[self.length].take()
    }
}

/// The leaf entries of a page.
#[derive(Clone, Copy)]
pub(super) struct LeafEntries<Out> {
    pub(super) geometry: Geometry,
    pub(super) frame: Out,
    pub(super) level: Level,
    pub(super) attributes: Attributes,
    /// Replicas carry the O bit.
    pub(super) overlapping: bool,
}

impl<Out: Physical> LeafEntries<Out> {
    /// Number `i` of those that the page takes in a node of entries of level `bottom`.
    pub(super) fn entry(&self, bottom: Level, i: u64) -> Entry {
        let Self { geometry, frame, level, attributes, overlapping } = *self;
        let large = |frame| Entry::leaf(frame, true, attributes);
        if level == 1 {
            Entry::leaf(frame, false, attributes)
        } else if overlapping && level > bottom {
            large(frame).overlapping()
        } else {
            // At level 1, PS stands for a level-2 page; elsewhere for one of the entry's own level.
            let page = geometry.span(bottom.max(2));
            large(frame.offset((i * geometry.span(bottom)) & !(page - 1)))
        }
    }
}

/// A node for `level` on the path of `input`, as wide as `wanted` or as the memory allows.
pub(super) fn allocate<Out: Physical>(
    geometry: Geometry,
    memory: &mut impl TableMemory<Out>,
    level: Level,
    wanted: Width,
    input: u64,
) -> Result<(Out, Width), TableError> {
    for width in (1..=wanted.clamp(1, level.min(3))).rev() {
        let shift = geometry.node_shift(width);
        let bottom = level + 1 - width;
        if let Some(base) = memory.allocate_for(shift, bottom, input) {
            memory.is_node(base, shift, bottom, input);
            return Ok((base, width));
        }
    }
    Err(TableError::OutOfMemory)
}

/// The attributes of a page whose entries these are: accessed or dirty if any is.
pub(super) fn united(entries: impl Iterator<Item = Entry>) -> Attributes {
    entries
        .map(Entry::attributes)
        .reduce(|all, one| Attributes {
            rights: all.rights,
            accessed: all.accessed | one.accessed,
            dirty: all.dirty | one.dirty,
        })
        .expect("a page has an entry")
}
