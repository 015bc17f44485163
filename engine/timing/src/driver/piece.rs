//! What a trace becomes for runs: read and decoded once, for all of them.

use std::sync::Arc;

use flatwalk_trace::{Event, ThreadId};

use crate::core::branch::Predictor;
use crate::core::decode::DecodedBlock;

/// What is done with a stretch of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing but the address space and the pages in memory follow the program; what of it is run,
    /// as that is told best, changes no cache.
    Pass,
    /// Contents are warmed: TLBs, page-walk caches, caches, predictors, mechanisms. No time passes.
    Warm,
    /// Everything runs with its clock, uncounted.
    Detailed,
    /// The same, counted: a window.
    Measured,
}

impl Phase {
    /// Whether time passes.
    pub(crate) fn has_clock(self) -> bool {
        matches!(self, Self::Detailed | Self::Measured)
    }
}

/// The entries of page tables that a thread used in what was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uses {
    /// The thread.
    pub thread: ThreadId,
    /// How often it used one.
    pub times: u64,
    /// Of each of their lines an address that such an entry translates, in the part of what was passed over
    /// that used the line last: its first half, half of the rest, and so on.
    pub parts: Vec<Vec<u64>>,
}

/// One piece of a stretch of the trace, decoded once for all runs.
#[derive(Clone, Debug)]
pub enum Piece {
    /// The next block identifier means this.
    Define(Arc<DecodedBlock>),
    /// Of the next slice, by predictor, for runs that do not predict themselves; a slice of which there is
    /// nothing to say has none.
    Mispredicted(Arc<[Mispredicted]>),
    /// All runs predict themselves from now on, as these did.
    Threads(Arc<[Predictor]>),
    /// A thread runs.
    Slice(flatwalk_trace::Slice),
    /// The address space changes.
    Event(Event),
    /// The same in a part that is passed over: no time passes. [`Event::Populate`] names pages that
    /// were touched in it.
    Passed(Event),
    /// What was passed over used entries of page tables.
    Used {
        /// Each thread's.
        threads: Arc<[Uses]>,
        /// Instructions that were passed over.
        instructions: u64,
    },
    /// Another phase begins, or another window, before instruction `at` of the program.
    Phase {
        /// The phase.
        phase: Phase,
        /// Instructions that the program has executed, of all its threads.
        at: u64,
    },
}

/// True if an event is work of a kernel's. Populating and gaps stand for a part of the program that is not
/// in the trace, and a recorded machine's entries for what its kernel did: no time. Names change nothing.
pub(crate) fn is_call(event: &Event) -> bool {
    !matches!(
        event,
        Event::Populate { .. }
            | Event::Gap { .. }
            | Event::Root { .. }
            | Event::Entry { .. }
            | Event::Name { .. }
            | Event::Wake { .. }
            | Event::Woken { .. }
    )
}

/// The first of a slice's blocks that have `enough` instructions together, or all of them: how many blocks,
/// and their accesses and instructions.
#[inline]
pub(crate) fn first_blocks<'a>(
    ids: &[u32],
    enough: u64,
    block: impl Fn(u32) -> &'a DecodedBlock,
) -> (usize, usize, u64) {
    let (mut blocks, mut accesses, mut instructions) = (0, 0, 0);
    while blocks < ids.len() && instructions < enough {
        let block = block(ids[blocks]);
        instructions += block.ops.len() as u64;
        accesses += block.accesses.len();
        blocks += 1;
    }
    (blocks, accesses, instructions)
}

/// Blocks of a slice that follow a branch which was predicted wrongly.
#[derive(Clone, Debug)]
pub struct Mispredicted {
    /// A bit for each block, the first lowest.
    words: Box<[u64]>,
}

impl Mispredicted {
    /// Of a slice of these blocks, as `is_wrong` says of each in turn.
    pub(super) fn new(blocks: &[u32], mut is_wrong: impl FnMut(u32) -> bool) -> Self {
        let word = |ids: &[u32]| {
            let bits = ids.iter().enumerate();
            bits.fold(0, |word, (place, &id)| word | u64::from(is_wrong(id)) << place)
        };
        Self { words: blocks.chunks(64).map(word).collect() }
    }

    /// True if the branch before the block at `place` was predicted rightly, or there is none.
    #[inline]
    pub fn is_right(&self, place: usize) -> bool {
        self.words[place / 64] >> (place % 64) & 1 == 0
    }
}
