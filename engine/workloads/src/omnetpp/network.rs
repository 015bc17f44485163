//! Who is connected to whom, and who sends what.

use super::{HOST_BYTES, INTERVAL, NODE_BYTES, PORT, PORT_BYTES, PORTS, SWITCH_BYTES, UPWARDS};
use crate::rng::Random;

/// Hosts and switches: those of level 0 are hosts, and 16 of a level hang from one of the next.
#[derive(Clone)]
pub(super) struct Tree {
    /// Where each level's nodes begin, and their end.
    pub(super) levels: Vec<u64>,
    /// Where each level's objects begin in memory, and their end, in bytes.
    begins: Vec<u64>,
}

impl Tree {
    pub(super) fn new(hosts: u64) -> Self {
        let (mut levels, mut level) = (vec![0, hosts], hosts);
        let mut bytes = hosts * HOST_BYTES;
        let mut begins = vec![0, bytes];
        while level > 1 {
            bytes += level * PORT_BYTES;
            level = level.div_ceil(PORTS);
            bytes += level * NODE_BYTES;
            levels.push(levels[levels.len() - 1] + level);
            begins.push(bytes);
        }
        Self { levels, begins }
    }

    /// Bytes of all hosts and switches with their ports.
    pub(super) fn bytes(&self) -> u64 {
        self.begins[self.begins.len() - 1]
    }

    /// Where a node lies: only the last switch of a level can have fewer ports than others.
    pub(super) fn node_at(&self, node: u64) -> u64 {
        let level = self.level(node);
        let bytes = if level == 0 { HOST_BYTES } else { SWITCH_BYTES };
        self.begins[level] + (node - self.levels[level]) * bytes
    }

    /// Where a port lies: with the node that it is a port of.
    pub(super) fn port_at(&self, port: u64) -> u64 {
        let (node, of) = (port / 2, self.node_at(self.node_of(port)));
        if port.is_multiple_of(2) {
            return of + PORT;
        }
        of + NODE_BYTES + (node - self.levels[self.level(node)]) % PORTS * PORT_BYTES
    }

    pub(super) fn hosts(&self) -> u64 {
        self.levels[1]
    }

    pub(super) fn nodes(&self) -> u64 {
        self.levels[self.levels.len() - 1]
    }

    pub(super) fn level(&self, node: u64) -> usize {
        self.levels.partition_point(|&begin| begin <= node) - 1
    }

    pub(super) fn parent(&self, node: u64) -> u64 {
        let level = self.level(node);
        self.levels[level + 1] + (node - self.levels[level]) / PORTS
    }

    /// The port through which `node` reaches a host. Port 2n is that of node n to its parent, and 2n + 1
    /// the parent's to it.
    pub(super) fn port(&self, node: u64, host: u64) -> u64 {
        let level = self.level(node);
        let below = host / PORTS.pow(level as u32 - 1);
        if below / PORTS == node - self.levels[level] {
            2 * (self.levels[level - 1] + below) + 1
        } else {
            2 * node
        }
    }

    pub(super) fn node_of(&self, port: u64) -> u64 {
        if port.is_multiple_of(2) { port / 2 } else { self.parent(port / 2) }
    }

    /// The host that a frame of `host` goes to.
    pub(super) fn draw(&self, random: &mut Random, host: u64) -> u64 {
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

/// Nanoseconds until a host's next frame: exponentially distributed.
pub(super) fn interval(random: &mut Random) -> u64 {
    (-INTERVAL * (1.0 - random.unit()).ln()) as u64
}

/// Destination and length of a host's frame.
pub(super) fn frame(random: &mut Random, tree: &Tree, host: u64) -> (u64, u64) {
    (tree.draw(random, host), 64 + random.below(1500 - 64 + 1))
}
