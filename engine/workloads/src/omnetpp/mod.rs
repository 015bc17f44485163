//! `omnetpp`: discrete-event simulation of a switched Ethernet, as SPEC CPU2006's 471.omnetpp runs it.
//!
//! Source: Varga, "The OMNeT++ discrete event simulation system", European Simulation Multiconference
//! 2001, and the kernel of version 3 that it became: events are messages on malloc's heap; the future ones
//! are a binary heap of pointers to them, by time and then by order of insertion, and each message knows
//! its place there. A handler is called through its module's table of methods; a message that a module
//! sends follows a chain of gates to the next module, which gets it as an event.
//!
//! ```text
//! module   per host or switch 2112 bytes: itself 512, table or application 512, and its port upwards:
//!          640 and gates 4 x 112; of a switch 1088 bytes for each other port, one after another
//! message  256 bytes: times, order, place in the heap, modules, addresses, length
//! element  32 bytes: of a port's queue
//! event    8 bytes: pointer in the heap
//! ```
//!
//! Hosts hang from switches of 16 ports, those from others, up to one. A host makes a frame of 64 to 1500
//! bytes on average every hundredfold of the time that it takes; seven of eight stay within the lowest
//! switch, of the rest seven of eight within the one above, and so on. A frame passes generator, port,
//! line, port, relay, …, sink, each by an event. 100 Mbit/s. Departs from it: classes have about the sizes
//! of OMNeT++'s, not theirs; a switch knows from the start where addresses are, in a table that it searches;
//! no collisions, no names, no lists of owners; work that does not touch the modules is a number of
//! instructions.
//!
//! This process's memory holds the heap and what messages say.

mod code;

use std::collections::VecDeque;

use flatwalk_trace::Source;

use crate::program::Assembler;
use crate::rng::Random;
use crate::simulated::{Algorithm, Array, Column, Emitter, Layout, Native, Records, program};
use crate::{ARRAY_ORDER, Arguments, Description, Parameter, SEED};
use code::{Code, NEW_FIELDS};

pub(crate) const DESCRIPTION: Description = crate::describe(
    "omnetpp",
    "discrete-event simulation of an Ethernet, as 471.omnetpp: a heap of pointers to messages, and \
     modules all over the memory",
    64 << 30,
    &[
        Parameter {
            name: "size_bytes",
            description: "modules and messages, in bytes: 64 KiB to 64 GiB (takes a thirtieth as much \
                          memory)",
        },
        SEED,
        ARRAY_ORDER,
    ],
    make,
);

/// Ports of a switch to what is below it.
const PORTS: u64 = 16;
const NODE_BYTES: u64 = 512 + 512 + PORT_BYTES;
const PORT_BYTES: u64 = 640 + GATES * GATE_BYTES;
const GATE_BYTES: u64 = 112;
const MESSAGE_BYTES: u64 = 256;
const ELEMENT_BYTES: u64 = 32;
/// Where table and port are in a node.
const TABLE: u64 = 512;
const PORT: u64 = 1024;
/// Gates of a port: two are passed at either end of a line.
const GATES: u64 = 4;
/// One frame in flight for so many hosts, and at least so many.
const HOSTS_A_FRAME: u64 = 8;
const LEAST_FRAMES: u64 = 64;
/// Events for each host.
const EVENTS: u64 = 200;
/// Nanoseconds: of a byte, of a line, between frames, and on average between a host's frames.
const BYTE: u64 = 80;
const LINE: u64 = 50;
const GAP: u64 = 960;
const INTERVAL: f64 = 100.0 * 80.0 * 782.0;
/// One frame in this many leaves a switch upwards.
const UPWARDS: u64 = 8;

fn make(arguments: &Arguments) -> Box<dyn Source> {
    let shape = Shape::of(arguments);
    let seed = arguments.seed;
    let mut assembler = Assembler::new();
    let code = Code::new(&mut assembler);
    let layout = shape.layout.clone();
    let build = move || Simulation::new(&shape, code, seed);
    program(DESCRIPTION.name, arguments, &layout, assembler, build)
}

/// Hosts and switches: those of level 0 are hosts, and 16 of a level hang from one of the next.
#[derive(Clone)]
struct Tree {
    /// Where each level's nodes begin, and their end.
    levels: Vec<u64>,
}

