//! `omnetpp`: discrete-event simulation of a switched Ethernet, as SPEC CPU2006's 471.omnetpp runs it.
//!
//! Source: Varga, "The OMNeT++ discrete event simulation system", European Simulation Multiconference
//! 2001, and the kernel of version 3 that it became: events are messages on malloc's heap; the future ones
//! are a binary heap of pointers to them, by time and then by order of insertion, and each message knows
//! its place there. A handler is called through its module's table of methods; a message that a module
//! sends follows a chain of gates to the next module, which gets it as an event.
//!
//! ```text
//! host     2624 bytes: itself 512, application 512, port upwards, message of its timer
//! switch   2368 bytes: itself 512, table 512, port upwards; then a port for each host or switch below
//! port     1344 bytes: itself 640, gates 4 x 112, message that it has sent
//! message  256 bytes: times, order, place in the heap, modules, addresses, length
//! element  32 bytes: of a port's queue
//! event    8 bytes: pointer in the heap
//! ```
//!
//! The network is built module by module, so that on malloc's heap all objects of a host or switch lie
//! together: hosts, the switches above them, and so on. Frames come after the network.
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
mod handlers;
mod network;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use flatwalk_trace::Source;

use crate::rng::Random;
use crate::simulated::{Algorithm, Array, Column, Emitter, Layout, Native, program};
use crate::{ARRAY_ORDER, Arguments, Description, Parameter, SEED};
use code::{Code, NEW_FIELDS};
use network::{Tree, interval};

pub(crate) const DESCRIPTION: Description = crate::describe(
    "omnetpp",
    "discrete-event simulation of an Ethernet, as 471.omnetpp: a heap of pointers to messages, and \
     modules all over the memory",
    64 << 30,
    &[
        Parameter {
            name: "size_bytes",
            description: "modules and messages, in bytes: 64 KiB to 64 GiB (takes a fifteenth as much \
                          memory)",
        },
        SEED,
        ARRAY_ORDER,
    ],
    make,
);

/// Ports of a switch to what is below it.
const PORTS: u64 = 16;
/// A host or switch with its port upwards; then a host's timer, or a switch's ports downwards.
const NODE_BYTES: u64 = PORT + PORT_BYTES;
const HOST_BYTES: u64 = NODE_BYTES + MESSAGE_BYTES;
const SWITCH_BYTES: u64 = NODE_BYTES + PORTS * PORT_BYTES;
/// A port with its gates, and with the message that says when it is free again.
const PORT_BYTES: u64 = PORT_MESSAGE + MESSAGE_BYTES;
const PORT_MESSAGE: u64 = 640 + 4 * GATE_BYTES;
const GATE_BYTES: u64 = 112;
const MESSAGE_BYTES: u64 = 256;
const ELEMENT_BYTES: u64 = 32;
/// Where table and port are in a node.
const TABLE: u64 = 512;
const PORT: u64 = 1024;
/// Fields of modules: methods, and counters.
const METHODS: u64 = 0;
const COUNTER: u64 = 192;
/// Of ports: whether one sends, and the ends of its queue.
const SENDS: u64 = 200;
const FIRST: u64 = 272;
const LAST: u64 = 280;
/// Of messages.
const LENGTH: u64 = 56;
const MODULE: u64 = 96;
const TIME: u64 = 128;
const ORDER: u64 = 136;
const PLACE: u64 = 144;
const DESTINATION: u64 = 208;
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
    program(DESCRIPTION.name, arguments, shape.layout.mappings(), Code::new, move |code| {
        Simulation::new(&shape, code, seed)
    })
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
    /// The network and the frames after it, in words of 8 bytes; and their lower halves.
    words: Column,
    halves: Column,
    /// Of elements: the next in the bin, the frame, the next in the queue.
    element: [Column; 3],
    /// What malloc knows: the first free chunk of either size, and where unused ones begin.
    bins: Column,
    method: Column,
}

impl Columns {
    /// Loads a field of the object that begins `object` bytes after the network's first.
    fn load(&self, out: &mut impl Emitter, object: u64, field: u64) {
        self.words.load(out, ((object + field) / 8) as usize);
    }

    fn store(&self, out: &mut impl Emitter, object: u64, field: u64) {
        self.words.store(out, ((object + field) / 8) as usize);
    }
}

