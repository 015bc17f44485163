//! `graph500`: breadth-first search of a Kronecker graph.
//!
//! Source: Graph500 specification 1.2, kernel 2, and the reference code's sequential CSR search.
//! Edges are drawn from the initiator A, B, C, D = 0.57, 0.19, 0.19, 0.05; vertex labels are permuted;
//! the graph is undirected, with loops and repeated edges kept. Each of the 64 searches begins at a
//! random vertex that has an edge, and starts from a parent array filled with -1.
//!
//! ```text
//! offsets   2 x 8 bytes a vertex: where its neighbours begin and end
//! adjacency 8 bytes a neighbour, twice per edge
//! parent    8 bytes a vertex
//! queue     8 bytes a vertex
//! ```
//!
//! Departs from it: labels are permuted by a computed bijection; the edge list, which the benchmark
//! drops after building the rows, takes no memory; building the rows (kernel 1) is not traced.

use std::ops::Range;

use flatwalk_trace::{BlockId, Source};

use crate::graph::Graph;
use crate::program::{Assembler, FLAGS, registers};
use crate::rng::{Permutation, Random};
use crate::simulated::{Algorithm, Array, Column, Emitter, Layout, program};
use crate::{ARRAY_ORDER, Arguments, Description, Parameter, SEED};

pub(crate) const DESCRIPTION: Description = Description {
    name: "graph500",
    description: "Graph500: breadth-first searches of a Kronecker graph in compressed sparse rows: \
                  random, mostly independent loads of the parent array",
    // Scale 21, edge factor 16.
    default_size_bytes: 576 << 20,
    least_bytes: 64 << 10,
    greatest_bytes: 64 << 30,
    power_of_two: false,
    parameters: &[
        Parameter {
            name: "size_bytes",
            description: "rows, parents and queue, in bytes: 64 KiB to 64 GiB (takes three quarters as much \
                          memory); 4608 MiB is scale 24, edge factor 16",
        },
        SEED,
        ARRAY_ORDER,
    ],
    make,
};

/// Searches in a run of the benchmark.
const SEARCHES: u32 = 64;
/// Bytes of a vertex (offsets, parent, queue) and of an edge (one neighbour at either end).
const VERTEX_BYTES: u64 = 32;
const EDGE_BYTES: u64 = 16;
/// Edges for each vertex, as the benchmark requires.
const EDGE_FACTOR: u64 = 16;
const NO_PARENT: u32 = u32::MAX;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments);
    let seed = arguments.seed;
    let mut assembler = Assembler::new();
    let code = Code::new(&mut assembler);
    let layout = shape.layout.clone();
    let build = move || Searches::new(&shape, code, seed);
    program(DESCRIPTION.name, arguments, &layout, assembler, build)
}

/// How large the graph is and where it lies.
struct Shape {
    scale: u32,
    edges: u64,
    layout: Layout,
    begin: Column,
    end: Column,
    adjacency: Column,
    parent: Column,
    queue: Column,
}

impl Shape {
    /// The scale whose edge factor comes nearest to the benchmark's, in the logarithm; then as many
    /// edges as fit.
    fn of(arguments: &Arguments) -> Self {
        let size_bytes = arguments.size_bytes;
        let vertices = size_bytes as f64 / (VERTEX_BYTES + EDGE_FACTOR * EDGE_BYTES) as f64;
        let scale = vertices.log2().round() as u32;
        let vertices = 1 << scale;
        let edges = (size_bytes - vertices * VERTEX_BYTES) / EDGE_BYTES;
        let mut layout = Layout::new(arguments);
        let offsets = layout.records(vertices, 16);
        Self {
            scale,
            edges,
            begin: offsets.field(0, 8),
            end: offsets.field(8, 8),
            adjacency: layout.array(2 * edges, 8),
            parent: layout.array(vertices, 8),
            queue: layout.array(vertices, 8),
            layout,
        }
    }
}

