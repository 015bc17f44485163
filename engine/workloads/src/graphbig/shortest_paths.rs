//! `graphbig-sssp`: GraphBIG's shortest paths from a random vertex: Dijkstra's algorithm with a binary
//! heap that keeps superseded entries.
//!
//! Departs from it: edges have random weights from 1 to 255, where the original's files give none and
//! leave all at 1; the heap sifts from the top down (the C++ library's goes down to a leaf and up).

use std::ops::Range;

use flatwalk_trace::BlockId;

use super::fragments::{find, first_edge, next_edge, next_vertex, target};
use super::{EDGE, ID, Kernel, Needs, OWN, PropertyGraph, Shape, TARGET, VERTEX, describe, runs};
use crate::Description;
use crate::program::{Assembler, FLAGS, registers};
use crate::rng::mix;
use crate::simulated::{Array, Column, Emitter};

pub(crate) const DESCRIPTION: Description = describe(
    "graphbig-sssp",
    "GraphBIG shortest paths: Dijkstra's algorithm; edges with a weight of their own on the heap",
    |arguments| runs::<Paths>(DESCRIPTION.name, arguments),
);

/// Farther than all distances.
const INFINITY: u32 = u32::MAX;

registers!(OWN; DISTANCE, NEW, TARGET_DISTANCE, WEIGHT, PROPERTY, HEAP, COUNT, PLACE, CHILD, LEFT, RIGHT,
    MOVED, MOVED_ID, CHILD_ID, FIRST);

struct Code {
    reset: BlockId,
    begin: BlockId,
    pop: BlockId,
    down: BlockId,
    move_down: BlockId,
    put_down: BlockId,
    edge: BlockId,
    relax: BlockId,
    up: BlockId,
    move_up: BlockId,
    put_up: BlockId,
    next_edge: BlockId,
    finish: BlockId,
}

/// A vertex and its distance.
type Entry = (u32, u32);

struct Paths {
    code: Code,
    graph: PropertyGraph,
    seed: u64,
    distance: Array<u32>,
    predecessor: Array<u32>,
    edge_property: Column,
    weight: Column,
    heap: Vec<Entry>,
    /// The two halves of the heap's entries.
    heap_vertex: Column,
    heap_distance: Column,
    vertex: usize,
    edges: Range<usize>,
}

impl Paths {
    fn weight(&self, edge: usize) -> u32 {
        1 + (mix(self.seed ^ (edge as u64) << 2) % 255) as u32
    }

    /// Takes the nearest entry off the heap and lets the last one sift down from the top.
    fn pop(&mut self, out: &mut impl Emitter) -> Entry {
        out.enter(self.code.pop);
        let first = self.heap[0];
        self.heap_vertex.load(out, 0);
        let moved = self.heap.pop().expect("it has a first");
        let count = self.heap.len();
        self.heap_vertex.load(out, count);
        self.heap_distance.load(out, count);
        let mut place = 0;
        while 2 * place + 1 < count {
            out.enter(self.code.down);
            let left = 2 * place + 1;
            self.heap_distance.load(out, left);
            self.heap_distance.load(out, left + 1);
            let right = self.heap.get(left + 1).is_some_and(|right| right.1 < self.heap[left].1);
            let child = left + usize::from(right);
            if self.heap[child].1 >= moved.1 {
                break;
            }
            out.enter(self.code.move_down);
            self.heap_vertex.load(out, child);
            self.store(out, place, self.heap[child]);
            place = child;
        }
        out.enter(self.code.put_down);
        if count > 0 {
            self.heap[place] = moved;
        }
        self.heap_vertex.store(out, place);
        self.heap_distance.store(out, place);
        first
    }

    /// Lets a new entry sift up from the end of the heap.
    fn push(&mut self, out: &mut impl Emitter, entry: Entry) {
        let mut place = self.heap.len();
        self.heap.push(entry);
        while place > 0 {
            out.enter(self.code.up);
            let parent = (place - 1) / 2;
            self.heap_distance.load(out, parent);
            if self.heap[parent].1 <= entry.1 {
                break;
            }
            out.enter(self.code.move_up);
            self.heap_vertex.load(out, parent);
            self.store(out, place, self.heap[parent]);
            place = parent;
        }
        out.enter(self.code.put_up);
        self.store(out, place, entry);
    }

