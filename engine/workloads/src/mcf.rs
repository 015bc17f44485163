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

use flatwalk_trace::{BlockId, Source};

use crate::program::{Assembler, FLAGS, registers};
use crate::rng::mix;
use crate::simulated::{Algorithm, Array, Column, Emitter, Layout, program};
use crate::{ARRAY_ORDER, Arguments, Description, Parameter, SEED};

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
    let mut assembler = Assembler::new();
    let code = Code::new(&mut assembler);
    let layout = shape.layout.clone();
    let build = move || Simplex::new(&shape, code, seed);
    program(DESCRIPTION.name, arguments, &layout, assembler, build)
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

/// The arcs: first those from the depot, then those to it, then the deadheads.
struct Network {
    trips: u64,
    deadheads: u64,
    seed: u64,
}

impl Network {
    fn arcs(&self) -> u64 {
        2 * self.trips + self.deadheads
    }

    fn depot(&self) -> u32 {
        2 * self.trips as u32 + 1
    }

    /// Tail, head and cost.
    #[inline]
    fn arc(&self, arc: u64) -> (u32, u32, i64) {
        let (trips, depot) = (self.trips, self.depot());
        let (start, end) = (|trip: u64| 1 + trip as u32, |trip: u64| (1 + trips + trip) as u32);
        if arc < trips {
            return (depot, start(arc), VEHICLE + DEPOT_WAY);
        } else if arc < 2 * trips {
            return (end(arc - trips), depot, DEPOT_WAY);
        } else if arc >= self.arcs() {
            return (depot, ROOT, 0);
        }
        let pairs = u128::from(trips * (trips - 1) / 2);
        let place = |number| (u128::from(number) * pairs / u128::from(self.deadheads)) as u64;
        let number = arc - 2 * trips;
        let (from, to) = (place(number), place(number + 1));
        let pair = from + mix(self.seed ^ number) % (to - from);
        // Pairs are numbered (0, 1), (0, 2), (1, 2), (0, 3), …
        let mut later = (((1 + 8 * pair) as f64).sqrt() as u64).div_ceil(2);
        while later * (later - 1) / 2 > pair {
            later -= 1;
        }
        while (later + 1) * later / 2 <= pair {
            later += 1;
        }
        let (tail, head) = (end(pair - later * (later - 1) / 2), start(later));
        let place = |node: u32| {
            let word = mix(!self.seed ^ u64::from(node));
            ((word & 0xff) as i64, (word >> 8 & 0xff) as i64)
        };
        let (a, b) = (place(tail), place(head));
        (tail, head, DEADHEAD + (a.0 - b.0).abs() + (a.1 - b.1).abs())
    }
}

registers!(32; NEXT, PERM, SLOT, ARC, STOP, STRIDE, STATE, COST, TAIL, HEAD, TAIL_POTENTIAL, HEAD_POTENTIAL,
    REDUCED, SIZE, PIVOT, LEFT, RIGHT, OTHER, TAIL_SIDE, HEAD_SIDE, TAIL_SIZE, HEAD_SIZE, UP, FLOW, DELTA,
    LEAVING, JOIN, NODE, FATHER, PRED, SIBLING, PREVIOUS, FIRST, BASIC, SUBTREE, TOP, CHANGE, POTENTIAL);

struct Code {
    begin: BlockId,
    recheck: BlockId,
    keep: BlockId,
    rechecked: BlockId,
    group: BlockId,
    arc: BlockId,
    price: BlockId,
    insert: BlockId,
    next_arc: BlockId,
    group_end: BlockId,
    full: BlockId,
    pivot: BlockId,
    left: BlockId,
    right: BlockId,
    meet: BlockId,
    swap: BlockId,
    parts: BlockId,
    chosen: BlockId,
    compare: BlockId,
    up_tail: BlockId,
    tail_joined: BlockId,
    up_head: BlockId,
    joined: BlockId,
    /// A test and a loop for the way from either end of the arc to where they join.
    flow: [(BlockId, BlockId); 2],
    rehang: BlockId,
    unlink: BlockId,
    has_sibling: BlockId,
    unlink_next: BlockId,
    unlink_previous: BlockId,
    unlink_first: BlockId,
    link: BlockId,
    link_first: BlockId,
    hang: BlockId,
    subtree: [(BlockId, BlockId); 2],
    adjust: BlockId,
    add: BlockId,
    at_top: BlockId,
    sibling: BlockId,
    up: BlockId,
    done: BlockId,
    refresh: BlockId,
    renew: BlockId,
    renew_sibling: BlockId,
    renew_up: BlockId,
    renewed: BlockId,
}

