//! `graphbig-bfs` and `graphbig-dfs`: GraphBIG's searches from a random vertex. They differ in which
//! end of the list of found vertices they take the next from.
//!
//! Depart from it: the queue and the stack are one array each rather than `std::deque`; the
//! depth-first search notes levels too.

use std::ops::Range;

use flatwalk_trace::BlockId;

use super::fragments::{find, first_edge, next_edge, next_vertex, target};
use super::{ID, Kernel, Needs, OWN, PropertyGraph, Shape, TARGET, VERTEX, describe, runs};
use crate::Description;
use crate::program::{Assembler, FLAGS, registers};
use crate::simulated::{Array, Emitter};

pub(crate) const BFS: Description = describe(
    "graphbig-bfs",
    "GraphBIG breadth-first search: an edge is a list node, an index look-up and a random vertex",
    |arguments| runs::<Search<false>>(BFS.name, arguments),
);

pub(crate) const DFS: Description = describe(
    "graphbig-dfs",
    "GraphBIG depth-first search: as graphbig-bfs, with a stack",
    |arguments| runs::<Search<true>>(DFS.name, arguments),
);

/// Not found, found, finished.
const WHITE: u8 = 0;
const GREY: u8 = 1;
const BLACK: u8 = 2;

registers!(OWN; COLOR, ORDER, LEVEL, LIST, FRONT, BACK);

struct Code {
    reset: BlockId,
    begin: BlockId,
    take: BlockId,
    edge: BlockId,
    discover: BlockId,
    next_edge: BlockId,
    finish: BlockId,
}

struct Search<const DEPTH_FIRST: bool> {
    code: Code,
    graph: PropertyGraph,
    color: Array<u8>,
    order: Array<u32>,
    level: Array<u32>,
    list: Array<u32>,
    /// The part of the list that was found and not yet taken.
    found: Range<usize>,
    /// Vertices found so far.
    count: u32,
    /// The vertex taken, the level of those found from it, and its edges that are left.
    vertex: usize,
    next_level: u32,
    edges: Range<usize>,
}

impl<const DEPTH_FIRST: bool> Search<DEPTH_FIRST> {
    fn discover(&mut self, out: &mut impl Emitter, vertex: usize, level: u32) {
        self.color.store(out, vertex, GREY);
        self.order.store(out, vertex, self.count);
        self.level.store(out, vertex, level);
        self.list.store(out, self.found.end, vertex as u32);
        self.found.end += 1;
        self.count += 1;
    }

    fn finish_after_last(&mut self, out: &mut impl Emitter) {
        if self.edges.is_empty() {
            out.enter(self.code.finish);
            self.color.store(out, self.vertex, BLACK);
        }
    }
}

impl<const DEPTH_FIRST: bool> Kernel for Search<DEPTH_FIRST> {
    /// The property: color 1 byte, order 8, level 8.
    const NEEDS: Needs = Needs { property_bytes: 24, lists: 1, edge_bytes: 0, by_vertex: false };
    type Code = Code;

