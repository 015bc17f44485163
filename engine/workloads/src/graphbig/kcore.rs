//! `graphbig-kcore`: GraphBIG's k-core: vertices with fewer than k edges are removed, and with them
//! their edges, until none is left to remove.
//!
//! Departs from it: goes through k = 1, 2, … until the graph is empty, so that each vertex gets its
//! core number (the original stops after one k, by default 3, where little is to be removed); the
//! queue is one array rather than `std::deque`.

use std::ops::Range;

use flatwalk_trace::BlockId;

use super::fragments::{first_edge, next_edge, next_vertex, target};
use super::{Kernel, Needs, OWN, PropertyGraph, Shape, TARGET, VERTEX, describe, runs};
use crate::Description;
use crate::program::{Assembler, FLAGS, registers};
use crate::simulated::{Array, Emitter};

pub(crate) const DESCRIPTION: Description = describe(
    "graphbig-kcore",
    "GraphBIG k-core decomposition: removed vertices take edges from random vertices",
    |arguments| runs::<Cores>(DESCRIPTION.name, arguments),
);

registers!(OWN; DEGREE, REMOVED, K, QUEUE, HEAD, TAIL, COUNT);

struct Code {
    begin: BlockId,
    prepare: BlockId,
    scan: BlockId,
    check: BlockId,
    remove_scanned: BlockId,
    next_scan: BlockId,
    scanned: BlockId,
    take: BlockId,
    edge: BlockId,
    lose: BlockId,
    remove: BlockId,
    next_edge: BlockId,
    finish: BlockId,
    next_k: BlockId,
}

struct Cores {
    code: Code,
    graph: PropertyGraph,
    degree: Array<u32>,
    removed: Array<bool>,
    core: Array<u32>,
    queue: Array<u32>,
    k: u32,
    /// Vertices whose degrees are not yet set.
    unprepared: Range<usize>,
    /// Vertices not yet compared with k.
    unscanned: Range<usize>,
    /// The part of the queue that was removed and still has its edges.
    found: Range<usize>,
    /// Edges left of the vertex taken.
    edges: Range<usize>,
}

impl Cores {
    fn remove(&mut self, out: &mut impl Emitter, vertex: usize) {
        self.removed.store(out, vertex, true);
        self.core.store(out, vertex, self.k - 1);
        self.queue.store(out, self.found.end, vertex as u32);
        self.found.end += 1;
    }

    fn finish_after_last(&mut self, out: &mut impl Emitter) {
        if self.edges.is_empty() {
            out.enter(self.code.finish);
            if self.found.is_empty() {
                self.next_k(out);
            }
        }
    }

    fn next_k(&mut self, out: &mut impl Emitter) {
        out.enter(self.code.next_k);
        self.k += 1;
        if self.found.end < self.graph.vertices() {
            self.unscanned = 0..self.graph.vertices();
        }
    }
}

impl Kernel for Cores {
    /// The property: degree 8 bytes, removed 1, core number 8.
    const NEEDS: Needs = Needs { property_bytes: 24, lists: 1, edge_bytes: 0, by_vertex: false };
    type Code = Code;

