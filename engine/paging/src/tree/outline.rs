//! The tree in outline: neighbouring nodes of one shape summed, so that it stays small, and the first of
//! them entry by entry.

use rustc_hash::FxHashSet;

use super::Tree;
use crate::addr::{Address, Physical};
use crate::entry::{Decoded, Entry};
use crate::geometry::{Geometry, Level, Width};
use crate::mapping::{Entries, EntryKind, Part};
use crate::memory::{EntryMemory, LINE_BYTES};
use crate::walk::NodeRef;

/// Parts of an outline that begin at the same depth, at most, where nodes are alike: with more, the
/// nearest are summed across the gaps between them.
const PARTS: usize = 32;
/// Runs of entries of a part's first node, at most.
const RUNS_OF_ENTRIES: usize = 6;

/// Nodes that form a tree, as an outline has to know them.
pub trait Nodes<Out: Physical> {
    /// Page size and levels.
    fn geometry(&self) -> Geometry;
    /// Where walks begin.
    fn root(&self) -> NodeRef<Out>;
    /// Entries of a node that are in use; `None` if nobody counts them.
    fn used(&self, node: NodeRef<Out>) -> Option<u64>;
    /// Whether a node was to be wider, but there was no memory for that.
    fn is_fallback(&self, node: NodeRef<Out>) -> bool;
    /// The node of that shape that an entry leads to; `None` if it is none of the tree's.
    fn child(&self, base: Out, level: Level, width: Width) -> Option<NodeRef<Out>>;
    /// Nodes that all entries lead past, with the first address under each.
    fn hidden(&self) -> Vec<(NodeRef<Out>, u64)>;
}

/// A node, and the first address under it, without its sign.
#[derive(Clone, Copy)]
struct Placed<Out> {
    node: NodeRef<Out>,
    start: u64,
    is_fallback: bool,
}

/// Nodes that become one part of the outline.
struct Run<Out> {
    /// Number of the part that they are under.
    parent: usize,
    nodes: Vec<Placed<Out>>,
}

impl<Out: Physical> Run<Out> {
    /// What nodes of one run have in common.
    fn key(&self) -> (usize, Level, Width, bool) {
        let Placed { node, is_fallback, .. } = self.nodes[0];
        (self.parent, node.level, node.width, is_fallback)
    }
}

impl<In: Address, Out: Physical> Nodes<Out> for Tree<In, Out> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn root(&self) -> NodeRef<Out> {
        self.root
    }

    fn used(&self, node: NodeRef<Out>) -> Option<u64> {
        // The others are absent, or a kernel's that lead back to the root.
        Some(self.nodes.get(&node.base).map_or(0, |node| node.used.into()))
    }

    fn is_fallback(&self, node: NodeRef<Out>) -> bool {
        self.nodes.get(&node.base).is_some_and(|node| node.is_fallback)
    }

    fn child(&self, base: Out, level: Level, width: Width) -> Option<NodeRef<Out>> {
        Tree::child(self, base, level, width)
    }

    fn hidden(&self) -> Vec<(NodeRef<Out>, u64)> {
        let mut hidden: Vec<_> = self.merged.iter().collect();
        hidden.sort_unstable();
        let placed = hidden.into_iter().filter_map(|(&(level, prefix), &base)| {
            let shift = self.geometry.shift(level + 1).into();
            Some((self.child(base, level, 2)?, prefix.checked_shl(shift)?))
        });
        placed.collect()
    }
}

impl<In: Address, Out: Physical> Tree<In, Out> {
    /// The tree in outline. Nodes and entries sum to those of [`Tree::statistics`].
    pub fn outline(&self, memory: &impl EntryMemory<Out>) -> Vec<Part> {
        outline(self, memory)
    }
}

/// A tree in outline, the root first and the lowest nodes last.
pub fn outline<Out: Physical>(
    nodes: &impl Nodes<Out>,
    memory: &impl EntryMemory<Out>,
) -> Vec<Part> {
    Outliner { nodes, geometry: nodes.geometry() }.parts(memory)
}

/// Makes the outline of a tree.
struct Outliner<'a, Out> {
    nodes: &'a dyn Nodes<Out>,
    geometry: Geometry,
}

