//! `graphbig-gc`: GraphBIG's graph colouring (Jones and Plassmann): in each round, those vertices get
//! the next colour whose random number is the greatest among their uncoloured neighbours'.

use std::ops::Range;

use flatwalk_trace::BlockId;

use super::fragments::{find, first_edge, next_edge, next_vertex, target};
use super::{ID, Kernel, Needs, OWN, PropertyGraph, Shape, TARGET, VERTEX, describe, runs};
use crate::Description;
use crate::program::{Assembler, FLAGS, registers};
use crate::rng::mix;
use crate::simulated::{Array, Emitter};

pub(crate) const DESCRIPTION: Description = describe(
    "graphbig-gc",
    "GraphBIG graph colouring: uncoloured vertices look at their neighbours, round after round",
    |arguments| runs::<Coloring>(DESCRIPTION.name, arguments),
);

const UNCOLORED: u16 = 0xfff0;

registers!(OWN; PRIORITY, TARGET_PRIORITY, COLOR, TARGET_COLOR, TASKS, INDEX, COUNT, LATER, LATER_COUNT);

struct Code {
    reset: BlockId,
    begin: BlockId,
    task: BlockId,
    edge: BlockId,
    compare: BlockId,
    next_edge: BlockId,
    paint: BlockId,
    postpone: BlockId,
    next_task: BlockId,
    round: BlockId,
    copy: BlockId,
    next_round: BlockId,
}

struct Coloring {
    code: Code,
    graph: PropertyGraph,
    priority: Array<u16>,
    color: Array<u16>,
    tasks: Array<u32>,
    later: Array<u32>,
    round: u16,
    /// Tasks of this round that are left.
    left: Range<usize>,
    /// Tasks of the next round: how many there are, and which are not yet copied to `tasks`.
    postponed: usize,
    uncopied: Range<usize>,
    vertex: usize,
    edges: Range<usize>,
}

impl Coloring {
    /// What is left to do for the vertex after its edges, or after one that forbids the colour.
    fn finish(&mut self, out: &mut impl Emitter, greatest: bool) {
        self.edges = 0..0;
        if greatest {
            out.enter(self.code.paint);
            self.color.store(out, self.vertex, self.round);
        } else {
            out.enter(self.code.postpone);
            self.later.store(out, self.postponed, self.vertex as u32);
            self.postponed += 1;
        }
        out.enter(self.code.next_task);
        if self.left.is_empty() {
            out.enter(self.code.round);
            self.uncopied = 0..self.postponed;
            if self.postponed == 0 {
                self.next_round(out);
            }
        }
    }

    fn next_round(&mut self, out: &mut impl Emitter) {
        out.enter(self.code.next_round);
        self.round += 1;
        self.left = 0..self.postponed;
        self.postponed = 0;
    }
}

impl Kernel for Coloring {
    /// The property: random number 2 bytes, colour 2. Tasks of this round and of the next.
    const NEEDS: Needs = Needs { property_bytes: 8, lists: 2, edge_bytes: 0, by_vertex: false };
    type Code = Code;

    fn code(assembler: &mut Assembler) -> Code {
        Code {
            reset: assembler.store_bytes(2, &[VERTEX]).then(next_vertex).branch(),
            begin: assembler.operation(&[], &[COLOR]).operation(&[], &[INDEX]).fall(),
            task: assembler
                .load(&[TASKS, INDEX], ID)
                .then(find(VERTEX))
                .load_bytes(2, &[VERTEX], PRIORITY)
                .then(first_edge)
                .branch(),
            edge: assembler
                .then(target)
                .load_bytes(2, &[TARGET], TARGET_COLOR)
                .operation(&[TARGET_COLOR, COLOR], &[FLAGS])
                .branch(),
            compare: assembler
                .load_bytes(2, &[TARGET], TARGET_PRIORITY)
                .operation(&[TARGET_PRIORITY, PRIORITY], &[FLAGS])
                .branch(),
            next_edge: assembler.then(next_edge).branch(),
            paint: assembler.store_bytes(2, &[VERTEX, COLOR]).jump(),
            postpone: assembler
                .store(&[LATER, LATER_COUNT, VERTEX])
                .operation(&[LATER_COUNT], &[LATER_COUNT])
                .fall(),
            next_task: assembler
                .operation(&[INDEX], &[INDEX])
                .operation(&[INDEX, COUNT], &[FLAGS])
                .branch(),
            round: assembler.operation(&[], &[INDEX]).operation(&[LATER_COUNT], &[FLAGS]).branch(),
            copy: assembler
                .load(&[LATER, INDEX], ID)
                .store(&[TASKS, INDEX, ID])
                .operation(&[INDEX], &[INDEX])
                .operation(&[INDEX, LATER_COUNT], &[FLAGS])
                .branch(),
            next_round: assembler
                .operation(&[COLOR], &[COLOR])
                .operation(&[LATER_COUNT], &[COUNT, FLAGS])
                .branch(),
        }
    }

