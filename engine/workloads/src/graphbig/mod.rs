//! GraphBIG's kernels over its kind of graph: objects and linked lists on the heap.
//!
//! Source: Nai et al., "GraphBIG: understanding graph computing in the context of industrial
//! solutions", SC 2015, and its framework openG as it is built by default: the vertices are a list
//! with a hash index by identifier; each vertex has its own list of edges; an edge names its target by
//! identifier, which is looked up in the index whenever the edge is followed.
//!
//! ```text
//! index     8 bytes a vertex: the buckets, each with the one vertex whose identifier it is
//! vertex    links 16, identifier 8, property, edges in and out 2 x 72; then the first buckets of the
//!           indices of these edges 2 x 112, its node in the index (identifier, object, next) and, unused
//!           here, its nodes in two maps of external names
//! edge      272 bytes: the list node (links 16, identifier 8, target 8, pointer to property and its
//!           counter 16), an index node, the property, the counter, and the same for the list of incoming
//!           edges
//! ```
//!
//! Objects lie in the order in which loading sorted files allocates them. `scripts/graphbig/kernels.cpp` has
//! the same data structures; GCC's code and glibc's addresses are what this is measured against
//! (docs/workloads.md). Left out: an edge index that grows gets more buckets, about 20 bytes an edge.
//!
//! The data set of the papers, LDBC-1000k (1 M vertices, 28.82 M edges), is not available. [`social`]
//! makes one with its mean degree and the shape that its generator, LDBC Datagen, gives: Facebook's
//! degree distribution, and friends who are alike in one of two respects (45 % each) or in none (10 %).

pub(crate) mod coloring;
pub(crate) mod components;
pub(crate) mod degree;
pub(crate) mod kcore;
pub(crate) mod pagerank;
pub(crate) mod search;
pub(crate) mod shortest_paths;
pub(crate) mod triangles;

use std::ops::Range;

use flatwalk_trace::{BlockId, Source};

use crate::graph::Graph;
use crate::program::{Assembler, FLAGS, registers};
use crate::rng::{Permutation, Random};
use crate::simulated::{Algorithm, Column, Emitter, Layout, Records, program};
use crate::{ARRAY_ORDER, Arguments, Description, Parameter, SEED};

/// A kernel's description; all kernels share most of it.
const fn describe(name: &'static str, description: &'static str, make: crate::Make) -> Description {
    const PARAMETERS: &[Parameter] = &[
        Parameter {
            name: "size_bytes",
            description: "graph and the kernel's own data, in bytes: 64 KiB to 256 GiB (takes a \
                              25th as much memory)",
        },
        SEED,
        ARRAY_ORDER,
    ];
    crate::describe(name, description, 256 << 30, PARAMETERS, make)
}

/// Edges for each vertex, as in LDBC-1000k.
const MEAN_DEGREE: f64 = 28.82;
/// The least number of vertices for each edge of one of them, which bounds the mean degree of very
/// small graphs.
const SPARSITY: f64 = 16.0;
/// Bytes of an edge, as above.
const EDGE_BYTES: u64 = 272;
/// Where a vertex's property begins.
const PROPERTY: u64 = 24;
/// Bytes of the lists of edges in a vertex: links, length, and an index.
const EDGE_LIST_BYTES: u64 = 72;
/// Bytes of the first buckets of their indices.
const EDGE_BUCKETS_BYTES: u64 = 2 * 112;
const INDEX_NODE_BYTES: u64 = 32;
const NAME_NODES_BYTES: u64 = 128;

/// What a kernel needs in addition to the graph.
struct Needs {
    /// Bytes of its property of a vertex.
    property_bytes: u64,
    /// Its arrays of 8 bytes for each vertex: queues and the like.
    lists: usize,
    /// Bytes that it needs for each edge.
    edge_bytes: u64,
    /// Whether these are in small vectors, one for each vertex.
    by_vertex: bool,
}

