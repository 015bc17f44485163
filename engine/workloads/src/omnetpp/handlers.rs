//! What modules do with their messages.

use super::network::{frame, interval};
use super::{
    BYTE, COUNTER, DESTINATION, FIRST, GAP, Kind, LAST, LENGTH, LINE, METHODS, MODULE, Message,
    NEW_FIELDS, PORTS, SENDS, Simulation, Size, TABLE, TIME, gate,
};
use crate::simulated::Emitter;

impl Simulation {
    /// Calls the module's handler.
    pub(super) fn handle(&mut self, out: &mut impl Emitter, event: u32) {
        let Message { kind, module, time, .. } = self.messages[event as usize];
        let module = u64::from(module);
        self.now = time;
        out.enter(self.code.dispatch);
        self.load(out, event, TIME);
        self.load(out, event, MODULE);
        let at = if matches!(kind, Kind::Timer | Kind::Relay | Kind::Deliver) {
            self.tree.node_at(module)
        } else {
            self.tree.port_at(module)
        };
        self.columns.load(out, at, METHODS);
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
        let at = self.tree.node_at(host);
        out.enter(self.code.timer);
        self.columns.load(out, at, COUNTER);
        let (destination, length) = frame(&mut self.random, &self.tree, host);
        if self.frames.freed.is_empty() && self.frames.used == self.frames.all {
            self.refused += 1;
        } else {
            out.enter(self.code.make);
            let chunk = self.allocate(out, Size::Message);
            let message = self.frames_begin() + chunk;
            out.enter(self.code.fill);
            (0..NEW_FIELDS as u64).for_each(|field| self.store(out, message, 8 * field));
            let frame = &mut self.messages[message as usize];
            (frame.destination, frame.length) = (destination as u32, length as u16);
            frame.made = self.now;
            self.schedule(out, message, Kind::Output, 2 * host, self.now);
        }
        out.enter(self.code.again);
        self.columns.load(out, at, COUNTER);
        self.columns.store(out, at, COUNTER);
        let time = self.now + interval(&mut self.random);
        self.schedule(out, event, Kind::Timer, host, time);
        out.enter(self.code.timer_end);
    }

    /// Sends a frame, or lets it wait.
    fn output(&mut self, out: &mut impl Emitter, frame: u32, number: u64) {
        let port = self.tree.port_at(number);
        out.enter(self.code.output);
        self.columns.load(out, port, SENDS);
        if self.queues[number as usize].1 {
            out.enter(self.code.enqueue);
            let element = self.allocate(out, Size::Element);
            out.enter(self.code.enqueue_end);
            self.columns.load(out, port, LAST);
            let [_, of_frame, next] = self.columns.element;
            of_frame.store(out, element as usize);
            next.store(out, element as usize);
            let queue = &mut self.queues[number as usize].0;
            match queue.back() {
                Some(&(_, last)) => next.store(out, last as usize),
                None => self.columns.store(out, port, FIRST),
            }
            self.columns.store(out, port, LAST);
            queue.push_back((frame, element));
        } else {
            out.enter(self.code.output_start);
            self.start(out, frame, number);
            out.enter(self.code.output_end);
        }
    }

    fn start(&mut self, out: &mut impl Emitter, frame: u32, number: u64) {
        let port = self.tree.port_at(number);
        self.queues[number as usize].1 = true;
        out.enter(self.code.start);
        self.load(out, frame, LENGTH);
        let taken = u64::from(self.messages[frame as usize].length) * BYTE;
        self.columns.store(out, port, SENDS);
        self.columns.load(out, port, gate(0));
        out.enter(self.code.send);
        let other = self.tree.port_at(number ^ 1);
        for (port, number) in [(port, 1), (other, 2), (other, 3)] {
            out.enter(self.code.gate);
            self.columns.load(out, port, gate(number));
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
        let port = self.tree.port_at(number);
        out.enter(self.code.transmitted);
        self.columns.load(out, port, COUNTER);
        self.columns.store(out, port, COUNTER);
        self.columns.load(out, port, FIRST);
        let Some((frame, element)) = self.queues[number as usize].0.pop_front() else {
            out.enter(self.code.idle);
            self.columns.store(out, port, SENDS);
            self.queues[number as usize].1 = false;
            return;
        };
        out.enter(self.code.dequeue);
        let [_, of_frame, next] = self.columns.element;
        of_frame.load(out, element as usize);
        next.load(out, element as usize);
        self.columns.store(out, port, FIRST);
        self.free(out, Size::Element, element);
        out.enter(self.code.dequeued);
        self.start(out, frame, number);
        out.enter(self.code.next_started);
    }

    fn arrive(&mut self, out: &mut impl Emitter, frame: u32, number: u64) {
        let port = self.tree.port_at(number);
        out.enter(self.code.arrive);
        self.load(out, frame, LENGTH);
        self.columns.load(out, port, COUNTER);
        self.columns.store(out, port, COUNTER);
        let node = self.tree.node_of(number);
        let kind = if node < self.tree.hosts() { Kind::Deliver } else { Kind::Relay };
        self.schedule(out, frame, kind, node, self.now);
        out.enter(self.code.arrived);
    }

    /// Finds the port by binary search in the table.
    fn relay(&mut self, out: &mut impl Emitter, frame: u32, switch: u64) {
        out.enter(self.code.relay);
        self.load(out, frame, DESTINATION);
        let port = self.tree.port(switch, u64::from(self.messages[frame as usize].destination));
        // The destination's place among the switch's ports.
        let below = port / 2;
        let slot = (below - self.tree.levels[self.tree.level(below)]) % PORTS;
        let at = self.tree.node_at(switch);
        let (mut low, mut size) = (0, PORTS);
        while size > 1 {
            out.enter(self.code.search);
            size /= 2;
            self.columns.load(out, at, TABLE + 8 * (low + size));
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
        self.load(out, frame, TIME);
        let at = self.tree.node_at(host);
        self.columns.load(out, at, COUNTER);
        self.columns.store(out, at, COUNTER);
        self.delivered += 1;
        self.delay += self.now - self.messages[frame as usize].made;
        let chunk = frame - self.frames_begin();
        self.free(out, Size::Message, chunk);
        out.enter(self.code.delivered);
    }
}