    fn new(shape: &Shape, code: Code, seed: u64) -> Self {
        let vertices = shape.vertices as usize;
        let priorities = (0..shape.vertices).map(|v| mix(seed ^ v << 1) as u16).collect();
        Self {
            code,
            graph: shape.graph(seed),
            priority: shape.property(0, 2).holding(priorities),
            color: shape.property(2, 2).holding(vec![UNCOLORED; vertices]),
            tasks: shape.lists[0].holding(vec![0; vertices]),
            later: shape.lists[1].holding(vec![0; vertices]),
            round: 0,
            left: 0..0,
            postponed: 0,
            uncopied: 0..0,
            vertex: 0,
            edges: 0..0,
        }
    }

    fn graph(&self) -> &PropertyGraph {
        &self.graph
    }

    fn reset(&mut self, out: &mut impl Emitter, vertex: usize) {
        out.enter(self.code.reset);
        self.color.store(out, vertex, UNCOLORED);
        self.graph.next_vertex(out, vertex);
    }

    fn begin(&mut self, out: &mut impl Emitter, _root: usize) {
        out.enter(self.code.begin);
        let vertices = self.graph.vertices();
        // Before the run begins, and like the random numbers, all vertices become tasks.
        (0..vertices).for_each(|vertex| self.tasks.values[vertex] = vertex as u32);
        (self.round, self.left, self.postponed) = (0, 0..vertices, 0);
    }

    fn step(&mut self, out: &mut impl Emitter) -> bool {
        if let Some(edge) = self.edges.next() {
            out.enter(self.code.edge);
            let target = self.graph.target(out, edge);
            if self.color.load(out, target) >= self.round {
                out.enter(self.code.compare);
                let theirs = self.priority.load(out, target);
                let ours = self.priority.values[self.vertex];
                // Among equals, the first.
                if theirs > ours || theirs == ours && target < self.vertex {
                    self.finish(out, false);
                    return true;
                }
            }
            out.enter(self.code.next_edge);
            self.graph.next_edge(out, edge);
            if self.edges.is_empty() {
                self.finish(out, true);
            }
        } else if let Some(place) = self.uncopied.next() {
            out.enter(self.code.copy);
            let vertex = self.later.load(out, place);
            self.tasks.store(out, place, vertex);
            if self.uncopied.is_empty() {
                self.next_round(out);
            }
        } else if let Some(place) = self.left.next() {
            out.enter(self.code.task);
            self.vertex = self.tasks.load(out, place) as usize;
            self.graph.find(out, self.vertex);
            self.priority.load(out, self.vertex);
            self.edges = self.graph.first_edge(out, self.vertex);
            if self.edges.is_empty() {
                self.finish(out, true);
            }
        } else {
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{edges, finish, kernel};
    use super::*;

    #[test]
    fn neighbours_have_different_colours_and_no_vertex_could_have_had_an_earlier_one() {
        // As drawn, and with so few different numbers that many neighbours have the same.
        for numbers in [u16::MAX, 5] {
            let mut coloring: Coloring = kernel();
            for priority in &mut coloring.priority.values {
                *priority %= numbers;
            }
            let coloring = finish(coloring, 0);
            let (color, priority) = (&coloring.color.values, &coloring.priority.values);
            assert!(!color.contains(&UNCOLORED));
            let edges = edges(&coloring.graph);
            assert!(edges.iter().all(|&(a, b)| color[a] != color[b]));
            // A vertex waits only for neighbours that go before it.
            let before = |a: usize, b: usize| (priority[b], a) < (priority[a], b);
            for vertex in 0..color.len() {
                let waited = edges.iter().filter(|&&(a, b)| a == vertex && before(b, vertex));
                let last = waited.map(|&(_, b)| color[b]).max();
                assert_eq!(color[vertex], last.map_or(0, |last| last + 1));
            }
        }
    }
}