/// How large the graph is, and where it and the kernel's own data lie.
struct Shape {
    vertices: u64,
    edges: u64,
    layout: Layout,
    columns: Columns,
    objects: Records,
    lists: Vec<Column>,
    /// One more than there are edges.
    own_edges: Records,
}

#[derive(Clone, Copy)]
struct Columns {
    bucket: Column,
    /// Of the index's nodes.
    key: Column,
    object: Column,
    /// Of vertices.
    next_vertex: Column,
    first_edge: Column,
    degree: Column,
    /// Of edges.
    next_edge: Column,
    target: Column,
    edge_property: Column,
    weight: Column,
}

impl Shape {
    fn of(arguments: &Arguments, needs: &Needs) -> Self {
        let object =
            (PROPERTY + needs.property_bytes + 2 * EDGE_LIST_BYTES + 8).next_multiple_of(16);
        let index_node = object + EDGE_BUCKETS_BYTES;
        let vertex = index_node + INDEX_NODE_BYTES + NAME_NODES_BYTES;
        // With its bucket in the index.
        let vertex_bytes = (vertex + 8 + 8 * needs.lists as u64) as f64;
        let edge_bytes = (EDGE_BYTES + needs.edge_bytes) as f64;
        // For each array, up to 15 bytes go into alignment.
        let bytes = (arguments.size_bytes - 128) as f64;
        // The sparse bound: vertices * (vertex_bytes + vertices / SPARSITY * edge_bytes) = bytes.
        let half = SPARSITY * vertex_bytes / edge_bytes / 2.0;
        let sparse = (half * half + SPARSITY * bytes / edge_bytes).sqrt() - half;
        let dense = bytes / (vertex_bytes + MEAN_DEGREE * edge_bytes);
        let vertices = sparse.max(dense).floor();
        let edges = ((bytes - vertices * vertex_bytes) / edge_bytes).floor();
        let (vertices, edges) = (vertices as u64, edges as u64);

        let mut layout = Layout::new(arguments);
        // One more: what the end of the index is known by.
        let bucket = layout.array(vertices + 1, 8);
        let objects = layout.objects(vertices, vertex);
        let edge_nodes = layout.objects(edges, EDGE_BYTES);
        let out_edges = PROPERTY + needs.property_bytes + EDGE_LIST_BYTES;
        let columns = Columns {
            bucket,
            key: objects.field(index_node, 8),
            object: objects.field(index_node + 8, 8),
            next_vertex: objects.field(0, 8),
            first_edge: objects.field(out_edges, 8),
            degree: objects.field(out_edges + 16, 8),
            next_edge: edge_nodes.field(0, 8),
            target: edge_nodes.field(24, 8),
            edge_property: edge_nodes.field(32, 8),
            weight: edge_nodes.field(96, 2),
        };
        let lists = (0..needs.lists).map(|_| layout.array(vertices, 8)).collect();
        let own_edges = if needs.by_vertex {
            layout.objects(edges + 1, needs.edge_bytes)
        } else {
            layout.records(edges + 1, needs.edge_bytes)
        };
        Self { vertices, edges, layout, columns, objects, lists, own_edges }
    }

    /// A field of the kernel's property of a vertex.
    fn property(&self, offset: u64, size: u16) -> Column {
        self.objects.field(PROPERTY + offset, size)
    }

    fn graph(&self, seed: u64) -> PropertyGraph {
        let graph = social(self.vertices as usize, self.edges, seed);
        PropertyGraph { graph, columns: self.columns }
    }
}

/// The graph in the simulated program's memory. Each function here performs the fragment of the
/// same name in [`fragments`].
struct PropertyGraph {
    graph: Graph,
    columns: Columns,
}

impl PropertyGraph {
    fn vertices(&self) -> usize {
        self.graph.vertices()
    }

    /// Moves to the next vertex of the list.
    #[inline]
    fn next_vertex(&self, out: &mut impl Emitter, vertex: usize) {
        self.columns.next_vertex.load(out, vertex);
    }