impl Tree {
    fn new(hosts: u64) -> Self {
        let (mut levels, mut level) = (vec![0, hosts], hosts);
        while level > 1 {
            level = level.div_ceil(PORTS);
            levels.push(levels[levels.len() - 1] + level);
        }
        Self { levels }
    }

    fn hosts(&self) -> u64 {
        self.levels[1]
    }

    fn nodes(&self) -> u64 {
        self.levels[self.levels.len() - 1]
    }

    fn level(&self, node: u64) -> usize {
        self.levels.partition_point(|&begin| begin <= node) - 1
    }

    fn parent(&self, node: u64) -> u64 {
        let level = self.level(node);
        self.levels[level + 1] + (node - self.levels[level]) / PORTS
    }

    /// The port through which `node` reaches a host. Port 2n is that of node n to its parent, and 2n + 1
    /// the parent's to it.
    fn port(&self, node: u64, host: u64) -> u64 {
        let level = self.level(node);
        let below = host / PORTS.pow(level as u32 - 1);
        if below / PORTS == node - self.levels[level] {
            2 * (self.levels[level - 1] + below) + 1
        } else {
            2 * node
        }
    }

    fn node_of(&self, port: u64) -> u64 {
        if port.is_multiple_of(2) { port / 2 } else { self.parent(port / 2) }
    }

    /// The host that a frame of `host` goes to.
    fn draw(&self, random: &mut Random, host: u64) -> u64 {
        let mut size = PORTS;
        while size < self.hosts() && random.below(UPWARDS) == 0 {
            size *= PORTS;
        }
        loop {
            let base = host / size * size;
            let count = size.min(self.hosts() - base);
            if count > 1 {
                let other = base + random.below(count - 1);
                return if other < host { other } else { other + 1 };
            }
            size *= PORTS;
        }
    }
}

struct Shape {
    tree: Tree,
    frames: u64,
    layout: Layout,
    columns: Columns,
}

#[derive(Clone, Copy)]
struct Columns {
    heap: Column,
    /// Of messages.
    time: Column,
    order: Column,
    place: Column,
    module: Column,
    length: Column,
    destination: Column,
    word: Column,
    /// Of elements: the next in the bin, the frame, the next in the queue.
    element: [Column; 3],
    /// Of nodes.
    methods: Column,
    counter: Column,
    word_of_node: Column,
    /// Ports upwards and downwards.
    ports: [Port; 2],
    /// What malloc knows: the first free chunk of either size, and where unused ones begin.
    bins: Column,
    method: Column,
}

/// Fields of ports.
#[derive(Clone, Copy)]
struct Port {
    methods: Column,
    counter: Column,
    sends: Column,
    first: Column,
    last: Column,
    gates: [Column; GATES as usize],
}

impl Port {
    fn new(records: Records, offset: u64) -> Self {
        let field = |at| records.field(offset + at, 8);
        Self {
            methods: field(0),
            counter: field(192),
            sends: field(200),
            first: field(272),
            last: field(280),
            gates: std::array::from_fn(|gate| field(640 + gate as u64 * GATE_BYTES + 64)),
        }
    }
}

/// Nodes, messages and frames for so many hosts.
fn counts(hosts: u64) -> (u64, u64, u64) {
    let nodes = Tree::new(hosts).nodes();
    let frames = (hosts / HOSTS_A_FRAME).max(LEAST_FRAMES);
    (nodes, 2 * nodes + hosts + frames, frames)
}

