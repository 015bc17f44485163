//! Whether blocks are translated so that all accesses are watched, or only counted.

use std::sync::atomic::{AtomicBool, Ordering};

static WATCHED: AtomicBool = AtomicBool::new(true);

/// Whether all accesses are watched.
pub fn is_watched() -> bool {
    WATCHED.load(Ordering::Relaxed)
}

/// Blocks that are translated from here on are watched, or only counted.
pub fn set_watched(watched: bool) {
    WATCHED.store(watched, Ordering::Relaxed);
}