    fn code(assembler: &mut Assembler) -> Code {
        Code {
            begin: assembler.operation(&[], &[VERTEX]).operation(&[], &[K]).fall(),
            prepare: assembler
                .load(&[VERTEX], DEGREE)
                .store(&[VERTEX, DEGREE])
                .store_bytes(1, &[VERTEX])
                .then(next_vertex)
                .branch(),
            scan: assembler
                .load_bytes(1, &[VERTEX], REMOVED)
                .operation(&[REMOVED], &[FLAGS])
                .branch(),
            check: assembler.load(&[VERTEX], DEGREE).operation(&[DEGREE, K], &[FLAGS]).branch(),
            remove_scanned: assembler
                .store_bytes(1, &[VERTEX])
                .store(&[VERTEX, K])
                .store(&[QUEUE, TAIL, VERTEX])
                .operation(&[TAIL], &[TAIL])
                .fall(),
            next_scan: assembler.then(next_vertex).branch(),
            scanned: assembler.operation(&[HEAD, TAIL], &[FLAGS]).branch(),
            take: assembler
                .load(&[QUEUE, HEAD], VERTEX)
                .operation(&[HEAD], &[HEAD])
                .then(first_edge)
                .branch(),
            edge: assembler
                .then(target)
                .load_bytes(1, &[TARGET], REMOVED)
                .operation(&[REMOVED], &[FLAGS])
                .branch(),
            lose: assembler
                .load(&[TARGET], DEGREE)
                .operation(&[DEGREE], &[DEGREE])
                .store(&[TARGET, DEGREE])
                .operation(&[DEGREE, K], &[FLAGS])
                .branch(),
            remove: assembler
                .store_bytes(1, &[TARGET])
                .store(&[TARGET, K])
                .store(&[QUEUE, TAIL, TARGET])
                .operation(&[TAIL], &[TAIL])
                .fall(),
            next_edge: assembler.then(next_edge).branch(),
            finish: assembler.operation(&[HEAD, TAIL], &[FLAGS]).branch(),
            next_k: assembler.operation(&[K], &[K]).operation(&[TAIL, COUNT], &[FLAGS]).branch(),
        }
    }

    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let vertices = shape.vertices as usize;
        Self {
            code,
            graph: shape.graph(seed),
            degree: shape.property(0, 8).holding(vec![0; vertices]),
            removed: shape.property(8, 1).holding(vec![false; vertices]),
            core: shape.property(16, 8).holding(vec![0; vertices]),
            queue: shape.lists[0].holding(vec![0; vertices]),
            k: 0,
            unprepared: 0..0,
            unscanned: 0..0,
            found: 0..0,
            edges: 0..0,
        }
    }

    fn graph(&self) -> &PropertyGraph {
        &self.graph
    }

    /// A run begins with that anyway.
    fn reset(&mut self, _: &mut impl Emitter, _vertex: usize) {}

    fn begin(&mut self, out: &mut impl Emitter, _root: usize) {
        out.enter(self.code.begin);
        self.k = 1;
        self.found = 0..0;
        self.unprepared = 0..self.graph.vertices();
        self.unscanned = 0..self.graph.vertices();
    }

    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if let Some(vertex) = self.unprepared.next() {
            out.enter(self.code.prepare);
            let degree = self.graph.degree(out, vertex);
            self.degree.store(out, vertex, degree);
            self.removed.store(out, vertex, false);
            self.graph.next_vertex(out, vertex);
        } else if let Some(vertex) = self.unscanned.next() {
            out.enter(self.code.scan);
            if !self.removed.load(out, vertex) {
                out.enter(self.code.check);
                if self.degree.load(out, vertex) < self.k {
                    out.enter(self.code.remove_scanned);
                    self.remove(out, vertex);
                }
            }
            out.enter(self.code.next_scan);
            self.graph.next_vertex(out, vertex);
            if self.unscanned.is_empty() {
                out.enter(self.code.scanned);
                if self.found.is_empty() {
                    self.next_k(out);
                }
            }
        } else if let Some(edge) = self.edges.next() {
            out.enter(self.code.edge);
            let target = self.graph.target(out, edge);
            if !self.removed.load(out, target) {
                out.enter(self.code.lose);
                let degree = self.degree.load(out, target) - 1;
                self.degree.store(out, target, degree);
                if degree < self.k {
                    out.enter(self.code.remove);
                    self.remove(out, target);
                }
            }
            out.enter(self.code.next_edge);
            self.graph.next_edge(out, edge);
            self.finish_after_last(out);
        } else if let Some(place) = self.found.next() {
            out.enter(self.code.take);
            let vertex = self.queue.load(out, place) as usize;
            self.edges = self.graph.first_edge(out, vertex);
            self.finish_after_last(out);
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
    fn core_numbers_are_those_of_the_definition() {
        let cores: Cores = run(0);
        let edges = edges(&cores.graph);
        let vertices = cores.graph.vertices();
        let mut expected = vec![0; vertices];
        for k in 1.. {
            // The greatest set in which each has at least k neighbours.
            let mut kept = vec![true; vertices];
            loop {
                let mut degrees = vec![0; vertices];
                for &(from, to) in &edges {
                    degrees[from] += u32::from(kept[to]);
                }
                let before = kept.clone();
                (0..vertices).for_each(|v| kept[v] &= degrees[v] >= k);
                if kept == before {
                    break;
                }
            }
            if !kept.contains(&true) {
                assert!(k > 5, "the graph has a dense core");
                break;
            }
            (0..vertices).filter(|&v| kept[v]).for_each(|v| expected[v] = k);
        }
        assert_eq!(cores.core.values, expected);
    }
}
