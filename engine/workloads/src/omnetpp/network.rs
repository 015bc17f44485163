//! Who is connected to whom, and who sends what.

use super::{INTERVAL, PORTS, UPWARDS};
use crate::rng::Random;

/// Hosts and switches: those of level 0 are hosts, and 16 of a level hang from one of the next.
#[derive(Clone)]
pub(super) struct Tree {
    /// Where each level's nodes begin, and their end.
    pub(super) levels: Vec<u64>,
}

impl Tree {
    pub(super) fn new(hosts: u64) -> Self {
        let (mut levels, mut level) = (vec![0, hosts], hosts);
        while level > 1 {
            level = level.div_ceil(PORTS);
            levels.push(levels[levels.len() - 1] + level);
        }
        Self { levels }
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