/// Loads an arc's data and its reduced cost.
fn reduced(assembler: &mut Assembler) -> &mut Assembler {
    assembler
        .load(&[ARC], COST)
        .load(&[ARC], TAIL)
        .load(&[TAIL], TAIL_POTENTIAL)
        .load(&[ARC], HEAD)
        .load(&[HEAD], HEAD_POTENTIAL)
        .operation(&[COST, TAIL_POTENTIAL], &[REDUCED])
        .operation(&[REDUCED, HEAD_POTENTIAL], &[REDUCED])
        .operation(&[REDUCED, STATE], &[FLAGS])
}

/// Stores into a slot of the basket.
fn fill(assembler: &mut Assembler) -> &mut Assembler {
    assembler
        .operation(&[SIZE], &[SIZE])
        .load(&[PERM, SIZE], SLOT)
        .store(&[SLOT, ARC])
        .store(&[SLOT, REDUCED])
        .operation(&[REDUCED], &[OTHER])
        .store(&[SLOT, OTHER])
}

/// Goes one step up the tree, noting how much flow the way allows.
fn climb(assembler: &mut Assembler, side: u8) -> BlockId {
    assembler
        .load_bytes(4, &[side], UP)
        .load(&[side], FLOW)
        .operation(&[UP, FLOW, DELTA], &[FLAGS])
        .operation(&[FLAGS, FLOW, DELTA], &[DELTA])
        .operation(&[FLAGS, side, LEAVING], &[LEAVING])
        .load(&[side], side)
        .operation(&[TAIL_SIDE, HEAD_SIDE], &[FLAGS])
        .branch()
}

/// A test whether a way has nodes, and a loop over them that changes 8 bytes of each.
fn along(assembler: &mut Assembler, orientation: bool) -> (BlockId, BlockId) {
    let test = assembler.operation(&[NODE, JOIN], &[FLAGS]).branch();
    if orientation {
        assembler.load_bytes(4, &[NODE], UP);
    }
    let step = assembler
        .load(&[NODE], FLOW)
        .operation(&[FLOW, UP, DELTA], &[FLOW])
        .store(&[NODE, FLOW])
        .load(&[NODE], NODE)
        .operation(&[NODE, JOIN], &[FLAGS])
        .branch();
    (test, step)
}