    /// Begins a vertex's list of edges.
    #[inline]
    fn first_edge(&self, out: &mut impl Emitter, vertex: usize) -> Range<usize> {
        self.columns.first_edge.load(out, vertex);
        self.graph.edges(vertex)
    }

    /// The length of that list.
    #[inline]
    fn degree(&self, out: &mut impl Emitter, vertex: usize) -> u32 {
        self.columns.degree.load(out, vertex);
        self.graph.edges(vertex).len() as u32
    }

    /// Moves to the next edge of the list.
    #[inline]
    fn next_edge(&self, out: &mut impl Emitter, edge: usize) {
        self.columns.next_edge.load(out, edge);
    }

    /// The identifier of an edge's target.
    #[inline]
    fn target_id(&self, out: &mut impl Emitter, edge: usize) -> usize {
        self.columns.target.load(out, edge);
        self.graph.target(edge)
    }

    /// Looks an identifier up in the index.
    #[inline]
    fn find(&self, out: &mut impl Emitter, id: usize) {
        self.columns.bucket.load(out, id);
        self.columns.key.load(out, id);
        self.columns.bucket.load(out, self.vertices());
        self.columns.object.load(out, id);
    }

    /// Follows an edge to its target.
    #[inline]
    fn target(&self, out: &mut impl Emitter, edge: usize) -> usize {
        let id = self.target_id(out, edge);
        self.find(out, id);
        id
    }
}

registers!(32; VERTEX, EDGE, TARGET, ID, BUCKETS, BUCKET, BUCKET_COUNT, NODE, RUN);
/// The first register that the kernels may name.
const OWN: u8 = 64;

/// The graph's operations as instructions, as GCC makes them of `scripts/graphbig/kernels.cpp`;
/// those of lists leave in the flags whether the list continues. Branches that are never taken are
/// operations.
mod fragments {
    use super::{Assembler, BUCKET, BUCKET_COUNT, BUCKETS, EDGE, FLAGS, ID, NODE, TARGET, VERTEX};

    pub(super) fn next_vertex(assembler: &mut Assembler) -> &mut Assembler {
        assembler.load(&[VERTEX], VERTEX).operation(&[VERTEX], &[FLAGS])
    }

    pub(super) fn first_edge(assembler: &mut Assembler) -> &mut Assembler {
        assembler.load(&[VERTEX], EDGE).operation(&[EDGE, VERTEX], &[FLAGS])
    }

    pub(super) fn next_edge(assembler: &mut Assembler) -> &mut Assembler {
        assembler.load(&[EDGE], EDGE).operation(&[EDGE, VERTEX], &[FLAGS])
    }

    pub(super) fn target_id(assembler: &mut Assembler) -> &mut Assembler {
        assembler.load(&[EDGE], ID)
    }

    /// Leaves the object found in the register `object`. The bucket is the remainder of the identifier; the
    /// bucket's list is not empty, its first node is of this identifier, and it is not the index's end.
    pub(super) fn find(object: u8) -> impl Fn(&mut Assembler) -> &mut Assembler {
        move |assembler| {
            assembler
                .operation(&[], &[BUCKET])
                .operation(&[ID], &[NODE])
                .operation(&[NODE, BUCKET, BUCKET_COUNT], &[BUCKET])
                .load(&[BUCKETS, BUCKET], NODE)
                .operation(&[NODE], &[FLAGS])
                .operation(&[FLAGS], &[])
                .load(&[NODE, ID], FLAGS)
                .operation(&[FLAGS], &[])
                .load(&[BUCKETS, NODE], FLAGS)
                .operation(&[FLAGS], &[])
                .load(&[NODE], object)
        }
    }

    pub(super) fn target(assembler: &mut Assembler) -> &mut Assembler {
        assembler.then(target_id).then(find(TARGET))
    }
}

/// Runs of a kernel. GraphBIG repeats its kernels likewise, for one group of counters after another.
const RUNS: u32 = 10;