impl Shape {
    fn of(arguments: &Arguments) -> Self {
        let fits = |hosts: u64| {
            let (nodes, messages, frames) = counts(hosts);
            let bytes = nodes * (NODE_BYTES + PORT_BYTES) + messages * (MESSAGE_BYTES + 8);
            bytes + frames * ELEMENT_BYTES + 256 <= arguments.size_bytes
        };
        let (mut hosts, mut step) = (2, arguments.size_bytes.next_power_of_two() / NODE_BYTES);
        while step > 0 {
            if fits(hosts + step) {
                hosts += step;
            }
            step /= 2;
        }
        let (nodes, messages, frames) = counts(hosts);
        let mut layout = Layout::new(arguments);
        let heap = layout.array(messages, 8);
        let bins = layout.objects(4, 8).field(0, 8);
        let method = layout.objects(8, 8).field(0, 8);
        let (node, down) = (layout.objects(nodes, NODE_BYTES), layout.objects(nodes, PORT_BYTES));
        let message = layout.objects(messages, MESSAGE_BYTES);
        let element = layout.objects(frames, ELEMENT_BYTES);
        let columns = Columns {
            heap,
            time: message.field(128, 8),
            order: message.field(136, 8),
            place: message.field(144, 4),
            module: message.field(96, 8),
            length: message.field(56, 8),
            destination: message.field(208, 8),
            word: message.split(8),
            element: [0, 16, 24].map(|offset| element.field(offset, 8)),
            methods: node.field(0, 8),
            counter: node.field(192, 8),
            word_of_node: node.split(8),
            ports: [Port::new(node, PORT), Port::new(down, 0)],
            bins,
            method,
        };
        Self { tree: Tree::new(hosts), frames, layout, columns }
    }
}

/// What happens to a module when it gets a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A host's generator makes a frame.
    Timer,
    /// A port gets a frame to send.
    Output,
    /// It has sent one.
    Transmitted,
    /// It gets one from the line.
    Arrive,
    /// A switch's relay gets one.
    Relay,
    /// A host gets one.
    Deliver,
}

#[derive(Clone, Copy)]
struct Message {
    time: u64,
    order: u64,
    /// A host, a port or a switch.
    module: u32,
    kind: Kind,
    /// Of frames.
    length: u16,
    destination: u32,
    made: u64,
}

const BLANK: Message =
    Message { time: 0, order: 0, module: 0, kind: Kind::Timer, length: 0, destination: 0, made: 0 };

/// Chunks of one size: those freed, the last one first, and how many were never used.
struct Bin {
    freed: Vec<u32>,
    used: u32,
    all: u32,
}

struct Simulation {
    code: Code,
    columns: Columns,
    tree: Tree,
    random: Random,
    /// Messages: of each port that it has sent, of each host's timer, then frames.
    messages: Vec<Message>,
    heap: Array<u32>,
    /// Frames that wait at each port, with the elements of its queue, and whether it sends.
    queues: Vec<(VecDeque<(u32, u32)>, bool)>,
    frames: Bin,
    elements: Bin,
    now: u64,
    order: u64,
    events_left: u64,
    /// The answer: frames delivered, time that they took in nanoseconds, and frames without memory.
    delivered: u64,
    delay: u64,
    refused: u64,
}

