//! `graphbig-dc`: GraphBIG's degree centrality: the number of edges into and out of every vertex.

use std::ops::Range;

use flatwalk_trace::BlockId;

use super::fragments::{first_edge, next_edge, next_vertex, target};
use super::{Kernel, Needs, OWN, PropertyGraph, Shape, TARGET, VERTEX, describe, runs};
use crate::Description;
use crate::program::{Assembler, registers};
use crate::simulated::{Array, Emitter};

pub(crate) const DESCRIPTION: Description = describe(
    "graphbig-dc",
    "GraphBIG degree centrality: a counter in a random vertex goes up for each edge; independent \
     updates",
    |arguments| runs::<Degrees>(DESCRIPTION.name, arguments),
);

registers!(OWN; DEGREE);

struct Code {
    reset: BlockId,
    begin: BlockId,
    vertex: BlockId,
    edge: BlockId,
    next_vertex: BlockId,
}

struct Degrees {
    code: Code,
    graph: PropertyGraph,
    into: Array<u32>,
    out_of: Array<u32>,
    /// Vertices that are left, and edges of the one before them.
    vertices: Range<usize>,
    edges: Range<usize>,
}

impl Degrees {
    fn advance_after_last(&mut self, out: &mut impl Emitter) {
        if self.edges.is_empty() {
            out.enter(self.code.next_vertex);
            self.graph.next_vertex(out, self.vertices.start - 1);
        }
    }
}

impl Kernel for Degrees {
    /// The property: in-degree 8 bytes, out-degree 8.
    const NEEDS: Needs = Needs { property_bytes: 16, lists: 0, edge_bytes: 0, by_vertex: false };
    type Code = Code;

    fn code(assembler: &mut Assembler) -> Code {
        Code {
            reset: assembler.store(&[VERTEX]).store(&[VERTEX]).then(next_vertex).branch(),
            begin: assembler.operation(&[], &[VERTEX]).fall(),
            vertex: assembler
                .load(&[VERTEX], DEGREE)
                .store(&[VERTEX, DEGREE])
                .then(first_edge)
                .branch(),
            edge: assembler.then(target).update_bytes(8, &[TARGET]).then(next_edge).branch(),
            next_vertex: assembler.then(next_vertex).branch(),
        }
    }

    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let zeros = vec![0; shape.vertices as usize];
        Self {
            code,
            graph: shape.graph(seed),
            into: shape.property(0, 8).holding(zeros.clone()),
            out_of: shape.property(8, 8).holding(zeros),
            vertices: 0..0,
            edges: 0..0,
        }
    }

    fn graph(&self) -> &PropertyGraph {
        &self.graph
    }

    fn reset(&mut self, out: &mut impl Emitter, vertex: usize) {
        out.enter(self.code.reset);
        self.into.store(out, vertex, 0);
        self.out_of.store(out, vertex, 0);
        self.graph.next_vertex(out, vertex);
    }

    fn begin(&mut self, out: &mut impl Emitter, _root: usize) {
        out.enter(self.code.begin);
        self.vertices = 0..self.graph.vertices();
    }

    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if let Some(edge) = self.edges.next() {
            out.enter(self.code.edge);
            let target = self.graph.target(out, edge);
            let degree = self.into.load(out, target);
            self.into.store(out, target, degree + 1);
            self.graph.next_edge(out, edge);
        } else if let Some(vertex) = self.vertices.next() {
            out.enter(self.code.vertex);
            let degree = self.graph.degree(out, vertex);
            self.out_of.store(out, vertex, degree);
            self.edges = self.graph.first_edge(out, vertex);
        } else {
            return false;
        }
        self.advance_after_last(out);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{edges, run};
    use super::*;

    #[test]
    fn degrees_are_counts_of_edges() {
        let degrees: Degrees = run(0);
        let mut into = vec![0; degrees.graph.vertices()];
        let mut out_of = into.clone();
        for (from, to) in edges(&degrees.graph) {
            out_of[from] += 1;
            into[to] += 1;
        }
        assert_eq!((degrees.into.values, degrees.out_of.values), (into, out_of));
    }
}