/// A kernel that can be run again.
trait Kernel: Send + Sized + 'static {
    const NEEDS: Needs;
    /// Its blocks.
    type Code: Send;
    fn code(assembler: &mut Assembler) -> Self::Code;
    fn new(shape: &Shape, code: Self::Code, seed: u64) -> Self;

    fn graph(&self) -> &PropertyGraph;
    /// Undoes what the last run did to a vertex.
    fn reset(&mut self, out: &mut impl Emitter, vertex: usize);
    /// Starts a run, at the vertex `root` if it needs one.
    fn begin(&mut self, out: &mut impl Emitter, root: usize);
    /// Continues; false at the end.
    fn step(&mut self, out: &mut impl Emitter) -> bool;
}

/// All runs of a kernel. In memory, `again` follows the kernel's blocks and leads back to the first.
struct Runs<K> {
    kernel: K,
    again: BlockId,
    roots: Random,
    /// Runs left, with the one under way.
    left: u32,
    begun: bool,
    unreset: Range<usize>,
}

/// A workload of all runs of the kernel `K`.
fn runs<K: Kernel>(name: &'static str, arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments, &K::NEEDS);
    let seed = arguments.seed;
    let code = |assembler: &mut Assembler| {
        let code = K::code(assembler);
        (code, assembler.operation(&[RUN], &[RUN]).operation(&[RUN], &[FLAGS]).branch())
    };
    program(name, arguments, shape.layout.mappings(), code, move |(code, again)| Runs {
        kernel: K::new(&shape, code, seed),
        again,
        roots: Random::new(seed, 1),
        left: RUNS,
        begun: false,
        unreset: 0..0,
    })
}

impl<K: Kernel> Algorithm for Runs<K> {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if self.kernel.step(out) {
        } else if let Some(vertex) = self.unreset.next() {
            self.kernel.reset(out, vertex);
        } else if self.left == 0 {
            return false;
        } else if self.begun {
            out.enter(self.again);
            self.left -= 1;
            self.begun = false;
            if self.left > 0 {
                self.unreset = 0..self.kernel.graph().vertices();
            }
        } else {
            let root = self.roots.below(self.kernel.graph().vertices() as u64);
            self.kernel.begin(out, root as usize);
            self.begun = true;
        }
        true
    }
}

/// Of the logarithm of the degree: Facebook's mean is 190, its median 99 (Ugander et al., "The anatomy
/// of the Facebook social graph", 2011), and for a log-normal one mean / median = exp(sigma^2 / 2).
const SIGMA: f64 = 1.142;
/// The greatest degree over the median, there 5000 / 99.
const LARGEST: f64 = 50.0;
/// The respects in which friends are alike: its share of the friendships, and among how many
/// friendships of people who are most alike in that respect each one is drawn.
const RESPECTS: [(f64, usize); 3] = [(0.45, 1 << 14), (0.45, 1 << 14), (0.1, usize::MAX)];