impl Simulation {
    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let tree = shape.tree.clone();
        let (hosts, ports) = (tree.hosts(), 2 * tree.nodes());
        let messages = (ports + hosts + shape.frames) as usize;
        let bin = || Bin { freed: Vec::new(), used: 0, all: shape.frames as u32 };
        let mut simulation = Self {
            code,
            columns: shape.columns,
            random: Random::new(seed, 0),
            messages: vec![BLANK; messages],
            heap: shape.columns.heap.holding(Vec::with_capacity(messages)),
            queues: (0..ports).map(|_| (VecDeque::new(), false)).collect(),
            frames: bin(),
            elements: bin(),
            now: 0,
            order: 0,
            events_left: EVENTS * hosts,
            delivered: 0,
            delay: 0,
            refused: 0,
            tree,
        };
        for host in 0..hosts {
            let time = interval(&mut simulation.random);
            simulation.schedule(&mut Native, (ports + host) as u32, Kind::Timer, host, time);
        }
        simulation
    }

    /// The number of the first frame among the messages.
    fn frames_begin(&self) -> u32 {
        (2 * self.tree.nodes() + self.tree.hosts()) as u32
    }

    fn key(&self, message: u32) -> (u64, u64) {
        let Message { time, order, .. } = self.messages[message as usize];
        (time, order)
    }

    /// Puts a message into the heap.
    fn schedule(&mut self, out: &mut impl Emitter, event: u32, kind: Kind, module: u64, time: u64) {
        out.enter(self.code.schedule);
        self.columns.time.store(out, event as usize);
        self.columns.module.store(out, event as usize);
        self.columns.order.store(out, event as usize);
        let message = &mut self.messages[event as usize];
        (message.time, message.order) = (time, self.order);
        (message.kind, message.module) = (kind, module as u32);
        self.order += 1;
        let mut at = self.heap.values.len();
        self.heap.values.push(event);
        while at > 0 {
            out.enter(self.code.parent);
            let parent = self.heap.load(out, (at - 1) / 2);
            self.columns.time.load(out, parent as usize);
            if self.key(parent) <= self.key(event) {
                break;
            }
            out.enter(self.code.lower);
            self.heap.store(out, at, parent);
            self.columns.place.store(out, parent as usize);
            at = (at - 1) / 2;
        }
        out.enter(self.code.placed);
        self.heap.store(out, at, event);
        self.columns.place.store(out, event as usize);
    }

    /// Takes the first message from the heap.
    fn first(&mut self, out: &mut impl Emitter) -> u32 {
        out.enter(self.code.first);
        let event = self.heap.load(out, 0);
        let count = self.heap.values.len() - 1;
        let last = self.heap.load(out, count);
        self.columns.time.load(out, last as usize);
        let mut at = 0;
        loop {
            out.enter(self.code.sink);
            let child = 2 * at + 1;
            if child >= count {
                break;
            }
            out.enter(self.code.children);
            // Where there is one child only, the last message stands in for the other.
            let pair = [self.heap.load(out, child), self.heap.load(out, child + 1)];
            let keys = pair.map(|message| {
                self.columns.time.load(out, message as usize);
                self.key(message)
            });
            if keys[0].0 == keys[1].0 {
                out.enter(self.code.tie);
                for message in pair {
                    self.columns.order.load(out, message as usize);
                }
            }
            out.enter(self.code.compare);
            let side = usize::from(keys[1] < keys[0]);
            if self.key(last) <= keys[side] {
                break;
            }
            out.enter(self.code.rise);
            self.heap.store(out, at, pair[side]);
            self.columns.place.store(out, pair[side] as usize);
            at = child + side;
        }
        out.enter(self.code.sunk);
        self.heap.store(out, at, last);
        self.columns.place.store(out, last as usize);
        self.heap.values.pop();
        event
    }

    /// A chunk, by its number among those of its size.
    fn allocate(&mut self, out: &mut impl Emitter, size: Size) -> u32 {
        let columns = self.columns;
        let (malloc, bin) = match size {
            Size::Message => (&self.code.new_message, &mut self.frames),
            Size::Element => (&self.code.new_element, &mut self.elements),
        };
        out.enter(malloc.bin);
        columns.bins.load(out, size as usize);
        let freed = bin.freed.pop();
        let chunk = freed.unwrap_or(bin.used);
        if freed.is_some() {
            out.enter(malloc.pop);
        } else {
            out.enter(malloc.top);
            bin.used += 1;
            columns.bins.load(out, TOP);
        }
        let (column, index) = self.chunk(size, chunk);
        if freed.is_some() {
            column.load(out, index);
            columns.bins.store(out, size as usize);
        } else {
            columns.bins.store(out, TOP);
            column.store(out, index);
        }
        chunk
    }

    fn free(&mut self, out: &mut impl Emitter, size: Size, chunk: u32) {
        let (block, bin) = match size {
            Size::Message => (self.code.free_message, &mut self.frames),
            Size::Element => (self.code.free_element, &mut self.elements),
        };
        bin.freed.push(chunk);
        out.enter(block);
        self.columns.bins.load(out, size as usize);
        let (column, index) = self.chunk(size, chunk);
        column.store(out, index);
        self.columns.bins.store(out, size as usize);
    }

    /// The first word of a chunk.
    fn chunk(&self, size: Size, chunk: u32) -> (Column, usize) {
        match size {
            Size::Message => {
                let message = self.frames_begin() + chunk;
                (self.columns.word, message as usize * (MESSAGE_BYTES / 8) as usize)
            }
            Size::Element => (self.columns.element[0], chunk as usize),
        }
    }

    fn port(&self, port: u64) -> (Port, usize) {
        (self.columns.ports[(port % 2) as usize], (port / 2) as usize)
    }

    /// Calls the module's handler.
    fn handle(&mut self, out: &mut impl Emitter, event: u32) {
        let Message { kind, module, time, .. } = self.messages[event as usize];
        let module = u64::from(module);
        self.now = time;
        out.enter(self.code.dispatch);
        self.columns.time.load(out, event as usize);
        self.columns.module.load(out, event as usize);
        if matches!(kind, Kind::Timer | Kind::Relay | Kind::Deliver) {
            self.columns.methods.load(out, module as usize);
        } else {
            let (port, index) = self.port(module);
            port.methods.load(out, index);
        }
        self.columns.method.load(out, kind as usize);
        match kind {
            Kind::Timer => self.timer(out, event, module),
            Kind::Output => self.output(out, event, module),
            Kind::Transmitted => self.transmitted(out, module),
            Kind::Arrive => self.arrive(out, event, module),
            Kind::Relay => self.relay(out, event, module),
            Kind::Deliver => self.deliver(out, event, module),
        }
    }

    /// Makes a frame, and sets the timer again.
    fn timer(&mut self, out: &mut impl Emitter, event: u32, host: u64) {
        out.enter(self.code.timer);
        self.columns.counter.load(out, host as usize);
        let (destination, length) = frame(&mut self.random, &self.tree, host);
        if self.frames.freed.is_empty() && self.frames.used == self.frames.all {
            self.refused += 1;
        } else {
            out.enter(self.code.make);
            let chunk = self.allocate(out, Size::Message);
            let message = self.frames_begin() + chunk;
            out.enter(self.code.fill);
            let first = message as usize * (MESSAGE_BYTES / 8) as usize;
            (0..NEW_FIELDS).for_each(|field| self.columns.word.store(out, first + field));
            let frame = &mut self.messages[message as usize];
            (frame.destination, frame.length) = (destination as u32, length as u16);
            frame.made = self.now;
            self.schedule(out, message, Kind::Output, 2 * host, self.now);
        }
        out.enter(self.code.again);
        self.columns.counter.load(out, host as usize);
        self.columns.counter.store(out, host as usize);
        let time = self.now + interval(&mut self.random);
        self.schedule(out, event, Kind::Timer, host, time);
        out.enter(self.code.timer_end);
    }

    /// Sends a frame, or lets it wait.
    fn output(&mut self, out: &mut impl Emitter, frame: u32, number: u64) {
        let (port, index) = self.port(number);
        out.enter(self.code.output);
        port.sends.load(out, index);
        if self.queues[number as usize].1 {
            out.enter(self.code.enqueue);
            let element = self.allocate(out, Size::Element);
            out.enter(self.code.enqueue_end);
            port.last.load(out, index);
            let [_, of_frame, next] = self.columns.element;
            of_frame.store(out, element as usize);
            next.store(out, element as usize);
            let queue = &mut self.queues[number as usize].0;
            match queue.back() {
                Some(&(_, last)) => next.store(out, last as usize),
                None => port.first.store(out, index),
            }
            port.last.store(out, index);
            queue.push_back((frame, element));
        } else {
            out.enter(self.code.output_start);
            self.start(out, frame, number);
            out.enter(self.code.output_end);
        }
    }

    fn start(&mut self, out: &mut impl Emitter, frame: u32, number: u64) {
        let (port, index) = self.port(number);
        self.queues[number as usize].1 = true;
        out.enter(self.code.start);
        self.columns.length.load(out, frame as usize);
        let taken = u64::from(self.messages[frame as usize].length) * BYTE;
        port.sends.store(out, index);
        port.gates[0].load(out, index);
        out.enter(self.code.send);
        let other = self.port(number ^ 1).0;
        for gate in [port.gates[1], other.gates[2], other.gates[3]] {
            out.enter(self.code.gate);
            gate.load(out, index);
        }
        out.enter(self.code.sent);
        out.enter(self.code.start_arrival);
        self.schedule(out, frame, Kind::Arrive, number ^ 1, self.now + taken + LINE);
        out.enter(self.code.start_end);
        self.schedule(out, number as u32, Kind::Transmitted, number, self.now + taken + GAP);
        out.enter(self.code.started);
    }

    /// The next frame that waits is sent.
    fn transmitted(&mut self, out: &mut impl Emitter, number: u64) {
        let (port, index) = self.port(number);
        out.enter(self.code.transmitted);
        port.counter.load(out, index);
        port.counter.store(out, index);
        port.first.load(out, index);
        let Some((frame, element)) = self.queues[number as usize].0.pop_front() else {
            out.enter(self.code.idle);
            port.sends.store(out, index);
            self.queues[number as usize].1 = false;
            return;
        };
        out.enter(self.code.dequeue);
        let [_, of_frame, next] = self.columns.element;
        of_frame.load(out, element as usize);
        next.load(out, element as usize);
        port.first.store(out, index);
        self.free(out, Size::Element, element);
        out.enter(self.code.dequeued);
        self.start(out, frame, number);
        out.enter(self.code.next_started);
    }

    fn arrive(&mut self, out: &mut impl Emitter, frame: u32, number: u64) {
        let (port, index) = self.port(number);
        out.enter(self.code.arrive);
        self.columns.length.load(out, frame as usize);
        port.counter.load(out, index);
        port.counter.store(out, index);
        let node = self.tree.node_of(number);
        let kind = if node < self.tree.hosts() { Kind::Deliver } else { Kind::Relay };
        self.schedule(out, frame, kind, node, self.now);
        out.enter(self.code.arrived);
    }

    /// Finds the port by binary search in the table.
    fn relay(&mut self, out: &mut impl Emitter, frame: u32, switch: u64) {
        out.enter(self.code.relay);
        self.columns.destination.load(out, frame as usize);
        let port = self.tree.port(switch, u64::from(self.messages[frame as usize].destination));
        // The destination's place among the switch's ports.
        let below = port / 2;
        let slot = (below - self.tree.levels[self.tree.level(below)]) % PORTS;
        let (mut low, mut size) = (0, PORTS);
        while size > 1 {
            out.enter(self.code.search);
            size /= 2;
            let entry = switch * NODE_BYTES / 8 + low + size;
            self.columns.word_of_node.load(out, (entry + TABLE / 8) as usize);
            if port % 2 == 1 && slot >= low + size {
                low += size;
            }
        }
        out.enter(self.code.relay_on);
        self.schedule(out, frame, Kind::Output, port, self.now);
        out.enter(self.code.relayed);
    }

    fn deliver(&mut self, out: &mut impl Emitter, frame: u32, host: u64) {
        out.enter(self.code.deliver);
        self.columns.time.load(out, frame as usize);
        self.columns.counter.load(out, host as usize);
        self.columns.counter.store(out, host as usize);
        self.delivered += 1;
        self.delay += self.now - self.messages[frame as usize].made;
        let chunk = frame - self.frames_begin();
        self.free(out, Size::Message, chunk);
        out.enter(self.code.delivered);
    }
}