/// Where the field is by which a port knows a gate, which is where the gate says what follows it.
const fn gate(number: u64) -> u64 {
    640 + number * GATE_BYTES + 64
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
            let network = nodes * (NODE_BYTES + PORT_BYTES) + hosts * MESSAGE_BYTES;
            let frames = frames * (MESSAGE_BYTES + ELEMENT_BYTES);
            network + frames + 8 * messages + 256 <= arguments.size_bytes
        };
        let (mut hosts, mut step) = (2, arguments.size_bytes.next_power_of_two() / NODE_BYTES);
        while step > 0 {
            if fits(hosts + step) {
                hosts += step;
            }
            step /= 2;
        }
        let (_, messages, frames) = counts(hosts);
        let tree = Tree::new(hosts);
        let mut layout = Layout::new(arguments);
        let heap = layout.array(messages, 8);
        let bins = layout.objects(4, 8).field(0, 8);
        let method = layout.objects(8, 8).field(0, 8);
        let memory = layout.objects((tree.bytes() + frames * MESSAGE_BYTES) / 8, 8);
        let element = layout.objects(frames, ELEMENT_BYTES);
        let columns = Columns {
            heap,
            words: memory.field(0, 8),
            halves: memory.field(0, 4),
            element: [0, 16, 24].map(|offset| element.field(offset, 8)),
            bins,
            method,
        };
        Self { tree, frames, layout, columns }
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
    /// Where it lies, in units of 16 bytes from the network's first object on.
    at: u32,
    /// A host, a port or a switch.
    module: u32,
    kind: Kind,
    /// Of frames.
    length: u16,
    destination: u32,
    made: u64,
}

impl Message {
    /// A message that lies so many bytes after the network's first object.
    fn new(bytes: u64) -> Self {
        Self {
            time: 0,
            order: 0,
            at: (bytes / 16) as u32,
            module: 0,
            kind: Kind::Timer,
            length: 0,
            destination: 0,
            made: 0,
        }
    }
}

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
        let messages: Vec<_> = (0..ports)
            .map(|port| tree.port_at(port) + PORT_MESSAGE)
            .chain((0..hosts).map(|host| tree.node_at(host) + NODE_BYTES))
            .chain((0..shape.frames).map(|frame| tree.bytes() + frame * MESSAGE_BYTES))
            .map(Message::new)
            .collect();
        let bin = || Bin { freed: Vec::new(), used: 0, all: shape.frames as u32 };
        let mut simulation = Self {
            code,
            columns: shape.columns,
            random: Random::new(seed, 0),
            heap: shape.columns.heap.holding(Vec::with_capacity(messages.len())),
            messages,
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

    /// Where a message lies.
    fn message_at(&self, message: u32) -> u64 {
        16 * u64::from(self.messages[message as usize].at)
    }

    fn load(&self, out: &mut impl Emitter, message: u32, field: u64) {
        self.columns.load(out, self.message_at(message), field);
    }

    fn store(&self, out: &mut impl Emitter, message: u32, field: u64) {
        self.columns.store(out, self.message_at(message), field);
    }

    fn store_place(&self, out: &mut impl Emitter, message: u32) {
        self.columns.halves.store(out, ((self.message_at(message) + PLACE) / 8) as usize);
    }

    fn key(&self, message: u32) -> (u64, u64) {
        let Message { time, order, .. } = self.messages[message as usize];
        (time, order)
    }

    /// Puts a message into the heap.
    fn schedule(&mut self, out: &mut impl Emitter, event: u32, kind: Kind, module: u64, time: u64) {
        out.enter(self.code.schedule);
        self.store(out, event, TIME);
        self.store(out, event, MODULE);
        self.store(out, event, ORDER);
        let message = &mut self.messages[event as usize];
        (message.time, message.order) = (time, self.order);
        (message.kind, message.module) = (kind, module as u32);
        self.order += 1;
        let mut at = self.heap.values.len();
        self.heap.values.push(event);
        while at > 0 {
            out.enter(self.code.parent);
            let parent = self.heap.load(out, (at - 1) / 2);
            self.load(out, parent, TIME);
            if self.key(parent) <= self.key(event) {
                break;
            }
            out.enter(self.code.lower);
            self.heap.store(out, at, parent);
            self.store_place(out, parent);
            at = (at - 1) / 2;
        }
        out.enter(self.code.placed);
        self.heap.store(out, at, event);
        self.store_place(out, event);
    }

    /// Takes the first message from the heap.
    fn first(&mut self, out: &mut impl Emitter) -> u32 {
        out.enter(self.code.first);
        let event = self.heap.load(out, 0);
        let count = self.heap.values.len() - 1;
        let last = self.heap.load(out, count);
        self.load(out, last, TIME);
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
                self.load(out, message, TIME);
                self.key(message)
            });
            if keys[0].0 == keys[1].0 {
                out.enter(self.code.tie);
                for message in pair {
                    self.load(out, message, ORDER);
                }
            }
            out.enter(self.code.compare);
            let side = usize::from(keys[1] < keys[0]);
            if self.key(last) <= keys[side] {
                break;
            }
            out.enter(self.code.rise);
            self.heap.store(out, at, pair[side]);
            self.store_place(out, pair[side]);
            at = child + side;
        }
        out.enter(self.code.sunk);
        self.heap.store(out, at, last);
        self.store_place(out, last);
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
                (self.columns.words, (self.message_at(message) / 8) as usize)
            }
            Size::Element => (self.columns.element[0], chunk as usize),
        }
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