/// An undirected graph without loops and repeated edges, of which it leaves out what it drew (a few per
/// cent): at most `edges` in both directions together.
fn social(vertices: usize, edges: u64, seed: u64) -> Graph {
    let mut random = Random::new(seed, 0);
    let mut degrees: Vec<_> =
        (0..vertices).map(|_| (SIGMA * random.normal()).exp().min(LARGEST) as f32).collect();
    let sum: f64 = degrees.iter().map(|&degree| f64::from(degree)).sum();
    for degree in &mut degrees {
        *degree *= (edges as f64 / sum) as f32;
    }
    let mut friends = Vec::with_capacity(edges as usize / 2 + 1);
    for (respect, (share, window)) in (1..).zip(RESPECTS) {
        // Each one as often as they have such friends, in the order in which they are alike.
        let order = Permutation::new(vertices as u64, seed ^ respect << 32);
        let mut ends = Vec::with_capacity((edges as f64 * share * 1.01) as usize);
        for place in 0..vertices as u64 {
            let vertex = order.at(place);
            let number = f64::from(degrees[vertex as usize]) * share + random.unit();
            ends.extend(std::iter::repeat_n(vertex as u32, number as usize));
        }
        for near in ends.chunks_mut(window) {
            random.shuffle(near);
            friends.extend(near.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        }
    }
    friends.truncate(edges as usize / 2);
    let mut graph = Graph::undirected(vertices, || friends.iter().copied());
    drop(friends);
    graph.simplify();
    graph
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::Native;

    /// A kernel on a graph of about 330 vertices.
    pub(super) fn kernel<K: Kernel>() -> K {
        K::new(
            &Shape::of(&Arguments::new(2 << 20, 1), &K::NEEDS),
            K::code(&mut Assembler::new()),
            1,
        )
    }

    /// That kernel after one run from `root`.
    pub(super) fn run<K: Kernel>(root: usize) -> K {
        finish(kernel(), root)
    }

    pub(super) fn finish<K: Kernel>(mut kernel: K, root: usize) -> K {
        kernel.begin(&mut Native, root);
        while kernel.step(&mut Native) {}
        kernel
    }

    /// All edges, in an order of their own.
    pub(super) fn edges(graph: &PropertyGraph) -> Vec<(usize, usize)> {
        let mut edges: Vec<_> = graph.graph.pairs().collect();
        Random::new(9, 9).shuffle(&mut edges);
        edges
    }

    #[test]
    fn the_graph_is_as_a_social_network_is() {
        let (vertices, wanted) = (20_000, 576_400);
        let graph = social(vertices, wanted, 1);
        let mut degrees: Vec<_> = (0..vertices).map(|v| graph.edges(v).len()).collect();
        degrees.sort_unstable();
        let edges: usize = degrees.iter().sum();
        assert!(edges as u64 <= wanted && edges as u64 > wanted * 94 / 100, "{edges}");
        let mean = edges as f64 / vertices as f64;
        let median = degrees[vertices / 2] as f64 / mean;
        assert!((0.47..0.6).contains(&median), "median {median}");
        let (largest, percentile) = (degrees[vertices - 1], degrees[vertices / 100]);
        assert!((10.0..30.0).contains(&(largest as f64 / mean)), "largest {largest}");
        assert!(percentile <= 2, "first percentile {percentile}");
        for (a, b) in graph.pairs() {
            assert!(a != b && graph.edges(b).any(|edge| graph.target(edge) == a));
        }
    }

    #[test]
    fn friends_of_friends_are_friends() {
        let graph = social(20_000, 576_400, 1);
        let row = |v: usize| graph.edges(v).map(|edge| graph.target(edge)).collect::<Vec<_>>();
        let (mut closed, mut open) = (0, 0);
        for vertex in (0..20_000).step_by(50) {
            let friends = row(vertex);
            for (i, &a) in friends.iter().enumerate() {
                let known = row(a);
                closed += friends[..i].iter().filter(|b| known.binary_search(b).is_ok()).count();
                open += i;
            }
        }
        // Ten times as often as between strangers (28.82 / 20,000).
        assert!(closed as f64 > open as f64 * 0.0144, "{closed} of {open}");
    }

    #[test]
    fn sizes_are_filled() {
        let needs = Needs { property_bytes: 24, lists: 1, edge_bytes: 0, by_vertex: false };
        for shift in 16..39 {
            let size_bytes = 1 << shift;
            let shape = Shape::of(&Arguments::new(size_bytes, 1), &needs);
            let bytes = shape.layout.bytes();
            assert!(bytes <= size_bytes && bytes + 700 > size_bytes, "{bytes} of {size_bytes}");
            let degree = shape.edges as f64 / shape.vertices as f64;
            let expected = MEAN_DEGREE.min(shape.vertices as f64 / SPARSITY);
            assert!((degree / expected - 1.0).abs() < 0.1, "{shift}: {degree} {expected}");
        }
        // The papers' graph.
        let shape = Shape::of(&Arguments::new(8_447_000_000, 1), &needs);
        assert!((990_000..1_010_000).contains(&shape.vertices), "{}", shape.vertices);
    }
}
