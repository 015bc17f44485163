//! `graphbig-tc`: GraphBIG's triangle counting: for each edge, how many neighbours its two ends have in
//! common, by merging their sorted neighbour sets. The sets are made before the count begins.

use std::ops::Range;

use flatwalk_trace::{BlockId, Source};

use super::fragments::{find, first_edge, next_edge, next_vertex, target_id};
use super::{ID, Needs, OWN, PropertyGraph, Shape, TARGET, VERTEX, describe};
use crate::program::{Assembler, FLAGS, registers};
use crate::simulated::{Algorithm, Array, Column, Emitter, program};
use crate::{Arguments, Description};

pub(crate) const DESCRIPTION: Description = describe(
    "graphbig-tc",
    "GraphBIG triangle counting: merges the sorted neighbour sets of every edge's two ends",
    make,
);

/// The property: count 8 bytes, the neighbour set's begin, end and capacity 24. The sets: 8 bytes an
/// edge.
const NEEDS: Needs = Needs { property_bytes: 32, lists: 0, edge_bytes: 8, by_vertex: true };

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments, &NEEDS);
    let seed = arguments.seed;
    program(DESCRIPTION.name, arguments, shape.layout.mappings(), Code::new, move |code| {
        Triangles::new(&shape, code, seed)
    })
}

registers!(OWN; OWN_ID, BEGIN, END, LEFT, LEFT_END, RIGHT, RIGHT_END, LEFT_ID, RIGHT_ID, COMMON, COUNT, SUM);

struct Code {
    vertex: BlockId,
    edge: BlockId,
    merge: BlockId,
    compare: BlockId,
    not_less: BlockId,
    equal: BlockId,
    greater: BlockId,
    less: BlockId,
    next: BlockId,
    tally: BlockId,
    next_edge: BlockId,
    next_vertex: BlockId,
    tune: BlockId,
}

impl Code {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            vertex: assembler
                .load(&[VERTEX], OWN_ID)
                .load(&[VERTEX], BEGIN)
                .load(&[VERTEX], END)
                .then(first_edge)
                .branch(),
            edge: assembler.then(target_id).operation(&[OWN_ID, ID], &[FLAGS]).branch(),
            merge: assembler
                .then(find(TARGET))
                .operation(&[], &[COMMON])
                .operation(&[BEGIN], &[LEFT])
                .operation(&[END], &[LEFT_END])
                .load(&[TARGET], RIGHT)
                .load(&[TARGET], RIGHT_END)
                .fall(),
            compare: assembler
                .load(&[LEFT], LEFT_ID)
                .load(&[RIGHT], RIGHT_ID)
                .operation(&[LEFT_ID, RIGHT_ID], &[FLAGS])
                .branch(),
            not_less: assembler.operation(&[LEFT_ID, RIGHT_ID], &[FLAGS]).branch(),
            equal: assembler
                .operation(&[COMMON], &[COMMON])
                .operation(&[LEFT], &[LEFT])
                .operation(&[RIGHT], &[RIGHT])
                .jump(),
            greater: assembler.operation(&[RIGHT], &[RIGHT]).jump(),
            less: assembler.operation(&[LEFT], &[LEFT]).fall(),
            next: assembler.operation(&[LEFT, LEFT_END, RIGHT, RIGHT_END], &[FLAGS]).branch(),
            tally: assembler
                .load(&[VERTEX], COUNT)
                .operation(&[COUNT, COMMON], &[COUNT])
                .store(&[VERTEX, COUNT])
                .load(&[TARGET], COUNT)
                .operation(&[COUNT, COMMON], &[COUNT])
                .store(&[TARGET, COUNT])
                .fall(),
            next_edge: assembler.then(next_edge).branch(),
            next_vertex: assembler.then(next_vertex).branch(),
            tune: assembler
                .load(&[VERTEX], COUNT)
                .operation(&[COUNT], &[COUNT])
                .store(&[VERTEX, COUNT])
                .operation(&[SUM, COUNT], &[SUM])
                .then(next_vertex)
                .branch(),
        }
    }
}

struct Triangles {
    code: Code,
    graph: PropertyGraph,
    id: Column,
    count: Array<u64>,
    set_begin: Column,
    set_end: Column,
    /// The members of all sets, in the order of the graph's edges.
    members: Column,
    /// The answer, once `untuned` is empty: each triangle has been counted at three vertices.
    sum: u64,
    uncounted: Range<usize>,
    untuned: Range<usize>,
    /// Edges left of the vertex before `uncounted`.
    edges: Range<usize>,
}

