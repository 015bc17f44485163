//! `mcf`: a minimum-cost flow by the network simplex, as it schedules the vehicles of a public transport
//! company: arcs are priced a few hundred at a time, far from each other, and a tree of nodes is re-hung.
//!
//! Source: Löbel, "Solving large-scale real-world minimum-cost flow problems by a network simplex
//! method", ZIB SC 96-7, 1996, whose MCF is SPEC CPU2006's 429.mcf: a strongly feasible spanning tree
//! with pointers (predecessor, child, siblings) and the sizes of subtrees; multiple partial pricing of
//! 300 arcs at a time (arc k, k + groups, k + 2 groups, …) into a basket of the best 50; potentials
//! renewed every 20 iterations. The leaving arc is Cunningham's (Mathematical Programming 11, 1976), so
//! that the method ends.
//!
//! ```text
//! node    104 bytes: potential 8, orientation 4, child, predecessor, sibling, previous sibling, basic arc,
//!         first arcs out and in and a spare arc 8 x 8, flow 8, subtree 8, number 4, time 4
//! arc     64 bytes: cost 8, tail 8, head 8, state 4, next arcs of tail and head 2 x 8, flow 8, own cost 8
//! and     an artificial arc a node, and a basket of 350 x (24 + pointer 8)
//! ```
//!
//! A trip ends a unit of flow and begins another; a vehicle goes from a trip's end to a later one's
//! start (a deadhead arc), or from and to the depot. Trips have drawn places; deadheads are a sample of
//! all pairs of trips, by later trip. Departs from it: the deadheads are there from the start, where the
//! original adds them round by round; the first solution, in which each trip has a vehicle of its own, is
//! what its first round ends with. One trip for a thousand arcs, fewer in small networks.
//!
//! This process's memory holds the nodes and each arc's state: where an arc leads and what it costs are
//! functions of its number.

mod code;
mod network;
mod pricing;
#[cfg(test)]
mod tests;
mod tree;

use flatwalk_trace::Source;

use crate::simulated::{Algorithm, Array, Column, Emitter, Layout, program};
use crate::{ARRAY_ORDER, Arguments, Description, Parameter, SEED};
use code::Code;
use network::Network;
use tree::Entering;

pub(crate) const DESCRIPTION: Description = crate::describe(
    "mcf",
    "minimum-cost flow by the network simplex, as 429.mcf: prices arcs far from each other and follows \
     a tree's pointers",
    64 << 30,
    &[
        Parameter {
            name: "size_bytes",
            description: "arcs and nodes, in bytes: 64 KiB to 64 GiB; 1668 MiB is the array of arcs of \
                          429.mcf's reference run (takes a fortieth as much memory)",
        },
        SEED,
        ARRAY_ORDER,
    ],
    make,
);

const ARC_BYTES: u64 = 64;
const NODE_BYTES: u64 = 104;
/// Most arcs for each trip.
const ARCS_A_TRIP: u64 = 1000;
/// Arcs that are priced at a time, and those of them that are kept for the next time.
const GROUP: usize = 300;
const KEPT: usize = 50;
const SLOT_BYTES: u64 = 24;
/// Iterations between two renewals of the potentials.
const RENEWAL: u64 = 20;
/// What a vehicle costs, its way from and to the depot, and a deadhead without its distance.
const VEHICLE: i64 = 10_000_000;
const DEPOT_WAY: i64 = 15;
const DEADHEAD: i64 = 30;
/// No node.
const NONE: u32 = u32::MAX;
const ROOT: u32 = 0;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments);
    let seed = arguments.seed;
    program(DESCRIPTION.name, arguments, shape.layout.mappings(), Code::new, move |code| {
        Simplex::new(&shape, code, seed)
    })
}

struct Shape {
    trips: u64,
    deadheads: u64,
    layout: Layout,
    columns: Columns,
}

#[derive(Clone, Copy)]
struct Columns {
    cost: Column,
    tail: Column,
    head: Column,
    state: Column,
    potential: Column,
    orientation: Column,
    child: Column,
    pred: Column,
    sibling: Column,
    previous: Column,
    basic: Column,
    flow: Column,
    subtree: Column,
    slot: [Column; 3],
    order: Column,
}

impl Shape {
    fn of(arguments: &Arguments) -> Self {
        let slots = (GROUP + KEPT) as u64;
        let bytes = arguments.size_bytes - slots * (SLOT_BYTES + 8) - 64;
        let trips = (bytes / ARC_BYTES / ARCS_A_TRIP).max((bytes / 16).isqrt());
        let nodes = 2 * trips + 2;
        let arcs = (bytes - nodes * (NODE_BYTES + ARC_BYTES)) / ARC_BYTES;
        let mut layout = Layout::new(arguments);
        let node = layout.records(nodes, NODE_BYTES);
        // The artificial arcs come last, so that an arc's number says where it is.
        let arc = layout.records(arcs + nodes, ARC_BYTES);
        let slot = layout.objects(slots, SLOT_BYTES);
        let columns = Columns {
            cost: arc.field(0, 8),
            tail: arc.field(8, 8),
            head: arc.field(16, 8),
            state: arc.field(24, 4),
            potential: node.field(0, 8),
            orientation: node.field(8, 4),
            child: node.field(16, 8),
            pred: node.field(24, 8),
            sibling: node.field(32, 8),
            previous: node.field(40, 8),
            basic: node.field(48, 8),
            flow: node.field(80, 8),
            subtree: node.field(88, 8),
            slot: [slot.field(0, 8), slot.field(8, 8), slot.field(16, 8)],
            order: layout.array(slots, 8),
        };
        Self { trips, deadheads: arcs - 2 * trips, layout, columns }
    }
}

