//! `graphbig-cc`: GraphBIG's connected components: a breadth-first search from every vertex that has
//! not yet been found.
//!
//! Departs from it: the queue is one array rather than `std::deque`.

use std::ops::Range;

use flatwalk_trace::BlockId;

use super::fragments::{first_edge, next_edge, next_vertex, target};
use super::{Kernel, Needs, OWN, PropertyGraph, Shape, TARGET, VERTEX, describe, runs};
use crate::Description;
use crate::program::{Assembler, FLAGS, registers};
use crate::simulated::{Array, Emitter};

pub(crate) const DESCRIPTION: Description = describe(
    "graphbig-cc",
    "GraphBIG connected components: breadth-first searches that label what they reach",
    |arguments| runs::<Components>(DESCRIPTION.name, arguments),
);

const NOT_FOUND: u32 = u32::MAX;

registers!(OWN; LEVEL, TARGET_LEVEL, LABEL, QUEUE, HEAD, TAIL, ROOT);

struct Code {
    reset: BlockId,
    begin: BlockId,
    root: BlockId,
    label: BlockId,
    take: BlockId,
    edge: BlockId,
    discover: BlockId,
    next_edge: BlockId,
    finish: BlockId,
    next_root: BlockId,
}

struct Components {
    code: Code,
    graph: PropertyGraph,
    level: Array<u32>,
    label: Array<u32>,
    queue: Array<u32>,
    /// Vertices not yet tried as roots.
    roots: Range<usize>,
    /// The part of the queue that was found and not yet taken.
    found: Range<usize>,
    /// The level of those found from the vertex taken, and its edges that are left.
    next_level: u32,
    edges: Range<usize>,
}

impl Components {
    fn discover(&mut self, out: &mut impl Emitter, vertex: usize, level: u32) {
        self.level.store(out, vertex, level);
        self.label.store(out, vertex, self.roots.start as u32 - 1);
        self.queue.store(out, self.found.end, vertex as u32);
        self.found.end += 1;
    }

    /// The ends of the loops over edges and over the queue.
    fn finish_after_last(&mut self, out: &mut impl Emitter) {
        if self.edges.is_empty() {
            out.enter(self.code.finish);
            if self.found.is_empty() {
                self.next_root(out);
            }
        }
    }

    fn next_root(&mut self, out: &mut impl Emitter) {
        out.enter(self.code.next_root);
        self.graph.next_vertex(out, self.roots.start - 1);
    }
}

impl Kernel for Components {
    /// The property: level 4 bytes, label 8.
    const NEEDS: Needs = Needs { property_bytes: 16, lists: 1, edge_bytes: 0, by_vertex: false };
    type Code = Code;

    fn code(assembler: &mut Assembler) -> Code {
        Code {
            reset: assembler.store_bytes(4, &[VERTEX]).store(&[VERTEX]).then(next_vertex).branch(),
            begin: assembler.operation(&[], &[ROOT]).fall(),
            root: assembler.load_bytes(4, &[ROOT], LEVEL).operation(&[LEVEL], &[FLAGS]).branch(),
            label: assembler
                .operation(&[ROOT], &[LABEL])
                .store_bytes(4, &[ROOT])
                .store(&[ROOT, LABEL])
                .store(&[QUEUE, TAIL, ROOT])
                .operation(&[TAIL], &[TAIL])
                .fall(),
            take: assembler
                .load(&[QUEUE, HEAD], VERTEX)
                .operation(&[HEAD], &[HEAD])
                .load_bytes(4, &[VERTEX], LEVEL)
                .operation(&[LEVEL], &[LEVEL])
                .then(first_edge)
                .branch(),
            edge: assembler
                .then(target)
                .load_bytes(4, &[TARGET], TARGET_LEVEL)
                .operation(&[TARGET_LEVEL], &[FLAGS])
                .branch(),
            discover: assembler
                .store_bytes(4, &[TARGET, LEVEL])
                .store(&[TARGET, LABEL])
                .store(&[QUEUE, TAIL, TARGET])
                .operation(&[TAIL], &[TAIL])
                .fall(),
            next_edge: assembler.then(next_edge).branch(),
            finish: assembler.operation(&[HEAD, TAIL], &[FLAGS]).branch(),
            next_root: assembler.load(&[ROOT], ROOT).operation(&[ROOT], &[FLAGS]).branch(),
        }
    }

    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let vertices = shape.vertices as usize;
        Self {
            code,
            graph: shape.graph(seed),
            level: shape.property(0, 4).holding(vec![NOT_FOUND; vertices]),
            label: shape.property(8, 8).holding(vec![0; vertices]),
            queue: shape.lists[0].holding(vec![0; vertices]),
            roots: 0..0,
            found: 0..0,
            next_level: 0,
            edges: 0..0,
        }
    }

    fn graph(&self) -> &PropertyGraph {
        &self.graph
    }

    fn reset(&mut self, out: &mut impl Emitter, vertex: usize) {
        out.enter(self.code.reset);
        self.level.store(out, vertex, NOT_FOUND);
        self.label.store(out, vertex, 0);
        self.graph.next_vertex(out, vertex);
    }

    fn begin(&mut self, out: &mut impl Emitter, _root: usize) {
        out.enter(self.code.begin);
        self.roots = 0..self.graph.vertices();
        self.found = 0..0;
    }

    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if let Some(edge) = self.edges.next() {
            out.enter(self.code.edge);
            let target = self.graph.target(out, edge);
            if self.level.load(out, target) == NOT_FOUND {
                out.enter(self.code.discover);
                self.discover(out, target, self.next_level);
            }
            out.enter(self.code.next_edge);
            self.graph.next_edge(out, edge);
            self.finish_after_last(out);
        } else if let Some(place) = self.found.next() {
            out.enter(self.code.take);
            let vertex = self.queue.load(out, place) as usize;
            self.next_level = self.level.load(out, vertex) + 1;
            self.edges = self.graph.first_edge(out, vertex);
            self.finish_after_last(out);
        } else if let Some(root) = self.roots.next() {
            out.enter(self.code.root);
            if self.level.load(out, root) == NOT_FOUND {
                out.enter(self.code.label);
                self.discover(out, root, 0);
            } else {
                self.next_root(out);
            }
        } else {
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{edges, run};
    use super::*;

    #[test]
    fn vertices_have_the_same_label_if_and_only_if_they_are_connected() {
        let components: Components = run(0);
        // Labels fall along edges until nothing changes; the least vertex of a component is its root.
        let edges = edges(&components.graph);
        let mut labels: Vec<_> = (0..components.graph.vertices() as u32).collect();
        while edges.iter().any(|&(from, to)| labels[from] < labels[to]) {
            for &(from, to) in &edges {
                labels[to] = labels[to].min(labels[from]);
            }
        }
        assert_eq!(components.label.values, labels);
        assert!(labels.iter().any(|&label| label != 0), "there is more than one component");
    }
}
