//! The tree in outline: neighbouring nodes of one shape summed, so that it stays small.

use rustc_hash::FxHashSet;

use super::Tree;
use crate::addr::{Address, Physical};
use crate::entry::{Decoded, Entry};
use crate::geometry::{Level, Width};
use crate::mapping::Part;
use crate::memory::{EntryMemory, LINE_BYTES};
use crate::walk::NodeRef;

/// Parts of an outline that begin at the same depth, at most, where nodes are alike: with more, the
/// nearest are summed across the gaps between them.
const PARTS: usize = 32;

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

impl<In: Address, Out: Physical> Tree<In, Out> {
    /// The tree in outline, the root first and the lowest nodes last. Nodes and entries sum to those of
    /// [`Tree::statistics`].
    pub fn outline(&self, memory: &impl EntryMemory<Out>) -> Vec<Part> {
        let mut seen = FxHashSet::default();
        let mut parts: Vec<Part> = Vec::new();
        let mut depth = self.runs(0, [(self.root, 0)], &mut seen);
        while !depth.is_empty() {
            let mut below = Vec::new();
            for run in depth {
                let mut children = Vec::new();
                let part = self.sum(memory, &run, &mut children);
                below.extend(self.runs(parts.len(), children, &mut seen));
                parts.push(part);
            }
            if below.is_empty() {
                // A merged node that all entries lead past.
                let mut hidden: Vec<_> = self.merged.iter().collect();
                hidden.sort_unstable();
                let placed = hidden.into_iter().filter_map(|(&(level, prefix), &base)| {
                    Some((self.child(base, level, 2)?, prefix.checked_shl(self.shift_of(level))?))
                });
                below = self.runs(0, placed, &mut seen);
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
            let is_fallback = self.nodes.get(&node.base).is_some_and(|node| node.is_fallback);
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
        };
        for &placed in &run.nodes {
            self.count(memory, placed, &mut part, children);
        }
        part
    }

    /// Adds the entries of a node to its part.
    fn count(
        &self,
        memory: &impl EntryMemory<Out>,
        Placed { node, start, .. }: Placed<Out>,
        part: &mut Part,
        children: &mut Vec<(NodeRef<Out>, u64)>,
    ) {
        let (geometry, bottom) = (self.geometry, node.bottom());
        let bytes = geometry.node_entries(node.width) * 8;
        // The others are absent, or a kernel's that lead back to the root.
        let mut left = self.nodes.get(&node.base).map_or(0, |node| node.used);
        for line in (0..bytes).step_by(LINE_BYTES as usize) {
            if left == 0 {
                break;
            }
            for (i, word) in (line / 8..).zip(memory.read_line(node.base.offset(line))) {
                match Entry(word).decode(geometry, bottom) {
                    Decoded::Absent => continue,
                    Decoded::Table { base, level, width } => {
                        let Some(child) = self.child(base, level, width) else { continue };
                        // Where nodes overlap, the child begins before what the entry translates.
                        let at = start + (i << geometry.shift(bottom));
                        children.push((child, at & (u64::MAX << self.shift_of(level))));
                        part.tables += 1;
                    }
                    Decoded::Mapped { level, .. } if level > bottom => part.replicas += 1,
                    Decoded::Mapped { .. } | Decoded::Reserved => part.pages += 1,
                }
                left = left.saturating_sub(1);
            }
        }
    }
}
