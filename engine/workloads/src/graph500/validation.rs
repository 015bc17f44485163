//! The validation of a search's tree: `verify_bfs_tree` of the reference, with its assertions.

use super::kronecker::Kronecker;
use super::{Data, FILLED, NONE, code};
use crate::rng::Random;
use crate::simulated::Emitter;

/// What is wrong with a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The root is not its own parent.
    Root,
    /// Another vertex is.
    SecondRoot,
    /// A vertex is its own ancestor.
    Cycle,
    /// A vertex in the tree has an ancestor that is not.
    End,
    /// An edge leads out of the tree.
    Unreached,
    /// An edge joins levels that are further apart than one.
    Levels,
    /// A vertex and its parent are not joined by an edge.
    NoEdge,
}

/// What comes next, and for which vertex or edge.
#[derive(Clone, Copy)]
enum Stage {
    Begin,
    SetLevels(usize),
    Levels(usize),
    ClearSeen(usize),
    Edges(u64),
    Parents(usize),
}

pub(super) struct Validation {
    code: code::Validation,
    root: usize,
    stage: Stage,
    /// Draws the edge list once more.
    random: Random,
}

impl Validation {
    pub(super) fn new(code: code::Validation, root: usize, kronecker: &Kronecker) -> Self {
        Self { code, root, stage: Stage::Begin, random: kronecker.start() }
    }

    /// Continues; false at the end.
    pub(super) fn step(
        &mut self,
        out: &mut impl Emitter,
        data: &mut Data,
        kronecker: &Kronecker,
    ) -> Result<bool, Fault> {
        let vertices = data.vertices;
        let until = |next, end, stage: fn(usize) -> Stage, then| {
            if next < end { stage(next) } else { then }
        };
        self.stage = match self.stage {
            Stage::Begin => {
                out.enter(self.code.begin);
                if data.parent.load(out, self.root) as usize != self.root {
                    return Err(Fault::Root);
                }
                Stage::SetLevels(0)
            }
            Stage::SetLevels(vertex) => {
                out.enter(self.code.set_level);
                let level = if vertex == self.root { 0 } else { NONE };
                data.work.store(out, vertices + vertex, level);
                until(vertex + 1, vertices, Stage::SetLevels, Stage::Levels(0))
            }
            Stage::Levels(vertex) => {
                self.level(out, data, vertex)?;
                out.enter(self.code.next_level);
                until(vertex + 1, vertices, Stage::Levels, Stage::ClearSeen(0))
            }
            Stage::ClearSeen(vertex) => {
                out.enter(self.code.clear_seen);
                (0..FILLED / 2).for_each(|pair| data.work_pairs.store(out, vertex / 2 + pair));
                data.work.values[vertex..vertex + FILLED].fill(0);
                until(vertex + FILLED, vertices, Stage::ClearSeen, Stage::Edges(0))
            }
            Stage::Edges(edge) => {
                let ends = kronecker.edge(&mut self.random);
                self.edge(out, data, edge as usize, ends)?;
                out.enter(self.code.next_edge);
                if edge + 1 < data.edges { Stage::Edges(edge + 1) } else { Stage::Parents(0) }
            }
            Stage::Parents(vertex) => {
                out.enter(self.code.parent);
                if data.parent.load(out, vertex) != NONE {
                    out.enter(self.code.seen);
                    if data.work.load(out, vertex) == 0 && vertex != self.root {
                        return Err(Fault::NoEdge);
                    }
                }
                out.enter(self.code.next_parent);
                if vertex + 1 == vertices {
                    return Ok(false);
                }
                Stage::Parents(vertex + 1)
            }
        };
        Ok(true)
    }

    /// Gives a vertex its level, and those above it that have none yet; then walks up to the root once
    /// more, to check them.
    fn level(
        &mut self,
        out: &mut impl Emitter,
        data: &mut Data,
        vertex: usize,
    ) -> Result<(), Fault> {
        let vertices = data.vertices;
        let level = |vertex: usize| vertices + vertex;
        out.enter(self.code.level);
        if data.work.load(out, level(vertex)) != NONE {
            return Ok(());
        }
        out.enter(self.code.reached);
        if data.parent.load(out, vertex) == NONE {
            return Ok(());
        }
        out.enter(self.code.unreached);
        let (mut above, mut hops) = (vertex, 0);
        let top = loop {
            out.enter(self.code.climb);
            let top = data.work.load(out, level(above));
            if top != NONE {
                break top;
            }
            out.enter(self.code.above);
            let parent = data.parent.load(out, above);
            hops += 1;
            if parent == NONE {
                return Err(Fault::End);
            } else if parent as usize == above {
                return Err(Fault::SecondRoot);
            } else if hops as usize == vertices {
                return Err(Fault::Cycle);
            }
            above = parent as usize;
        };
        out.enter(self.code.top);
        hops += top;
        above = vertex;
        loop {
            out.enter(self.code.assign);
            if data.work.load(out, level(above)) != NONE {
                break;
            }
            out.enter(self.code.assigned);
            data.work.store(out, level(above), hops);
            hops -= 1;
            above = data.parent.load(out, above) as usize;
        }
        out.enter(self.code.recheck);
        let mut last = data.work.load(out, level(vertex)) + 1;
        above = vertex;
        loop {
            out.enter(self.code.check);
            let level = data.work.load(out, level(above));
            if level == 0 {
                return Ok(());
            }
            out.enter(self.code.checked);
            debug_assert_eq!(last, level + 1, "of {above}, above {vertex}");
            last = level;
            above = data.parent.load(out, above) as usize;
        }
    }

    /// Checks an edge, and notes whether the tree has it.
    fn edge(
        &mut self,
        out: &mut impl Emitter,
        data: &mut Data,
        edge: usize,
        (from, to): (u32, u32),
    ) -> Result<(), Fault> {
        out.enter(self.code.edge);
        data.from.load(out, edge);
        data.to.load(out, edge);
        let ends = [from as usize, to as usize];
        let parents = ends.map(|end| data.parent.load(out, end));
        match parents {
            [NONE, NONE] => return Ok(()),
            [NONE, _] | [_, NONE] => return Err(Fault::Unreached),
            _ => {}
        }
        out.enter(self.code.in_tree);
        if from != to {
            out.enter(self.code.from_parent);
            if parents[0] == to {
                out.enter(self.code.seen_from);
                data.work.store(out, ends[0], 1);
            }
            out.enter(self.code.to_parent);
            if parents[1] == from {
                out.enter(self.code.seen_to);
                data.work.store(out, ends[1], 1);
            }
        }
        out.enter(self.code.levels);
        let levels = ends.map(|end| data.work.load(out, data.vertices + end));
        if levels[0].abs_diff(levels[1]) > 1 { Err(Fault::Levels) } else { Ok(()) }
    }
}
