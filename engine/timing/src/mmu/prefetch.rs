//! Data accesses with prefetchers: what a machine's data prefetchers want is translated, and asked for.
//!
//! Prefetchers see virtual addresses. A line in the same 4 KiB page as the request that makes it
//! wanted needs no translation of its own. For one in another page it depends on the prefetcher's
//! [`PageCrossing`]: it is not prefetched, or only if a TLB has the page, or the page table is
//! walked for it. Such a walk takes a page walker if one is free then, reads through the caches
//! like any other, sets accessed bits as the speculative walks of x86 may, raises no fault, calls
//! no software, and puts what it finds into the L2 TLB. No TLB counts these look-ups, nor do they
//! make an entry more recent.
//!
//! The prefetchers of L1D see every load and store. Those of L2 see the requests that L1D makes of L2: its
//! misses, and its prefetches. Code and page-table entries are seen by none. The n-th prefetch that an
//! access brings about is made n cycles after it; what follows from one that waited for its translation is
//! later by as much, and so is what follows in L2 from an access that waited for an MSHR of L1D.
//!
//! Prefetchers see accesses in the order of the program, not in that in which they are made.

use flatwalk_paging::{AccessKind, Address, Gva, Hpa};

use crate::config::machine::PageCrossing;
use crate::memory::hierarchy::{Prefetched, Prefetching, Response};
use crate::memory::line::{PAGE_SHIFT, page_offset, page_start};
use crate::memory::prefetchers::{self, Wanted};
use crate::memory::reader::DataPort;
use crate::mmu::event::{ReadCount, Request};
use crate::mmu::{Mmu, permits};
use crate::system::System;

/// A load or store of a line, translated.
#[derive(Clone, Copy, Debug)]
pub struct DataAccess {
    /// Virtual address of the instruction.
    pub instruction: u64,
    /// Virtual address of the access.
    pub address: u64,
    /// Where that lies.
    pub physical: Hpa,
    /// Cycle in which that is known.
    pub at: u64,
    /// It is a store.
    pub store: bool,
}

/// A line that is wanted: by which prefetcher of which cache.
pub(super) type Line = (Prefetching, Wanted);

/// A prefetch that makes others wanted: the place of the first of these among the wanted lines, and
/// the request, its cycle less its number, so that the n-th prefetch is n cycles later.
pub(super) type Origin = (usize, DataAccess);

impl Mmu {
    /// Makes the access, and the prefetches that it brings about.
    #[inline(never)]
    pub fn access_and_prefetch<R: DataPort>(
        &mut self,
        access: DataAccess,
        system: &mut System,
        port: &mut R,
    ) -> Response {
        let DataAccess { instruction, address, physical, at, store } = access;
        let found = port.caches().find(physical);
        let before = port.caches().l1d_wait_cycles();
        let response = port.access(physical, at, store);
        // What L2's prefetchers see of it, they see when L1D asks.
        let delay = port.caches().l1d_wait_cycles() - before;
        let request = |found| prefetchers::Request { instruction, address, store, found };
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.clear();
        port.caches().observe(Prefetching::L1d, &request(found.l1d), &mut wanted);
        let mut origins = std::mem::take(&mut self.origins);
        origins.clear();
        if found.l1d == prefetchers::Found::Nothing {
            let first = wanted.len();
            port.caches().observe(Prefetching::L2, &request(found.l2), &mut wanted);
            if wanted.len() > first {
                origins.push((first, DataAccess { at: at + delay, ..access }));
            }
        }
        let (mut next, mut next_origin, mut origin) = (0, 0, access);
        // A prefetch into L1D that has to go to L2 may bring about more. Their page is that of the prefetch.
        while let Some(&line) = wanted.get(next) {
            if let Some(&(first, prefetch)) = origins.get(next_origin)
                && first == next
            {
                origin = prefetch;
                next_origin += 1;
            }
            next += 1;
            let number = next as u64;
            let known = wanted.len();
            let request = DataAccess { at: origin.at + number, ..origin };
            let made = self.prefetch(line, &request, system, port, &mut wanted);
            if let Some(made) = made
                && wanted.len() > known
            {
                origins.push((known, DataAccess { at: made.at - number, ..made }));
            }
        }
        (self.wanted, self.origins) = (wanted, origins);
        response
    }