registers!(32; INDEX, VERTICES, PARENTS, QUEUE, OFFSETS, ADJACENCY, HEAD, TAIL, VERTEX, EDGE, END,
    NEIGHBOUR, PARENT, SEARCH);

/// The blocks, in the order in which they lie in memory.
#[derive(Clone, Copy)]
struct Code {
    clear: BlockId,
    root: BlockId,
    vertex: BlockId,
    edge: BlockId,
    discover: BlockId,
    next_edge: BlockId,
    next_vertex: BlockId,
    next_search: BlockId,
}

impl Code {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            clear: assembler
                .store(&[PARENTS, INDEX])
                .operation(&[INDEX], &[INDEX])
                .operation(&[INDEX, VERTICES], &[FLAGS])
                .branch(),
            root: assembler
                .store(&[PARENTS, VERTEX])
                .store(&[QUEUE, VERTEX])
                .operation(&[], &[HEAD])
                .operation(&[], &[TAIL])
                .fall(),
            vertex: assembler
                .load(&[QUEUE, HEAD], VERTEX)
                .load(&[OFFSETS, VERTEX], EDGE)
                .load(&[OFFSETS, VERTEX], END)
                .operation(&[EDGE, END], &[FLAGS])
                .branch(),
            edge: assembler
                .load(&[ADJACENCY, EDGE], NEIGHBOUR)
                .load(&[PARENTS, NEIGHBOUR], PARENT)
                .operation(&[PARENT], &[FLAGS])
                .branch(),
            discover: assembler
                .store(&[PARENTS, NEIGHBOUR, VERTEX])
                .store(&[QUEUE, TAIL, NEIGHBOUR])
                .operation(&[TAIL], &[TAIL])
                .fall(),
            next_edge: assembler
                .operation(&[EDGE], &[EDGE])
                .operation(&[EDGE, END], &[FLAGS])
                .branch(),
            next_vertex: assembler
                .operation(&[HEAD], &[HEAD])
                .operation(&[HEAD, TAIL], &[FLAGS])
                .branch(),
            next_search: assembler
                .operation(&[], &[INDEX])
                .operation(&[SEARCH], &[SEARCH])
                .operation(&[SEARCH], &[VERTEX, FLAGS])
                .branch(),
        }
    }
}

struct Searches {
    code: Code,
    graph: Graph,
    begin: Column,
    end: Column,
    adjacency: Column,
    parent: Array<u32>,
    queue: Array<u32>,
    /// Parents that are still to be cleared for the next search.
    uncleared: Range<usize>,
    /// The part of the queue that was found and not yet expanded.
    found: Range<usize>,
    /// The vertex being expanded, and its edges that are left.
    vertex: usize,
    edges: Range<usize>,
    /// Searches left, with the one under way.
    left: u32,
    keys: Random,
}

impl Searches {
    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let vertices = 1 << shape.scale;
        let generator = Kronecker::new(shape.scale, seed);
        let mut searches = Self {
            code,
            graph: Graph::undirected(vertices, || generator.edges(shape.edges)),
            begin: shape.begin,
            end: shape.end,
            adjacency: shape.adjacency,
            parent: shape.parent.holding(vec![NO_PARENT; vertices]),
            queue: shape.queue.holding(vec![0; vertices]),
            uncleared: 0..0,
            found: 0..0,
            vertex: 0,
            edges: 0..0,
            left: SEARCHES,
            keys: Random::new(seed, 1),
        };
        searches.draw_key();
        searches
    }

    /// Takes a vertex that has an edge for the next search's root.
    fn draw_key(&mut self) {
        loop {
            self.vertex = self.keys.below(self.graph.vertices() as u64) as usize;
            if !self.graph.edges(self.vertex).is_empty() {
                return;
            }
        }
    }

    fn discover(&mut self, out: &mut impl Emitter, vertex: usize, parent: usize) {
        self.parent.store(out, vertex, parent as u32);
        self.queue.store(out, self.found.end, vertex as u32);
        self.found.end += 1;
    }
}