impl Triangles {
    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let graph = shape.graph(seed);
        let vertices = graph.vertices();
        Self {
            code,
            graph,
            id: shape.objects.field(16, 8),
            count: shape.property(0, 8).holding(vec![0; vertices]),
            set_begin: shape.property(8, 8),
            set_end: shape.property(16, 8),
            members: shape.own_edges.field(0, 8),
            sum: 0,
            uncounted: 0..vertices,
            untuned: 0..vertices,
            edges: 0..0,
        }
    }

    /// A vertex's set, as places in `members`, where each edge's number is its target's place.
    fn set(&self, out: &mut impl Emitter, vertex: usize) -> Range<usize> {
        self.set_begin.load(out, vertex);
        self.set_end.load(out, vertex);
        self.graph.graph.edges(vertex)
    }

    fn common(
        &self,
        out: &mut impl Emitter,
        mut left: Range<usize>,
        mut right: Range<usize>,
    ) -> u64 {
        let member = |place| self.graph.graph.target(place);
        let mut common = 0;
        while !left.is_empty() && !right.is_empty() {
            out.enter(self.code.compare);
            self.members.load(out, left.start);
            self.members.load(out, right.start);
            let (a, b) = (member(left.start), member(right.start));
            if a < b {
                out.enter(self.code.less);
                left.start += 1;
            } else {
                out.enter(self.code.not_less);
                if a > b {
                    out.enter(self.code.greater);
                } else {
                    out.enter(self.code.equal);
                    common += 1;
                    left.start += 1;
                }
                right.start += 1;
            }
            out.enter(self.code.next);
        }
        common
    }

    fn advance_after_last(&self, out: &mut impl Emitter) {
        if self.edges.is_empty() {
            out.enter(self.code.next_vertex);
            self.graph.next_vertex(out, self.uncounted.start - 1);
        }
    }
}

impl Algorithm for Triangles {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if let Some(edge) = self.edges.next() {
            let vertex = self.uncounted.start - 1;
            out.enter(self.code.edge);
            let target = self.graph.target_id(out, edge);
            // Each pair once.
            if vertex < target {
                out.enter(self.code.merge);
                self.graph.find(out, target);
                let (left, right) = (self.graph.graph.edges(vertex), self.set(out, target));
                let common = self.common(out, left, right);
                out.enter(self.code.tally);
                for end in [vertex, target] {
                    let count = self.count.load(out, end);
                    self.count.store(out, end, count + common);
                }
            }
            out.enter(self.code.next_edge);
            self.graph.next_edge(out, edge);
            self.advance_after_last(out);
        } else if let Some(vertex) = self.uncounted.next() {
            out.enter(self.code.vertex);
            self.id.load(out, vertex);
            self.set(out, vertex);
            self.edges = self.graph.first_edge(out, vertex);
            self.advance_after_last(out);
        } else if let Some(vertex) = self.untuned.next() {
            // Each triangle of a vertex was found along two of its edges.
            out.enter(self.code.tune);
            let count = self.count.load(out, vertex) / 2;
            self.count.store(out, vertex, count);
            self.graph.next_vertex(out, vertex);
            self.sum += count;
        } else {
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::edges;
    use super::*;
    use crate::simulated::Native;

    #[test]
    fn all_triangles_are_counted_once() {
        let code = Code::new(&mut Assembler::new());
        let mut triangles =
            Triangles::new(&Shape::of(&Arguments::new(2 << 20, 1), &NEEDS), code, 1);
        while triangles.step(&mut Native) {}
        let joined: BTreeSet<_> = edges(&triangles.graph).into_iter().collect();
        let mut expected = vec![0; triangles.graph.vertices()];
        let mut all = 0;
        for &(a, b) in joined.iter().filter(|(a, b)| a < b) {
            for c in b + 1..expected.len() {
                if joined.contains(&(a, c)) && joined.contains(&(b, c)) {
                    for vertex in [a, b, c] {
                        expected[vertex] += 1;
                    }
                    all += 1;
                }
            }
        }
        assert!(all > 100);
        assert_eq!((triangles.count.values, triangles.sum), (expected, 3 * all));
    }
}
