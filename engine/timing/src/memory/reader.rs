//! What reads page-table entries: the memory hierarchy, or nothing that takes time.

use flatwalk_paging::Hpa;

use crate::memory::hierarchy::{Hierarchy, Prefetched, Prefetching, Requester, Response, Served};
use crate::memory::line::Line;

/// The way from the page walker to memory, as a mechanism sees it.
pub trait MemoryPort {
    /// Whether time passes.
    fn is_timed(&self) -> bool;
    /// The entry at `address` is asked for at cycle `at`; `write` if its accessed or dirty bit is
    /// set at once.
    fn read_entry(&mut self, address: Hpa, at: u64, write: bool) -> Response;
    /// `address` is about to be asked for; see [`Hierarchy::prefetch_hint`].
    fn prefetch_hint(&self, address: Hpa);
    /// A line of a TLB in memory is read; see [`Hierarchy::read_translations`].
    fn read_translations(
        &mut self,
        address: Hpa,
        at: u64,
        bypass: bool,
        by_l1d: bool,
    ) -> (Response, bool);
    /// A translation is written into such a line.
    fn write_translations(&mut self, address: Hpa, at: u64);
    /// The entry at `address` is prefetched at cycle `at`. False where nothing could be done.
    fn prefetch_entry(&mut self, address: Hpa, at: u64) -> bool;
}

/// A port of which the compiler knows whether time passes: what walks read through.
pub trait TableReader: MemoryPort {
    /// Whether time passes.
    const TIMED: bool;
}

impl MemoryPort for Hierarchy {
    #[inline]
    fn is_timed(&self) -> bool {
        true
    }

    #[inline]
    fn read_entry(&mut self, address: Hpa, at: u64, write: bool) -> Response {
        self.access(address, at, write, Requester::Walker)
    }

    #[inline]
    fn prefetch_hint(&self, address: Hpa) {
        Hierarchy::prefetch_hint(self, address);
    }

    fn read_translations(
        &mut self,
        address: Hpa,
        at: u64,
        bypass: bool,
        by_l1d: bool,
    ) -> (Response, bool) {
        Hierarchy::read_translations(self, address, at, bypass, by_l1d)
    }

    fn write_translations(&mut self, address: Hpa, at: u64) {
        Hierarchy::write_translations(self, address, at);
    }

    fn prefetch_entry(&mut self, address: Hpa, at: u64) -> bool {
        self.prefetch(address, at)
    }
}

impl TableReader for Hierarchy {
    const TIMED: bool = true;
}

/// A port that data goes through as well, with prefetchers.
pub trait DataPort: TableReader {
    /// The caches.
    fn caches(&mut self) -> &mut Hierarchy;
    /// A load or store of the line of `address`.
    fn access(&mut self, address: Hpa, at: u64, store: bool) -> Response;
    /// Prefetcher `by` of a cache asks for the line of `address`.
    fn prefetch(&mut self, into: Prefetching, address: Hpa, at: u64, by: usize) -> Prefetched;
}

impl DataPort for Hierarchy {
    fn caches(&mut self) -> &mut Hierarchy {
        self
    }

    fn access(&mut self, address: Hpa, at: u64, store: bool) -> Response {
        Hierarchy::access(self, address, at, store, Requester::Data)
    }

    fn prefetch(&mut self, into: Prefetching, address: Hpa, at: u64, by: usize) -> Prefetched {
        self.prefetch_data(into, address, at, by)
    }
}

/// Reads without a clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoClock;

impl MemoryPort for NoClock {
    #[inline]
    fn is_timed(&self) -> bool {
        false
    }

    #[inline]
    fn read_entry(&mut self, _address: Hpa, at: u64, _write: bool) -> Response {
        Response::new(at, Served::L1)
    }

    #[inline]
    fn prefetch_hint(&self, _address: Hpa) {}

    fn read_translations(&mut self, _: Hpa, at: u64, _: bool, _: bool) -> (Response, bool) {
        (Response::new(at, Served::L1), false)
    }

    fn write_translations(&mut self, _address: Hpa, _at: u64) {}

    fn prefetch_entry(&mut self, _address: Hpa, _at: u64) -> bool {
        true
    }
}

impl TableReader for NoClock {
    const TIMED: bool = false;
}

/// Reads without a clock that change what the caches hold.
pub struct Warming<'a>(pub &'a mut Hierarchy);

impl MemoryPort for Warming<'_> {
    #[inline]
    fn is_timed(&self) -> bool {
        false
    }

    #[inline]
    fn read_entry(&mut self, address: Hpa, at: u64, write: bool) -> Response {
        self.0.warm(address, write, Requester::Walker);
        Response::new(at, Served::L1)
    }

    #[inline]
    fn prefetch_hint(&self, address: Hpa) {
        self.0.prefetch_hint(address);
    }

    fn read_translations(&mut self, address: Hpa, at: u64, _: bool, _: bool) -> (Response, bool) {
        let served = self.0.warm_l2(Line::of(address), false, Requester::Walker);
        (Response::new(at, served), false)
    }

    fn write_translations(&mut self, address: Hpa, _at: u64) {
        self.0.warm_translations(address);
    }

    fn prefetch_entry(&mut self, address: Hpa, _at: u64) -> bool {
        self.0.warm(address, false, Requester::Walker);
        true
    }
}

impl TableReader for Warming<'_> {
    const TIMED: bool = false;
}

impl DataPort for Warming<'_> {
    fn caches(&mut self) -> &mut Hierarchy {
        self.0
    }

    fn access(&mut self, address: Hpa, at: u64, store: bool) -> Response {
        self.0.warm(address, store, Requester::Data);
        Response::new(at, Served::L1)
    }

    fn prefetch(&mut self, into: Prefetching, address: Hpa, _at: u64, by: usize) -> Prefetched {
        self.0.warm_prefetch_data(into, address, by)
    }
}

/// A port with or without a clock, for a walk that a mechanism makes.
pub struct Port<'a, const TIMED: bool>(pub &'a mut dyn MemoryPort);

impl<const TIMED: bool> MemoryPort for Port<'_, TIMED> {
    fn is_timed(&self) -> bool {
        TIMED
    }

    fn read_entry(&mut self, address: Hpa, at: u64, write: bool) -> Response {
        self.0.read_entry(address, at, write)
    }

    fn prefetch_hint(&self, address: Hpa) {
        self.0.prefetch_hint(address);
    }

    fn read_translations(
        &mut self,
        address: Hpa,
        at: u64,
        bypass: bool,
        by_l1d: bool,
    ) -> (Response, bool) {
        self.0.read_translations(address, at, bypass, by_l1d)
    }

    fn write_translations(&mut self, address: Hpa, at: u64) {
        self.0.write_translations(address, at);
    }

    fn prefetch_entry(&mut self, address: Hpa, at: u64) -> bool {
        self.0.prefetch_entry(address, at)
    }
}

impl<const TIMED: bool> TableReader for Port<'_, TIMED> {
    const TIMED: bool = TIMED;
}