impl Algorithm for Searches {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if let Some(edge) = self.edges.next() {
            out.enter(self.code.edge);
            self.adjacency.load(out, edge);
            let neighbour = self.graph.target(edge);
            if self.parent.load(out, neighbour) == NO_PARENT {
                out.enter(self.code.discover);
                self.discover(out, neighbour, self.vertex);
            }
            out.enter(self.code.next_edge);
            if self.edges.is_empty() {
                out.enter(self.code.next_vertex);
            }
        } else if let Some(next) = self.found.next() {
            out.enter(self.code.vertex);
            self.vertex = self.queue.load(out, next) as usize;
            self.begin.load(out, self.vertex);
            self.end.load(out, self.vertex);
            self.edges = self.graph.edges(self.vertex);
        } else if let Some(vertex) = self.uncleared.next() {
            out.enter(self.code.clear);
            self.parent.store(out, vertex, NO_PARENT);
        } else if self.left == 0 {
            return false;
        } else if self.found.start > 0 {
            // A search has ended.
            out.enter(self.code.next_search);
            self.left -= 1;
            self.found = 0..0;
            if self.left > 0 {
                self.draw_key();
                self.uncleared = 0..self.graph.vertices();
            }
        } else {
            out.enter(self.code.root);
            self.discover(out, self.vertex, self.vertex);
        }
        true
    }
}

/// The edge generator. Each level of the recursion adds one bit to both ends; four levels are drawn
/// at once, from an alias table (Walker, 1977) of their 256 outcomes.
struct Kronecker {
    scale: u32,
    /// For each cell: the limit below which it stands for itself, and what it stands for above.
    cells: Vec<(u32, u8)>,
    labels: Permutation,
    seed: u64,
}

const LEVELS: u32 = 4;
const INITIATOR: [f64; 4] = [0.57, 0.19, 0.19, 0.05];
/// A draw is a cell (8 bits) and a number to compare with its limit.
const LIMIT_BITS: u32 = 24;

impl Kronecker {
    fn new(scale: u32, seed: u64) -> Self {
        let outcomes = 1 << (2 * LEVELS);
        let chance = |outcome: usize| -> f64 {
            (0..LEVELS).map(|level| INITIATOR[outcome >> (2 * level) & 3]).product()
        };
        // Shares of a cell's worth: cells with less are filled up from cells with more.
        let mut shares: Vec<_> = (0..outcomes).map(|o| chance(o) * outcomes as f64).collect();
        let (mut less, mut more): (Vec<_>, Vec<_>) = (0..outcomes).partition(|&o| shares[o] < 1.0);
        let mut cells = vec![(1 << LIMIT_BITS, 0); outcomes];
        while let (Some(poor), Some(&rich)) = (less.pop(), more.last()) {
            cells[poor] = ((shares[poor] * f64::from(1 << LIMIT_BITS)) as u32, rich as u8);
            shares[rich] -= 1.0 - shares[poor];
            if shares[rich] < 1.0 {
                less.push(rich);
                more.pop();
            }
        }
        Self { scale, cells, labels: Permutation::new(1 << scale, seed), seed }
    }

    fn edges(&self, count: u64) -> impl Iterator<Item = (u32, u32)> {
        let mut random = Random::new(self.seed, 0);
        let label = |vertex| self.labels.at(vertex) as u32;
        (0..count).map(move |_| {
            let (from, to) = self.draw(&mut random);
            (label(from), label(to))
        })
    }

    /// An edge between vertices that are not yet relabelled.
    fn draw(&self, random: &mut Random) -> (u64, u64) {
        let (mut from, mut to) = (0, 0);
        let mut level = 0;
        while level < self.scale {
            let word = random.word();
            for draw in [word as u32, (word >> 32) as u32] {
                let cell = draw >> LIMIT_BITS;
                let (limit, other) = self.cells[cell as usize];
                let below = draw & ((1 << LIMIT_BITS) - 1) < limit;
                let outcome = if below { cell } else { u32::from(other) };
                from = from << LEVELS | spread(outcome >> 1);
                to = to << LEVELS | spread(outcome);
                level += LEVELS;
            }
        }
        // The levels are independent, so the superfluous ones can be dropped.
        let mask = (1 << self.scale) - 1;
        (from & mask, to & mask)
    }
}

