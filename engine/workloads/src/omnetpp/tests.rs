//! The simulation against a simple one.

use std::collections::BTreeMap;

use super::network::frame;
use super::*;
use crate::program::Assembler;

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
                    at(&mut future, time + LINE, Event::In { port: port ^ 1, to, length, made });
                    at(&mut future, time + GAP, Event::Free { port });
                }
            }
            Event::Free { port } => {
                let queue = waiting.get_mut(&port).unwrap();
                if let Some((to, length, made)) = queue.pop_front() {
                    let time = now + length * BYTE;
                    at(&mut future, time + LINE, Event::In { port: port ^ 1, to, length, made });
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
                let port = if node == host && hops == 0 { 2 * host } else { tree.port(node, to) };
                node = tree.node_of(port ^ 1);
                hops += 1;
                assert!(hops < 20, "the way ends");
            }
        }
    }
}

/// A host's or switch's objects lie together, and those of all together fill the memory.
#[test]
fn objects_of_a_module_are_neighbours() {
    for hosts in [2, 16, 17, 300, 5000] {
        let tree = Tree::new(hosts);
        let mut areas = Vec::new();
        for node in 0..tree.nodes() {
            let at = tree.node_at(node);
            assert_eq!(tree.port_at(2 * node), at + PORT);
            areas.push((at, if node < hosts { HOST_BYTES } else { NODE_BYTES }));
            // The root hangs from no other.
            if node + 1 < tree.nodes() {
                let port = tree.port_at(2 * node + 1);
                let parent = tree.node_at(tree.parent(node));
                assert!((parent + NODE_BYTES..parent + SWITCH_BYTES).contains(&port));
                areas.push((port, PORT_BYTES));
            }
        }
        areas.sort_unstable();
        let end = areas.into_iter().fold(0, |end, (at, bytes)| {
            assert_eq!(at, end);
            at + bytes
        });
        assert_eq!(end, tree.bytes());
    }
}