impl<Out: Physical> Outliner<'_, Out> {
    /// All of it.
    fn parts(&self, memory: &impl EntryMemory<Out>) -> Vec<Part> {
        let mut seen = FxHashSet::default();
        let mut parts: Vec<Part> = Vec::new();
        let mut depth = self.runs(0, [(self.nodes.root(), 0)], &mut seen);
        while !depth.is_empty() {
            let mut below = Vec::new();
            for run in depth {
                let mut children = Vec::new();
                let part = self.sum(memory, &run, &mut children);
                below.extend(self.runs(parts.len(), children, &mut seen));
                parts.push(part);
            }
            if below.is_empty() {
                below = self.runs(0, self.nodes.hidden(), &mut seen);
            }
            depth = self.joined(below);
        }
        parts
    }

    /// Nodes that have not been seen yet, in the order of their addresses, as runs without gaps.
    fn runs(
        &self,
        parent: usize,
        nodes: impl IntoIterator<Item = (NodeRef<Out>, u64)>,
        seen: &mut FxHashSet<Out>,
    ) -> Vec<Run<Out>> {
        let mut runs: Vec<Run<Out>> = Vec::new();
        for (node, start) in nodes {
            if !seen.insert(node.base) {
                continue;
            }
            let is_fallback = self.nodes.is_fallback(node);
            let run = Run { parent, nodes: vec![Placed { node, start, is_fallback }] };
            match runs.last_mut() {
                Some(last) if last.key() == run.key() && self.gap(last, &run) == 0 => {
                    last.nodes.extend(run.nodes);
                }
                _ => runs.push(run),
            }
        }
        runs
    }

    /// Bytes of addresses between two runs.
    fn gap(&self, first: &Run<Out>, second: &Run<Out>) -> u64 {
        let end = first.nodes[first.nodes.len() - 1];
        second.nodes[0].start.saturating_sub(self.last(end)).saturating_sub(1)
    }

    /// The last address under a node, without its sign.
    fn last(&self, Placed { node, start, .. }: Placed<Out>) -> u64 {
        start | u64::MAX >> (64 - self.shift_of(node.level))
    }

    /// log2 of the bytes of addresses under a node with this topmost level.
    fn shift_of(&self, level: Level) -> u32 {
        self.geometry.shift(level + 1).into()
    }

    /// The runs of one depth, with the nearest ones that are alike joined where there are too many.
    fn joined(&self, runs: Vec<Run<Out>>) -> Vec<Run<Out>> {
        let too_many = runs.len().saturating_sub(PARTS);
        if too_many == 0 {
            return runs;
        }
        let mut gaps: Vec<(u64, usize)> = Vec::new();
        for (number, run) in runs.iter().enumerate() {
            let before = runs[..number].iter().rev().take_while(|other| other.parent == run.parent);
            if let Some(before) = before.into_iter().find(|other| other.key() == run.key()) {
                gaps.push((self.gap(before, run), number));
            }
        }
        gaps.sort_unstable();
        let joined: FxHashSet<usize> = gaps.iter().take(too_many).map(|&(_, run)| run).collect();
        let mut kept: Vec<Run<Out>> = Vec::new();
        for (number, run) in runs.into_iter().enumerate() {
            let before = kept.iter_mut().rev().find(|other| other.key() == run.key());
            match before.filter(|_| joined.contains(&number)) {
                Some(before) => before.nodes.extend(run.nodes),
                None => kept.push(run),
            }
        }
        kept
    }

    /// The part that a run becomes; the nodes that its entries lead to are added to `children`.
    fn sum(
        &self,
        memory: &impl EntryMemory<Out>,
        run: &Run<Out>,
        children: &mut Vec<(NodeRef<Out>, u64)>,
    ) -> Part {
        let (under, level, width, is_fallback) = run.key();
        let (first, last) = (run.nodes[0], run.nodes[run.nodes.len() - 1]);
        let mut part = Part {
            under,
            level,
            width,
            is_fallback,
            first: self.geometry.canonical(first.start),
            last: self.geometry.canonical(self.last(last)),
            nodes: run.nodes.len() as u64,
            tables: 0,
            pages: 0,
            replicas: 0,
            node: first.node.base.raw(),
            entries: Vec::new(),
            entries_left: 0,
        };
        for &placed in &run.nodes {
            self.count(memory, placed, &mut part, children);
        }
        part
    }

    /// Adds the entries of a node to its part; those of the first one by one, too.
    fn count(
        &self,
        memory: &impl EntryMemory<Out>,
        Placed { node, start, .. }: Placed<Out>,
        part: &mut Part,
        children: &mut Vec<(NodeRef<Out>, u64)>,
    ) {
        let (geometry, bottom) = (self.geometry, node.bottom());
        let bytes = geometry.node_entries(node.width) * 8;
        let mut left = self.nodes.used(node).unwrap_or(u64::MAX);
        for line in (0..bytes).step_by(LINE_BYTES as usize) {
            if left == 0 {
                break;
            }
            for (index, word) in (line / 8..).zip(memory.read_line(node.base.offset(line))) {
                let kind = match Entry(word).decode(geometry, bottom) {
                    Decoded::Absent => continue,
                    Decoded::Table { base, level, width } => {
                        let Some(child) = self.nodes.child(base, level, width) else { continue };
                        // Where nodes overlap, the child begins before what the entry translates.
                        let at = start + (index << geometry.shift(bottom));
                        children.push((child, at & (u64::MAX << self.shift_of(level))));
                        EntryKind::Table
                    }
                    Decoded::Mapped { level, .. } if level > bottom => EntryKind::Replica,
                    Decoded::Mapped { .. } | Decoded::Reserved => EntryKind::Page,
                };
                *match kind {
                    EntryKind::Table => &mut part.tables,
                    EntryKind::Page => &mut part.pages,
                    EntryKind::Replica => &mut part.replicas,
                } += 1;
                if node.base.raw() == part.node {
                    note(part, Entries { index, count: 1, kind, word });
                }
                left = left.saturating_sub(1);
            }
        }
    }
}

/// Takes note of a further entry of a part's first node.
fn note(part: &mut Part, entry: Entries) {
    if let Some(last) = part.entries.last_mut()
        && (last.kind, last.index + last.count) == (entry.kind, entry.index)
    {
        last.count += 1;
    } else if part.entries.len() < RUNS_OF_ENTRIES {
        part.entries.push(entry);
    } else {
        part.entries_left += 1;
    }
}