/// What malloc gives out.
#[derive(Clone, Copy)]
enum Size {
    Message,
    Element,
}

/// Number of the word that says where unused memory begins.
const TOP: usize = 2;

/// Nanoseconds until a host's next frame: exponentially distributed.
fn interval(random: &mut Random) -> u64 {
    (-INTERVAL * (1.0 - random.unit()).ln()) as u64
}

/// Destination and length of a host's frame.
fn frame(random: &mut Random, tree: &Tree, host: u64) -> (u64, u64) {
    (tree.draw(random, host), 64 + random.below(1500 - 64 + 1))
}

impl Algorithm for Simulation {
    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if self.events_left == 0 {
            return false;
        }
        self.events_left -= 1;
        let event = self.first(out);
        self.handle(out, event);
        out.enter(self.code.handled);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The same network, simulated with an ordered map of events and a frame as a value.
    fn simulated(tree: &Tree, events: u64, seed: u64) -> (u64, u64) {
        #[derive(Clone)]
        enum Event {
            Frame { host: u64 },
            Out { port: u64, to: u64, length: u64, made: u64 },
            Free { port: u64 },
            In { port: u64, to: u64, length: u64, made: u64 },
            Route { node: u64, to: u64, length: u64, made: u64 },
        }
        let (mut random, mut future, mut number) = (Random::new(seed, 0), BTreeMap::new(), 0);
        let mut at = |future: &mut BTreeMap<_, _>, time: u64, event: Event| {
            number += 1;
            future.insert((time, number), event);
        };
        for host in 0..tree.hosts() {
            at(&mut future, interval(&mut random), Event::Frame { host });
        }
        let mut waiting: BTreeMap<u64, VecDeque<(u64, u64, u64)>> = BTreeMap::new();
        let (mut delivered, mut delay) = (0, 0);
        for _ in 0..events {
            let ((now, _), event) = future.pop_first().unwrap();
            match event {
                Event::Frame { host } => {
                    let (to, length) = frame(&mut random, tree, host);
                    at(&mut future, now, Event::Out { port: 2 * host, to, length, made: now });
                    at(&mut future, now + interval(&mut random), Event::Frame { host });
                }
                Event::Out { port, to, length, made } => {
                    if let Some(queue) = waiting.get_mut(&port) {
                        queue.push_back((to, length, made));
                    } else {
                        waiting.insert(port, VecDeque::new());
                        let time = now + length * BYTE;
                        at(
                            &mut future,
                            time + LINE,
                            Event::In { port: port ^ 1, to, length, made },
                        );
                        at(&mut future, time + GAP, Event::Free { port });
                    }
                }
                Event::Free { port } => {
                    let queue = waiting.get_mut(&port).unwrap();
                    if let Some((to, length, made)) = queue.pop_front() {
                        let time = now + length * BYTE;
                        at(
                            &mut future,
                            time + LINE,
                            Event::In { port: port ^ 1, to, length, made },
                        );
                        at(&mut future, time + GAP, Event::Free { port });
                    } else {
                        waiting.remove(&port);
                    }
                }
                Event::In { port, to, length, made } => {
                    let node = tree.node_of(port);
                    at(&mut future, now, Event::Route { node, to, length, made });
                }
                Event::Route { node, to, made, .. } if node == to => {
                    delivered += 1;
                    delay += now - made;
                }
                Event::Route { node, to, length, made } => {
                    // The child whose hosts include the destination, else upwards.
                    let above = |mut host: u64, level| {
                        while tree.level(host) < level {
                            host = tree.parent(host);
                        }
                        host
                    };
                    let level = tree.level(node);
                    let down = above(to, level) == node;
                    let port = if down { 2 * above(to, level - 1) + 1 } else { 2 * node };
                    at(&mut future, now, Event::Out { port, to, length, made });
                }
            }
        }
        (delivered, delay)
    }