impl Code {
    fn new(assembler: &mut Assembler) -> Self {
        Self {
            begin: assembler.operation(&[], &[NEXT]).operation(&[SIZE], &[FLAGS]).branch(),
            recheck: assembler
                .load(&[PERM, NEXT], SLOT)
                .load(&[SLOT], ARC)
                .load_bytes(4, &[ARC], STATE)
                .then(reduced)
                .branch(),
            keep: assembler.then(fill).fall(),
            rechecked: assembler.operation(&[NEXT], &[NEXT]).operation(&[NEXT], &[FLAGS]).branch(),
            group: assembler.operation(&[NEXT, STRIDE], &[ARC]).fall(),
            arc: assembler.load_bytes(4, &[ARC], STATE).operation(&[STATE], &[FLAGS]).branch(),
            price: assembler.then(reduced).branch(),
            insert: assembler.then(fill).fall(),
            next_arc: assembler
                .operation(&[ARC, STRIDE], &[ARC])
                .operation(&[ARC, STOP], &[FLAGS])
                .branch(),
            group_end: assembler
                .operation(&[NEXT], &[NEXT])
                .operation(&[NEXT, STRIDE], &[FLAGS, NEXT])
                .operation(&[SIZE], &[FLAGS])
                .branch(),
            full: assembler.operation(&[SIZE], &[FLAGS]).branch(),
            pivot: assembler
                .operation(&[LEFT, RIGHT], &[SLOT])
                .load(&[PERM, SLOT], SLOT)
                .load(&[SLOT], PIVOT)
                .fall(),
            left: assembler
                .load(&[PERM, LEFT], SLOT)
                .load(&[SLOT], OTHER)
                .operation(&[LEFT], &[LEFT])
                .operation(&[OTHER, PIVOT], &[FLAGS])
                .branch(),
            right: assembler
                .load(&[PERM, RIGHT], SLOT)
                .load(&[SLOT], OTHER)
                .operation(&[RIGHT], &[RIGHT])
                .operation(&[OTHER, PIVOT], &[FLAGS])
                .branch(),
            meet: assembler.operation(&[LEFT, RIGHT], &[FLAGS]).branch(),
            swap: assembler
                .load(&[PERM, LEFT], SLOT)
                .load(&[PERM, RIGHT], OTHER)
                .store(&[PERM, LEFT, OTHER])
                .store(&[PERM, RIGHT, SLOT])
                .operation(&[LEFT, RIGHT], &[FLAGS])
                .branch(),
            parts: assembler.operation(&[LEFT], &[FLAGS]).branch(),
            chosen: assembler
                .load(&[PERM], SLOT)
                .load(&[SLOT], ARC)
                .load(&[SLOT], REDUCED)
                .load(&[ARC], TAIL_SIDE)
                .load(&[ARC], HEAD_SIDE)
                .operation(&[], &[DELTA])
                .fall(),
            compare: assembler
                .load(&[TAIL_SIDE], TAIL_SIZE)
                .load(&[HEAD_SIDE], HEAD_SIZE)
                .operation(&[TAIL_SIZE, HEAD_SIZE], &[FLAGS])
                .branch(),
            up_tail: climb(assembler, TAIL_SIDE),
            tail_joined: assembler.jump(),
            up_head: climb(assembler, HEAD_SIDE),
            joined: assembler.operation(&[DELTA], &[FLAGS]).branch(),
            flow: [along(assembler, true), along(assembler, true)],
            rehang: assembler
                .load(&[LEAVING], BASIC)
                .load(&[LEAVING], SUBTREE)
                .operation(&[REDUCED], &[CHANGE])
                .fall(),
            unlink: assembler
                .load(&[NODE], PRED)
                .load(&[NODE], SIBLING)
                .load(&[NODE], PREVIOUS)
                .operation(&[SIBLING], &[FLAGS])
                .branch(),
            has_sibling: assembler.store(&[SIBLING, PREVIOUS]).fall(),
            unlink_next: assembler.operation(&[PREVIOUS], &[FLAGS]).branch(),
            unlink_previous: assembler.store(&[PREVIOUS, SIBLING]).jump(),
            unlink_first: assembler.store(&[PRED, SIBLING]).fall(),
            link: assembler
                .load(&[FATHER], FIRST)
                .store(&[NODE, FIRST])
                .operation(&[FIRST], &[FLAGS])
                .branch(),
            link_first: assembler.store(&[FIRST, NODE]).fall(),
            hang: assembler
                .store(&[FATHER, NODE])
                .store(&[NODE, FATHER])
                .store(&[NODE])
                .load_bytes(4, &[NODE], UP)
                .store_bytes(4, &[NODE, UP])
                .load(&[NODE], FLOW)
                .store(&[NODE, FLOW])
                .load(&[NODE], OTHER)
                .store(&[NODE, BASIC])
                .operation(&[OTHER], &[BASIC])
                .load(&[NODE], SUBTREE)
                .store(&[NODE, SUBTREE])
                .operation(&[NODE], &[FATHER])
                .operation(&[PRED], &[NODE])
                .operation(&[FATHER, LEAVING], &[FLAGS])
                .branch(),
            subtree: [along(assembler, false), along(assembler, false)],
            adjust: assembler.operation(&[TOP], &[NODE]).fall(),
            add: assembler
                .load(&[NODE], POTENTIAL)
                .operation(&[POTENTIAL, CHANGE], &[POTENTIAL])
                .store(&[NODE, POTENTIAL])
                .load(&[NODE], FIRST)
                .operation(&[FIRST], &[FLAGS])
                .branch(),
            at_top: assembler.operation(&[NODE, TOP], &[FLAGS]).branch(),
            sibling: assembler.load(&[NODE], SIBLING).operation(&[SIBLING], &[FLAGS]).branch(),
            up: assembler.load(&[NODE], NODE).jump(),
            done: assembler
                .store_bytes(4, &[ARC])
                .store_bytes(4, &[BASIC])
                .operation(&[STATE], &[FLAGS])
                .branch(),
            refresh: assembler.operation(&[], &[NODE]).fall(),
            renew: assembler
                .load_bytes(4, &[NODE], UP)
                .load(&[NODE], BASIC)
                .load(&[BASIC], COST)
                .load(&[NODE], PRED)
                .load(&[PRED], POTENTIAL)
                .operation(&[UP, COST, POTENTIAL], &[POTENTIAL])
                .store(&[NODE, POTENTIAL])
                .load(&[NODE], FIRST)
                .operation(&[FIRST], &[FLAGS])
                .branch(),
            renew_sibling: assembler
                .load(&[NODE], SIBLING)
                .operation(&[SIBLING], &[FLAGS])
                .branch(),
            renew_up: assembler.load(&[NODE], NODE).operation(&[NODE], &[FLAGS]).branch(),
            renewed: assembler.jump(),
        }
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

    #[inline]
    fn reduced(&self, out: &mut impl Emitter, arc: u64) -> i64 {
        let (tail, head, cost) = self.network.arc(arc);
        self.columns.cost.load(out, arc as usize);
        self.columns.tail.load(out, arc as usize);
        let tail = self.potential.load(out, tail as usize);
        self.columns.head.load(out, arc as usize);
        cost - tail + self.potential.load(out, head as usize)
    }

    fn fill(&mut self, out: &mut impl Emitter, arc: u64, reduced: i64) {
        let slot = usize::from(self.order.load(out, self.basket));
        self.slot_arc.store(out, slot, arc as u32);
        self.slot_cost.store(out, slot, reduced);
        self.slot_size.store(out, slot, reduced.abs());
        self.basket += 1;
    }

    /// The arc that enters, with its reduced cost; none at the optimum.
    fn price(&mut self, out: &mut impl Emitter) -> Option<(u64, i64)> {
        out.enter(self.code.begin);
        let before = self.basket.min(KEPT);
        self.basket = 0;
        // The first one has entered.
        for place in 1..before {
            out.enter(self.code.recheck);
            let slot = usize::from(self.order.load(out, place));
            let arc = u64::from(self.slot_arc.load(out, slot));
            let outside = self.state.load(out, arc as usize);
            let reduced = self.reduced(out, arc);
            if outside && reduced < 0 {
                out.enter(self.code.keep);
                self.fill(out, arc, reduced);
            }
            out.enter(self.code.rechecked);
        }
        let (first, arcs) = (self.group, self.network.arcs());
        let groups = arcs.div_ceil(GROUP as u64);
        loop {
            out.enter(self.code.group);
            for arc in (self.group..arcs).step_by(groups as usize) {
                out.enter(self.code.arc);
                if self.state.load(out, arc as usize) {
                    out.enter(self.code.price);
                    let reduced = self.reduced(out, arc);
                    if reduced < 0 {
                        out.enter(self.code.insert);
                        self.fill(out, arc, reduced);
                    }
                }
                out.enter(self.code.next_arc);
            }
            out.enter(self.code.group_end);
            self.group = (self.group + 1) % groups;
            if self.basket >= KEPT || self.group == first {
                break;
            }
        }
        out.enter(self.code.full);
        if self.basket == 0 {
            return None;
        }
        self.sort(out);
        out.enter(self.code.chosen);
        let slot = usize::from(self.order.load(out, 0));
        let arc = self.slot_arc.load(out, slot);
        let reduced = self.slot_cost.load(out, slot);
        self.columns.tail.load(out, arc as usize);
        self.columns.head.load(out, arc as usize);
        Some((u64::from(arc), reduced))
    }

    /// Sorts the basket by falling absolute cost as far as it is kept (quicksort).
    fn sort(&mut self, out: &mut impl Emitter) {
        let mut parts = if self.basket > 1 { vec![(0, self.basket as isize - 1)] } else { vec![] };
        let size = |sort: &Self, out: &mut _, place: isize| {
            let slot = usize::from(sort.order.load(out, place as usize));
            sort.slot_size.load(out, slot)
        };
        while let Some((from, to)) = parts.pop() {
            out.enter(self.code.pivot);
            let pivot = size(self, out, isize::midpoint(from, to));
            let (mut left, mut right) = (from, to);
            while left <= right {
                out.enter(self.code.left);
                while size(self, out, left) > pivot {
                    left += 1;
                    out.enter(self.code.left);
                }
                out.enter(self.code.right);
                while size(self, out, right) < pivot {
                    right -= 1;
                    out.enter(self.code.right);
                }
                out.enter(self.code.meet);
                if left <= right {
                    out.enter(self.code.swap);
                    let a = self.order.load(out, left as usize);
                    let b = self.order.load(out, right as usize);
                    self.order.store(out, left as usize, b);
                    self.order.store(out, right as usize, a);
                    left += 1;
                    right -= 1;
                }
            }
            out.enter(self.code.parts);
            if left < to && left < KEPT as isize {
                parts.push((left, to));
            }
            if from < right {
                parts.push((from, right));
            }
        }
    }

    /// Where the ways from an arc's ends up the tree meet, the node whose basic arc leaves, whether that
    /// is on the head's way, and the flow that the cycle takes.
    fn ratio(&self, out: &mut impl Emitter, tail: u32, head: u32) -> (u32, u32, bool, u32) {
        let (mut ends, mut least, mut leaving) = ([tail, head], [u32::MAX; 2], [NONE; 2]);
        while ends[0] != ends[1] {
            out.enter(self.code.compare);
            let [of_tail, of_head] = ends.map(|end| self.subtree.load(out, end as usize));
            let side = usize::from(of_tail >= of_head);
            out.enter([self.code.up_tail, self.code.up_head][side]);
            let node = ends[side] as usize;
            let (up, flow) = (self.orientation.load(out, node), self.flow.load(out, node));
            // The last on the cycle from where the ways meet: on the tail's way the first one found.
            let less = if side == 0 { up && flow < least[0] } else { !up && flow <= least[1] };
            if less {
                (least[side], leaving[side]) = (flow, ends[side]);
            }
            ends[side] = self.pred.load(out, node);
            if side == 0 && ends[0] == ends[1] {
                out.enter(self.code.tail_joined);
            }
        }
        let side = usize::from(leaving[1] != NONE && least[1] <= least[0]);
        (ends[0], leaving[side], side == 1, least[side])
    }

    /// Sends `flow` around the cycle: from both ends of the arc up to where they meet.
    fn send(&mut self, out: &mut impl Emitter, ends: [u32; 2], join: u32, flow: u32) {
        for (side, (test, step)) in self.code.flow.into_iter().enumerate() {
            out.enter(test);
            let mut node = ends[side];
            while node != join {
                out.enter(step);
                let at = node as usize;
                let more = self.orientation.load(out, at) == (side == 1);
                let old = self.flow.load(out, at);
                self.flow.store(out, at, if more { old + flow } else { old - flow });
                node = self.pred.load(out, at);
            }
        }
    }

    /// Enlarges or shrinks the subtrees from `node` up to `join`.
    fn resize(
        &mut self,
        out: &mut impl Emitter,
        (test, step): (BlockId, BlockId),
        mut node: u32,
        join: u32,
        size: i64,
    ) {
        out.enter(test);
        while node != join {
            out.enter(step);
            let old = self.subtree.load(out, node as usize);
            self.subtree.store(out, node as usize, (i64::from(old) + size) as u32);
            node = self.pred.load(out, node as usize);
        }
    }

    /// Takes a node from its predecessor's children, and gives that predecessor.
    fn unlink(&mut self, out: &mut impl Emitter, node: u32) -> u32 {
        out.enter(self.code.unlink);
        let pred = self.pred.load(out, node as usize);
        let sibling = self.sibling.load(out, node as usize);
        let previous = self.previous.load(out, node as usize);
        if sibling != NONE {
            out.enter(self.code.has_sibling);
            self.previous.store(out, sibling as usize, previous);
        }
        out.enter(self.code.unlink_next);
        if previous == NONE {
            out.enter(self.code.unlink_first);
            self.child.store(out, pred as usize, sibling);
        } else {
            out.enter(self.code.unlink_previous);
            self.sibling.store(out, previous as usize, sibling);
        }
        pred
    }

    /// Hangs what hung from the leaving arc from the entering one, and gives the former.
    fn rehang(
        &mut self,
        out: &mut impl Emitter,
        enters: &Entering,
        leaving: u32,
        join: u32,
    ) -> u32 {
        out.enter(self.code.rehang);
        let leaves = self.basic.load(out, leaving as usize);
        let size = self.subtree.load(out, leaving as usize);
        let (mut node, mut father, mut covered) = (enters.below, enters.above, 0);
        let (mut arc, mut up, mut flow) = (enters.arc, enters.up, enters.flow);
        let above = loop {
            let pred = self.unlink(out, node);
            out.enter(self.code.link);
            let first = self.child.load(out, father as usize);
            self.sibling.store(out, node as usize, first);
            if first != NONE {
                out.enter(self.code.link_first);
                self.previous.store(out, first as usize, node);
            }
            out.enter(self.code.hang);
            let at = node as usize;
            self.child.store(out, father as usize, node);
            self.pred.store(out, at, father);
            self.previous.store(out, at, NONE);
            let old_up = self.orientation.load(out, at);
            self.orientation.store(out, at, up);
            let old_flow = self.flow.load(out, at);
            self.flow.store(out, at, flow);
            let old_arc = self.basic.load(out, at);
            self.basic.store(out, at, arc);
            let old_size = self.subtree.load(out, at);
            self.subtree.store(out, at, size - covered);
            if node == leaving {
                break pred;
            }
            // The same arc, seen from its other end.
            (arc, up, flow, covered) = (old_arc, !old_up, old_flow, old_size);
            (father, node) = (node, pred);
        };
        self.resize(out, self.code.subtree[0], above, join, -i64::from(size));
        self.resize(out, self.code.subtree[1], enters.above, join, i64::from(size));
        leaves
    }

    /// Adds to the potentials of `top` and all below it.
    fn adjust(&mut self, out: &mut impl Emitter, top: u32, change: i64) {
        out.enter(self.code.adjust);
        let mut node = top;
        loop {
            out.enter(self.code.add);
            let potential = self.potential.load(out, node as usize);
            self.potential.store(out, node as usize, potential + change);
            let mut next = self.child.load(out, node as usize);
            while next == NONE {
                out.enter(self.code.at_top);
                if node == top {
                    return;
                }
                out.enter(self.code.sibling);
                next = self.sibling.load(out, node as usize);
                if next == NONE {
                    out.enter(self.code.up);
                    node = self.pred.load(out, node as usize);
                }
            }
            node = next;
        }
    }

    /// Computes a node's potential anew, and gives the next node.
    fn renew(&mut self, out: &mut impl Emitter, mut node: u32) -> Option<u32> {
        let at = node as usize;
        out.enter(self.code.renew);
        let up = self.orientation.load(out, at);
        let arc = self.basic.load(out, at);
        self.columns.cost.load(out, arc as usize);
        let cost = self.network.arc(u64::from(arc)).2;
        let pred = self.pred.load(out, at);
        let above = self.potential.load(out, pred as usize);
        self.potential.store(out, at, if up { above + cost } else { above - cost });
        let mut next = self.child.load(out, at);
        while next == NONE {
            out.enter(self.code.renew_sibling);
            next = self.sibling.load(out, node as usize);
            if next == NONE {
                out.enter(self.code.renew_up);
                node = self.pred.load(out, node as usize);
                if node == ROOT {
                    out.enter(self.code.renewed);
                    return None;
                }
            }
        }
        Some(next)
    }
}

/// An arc that enters the tree.
struct Entering {
    arc: u32,
    /// Its end in the part that is hung from it, and the other one; whether it leads from that to this.
    below: u32,
    above: u32,
    up: bool,
    flow: u32,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::Native;

