//! `graphbig-pr`: GraphBIG's PageRank: every vertex pushes its share of rank to its neighbours.
//!
//! Departs from it: it stops when the ranks' changes sum to less than 0.001; the original takes the
//! square root of the sum of their squares, which for a million vertices stops it at once.

use std::ops::Range;

use flatwalk_trace::{BlockId, Source};

use super::fragments::{find, first_edge, next_edge, target};
use super::{ID, Needs, OWN, PropertyGraph, Shape, TARGET, VERTEX, describe};
use crate::program::{Assembler, FLAGS, registers};
use crate::simulated::{Algorithm, Array, Emitter, program};
use crate::{Arguments, Description};

pub(crate) const DESCRIPTION: Description = describe(
    "graphbig-pr",
    "GraphBIG PageRank: each edge adds to the rank of a random vertex; independent updates",
    make,
);

const DAMPING: f32 = 0.85;
/// Sum of changes at which it stops.
const PRECISION: f32 = 0.001;
const MOST_ROUNDS: u32 = 100;
/// The property: rank 4 bytes, the last round's rank 4.
const NEEDS: Needs = Needs { property_bytes: 8, lists: 0, edge_bytes: 0, by_vertex: false };

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments, &NEEDS);
    let seed = arguments.seed;
    program(DESCRIPTION.name, arguments, shape.layout.mappings(), Code::new, move |code| {
        Ranks::new(&shape, code, seed)
    })
}

registers!(OWN; RANK, OLD, PUSHED, DEGREE, CHANGE, COUNT, BASE);

struct Code {
    save: BlockId,
    vertex: BlockId,
    edge: BlockId,
    next_vertex: BlockId,
    change: BlockId,
    round: BlockId,
}

impl Code {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            save: assembler
                .then(find(VERTEX))
                .load_bytes(4, &[VERTEX], RANK)
                .store_bytes(4, &[VERTEX, RANK])
                .store_bytes(4, &[VERTEX, BASE])
                .operation(&[ID], &[ID])
                .operation(&[ID, COUNT], &[FLAGS])
                .branch(),
            vertex: assembler
                .then(find(VERTEX))
                .load_bytes(4, &[VERTEX], OLD)
                .load(&[VERTEX], DEGREE)
                .operation(&[OLD], &[PUSHED])
                .operation(&[PUSHED, DEGREE], &[PUSHED])
                .then(first_edge)
                .branch(),
            edge: assembler
                .then(target)
                .load_bytes(4, &[TARGET], RANK)
                .operation(&[RANK, PUSHED], &[RANK])
                .store_bytes(4, &[TARGET, RANK])
                .then(next_edge)
                .branch(),
            next_vertex: assembler
                .operation(&[ID], &[ID])
                .operation(&[ID, COUNT], &[FLAGS])
                .branch(),
            change: assembler
                .then(find(VERTEX))
                .load_bytes(4, &[VERTEX], RANK)
                .load_bytes(4, &[VERTEX], OLD)
                .operation(&[RANK, OLD], &[RANK])
                .operation(&[RANK, CHANGE], &[CHANGE])
                .operation(&[ID], &[ID])
                .operation(&[ID, COUNT], &[FLAGS])
                .branch(),
            round: assembler.operation(&[], &[ID]).operation(&[CHANGE], &[FLAGS]).branch(),
        }
    }
}

struct Ranks {
    code: Code,
    graph: PropertyGraph,
    rank: Array<f32>,
    old: Array<f32>,
    /// What a round still has to do: ranks to save, vertices to push, changes to add.
    unsaved: Range<usize>,
    unpushed: Range<usize>,
    unadded: Range<usize>,
    /// The edges left of the vertex that pushes, and what it pushes along each.
    edges: Range<usize>,
    pushed: f32,
    change: f32,
    rounds: u32,
}

impl Ranks {
    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let vertices = shape.vertices as usize;
        let equal = vec![1.0 / vertices as f32; vertices];
        let all = 0..vertices;
        Self {
            code,
            graph: shape.graph(seed),
            rank: shape.property(0, 4).holding(equal.clone()),
            old: shape.property(4, 4).holding(equal),
            unsaved: all.clone(),
            unpushed: all.clone(),
            unadded: all,
            edges: 0..0,
            pushed: 0.0,
            change: 0.0,
            rounds: 0,
        }
    }

    fn next_vertex_after_last(&self, out: &mut impl Emitter) {
        if self.edges.is_empty() {
            out.enter(self.code.next_vertex);
        }
    }
}

impl Algorithm for Ranks {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        let vertices = self.graph.vertices();
        if let Some(vertex) = self.unsaved.next() {
            out.enter(self.code.save);
            self.graph.find(out, vertex);
            let rank = self.rank.load(out, vertex);
            self.old.store(out, vertex, rank);
            self.rank.store(out, vertex, (1.0 - DAMPING) / vertices as f32);
        } else if let Some(edge) = self.edges.next() {
            out.enter(self.code.edge);
            let target = self.graph.target(out, edge);
            let rank = self.rank.load(out, target);
            self.rank.store(out, target, rank + self.pushed);
            self.graph.next_edge(out, edge);
            self.next_vertex_after_last(out);
        } else if let Some(vertex) = self.unpushed.next() {
            out.enter(self.code.vertex);
            self.graph.find(out, vertex);
            let old = self.old.load(out, vertex);
            self.pushed = DAMPING * old / self.graph.degree(out, vertex) as f32;
            self.edges = self.graph.first_edge(out, vertex);
            self.next_vertex_after_last(out);
        } else if let Some(vertex) = self.unadded.next() {
            out.enter(self.code.change);
            self.graph.find(out, vertex);
            self.change += (self.rank.load(out, vertex) - self.old.load(out, vertex)).abs();
            if self.unadded.is_empty() {
                out.enter(self.code.round);
                self.rounds += 1;
                if self.change >= PRECISION && self.rounds < MOST_ROUNDS {
                    let all = 0..vertices;
                    (self.unsaved, self.unpushed, self.unadded) = (all.clone(), all.clone(), all);
                }
                self.change = 0.0;
            }
        } else {
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::edges;
    use super::*;
    use crate::simulated::Native;

    #[test]
    fn ranks_are_the_fixed_point() {
        let code = Code::new(&mut Assembler::new());
        let mut ranks = Ranks::new(&Shape::of(&Arguments::new(2 << 20, 1), &NEEDS), code, 1);
        while ranks.step(&mut Native) {}
        assert!((5..50).contains(&ranks.rounds), "{} rounds", ranks.rounds);
        // By pulling, in double precision, for many more rounds.
        let edges = edges(&ranks.graph);
        let vertices = ranks.graph.vertices();
        let mut degrees = vec![0.0; vertices];
        for &(from, _) in &edges {
            degrees[from] += 1.0;
        }
        let mut expected = vec![1.0 / vertices as f64; vertices];
        for _ in 0..300 {
            let mut next = vec![0.15 / vertices as f64; vertices];
            for &(from, to) in &edges {
                next[to] += 0.85 * expected[from] / degrees[from];
            }
            expected = next;
        }
        let difference: f64 =
            ranks.rank.values.iter().zip(&expected).map(|(&a, b)| (f64::from(a) - b).abs()).sum();
        assert!(difference < 0.006, "{difference}");
        let [least, most] =
            [f64::min, f64::max].map(|f| expected.iter().copied().reduce(f).unwrap());
        assert!(most > 5.0 * least, "ranks differ");
    }
}