    fn code(assembler: &mut Assembler) -> Code {
        Code {
            reset: assembler
                .store_bytes(1, &[VERTEX])
                .store(&[VERTEX])
                .store(&[VERTEX])
                .then(next_vertex)
                .branch(),
            begin: assembler
                .operation(&[], &[ID])
                .then(find(TARGET))
                .operation(&[], &[LEVEL])
                .store_bytes(1, &[TARGET])
                .store(&[TARGET, ORDER])
                .store(&[TARGET, LEVEL])
                .store(&[LIST, BACK, TARGET])
                .fall(),
            take: assembler
                .load(&[LIST, FRONT], VERTEX)
                .operation(&[FRONT], &[FRONT])
                .load(&[VERTEX], LEVEL)
                .operation(&[LEVEL], &[LEVEL])
                .then(first_edge)
                .branch(),
            edge: assembler
                .then(target)
                .load_bytes(1, &[TARGET], COLOR)
                .operation(&[COLOR], &[FLAGS])
                .branch(),
            discover: assembler
                .store_bytes(1, &[TARGET])
                .store(&[TARGET, ORDER])
                .store(&[TARGET, LEVEL])
                .store(&[LIST, BACK, TARGET])
                .operation(&[ORDER], &[ORDER])
                .operation(&[BACK], &[BACK])
                .fall(),
            next_edge: assembler.then(next_edge).branch(),
            finish: assembler
                .store_bytes(1, &[VERTEX])
                .operation(&[FRONT, BACK], &[FLAGS])
                .branch(),
        }
    }

    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let vertices = shape.vertices as usize;
        Self {
            code,
            graph: shape.graph(seed),
            color: shape.property(0, 1).holding(vec![WHITE; vertices]),
            order: shape.property(8, 8).holding(vec![0; vertices]),
            level: shape.property(16, 8).holding(vec![u32::MAX; vertices]),
            list: shape.lists[0].holding(vec![0; vertices]),
            found: 0..0,
            count: 0,
            vertex: 0,
            next_level: 0,
            edges: 0..0,
        }
    }

    fn graph(&self) -> &PropertyGraph {
        &self.graph
    }

    fn reset(&mut self, out: &mut impl Emitter, vertex: usize) {
        out.enter(self.code.reset);
        self.color.store(out, vertex, WHITE);
        self.order.store(out, vertex, 0);
        self.level.store(out, vertex, u32::MAX);
        self.graph.next_vertex(out, vertex);
    }

    fn begin(&mut self, out: &mut impl Emitter, root: usize) {
        out.enter(self.code.begin);
        self.graph.find(out, root);
        (self.found, self.count) = (0..0, 0);
        self.discover(out, root, 0);
    }

    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if let Some(edge) = self.edges.next() {
            out.enter(self.code.edge);
            let target = self.graph.target(out, edge);
            if self.color.load(out, target) == WHITE {
                out.enter(self.code.discover);
                self.discover(out, target, self.next_level);
            }
            out.enter(self.code.next_edge);
            self.graph.next_edge(out, edge);
            self.finish_after_last(out);
            return true;
        }
        let taken = if DEPTH_FIRST { self.found.next_back() } else { self.found.next() };
        let Some(place) = taken else { return false };
        out.enter(self.code.take);
        self.vertex = self.list.load(out, place) as usize;
        self.next_level = self.level.load(out, self.vertex) + 1;
        self.edges = self.graph.first_edge(out, self.vertex);
        self.finish_after_last(out);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{edges, run};
    use super::*;

    #[test]
    fn levels_are_distances_and_orders_are_a_breadth_first_order() {
        let search: Search<false> = run(7);
        let edges = edges(&search.graph);
        let mut distances = vec![u32::MAX; search.graph.vertices()];
        distances[7] = 0;
        for _ in 0..search.graph.vertices() {
            for &(from, to) in &edges {
                distances[to] = distances[to].min(distances[from].saturating_add(1));
            }
        }
        assert_eq!(search.level.values, distances);
        let mut found: Vec<_> = (0..distances.len()).filter(|&v| distances[v] < u32::MAX).collect();
        assert!(found.len() > distances.len() / 2);
        found.sort_unstable_by_key(|&v| search.order.values[v]);
        assert!(found.is_sorted_by_key(|&v| distances[v]));
        assert!((0..).zip(&found).all(|(place, &v)| search.order.values[v] == place));
    }

    #[test]
    fn the_depth_first_search_finds_what_can_be_reached() {
        let (breadth, depth): (Search<false>, Search<true>) = (run(7), run(7));
        assert_eq!(breadth.color.values, depth.color.values);
        assert!(!depth.color.values.contains(&GREY));
        assert_ne!(breadth.order.values, depth.order.values);
        // The same with a textbook's stack.
        let mut stack = vec![7];
        let mut order = vec![0; depth.graph.vertices()];
        let mut seen = vec![false; order.len()];
        seen[7] = true;
        let mut count = 1;
        while let Some(vertex) = stack.pop() {
            for edge in depth.graph.graph.edges(vertex) {
                let target = depth.graph.graph.target(edge);
                if !std::mem::replace(&mut seen[target], true) {
                    order[target] = count;
                    count += 1;
                    stack.push(target);
                }
            }
        }
        assert_eq!(order, depth.order.values);
    }
}