    /// Costs of the best schedule: every trip by its own vehicle, less what the deadheads save that the
    /// most valuable matching of ends and starts has, by successive augmenting paths.
    fn matched(network: &Network) -> i64 {
        let trips = network.trips as usize;
        let mut best = vec![vec![0; trips]; trips];
        for arc in 2 * network.trips..network.arcs() {
            let (tail, head, cost) = network.arc(arc);
            let (from, to) = (tail as usize - 1 - trips, head as usize - 1);
            assert!(from < to, "a deadhead leads to a later trip");
            best[from][to] = VEHICLE + 2 * DEPOT_WAY - cost;
        }
        let (mut of_start, mut saved) = (vec![None; trips], 0);
        loop {
            // Most that a path from a free end to each start gains (Bellman and Ford).
            let mut gain = vec![(i64::MIN, 0); trips];
            for from in (0..trips).filter(|from| !of_start.contains(&Some(*from))) {
                for to in (0..trips).filter(|&to| best[from][to] > 0) {
                    gain[to] = gain[to].max((best[from][to], from));
                }
            }
            let mut changed = true;
            while changed {
                changed = false;
                for start in 0..trips {
                    let (Some(from), (value, _)) = (of_start[start], gain[start]) else { continue };
                    for to in (0..trips).filter(|&to| value > i64::MIN && best[from][to] > 0) {
                        let through = value - best[from][start] + best[from][to];
                        if through > gain[to].0 {
                            (gain[to], changed) = ((through, from), true);
                        }
                    }
                }
            }
            let end =
                (0..trips).filter(|&start| of_start[start].is_none()).max_by_key(|&s| gain[s].0);
            let Some(mut start) = end.filter(|&start| gain[start].0 > 0) else { break };
            saved += gain[start].0;
            loop {
                let from = gain[start].1;
                let before = of_start.iter().position(|&other| other == Some(from));
                of_start[start] = Some(from);
                let Some(before) = before else { break };
                start = before;
            }
        }
        network.trips as i64 * (VEHICLE + 2 * DEPOT_WAY) - saved
    }

