//! `graph500`: breadth-first searches of a Kronecker graph, and the validation of each.
//!
//! Source: Graph500 specification 1.2, and the reference code 2.1.4: `seq-csr.c`, `verify.c` and the
//! loop over the roots in `graph500.c`. Edges are drawn from the initiator A, B, C, D = 0.57, 0.19, 0.19,
//! 0.05; vertex labels are permuted; the graph is undirected. Rows are sorted and have no loops and no
//! repeated neighbours; what these would have taken stays free at the row's end. Each of the 64 searches
//! begins at a random vertex that has a neighbour. After it, the tree is validated with the edge list.
//!
//! ```text
//! edge list 16 bytes an edge, loops and repeated edges included
//! offsets   2 x 8 bytes a vertex: where its neighbours begin and end
//! adjacency 8 bytes a neighbour, twice per edge
//! parent    8 bytes a vertex
//! seen      8 bytes a vertex: whether the edge to its parent was found
//! levels    8 bytes a vertex: a search's queue is here before
//! ```
//!
//! Departs from it: labels are permuted by a computed bijection; making the edges and the rows (kernel 1)
//! is not traced; a row of fewer than two neighbours takes no room for two; parents, queue, seen and
//! levels are not allocated anew for each search.

mod code;
mod kronecker;
#[cfg(test)]
mod tests;
mod validation;

use std::ops::Range;

use flatwalk_trace::Source;

use self::code::Code;
use self::kronecker::Kronecker;
use self::validation::{Fault, Validation};
use crate::graph::Graph;
use crate::program::Assembler;
use crate::rng::Random;
use crate::simulated::{Algorithm, Array, Column, Emitter, Layout, program};
use crate::{ARRAY_ORDER, Arguments, ArrayOrder, Description, Parameter, SEED, TRACED, Traced};

pub(crate) const DESCRIPTION: Description = Description {
    name: "graph500",
    description: "Graph500: breadth-first searches of a Kronecker graph in compressed sparse rows, and their \
                  validation: random, mostly independent loads of the parents and levels",
    // Scale 21, edge factor 16.
    default_size_bytes: 1104 << 20,
    least_bytes: 64 << 10,
    greatest_bytes: 64 << 30,
    power_of_two: false,
    parameters: &[
        Parameter {
            name: "size_bytes",
            description: "edge list, rows, parents and levels, in bytes: 64 KiB to 64 GiB (takes two fifths as \
                          much memory, three quarters without validation); 8832 MiB is scale 24, edge factor \
                          16, 10880 MiB edge factor 20",
        },
        SEED,
        ARRAY_ORDER,
        TRACED,
    ],
    make,
};

/// Searches in a run of the benchmark.
const SEARCHES: u32 = 64;
/// Bytes of a vertex (offsets, parent, queue) and of an edge (one neighbour at either end), and what the
/// validation needs in addition (seen and level, of which one is the queue before; the edge in the list).
const VERTEX_BYTES: u64 = 32;
const EDGE_BYTES: u64 = 16;
const VALIDATION_VERTEX_BYTES: u64 = 8;
const VALIDATION_EDGE_BYTES: u64 = 16;
/// Edges for each vertex, as the benchmark requires.
const EDGE_FACTOR: u64 = 16;
/// So often a root is drawn anew because it was one before: small graphs may have fewer vertices
/// than searches.
const MOST_ATTEMPTS: u32 = 1000;
/// No parent, or no level.
const NONE: u32 = u32::MAX;
/// Vertices whose values `memset` fills in an iteration.
const FILLED: usize = 8;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments);
    let Arguments { seed, traced, .. } = *arguments;
    let code = |assembler: &mut Assembler| Code::new(assembler, traced);
    program(DESCRIPTION.name, arguments, shape.layout.mappings(), code, move |code| {
        Searches::new(&shape, code, seed)
    })
}

