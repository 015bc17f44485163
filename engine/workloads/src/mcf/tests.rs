//! The simplex against another method.

use super::*;
use crate::program::Assembler;
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
        let end = (0..trips).filter(|&start| of_start[start].is_none()).max_by_key(|&s| gain[s].0);
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
    network.trips.cast_signed() * (VEHICLE + 2 * DEPOT_WAY) - saved
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
        assert!(total < shape.trips.cast_signed() * VEHICLE, "deadheads save vehicles");
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
