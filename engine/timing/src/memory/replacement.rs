//! Replacement policies: which line of a full set goes for one that comes in.
//!
//! A cache without a policy evicts the least recently used line, at no cost of a call. Mechanisms
//! give others to L2 and LLC.

use std::any::Any;
use std::fmt::Debug;

use flatwalk_os::Random;

use crate::counts::Visitor;

use super::line::{Line, Set};

/// Who runs on the core whose turn it is to use a shared cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// The program that the lines that come in belong to.
    pub owner: u64,
    /// The programs whose page tables are protected now, one bit each.
    pub protected: u64,
}

/// What decides which line goes.
pub trait ReplacementPolicy: Any + Debug + Send {
    /// A copy, contents included.
    fn clone_box(&self) -> Box<dyn ReplacementPolicy>;

    /// The place of the line of the full `set` that goes for one that comes in, which holds page-table
    /// entries if `table`.
    fn victim(&mut self, set: Set<'_>, table: bool, random: &mut Random) -> usize;

    /// Whether most evictions spare the line at `place` of `set`.
    fn spares(&self, set: Set<'_>, place: usize) -> bool {
        let _ = (set, place);
        false
    }

    /// The per cent of evictions that spare nothing.
    fn unspared_percent(&self) -> u32 {
        0
    }

    /// The place of the line of the full `set` that goes in an eviction that spares nothing.
    fn unspared(&self, set: Set<'_>) -> usize {
        set.oldest()
    }

    /// True if [`ReplacementPolicy::looked_up`] is to be called.
    fn watches(&self) -> bool {
        false
    }

    /// `line` was looked up, for page-table entries if `table`.
    fn looked_up(&mut self, line: Line, table: bool) {
        let _ = (line, table);
    }

    /// The policy that takes its place in a cache that several cores share; `None` where that is the
    /// machine's to say.
    fn for_shared_cache(&self) -> Option<Box<dyn ReplacementPolicy>> {
        None
    }

    /// A core begins its turn in a cache that several share.
    fn begin_turn(&mut self, turn: Turn) {
        let _ = turn;
    }

    /// Shows its counts.
    fn counts(&mut self, visit: &mut Visitor<'_>) {
        let _ = visit;
    }
}

impl Clone for Box<dyn ReplacementPolicy> {
    fn clone(&self) -> Self {
        self.as_ref().clone_box()
    }
}