    #[test]
    fn frames_arrive_when_an_ordered_map_of_events_says() {
        for size_bytes in [64 << 10, 300 << 10, 2 << 20] {
            let shape = Shape::of(&Arguments::new(size_bytes, 1));
            let mut simulation = Simulation::new(&shape, Code::new(&mut Assembler::new()), 1);
            let events = simulation.events_left;
            while simulation.step(&mut Native) {}
            let found = (simulation.delivered, simulation.delay);
            assert_eq!(found, simulated(&shape.tree, events, 1));
            assert!(simulation.delivered > 10 * shape.tree.hosts() && simulation.refused == 0);
        }
    }

    #[test]
    fn sizes_are_filled_and_every_host_is_reached() {
        for size_bytes in [64 << 10, 1 << 20, 170 << 20, 64 << 30] {
            let shape = Shape::of(&Arguments::new(size_bytes, 1));
            let bytes = shape.layout.bytes();
            assert!(bytes <= size_bytes && bytes + 20_000 > size_bytes, "{bytes} {size_bytes}");
            let (tree, mut random) = (&shape.tree, Random::new(1, 0));
            for _ in 0..100 {
                let host = random.below(tree.hosts());
                let (to, mut node) = (tree.draw(&mut random, host), host);
                assert_ne!(to, host);
                let mut hops = 0;
                while node != to {
                    let port =
                        if node == host && hops == 0 { 2 * host } else { tree.port(node, to) };
                    node = tree.node_of(port ^ 1);
                    hops += 1;
                    assert!(hops < 20, "the way ends");
                }
            }
        }
    }
}
