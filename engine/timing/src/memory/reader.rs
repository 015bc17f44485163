//! What reads page-table entries: the memory hierarchy, or nothing that takes time.

use flatwalk_paging::Hpa;

use crate::memory::hierarchy::{Hierarchy, Requester, Response, Served};

/// What reads page-table entries, and says how long that takes.
pub trait TableReader {
    /// Whether time passes.
    const TIMED: bool;
    /// The entry at `address` is asked for at cycle `at`; `write` if its accessed or dirty bit is
    /// set at once.
    fn read_entry(&mut self, address: Hpa, at: u64, write: bool) -> Response;
    /// `address` is about to be asked for; see [`Hierarchy::prefetch_hint`].
    fn prefetch_hint(&self, address: Hpa);
    /// A line of a TLB in memory is read; see [`Hierarchy::read_translations`].
    fn read_translations(&mut self, address: Hpa, at: u64, bypass: bool) -> (Response, bool);
    /// A translation is written into such a line.
    fn write_translations(&mut self, address: Hpa, at: u64);
    /// The entry at `address` is prefetched at cycle `at`. False where nothing could be done.
    fn prefetch_entry(&mut self, address: Hpa, at: u64) -> bool;
}

impl TableReader for Hierarchy {
    const TIMED: bool = true;

    #[inline]
    fn read_entry(&mut self, address: Hpa, at: u64, write: bool) -> Response {
        self.access(address, at, write, Requester::Walker)
    }

    #[inline]
    fn prefetch_hint(&self, address: Hpa) {
        Hierarchy::prefetch_hint(self, address);
    }

    fn read_translations(&mut self, address: Hpa, at: u64, bypass: bool) -> (Response, bool) {
        Hierarchy::read_translations(self, address, at, bypass)
    }

    fn write_translations(&mut self, address: Hpa, at: u64) {
        Hierarchy::write_translations(self, address, at);
    }

    fn prefetch_entry(&mut self, address: Hpa, at: u64) -> bool {
        self.prefetch(address, at)
    }
}

/// Reads without a clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoClock;

impl TableReader for NoClock {
    const TIMED: bool = false;

    #[inline]
    fn read_entry(&mut self, _address: Hpa, at: u64, _write: bool) -> Response {
        Response { ready: at, served: Served::L1 }
    }

    #[inline]
    fn prefetch_hint(&self, _address: Hpa) {}

    fn read_translations(&mut self, _: Hpa, at: u64, _bypass: bool) -> (Response, bool) {
        (Response { ready: at, served: Served::L1 }, false)
    }

    fn write_translations(&mut self, _address: Hpa, _at: u64) {}

    fn prefetch_entry(&mut self, _address: Hpa, _at: u64) -> bool {
        true
    }
}