    #[test]
    fn the_simplex_finds_the_best_schedule() {
        for seed in 1..5 {
            let shape = Shape::of(&Arguments::new(100 << 10, seed));
            let mut simplex = Simplex::new(&shape, Code::new(&mut Assembler::new()), seed);
            while simplex.step(&mut Native) {}
            let cost = |node: usize| {
                simplex.network.arc(u64::from(simplex.basic.values[node])).2
                    * i64::from(simplex.flow.values[node])
            };
            let total: i64 = (1..simplex.pred.values.len()).map(cost).sum();
            assert_eq!(total, matched(&simplex.network));
            assert!(total < shape.trips as i64 * VEHICLE, "deadheads save vehicles");
            assert!(simplex.iterations > shape.trips, "{}", simplex.iterations);
        }
    }

    #[test]
    fn sizes_are_filled_and_deadheads_differ() {
        for size_bytes in [64 << 10, 100_000, 1 << 20, 1668 << 20, 64 << 30] {
            let shape = Shape::of(&Arguments::new(size_bytes, 1));
            let bytes = shape.layout.bytes();
            assert!(bytes <= size_bytes && bytes + 256 > size_bytes, "{bytes} {size_bytes}");
            assert!(shape.deadheads <= shape.trips * (shape.trips - 1) / 2);
            let network = Network { trips: shape.trips, deadheads: shape.deadheads, seed: 1 };
            let ends = |arc| network.arc(arc);
            let first = 2 * shape.trips;
            let pairs: Vec<_> = (first..network.arcs().min(first + 10_000)).map(ends).collect();
            assert!(pairs.is_sorted_by(|a, b| (a.1, a.0) < (b.1, b.0)));
        }
    }
}