/// How large the graph is and where it lies.
struct Shape {
    scale: u32,
    edges: u64,
    layout: Layout,
    from: Column,
    to: Column,
    begin: Column,
    end: Column,
    adjacency: Column,
    parent: Column,
    parent_pairs: Column,
    work: Column,
    work_pairs: Column,
    /// Where in `work` the queue begins.
    queue: usize,
    validates: bool,
}

impl Shape {
    /// The scale whose edge factor comes nearest to the benchmark's, in the logarithm; then as many
    /// edges as fit.
    fn of(arguments: &Arguments) -> Self {
        let size_bytes = arguments.size_bytes;
        let validates = arguments.traced == Traced::Whole;
        let with = |bytes, more| if validates { bytes + more } else { bytes };
        let vertex_bytes = with(VERTEX_BYTES, VALIDATION_VERTEX_BYTES);
        let edge_bytes = with(EDGE_BYTES, VALIDATION_EDGE_BYTES);
        let vertices = size_bytes as f64 / (vertex_bytes + EDGE_FACTOR * edge_bytes) as f64;
        let scale = vertices.log2().round() as u32;
        let vertices = 1 << scale;
        let edges = (size_bytes - vertices * vertex_bytes) / edge_bytes;
        let mut layout = Layout::new(arguments);
        let list = layout.records(if validates { edges } else { 0 }, 16);
        let offsets = layout.records(vertices, 16);
        let adjacency = layout.array(2 * edges, 8);
        let parent = layout.records(vertices, 8);
        // What was seen, then levels. The queue, which is half as long, is freed before: so it was
        // mapped at the end of this that is next to the parents.
        let work = layout.records(if validates { 2 } else { 1 } * vertices, 8);
        let queue = match arguments.array_order {
            ArrayOrder::Downwards if validates => vertices as usize,
            _ => 0,
        };
        Self {
            scale,
            edges,
            from: list.field(0, 8),
            to: list.field(8, 8),
            begin: offsets.field(0, 8),
            end: offsets.field(8, 8),
            adjacency,
            parent: parent.field(0, 8),
            parent_pairs: parent.split(16),
            work: work.field(0, 8),
            work_pairs: work.split(16),
            queue,
            validates,
            layout,
        }
    }
}

/// What searches and validations work on; each of the `edges` is drawn when it is needed.
struct Data {
    vertices: usize,
    edges: u64,
    from: Column,
    to: Column,
    parent: Array<u32>,
    parent_pairs: Column,
    /// Seen, then levels; or the queue.
    work: Array<u32>,
    work_pairs: Column,
}

/// What comes next.
enum Phase {
    /// Filling the parents, from this vertex on.
    Clear(usize),
    Search,
    Validate(Validation),
}

struct Searches {
    code: Code,
    kronecker: Kronecker,
    graph: Graph,
    /// Where each row begins in the program's memory, in which rows are followed by gaps.
    begins: Vec<u64>,
    begin: Column,
    end: Column,
    adjacency: Column,
    data: Data,
    /// Where in `work` the queue begins.
    queue: usize,
    phase: Phase,
    root: usize,
    /// The roots so far.
    roots: Vec<usize>,
    /// The part of the queue that was found and not yet expanded.
    found: Range<usize>,
    /// The vertex being expanded, its edges that are left, and by how much its row lies further back in
    /// the program's memory.
    vertex: usize,
    edges: Range<usize>,
    gaps: usize,
    /// Searches left, with the one under way.
    left: u32,
    keys: Random,
    /// What a validation found wrong.
    fault: Option<Fault>,
}