/// The even bits of a byte, together.
fn spread(outcome: u32) -> u64 {
    let bits = outcome & 0x55;
    let bits = (bits | bits >> 1) & 0x33;
    u64::from((bits | bits >> 2) & 0x0f)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::simulated::Native;

    fn searches(size_bytes: u64) -> Searches {
        Searches::new(
            &Shape::of(&Arguments::new(size_bytes, 1)),
            Code::new(&mut Assembler::new()),
            1,
        )
    }

    /// Distances from `root`, by relaxing all edges until nothing changes.
    fn distances(edges: &[(u32, u32)], vertices: usize, root: usize) -> Vec<u32> {
        let mut distances = vec![u32::MAX; vertices];
        distances[root] = 0;
        loop {
            let before = distances.clone();
            for &(a, b) in edges {
                for (from, to) in [(a as usize, b as usize), (b as usize, a as usize)] {
                    distances[to] = distances[to].min(distances[from].saturating_add(1));
                }
            }
            if distances == before {
                return distances;
            }
        }
    }

    /// The benchmark's validation: the parents are a tree from the root that reaches all that can
    /// be reached, along edges of the graph, one level at a time.
    #[test]
    fn parents_form_a_breadth_first_tree() {
        let size = 256 << 10;
        let shape = Shape::of(&Arguments::new(size, 1));
        let edges: Vec<_> = Kronecker::new(shape.scale, 1).edges(shape.edges).collect();
        let joined: HashSet<_> = edges.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).collect();
        let mut searches = searches(size);
        for done in 0..SEARCHES {
            let root = searches.vertex;
            while searches.left == SEARCHES - done {
                assert!(searches.step(&mut Native));
            }
            if done % 8 != 0 {
                continue;
            }
            let distances = distances(&edges, 1 << shape.scale, root);
            assert!(distances.iter().filter(|&&d| d < u32::MAX).count() > 100, "from {root}");
            for (vertex, &parent) in searches.parent.values.iter().enumerate() {
                match distances[vertex] {
                    0 => assert_eq!(parent as usize, root),
                    u32::MAX => assert_eq!(parent, NO_PARENT),
                    distance => {
                        assert_eq!(distances[parent as usize], distance - 1);
                        assert!(joined.contains(&(vertex as u32, parent)));
                    }
                }
            }
        }
        assert!(!searches.step(&mut Native));
    }

    #[test]
    fn edges_have_the_initiators_proportions_at_every_level() {
        let generator = Kronecker::new(11, 5);
        let (mut counts, draws) = ([[0_u32; 4]; 11], 200_000);
        let mut random = Random::new(3, 0);
        for _ in 0..draws {
            let (from, to) = generator.draw(&mut random);
            for (level, counts) in counts.iter_mut().enumerate() {
                counts[((from >> level & 1) << 1 | to >> level & 1) as usize] += 1;
            }
        }
        for counts in counts {
            for (count, share) in counts.into_iter().zip([0.57, 0.19, 0.19, 0.05]) {
                let expected = share * f64::from(draws);
                let difference = (f64::from(count) - expected).abs();
                assert!(difference < 6.0 * expected.sqrt(), "{counts:?}");
            }
        }
    }

    #[test]
    fn sizes_give_the_benchmarks_scales() {
        let shape = Shape::of(&Arguments::new(4608 << 20, 1));
        assert_eq!((shape.scale, shape.edges), (24, 16 << 24));
        for shift in 16..37 {
            let shape = Shape::of(&Arguments::new(1 << shift, 1));
            let factor = shape.edges >> shape.scale;
            assert!((11..=22).contains(&factor), "{shift}: {factor}");
            assert_eq!(shape.layout.bytes(), 1 << shift);
        }
    }
}