struct Simplex {
    code: Code,
    columns: Columns,
    network: Network,
    /// Whether an arc is not in the tree, and so has no flow.
    state: Array<bool>,
    potential: Array<i64>,
    /// Whether a node's basic arc leads to its predecessor.
    orientation: Array<bool>,
    child: Array<u32>,
    pred: Array<u32>,
    sibling: Array<u32>,
    previous: Array<u32>,
    basic: Array<u32>,
    flow: Array<u32>,
    subtree: Array<u32>,
    /// The basket's arcs with reduced costs, signed and absolute, and the slots in order.
    slot_arc: Array<u32>,
    slot_cost: Array<i64>,
    slot_size: Array<i64>,
    order: Array<u16>,
    basket: usize,
    group: u64,
    iterations: u64,
    /// The node whose potential is renewed next.
    renewing: Option<u32>,
    ended: bool,
}

impl Simplex {
    /// Each trip has a vehicle: all nodes hang from the depot, which hangs from the root.
    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let (columns, trips) = (shape.columns, shape.trips as u32);
        let network = Network { trips: shape.trips, deadheads: shape.deadheads, seed };
        let (nodes, depot) = (2 * trips as usize + 2, network.depot());
        let of = |trip: fn(u32) -> u32, depot: u32, root: u32| -> Vec<u32> {
            std::iter::once(root).chain((1..=2 * trips).map(trip)).chain([depot]).collect()
        };
        let mut sibling = of(|node| node + 1, NONE, NONE);
        sibling[depot as usize - 1] = NONE;
        let mut previous = of(|node| node - 1, NONE, NONE);
        previous[1] = NONE;
        let mut pred = vec![depot; nodes];
        (pred[0], pred[depot as usize]) = (NONE, ROOT);
        let mut basic = of(|node| node - 1, network.arcs() as u32, NONE);
        basic[0] = NONE;
        let potential = |node: u32| match node {
            node if node == ROOT || node == depot => 0,
            node if node <= trips => -(VEHICLE + DEPOT_WAY),
            _ => DEPOT_WAY,
        };
        let slots = GROUP + KEPT;
        Self {
            code,
            columns,
            state: columns
                .state
                .holding((0..network.arcs()).map(|arc| arc >= 2 * shape.trips).collect()),
            potential: columns.potential.holding((0..nodes as u32).map(potential).collect()),
            orientation: columns
                .orientation
                .holding((0..nodes as u32).map(|n| n > trips).collect()),
            child: columns.child.holding(of(|_| NONE, 1, depot)),
            pred: columns.pred.holding(pred),
            sibling: columns.sibling.holding(sibling),
            previous: columns.previous.holding(previous),
            basic: columns.basic.holding(basic),
            flow: columns.flow.holding(of(|_| 1, 0, 0)),
            subtree: columns.subtree.holding(of(|_| 1, nodes as u32 - 1, nodes as u32)),
            slot_arc: columns.slot[0].holding(vec![0; slots]),
            slot_cost: columns.slot[1].holding(vec![0; slots]),
            slot_size: columns.slot[2].holding(vec![0; slots]),
            order: columns.order.holding((0..slots as u16).collect()),
            basket: 0,
            group: 0,
            iterations: 0,
            renewing: None,
            ended: false,
            network,
        }
    }
}

impl Algorithm for Simplex {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if let Some(node) = self.renewing {
            self.renewing = self.renew(out, node);
            return true;
        }
        let entering = if self.ended { None } else { self.price(out) };
        let Some((arc, reduced)) = entering else {
            self.ended = true;
            return false;
        };
        let (tail, head, _) = self.network.arc(arc);
        let (join, leaving, on_head, flow) = self.ratio(out, tail, head);
        out.enter(self.code.joined);
        if flow > 0 {
            self.send(out, [tail, head], join, flow);
        }
        let (below, above) = if on_head { (head, tail) } else { (tail, head) };
        let enters = Entering { arc: arc as u32, below, above, up: !on_head, flow };
        let leaves = self.rehang(out, &enters, leaving, join);
        self.adjust(out, below, if on_head { -reduced } else { reduced });
        out.enter(self.code.done);
        self.state.store(out, arc as usize, false);
        self.state.store(out, leaves as usize, true);
        self.iterations += 1;
        if self.iterations.is_multiple_of(RENEWAL) {
            out.enter(self.code.refresh);
            self.renewing = Some(self.network.depot());
        }
        true
    }
}