impl Searches {
    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let vertices = 1 << shape.scale;
        let kronecker = Kronecker::new(shape.scale, seed);
        let joined = || kronecker.edges(shape.edges).filter(|(from, to)| from != to);
        let mut graph = Graph::undirected(vertices, joined);
        let begins = graph.offsets().to_vec();
        graph.simplify();
        let mut searches = Self {
            code,
            kronecker,
            graph,
            begins,
            begin: shape.begin,
            end: shape.end,
            adjacency: shape.adjacency,
            data: Data {
                vertices,
                edges: shape.edges,
                from: shape.from,
                to: shape.to,
                parent: shape.parent.holding(vec![NONE; vertices]),
                parent_pairs: shape.parent_pairs,
                work: shape.work.holding(vec![0; if shape.validates { 2 } else { 1 } * vertices]),
                work_pairs: shape.work_pairs,
            },
            queue: shape.queue,
            phase: Phase::Clear(0),
            root: 0,
            roots: Vec::new(),
            found: 0..0,
            vertex: 0,
            edges: 0..0,
            gaps: 0,
            left: SEARCHES,
            keys: Random::new(seed, 1),
            fault: None,
        };
        searches.draw_root();
        searches
    }

    /// Takes a vertex that has a neighbour for the next search's root: another each time, if there
    /// are enough.
    fn draw_root(&mut self) {
        for attempt in 0.. {
            self.root = self.keys.below(self.graph.vertices() as u64) as usize;
            let is_new = !self.roots.contains(&self.root) || attempt > MOST_ATTEMPTS;
            if is_new && !self.graph.edges(self.root).is_empty() {
                break;
            }
        }
        self.roots.push(self.root);
    }

    /// Clears a few parents; at the end, the search begins.
    fn clear(&mut self, out: &mut impl Emitter, vertex: usize) {
        out.enter(self.code.clear);
        (0..FILLED / 2).for_each(|pair| self.data.parent_pairs.store(out, vertex / 2 + pair));
        self.data.parent.values[vertex..vertex + FILLED].fill(NONE);
        let next = vertex + FILLED;
        if next < self.data.vertices {
            self.phase = Phase::Clear(next);
            return;
        }
        self.phase = Phase::Search;
        out.enter(self.code.root);
        self.found = 0..0;
        self.discover(out, self.root, self.root);
    }

    /// The next search begins.
    fn next(&mut self, out: &mut impl Emitter) {
        out.enter(self.code.next_search);
        self.left -= 1;
        self.draw_root();
        self.phase = Phase::Clear(0);
    }

    fn discover(&mut self, out: &mut impl Emitter, vertex: usize, parent: usize) {
        self.data.parent.store(out, vertex, parent as u32);
        self.data.work.store(out, self.queue + self.found.end, vertex as u32);
        self.found.end += 1;
    }

    /// Follows an edge or takes a vertex from the queue; false at the search's end.
    fn search(&mut self, out: &mut impl Emitter) -> bool {
        if let Some(edge) = self.edges.next() {
            out.enter(self.code.edge);
            self.adjacency.load(out, edge + self.gaps);
            let neighbour = self.graph.target(edge);
            if self.data.parent.load(out, neighbour) == NONE {
                out.enter(self.code.discover);
                self.discover(out, neighbour, self.vertex);
            }
            out.enter(self.code.next_edge);
            if self.edges.is_empty() {
                out.enter(self.code.next_vertex);
            }
        } else if let Some(next) = self.found.next() {
            out.enter(self.code.vertex);
            self.vertex = self.data.work.load(out, self.queue + next) as usize;
            self.begin.load(out, self.vertex);
            self.end.load(out, self.vertex);
            self.edges = self.graph.edges(self.vertex);
            self.gaps = self.begins[self.vertex] as usize - self.edges.start;
        } else {
            return false;
        }
        true
    }
}

impl Algorithm for Searches {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if self.left == 0 {
            return false;
        }
        match &mut self.phase {
            Phase::Clear(vertex) => {
                let vertex = *vertex;
                self.clear(out, vertex);
            }
            Phase::Search => {
                if self.search(out) {
                } else if let Some(code) = self.code.validation {
                    let validation = Validation::new(code, self.root, &self.kronecker);
                    self.phase = Phase::Validate(validation);
                } else {
                    self.next(out);
                }
            }
            Phase::Validate(validation) => {
                match validation.step(out, &mut self.data, &self.kronecker) {
                    Ok(true) => return true,
                    Ok(false) => {}
                    Err(fault) => self.fault = Some(fault),
                }
                assert_eq!(self.fault, None, "from {}", self.root);
                self.next(out);
            }
        }
        true
    }
}