    fn store(&mut self, out: &mut impl Emitter, place: usize, entry: Entry) {
        self.heap[place] = entry;
        self.heap_vertex.store(out, place);
        self.heap_distance.store(out, place);
    }

    fn finish_after_last(&self, out: &mut impl Emitter) {
        if self.edges.is_empty() {
            out.enter(self.code.finish);
        }
    }
}

impl Kernel for Paths {
    /// The property: distance 2 bytes, predecessor 8. The heap's entries: identifier 8, distance 8.
    const NEEDS: Needs = Needs { property_bytes: 16, lists: 0, edge_bytes: 16, by_vertex: false };
    type Code = Code;

    fn code(assembler: &mut Assembler) -> Code {
        Code {
            reset: assembler.store_bytes(2, &[VERTEX]).store(&[VERTEX]).then(next_vertex).branch(),
            begin: assembler
                .operation(&[], &[ID])
                .then(find(TARGET))
                .store_bytes(2, &[TARGET])
                .operation(&[], &[COUNT])
                .store(&[HEAP, ID])
                .store(&[HEAP])
                .fall(),
            pop: assembler
                .load(&[HEAP], FIRST)
                .operation(&[COUNT], &[COUNT])
                .load(&[HEAP, COUNT], MOVED_ID)
                .load(&[HEAP, COUNT], MOVED)
                .operation(&[], &[PLACE])
                .operation(&[COUNT], &[FLAGS])
                .branch(),
            down: assembler
                .operation(&[PLACE], &[CHILD])
                .load(&[HEAP, CHILD], LEFT)
                .load(&[HEAP, CHILD], RIGHT)
                .operation(&[LEFT, RIGHT, CHILD], &[CHILD, LEFT])
                .operation(&[LEFT, MOVED], &[FLAGS])
                .branch(),
            move_down: assembler
                .load(&[HEAP, CHILD], CHILD_ID)
                .store(&[HEAP, PLACE, CHILD_ID])
                .store(&[HEAP, PLACE, LEFT])
                .operation(&[CHILD], &[PLACE])
                .operation(&[PLACE, COUNT], &[FLAGS])
                .branch(),
            put_down: assembler
                .store(&[HEAP, PLACE, MOVED_ID])
                .store(&[HEAP, PLACE, MOVED])
                .operation(&[FIRST], &[ID])
                .then(find(VERTEX))
                .load_bytes(2, &[VERTEX], DISTANCE)
                .then(first_edge)
                .branch(),
            edge: assembler
                .then(target)
                .load(&[EDGE], PROPERTY)
                .load_bytes(2, &[PROPERTY], WEIGHT)
                .operation(&[DISTANCE, WEIGHT], &[NEW])
                .load_bytes(2, &[TARGET], TARGET_DISTANCE)
                .operation(&[TARGET_DISTANCE, NEW], &[FLAGS])
                .branch(),
            relax: assembler
                .store_bytes(2, &[TARGET, NEW])
                .store(&[TARGET, VERTEX])
                .operation(&[COUNT], &[PLACE])
                .operation(&[COUNT], &[COUNT])
                .operation(&[PLACE], &[FLAGS])
                .branch(),
            up: assembler
                .operation(&[PLACE], &[CHILD])
                .load(&[HEAP, CHILD], LEFT)
                .operation(&[LEFT, NEW], &[FLAGS])
                .branch(),
            move_up: assembler
                .load(&[HEAP, CHILD], CHILD_ID)
                .store(&[HEAP, PLACE, CHILD_ID])
                .store(&[HEAP, PLACE, LEFT])
                .operation(&[CHILD], &[PLACE])
                .operation(&[PLACE], &[FLAGS])
                .branch(),
            put_up: assembler.store(&[HEAP, PLACE, ID]).store(&[HEAP, PLACE, NEW]).fall(),
            next_edge: assembler.then(next_edge).branch(),
            finish: assembler.operation(&[COUNT], &[FLAGS]).branch(),
        }
    }

    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let vertices = shape.vertices as usize;
        Self {
            code,
            graph: shape.graph(seed),
            seed,
            distance: shape.property(0, 2).holding(vec![INFINITY; vertices]),
            predecessor: shape.property(8, 8).holding(vec![0; vertices]),
            edge_property: shape.columns.edge_property,
            weight: shape.columns.weight,
            heap: Vec::new(),
            heap_vertex: shape.own_edges.field(0, 8),
            heap_distance: shape.own_edges.field(8, 8),
            vertex: 0,
            edges: 0..0,
        }
    }

    fn graph(&self) -> &PropertyGraph {
        &self.graph
    }

    fn reset(&mut self, out: &mut impl Emitter, vertex: usize) {
        out.enter(self.code.reset);
        self.distance.store(out, vertex, INFINITY);
        self.predecessor.store(out, vertex, 0);
        self.graph.next_vertex(out, vertex);
    }

    fn begin(&mut self, out: &mut impl Emitter, root: usize) {
        out.enter(self.code.begin);
        self.graph.find(out, root);
        self.distance.store(out, root, 0);
        self.heap.push((root as u32, 0));
        self.store(out, 0, (root as u32, 0));
    }

    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if let Some(edge) = self.edges.next() {
            out.enter(self.code.edge);
            let target = self.graph.target(out, edge);
            self.edge_property.load(out, edge);
            self.weight.load(out, edge);
            let new = self.distance.values[self.vertex] + self.weight(edge);
            if new < self.distance.load(out, target) {
                out.enter(self.code.relax);
                self.distance.store(out, target, new);
                self.predecessor.store(out, target, self.vertex as u32);
                self.push(out, (target as u32, new));
            }
            out.enter(self.code.next_edge);
            self.graph.next_edge(out, edge);
        } else if !self.heap.is_empty() {
            self.vertex = self.pop(out).0 as usize;
            self.graph.find(out, self.vertex);
            self.distance.load(out, self.vertex);
            self.edges = self.graph.first_edge(out, self.vertex);
        } else {
            return false;
        }
        self.finish_after_last(out);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{kernel, run};
    use super::*;
    use crate::rng::Random;
    use crate::simulated::Native;

    #[test]
    fn the_heap_gives_the_nearest_first() {
        let mut paths: Paths = kernel();
        let mut random = Random::new(1, 0);
        let mut entries: Vec<_> = (0..1000).map(|i| (i, random.below(300) as u32)).collect();
        for &entry in &entries {
            paths.push(&mut Native, entry);
        }
        let mut popped: Vec<_> = entries.iter().map(|_| paths.pop(&mut Native)).collect();
        assert!(paths.heap.is_empty() && popped.is_sorted_by_key(|entry| entry.1));
        entries.sort_unstable();
        popped.sort_unstable();
        assert_eq!(entries, popped);
    }

    #[test]
    fn distances_are_the_shortest_and_predecessors_lead_back() {
        let paths: Paths = run(7);
        let graph = &paths.graph.graph;
        // Bellman and Ford.
        let mut distances = vec![u64::MAX; graph.vertices()];
        distances[7] = 0;
        for _ in 0..graph.vertices() {
            for from in (0..graph.vertices()).rev() {
                for edge in graph.edges(from) {
                    let new = distances[from].saturating_add(u64::from(paths.weight(edge)));
                    let to = graph.target(edge);
                    distances[to] = distances[to].min(new);
                }
            }
        }
        let mut reached = 0;
        for (vertex, &distance) in distances.iter().enumerate() {
            let found = paths.distance.values[vertex];
            if distance == u64::MAX {
                assert_eq!(found, INFINITY);
            } else {
                assert_eq!(u64::from(found), distance);
                assert!(found < 0xfff0, "fits into two bytes, as the program has it");
                reached += 1;
            }
            if distance < u64::MAX && vertex != 7 {
                let before = paths.predecessor.values[vertex] as usize;
                let mut last = graph.edges(before).filter(|&edge| graph.target(edge) == vertex);
                assert!(
                    last.any(|edge| {
                        distances[before] + u64::from(paths.weight(edge)) == distance
                    })
                );
            }
        }
        assert!(reached > graph.vertices() / 2);
    }
}
