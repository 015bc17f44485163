//! Branches are predicted once for all runs whose machines predict them alike.
//!
//! What a predictor answers depends on the blocks that a core executes, and on nothing that takes time. So
//! the thread that reads the trace predicts, and a run reads off what came out; what a misprediction costs
//! is the run's own. Runs whose cores execute something else predict for themselves: those that have moved
//! the trace's addresses; those that another process takes the core from, when their clocks say so; and all
//! of them from a program's second thread on, as which core runs what is theirs to say then.

use std::sync::Arc;

use flatwalk_trace::{Slice, ThreadId};

use crate::config::machine::{BranchPredictor, Core};
use crate::core::branch::{Branch, Predictor};
use crate::core::decode::DecodedBlock;
use crate::driver::piece::{Mispredicted, Piece};

/// The predictors of all machines, on a program's one thread.
#[derive(Debug, Default)]
pub(crate) struct Predictors {
    kinds: Vec<(BranchPredictor, Option<u32>)>,
    /// By number.
    all: Vec<Predictor>,
    thread: Option<ThreadId>,
    /// The branch at the end of the last block.
    pending: Option<Branch>,
}

impl Predictors {
    /// The number of the predictor that answers as one of `core` does.
    pub(crate) fn number(&mut self, core: &Core) -> usize {
        let kind = (core.branch_predictor, core.branch_history_bits);
        let known = self.kinds.iter().position(|&known| known == kind);
        known.unwrap_or_else(|| {
            self.kinds.push(kind);
            self.all.push(Predictor::new(core));
            self.kinds.len() - 1
        })
    }

    /// Where the last branch went is not to be seen: cores are drained.
    pub(crate) fn drain(&mut self) {
        self.pending = None;
    }

    /// What is to be known before `slice`: what was predicted wrongly, or that it is a second thread's. Its
    /// blocks are among `blocks`.
    pub(crate) fn predict(&mut self, slice: &Slice, blocks: &[Arc<DecodedBlock>]) -> Option<Piece> {
        if self.all.is_empty() {
            return None;
        }
        if *self.thread.get_or_insert(slice.thread) != slice.thread {
            return Some(Piece::Threads(std::mem::take(&mut self.all).into()));
        }
        let (block, before) = (|id: u32| &*blocks[id as usize], self.pending);
        let of = |predictor: &mut Predictor| {
            let mut pending = before;
            Mispredicted::new(&slice.blocks, |id| {
                let branch = std::mem::replace(&mut pending, Branch::ending(block(id)));
                branch.is_some_and(|branch| !branch.is_predicted(predictor, block(id).pc()))
            })
        };
        let last = slice.blocks.last();
        self.pending = last.map_or(before, |&id| Branch::ending(block(id)));
        Some(Piece::Mispredicted(self.all.iter_mut().map(of).collect()))
    }
}