    /// Prefetches `line`, if that can be, for `access`. Returns the request that it made, if it did.
    fn prefetch<R: DataPort>(
        &mut self,
        (into, Wanted { by, address }): Line,
        access: &DataAccess,
        system: &mut System,
        port: &mut R,
        wanted: &mut Vec<Line>,
    ) -> Option<DataAccess> {
        let is_near = address >> PAGE_SHIFT == access.address >> PAGE_SHIFT;
        let place = if is_near {
            let page = page_start(access.physical.raw());
            Some((Hpa::new(page | page_offset(address)), access.at))
        } else {
            self.place_in_another_page((into, by), (address, access.at), system, port)
        };
        let (physical, at) = place?;
        let found = port.caches().find(physical);
        let done = port.prefetch(into, physical, at, by);
        let figures = &mut port.caches().prefetcher(into, by).figures;
        match done {
            Prefetched::Issued => figures.issued += 1,
            Prefetched::Redundant => figures.redundant += 1,
            Prefetched::Dropped => figures.dropped += 1,
        }
        if into == Prefetching::L1d && done == Prefetched::Issued {
            let DataAccess { instruction, store, .. } = *access;
            let request = prefetchers::Request { instruction, address, store, found: found.l2 };
            port.caches().observe(Prefetching::L2, &request, wanted);
        }
        Some(DataAccess { address, physical, at, ..*access })
    }

    /// Where `address` lies, for the prefetcher that wants it from cycle `at` on, and when that is known;
    /// `None` if it is not prefetched.
    fn place_in_another_page<R: DataPort>(
        &mut self,
        (into, by): (Prefetching, usize),
        (address, at): (u64, u64),
        system: &mut System,
        port: &mut R,
    ) -> Option<(Hpa, u64)> {
        let one = port.caches().prefetcher(into, by);
        if one.page_crossing == PageCrossing::Never {
            one.figures.stopped += 1;
            return None;
        }
        let walks = one.page_crossing == PageCrossing::Walk;
        let request = Request { address: Gva::new(address), kind: AccessKind::Load, at };
        let translated = self.translate_for_prefetch(request, walks, system, port);
        let figures = &mut port.caches().prefetcher(into, by).figures;
        let Some((place, read)) = translated else {
            figures.dropped += 1;
            return None;
        };
        figures.walks += u64::from(read.is_some());
        figures.walk_accesses += read.unwrap_or(0);
        Some(place)
    }

    /// The same by the TLBs, or by a walk if that is allowed; and how many entries the walk read,
    /// if there was one.
    fn translate_for_prefetch<R: DataPort>(
        &mut self,
        request: Request,
        walks: bool,
        system: &mut System,
        port: &mut R,
    ) -> Option<((Hpa, u64), Option<u64>)> {
        let Request { address, kind, at } = request;
        if !self.geometry.is_canonical(address.raw()) {
            return None;
        }
        if self.free.is_some() {
            let translated = self.translate_free(request, system).ok()?;
            return Some(((translated.physical, at), None));
        }
        if let Some(physical) = self.mechanisms.iter().find_map(|m| m.peek(address)) {
            return Some(((physical, at), None));
        }
        let known = [&self.l1d, &self.l2].into_iter().find_map(|tlb| tlb.peek(address.raw()));
        if let Some(entry) = known
            && permits(entry.rights, entry.dirty, kind)
        {
            // One that is on its way is waited for.
            let at = if R::TIMED { at.max(entry.ready) } else { at };
            return Some(((self.offsets.physical(address, entry.frame, entry.level), at), None));
        }
        if !walks {
            return None;
        }
        let mut none = ReadCount::default();
        let (mut miss, _) = self.miss(request, system, port, &mut none);
        let (found, read) = miss.prefetch_walk(address, at)?;
        let entry = found.translation(at);
        if self.hooks.fill {
            self.fill_watched(address, entry, port);
        } else {
            self.l2.insert(address.raw(), entry);
        }
        let place = self.offsets.physical(address, entry.frame, entry.level);
        Some(((place, found.ready), Some(read)))
    }
}
