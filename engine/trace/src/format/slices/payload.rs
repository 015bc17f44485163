//! What encoder and decoder agree on: a payload's limits, codes and runs.

use crate::model::ThreadId;

/// A run is cut after this many blocks …
pub(crate) const RUN_BLOCKS: usize = 1 << 15;
/// … or this many addresses (plus those of one block).
pub(crate) const RUN_ADDRESSES: usize = 1 << 17;
/// Most runs in one payload.
pub(super) const MAX_RUNS: u64 = 1 << 20;

/// Codes of wrongly predicted addresses: the other prediction is right; else the difference from the
/// slot's last address, or from the access before; plus the bytes that the difference takes (0 to 8).
pub(super) const CODE_OTHER: u8 = 0;
pub(super) const CODE_LAST: u8 = 1;
pub(super) const CODE_BEFORE: u8 = 10;
pub(super) const CODE_END: u8 = 19;

/// A run of one thread within a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub thread: ThreadId,
    pub epoch: u64,
    pub blocks: u32,
    pub addresses: u32,
}

/// Sums over a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub instructions: u64,
    pub loads: u64,
    pub stores: u64,
}
