//! Whether what runs is recorded at the moment.

use std::sync::atomic::{AtomicU32, Ordering};

/// What the recorder is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// Passing over `skip` instructions.
    Skip,
    /// Waiting for the start of a region of interest.
    Wait,
    /// Recording.
    Record,
    /// Nothing is recorded any more: the collector wants no more, or is not there.
    Detached,
    /// Passing over what is between two segments of a sample.
    Gap,
}

static PHASE: AtomicU32 = AtomicU32::new(Phase::Wait as u32);

/// The phase that the recorder is in.
pub fn phase() -> Phase {
    match PHASE.load(Ordering::Acquire) {
        0 => Phase::Skip,
        1 => Phase::Wait,
        2 => Phase::Record,
        4 => Phase::Gap,
        _ => Phase::Detached,
    }
}

/// Begins another phase.
pub fn set_phase(phase: Phase) {
    PHASE.store(phase as u32, Ordering::Release);
}
