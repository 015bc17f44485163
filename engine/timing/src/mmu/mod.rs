//! The memory-management unit: TLBs, page-walk caches, and the walkers that read the page table.
//!
//! The same code runs with a clock and without ([`TableReader`]): functional mode differs in what
//! a read costs, never in what is read.

pub mod event;
pub mod pwc;
pub mod side_cache;
pub mod statistics;
pub mod tlb;
pub mod walker;

use flatwalk_os::Process;
use flatwalk_paging::{AccessKind, Address, Flush, Geometry, Gpa, Gva, Hpa, Level, Rights};

use crate::config::machine::{Machine, Pwc};
use crate::mechanisms::asap::{Asap, AsapStatistics};
use crate::mechanisms::direct_segment::Segment;
use crate::mechanisms::pom_tlb::{PomTlb, PomTlbStatistics};
use crate::mechanisms::vhpt::Vhpt;
use crate::memory::reader::{NoClock, TableReader};
use crate::memory::slots::Slots;
use crate::mmu::event::{Found, Stopped, WalkLog, WalkObserver};
use crate::mmu::statistics::WalkStatistics;
use crate::mmu::tlb::{Tlb, Translation};
use crate::mmu::walker::Walker;
use crate::system::System;

/// A translation and when it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// Where the address lies.
    pub physical: Hpa,
    /// Cycle in which that is known.
    pub ready: u64,
}

/// Translates without cost; see [`crate::config::machine::TranslationMode::Free`].
#[derive(Clone, Debug)]
struct Free {
    /// Direct-mapped by base page number: tag and translation.
    known: Vec<(u64, Translation)>,
}

impl Free {
    const ENTRIES: usize = 1 << 14;
}

/// The unit.
#[derive(Clone, Debug)]
pub struct Mmu {
    geometry: Geometry,
    l1d: Tlb,
    l1i: Tlb,
    l2: Tlb,
    walker: Walker,
    walkers: Slots,
    free: Option<Free>,
    asap: Option<Box<Asap>>,
    /// The same for a guest's table.
    guest_asap: Option<Box<Asap<Gpa>>>,
    pom_tlb: Option<Box<PomTlb>>,
    vhpt: Option<Vhpt>,
    /// Something helps walks: `asap`, `guest_asap`, `pom_tlb` or `vhpt`.
    assisted: bool,
    segment: Option<Box<Segment>>,
    /// Something translates before the TLBs do: `free` or `segment`.
    bypassed: bool,
    /// What the walkers did.
    pub statistics: WalkStatistics,
    frontier: u64,
}

impl Mmu {
    /// The unit of `machine` for a process whose table has `geometry`, and whose walks `walker` makes;
    /// `free` if translation costs nothing.
    pub fn new(machine: &Machine, geometry: Geometry, walker: Walker, free: bool) -> Self {
        let vhpt = match machine.pwc {
            Pwc::Vhpt { handler_cycles } => Some(Vhpt::new(geometry, handler_cycles)),
            _ => None,
        };
        Self {
            geometry,
            l1d: Tlb::new(&machine.tlb.l1d, geometry),
            l1i: Tlb::new(&machine.tlb.l1i, geometry),
            l2: Tlb::new(&machine.tlb.l2, geometry),
            walker,
            walkers: Slots::new(machine.walker.concurrent),
            free: free.then(|| Free { known: Vec::new() }),
            asap: None,
            guest_asap: None,
            pom_tlb: None,
            vhpt,
            assisted: vhpt.is_some(),
            segment: None,
            bypassed: free,
            statistics: WalkStatistics::default(),
            frontier: 0,
        }
    }

    /// Prefetches for every walk from now on.
    pub fn set_asap(&mut self, asap: Asap) {
        self.asap = Some(Box::new(asap));
        self.assisted = true;
    }

    /// Prefetches for every walk in a guest from now on: by `guest` for its table, by `host` whenever the
    /// host's is walked.
    pub fn set_guest_asap(&mut self, guest: Asap<Gpa>, host: Option<Asap>) {
        self.guest_asap = Some(Box::new(guest));
        self.walker.set_host_asap(host);
        self.assisted = true;
    }

    /// Looks into `pom_tlb` before every walk from now on.
    pub fn set_pom_tlb(&mut self, pom_tlb: PomTlb) {
        self.pom_tlb = Some(Box::new(pom_tlb));
        self.assisted = true;
    }

    /// IA-64's walker, if the machine has it.
    pub fn vhpt(&self) -> Option<&Vhpt> {
        self.vhpt.as_ref()
    }

    /// The TLB in memory, if there is one.
    pub fn pom_tlb(&self) -> Option<&PomTlb> {
        self.pom_tlb.as_deref()
    }

    /// Translates by `segment`, where it can, from now on.
    pub fn set_segment(&mut self, segment: Segment) {
        self.segment = Some(Box::new(segment));
        self.bypassed = true;
    }

    /// Translates from a guest to its memory by `segment`, where it can, instead of walking its table.
    pub fn set_guest_segment(&mut self, segment: Segment<Gpa>) {
        self.walker.set_guest_segment(segment);
    }

    /// Translates from a guest's memory to the host's by `segment` instead of walking the host's table.
    pub fn set_host_segment(&mut self, segment: Segment) {
        self.walker.set_host_segment(segment);
    }

    /// Size of the process's own direct segment in bytes, and translations that it gave, if there is one.
    pub fn segment(&self) -> Option<(u64, u64)> {
        let beside_tlb = self.segment.as_ref().map(|s| (s.bytes(), s.translations));
        beside_tlb.or_else(|| self.walker.guest_segment().map(|s| (s.bytes(), s.translations)))
    }

    /// What was prefetched from the process's own table, if anything is.
    pub fn asap(&self) -> Option<AsapStatistics> {
        let own = self.asap.as_ref().map(|asap| asap.statistics);
        own.or_else(|| self.guest_asap.as_ref().map(|asap| asap.statistics))
    }

    /// True if instruction fetches are translated.
    pub fn translates_fetches(&self) -> bool {
        !self.l1i.is_empty()
    }

    /// No request will be made any more for a cycle before `frontier`.
    #[inline]
    pub fn advance(&mut self, frontier: u64) {
        self.frontier = frontier;
    }

    /// Translates `address`, asked for at cycle `at`, in `system`.
    ///
    /// # Errors
    /// The page fault that the operating system, or the host's, must handle.
    #[inline]
    pub fn translate<R: TableReader>(
        &mut self,
        address: Gva,
        kind: AccessKind,
        at: u64,
        system: &mut System,
        reader: &mut R,
    ) -> Result<Translated, Stopped> {
        if self.bypassed {
            return self.translate_bypassed(address, kind, at, system, reader);
        }
        self.translate_in_l1(address, kind, at, system, reader)
    }

    /// Translates without the TLBs where something allows it.
    #[cold]
    fn translate_bypassed<R: TableReader>(
        &mut self,
        address: Gva,
        kind: AccessKind,
        at: u64,
        system: &mut System,
        reader: &mut R,
    ) -> Result<Translated, Stopped> {
        if self.free.is_some() {
            return self.translate_free(address, kind, at, system);
        }
        if let Some(physical) = self.segment.as_mut().and_then(|s| s.translate(address)) {
            // It is looked up beside the L1 TLB and takes as long.
            let ready = if R::TIMED { at + self.l1d.latency() - 1 } else { at };
            return Ok(Translated { physical, ready });
        }
        self.translate_in_l1(address, kind, at, system, reader)
    }

    #[inline]
    fn translate_in_l1<R: TableReader>(
        &mut self,
        address: Gva,
        kind: AccessKind,
        at: u64,
        system: &mut System,
        reader: &mut R,
    ) -> Result<Translated, Stopped> {
        let l1 = if kind == AccessKind::Fetch { &mut self.l1i } else { &mut self.l1d };
        if let Some((entry, latency)) = l1.look_up(address.raw())
            && permits(entry.rights, entry.dirty, kind)
        {
            let ready = if R::TIMED { at + latency - 1 } else { at };
            return Ok(resolve(self.geometry, &mut self.statistics, address, entry, (at, ready)));
        }
        self.translate_in_l2(address, kind, at, system, reader)
    }

    #[inline(never)]
    fn translate_in_l2<R: TableReader>(
        &mut self,
        address: Gva,
        kind: AccessKind,
        at: u64,
        system: &mut System,
        reader: &mut R,
    ) -> Result<Translated, Stopped> {
        let l1 = if kind == AccessKind::Fetch { &mut self.l1i } else { &mut self.l1d };
        let mut ready = if R::TIMED { at + l1.latency() - 1 } else { at };
        let found = self.l2.look_up(address.raw()).map(|(entry, latency)| (*entry, latency));
        if R::TIMED {
            ready += found.map_or_else(|| self.l2.latency(), |(_, latency)| latency);
        }
        if let Some((entry, _)) = found
            && permits(entry.rights, entry.dirty, kind)
        {
            let l1 = if kind == AccessKind::Fetch { &mut self.l1i } else { &mut self.l1d };
            l1.insert(address.raw(), entry);
            return Ok(resolve(self.geometry, &mut self.statistics, address, &entry, (at, ready)));
        }
        if let Some((entry, _)) = found
            && kind == AccessKind::Store
            && entry.rights.write
        {
            self.statistics.dirty_updates += 1;
        }
        self.statistics.l2_tlb_misses += 1;
        let found = self.walk(address, kind, ready, system, reader)?;
        let entry = Translation {
            frame: found.frame,
            level: found.level,
            rights: found.rights,
            dirty: found.dirty,
            requested: at,
            ready: found.ready,
        };
        self.l2.insert(address.raw(), entry);
        let l1 = if kind == AccessKind::Fetch { &mut self.l1i } else { &mut self.l1d };
        l1.insert(address.raw(), entry);
        let physical = physical(self.geometry, address, entry.frame, entry.level);
        Ok(Translated { physical, ready: found.ready })
    }

    /// One walk, asked for at cycle `at`.
    fn walk<R: TableReader>(
        &mut self,
        address: Gva,
        kind: AccessKind,
        at: u64,
        system: &mut System,
        reader: &mut R,
    ) -> Result<Found, Stopped> {
        let mut log = WalkLog::new();
        let mut wanted = at;
        if self.assisted {
            match self.look_in_memory(address, kind, at, reader, &mut log) {
                Ok(found) => {
                    self.count(&found, &log, kind, found.ready - at, 0);
                    return Ok(found);
                }
                Err(missed) => wanted = missed,
            }
        }
        let start = if R::TIMED { self.walkers.earliest(wanted) } else { wanted };
        let mut result = if self.assisted {
            self.walk_assisted(address, kind, (wanted, start), system, reader, &mut log)
        } else {
            self.walker.walk(address, kind, start, system, reader, &mut log)
        };
        let mut queue = start - wanted;
        if let Ok(found) = &result {
            reader.prefetch_hint(physical(self.geometry, address, found.frame, found.level));
        }
        if R::TIMED {
            let end = match &mut result {
                Ok(found) => &mut found.ready,
                Err(stopped) => &mut stopped.at,
            };
            let delay = self.walkers.book(start, *end, self.frontier);
            queue += delay;
            *end += delay;
        }
        if let Ok(found) = &result {
            self.count(found, &log, kind, found.ready - at, queue);
        } else {
            self.statistics.faulting += 1;
            self.statistics.faulting_accesses += log.count();
        }
        result
    }

    /// What the TLB in memory has for an access asked for at `at`, which takes no page walker; or the
    /// cycle in which a walk is wanted.
    #[cold]
    fn look_in_memory<R: TableReader>(
        &mut self,
        address: Gva,
        kind: AccessKind,
        at: u64,
        reader: &mut R,
        log: &mut WalkLog,
    ) -> Result<Found, u64> {
        let Some(pom_tlb) = &mut self.pom_tlb else { return Err(at) };
        match pom_tlb.look_up(address, at, reader, log) {
            Ok(found) if permits(found.rights, found.dirty, kind) => Ok(found),
            Ok(found) => Err(found.ready),
            Err(missed) => Err(missed),
        }
    }

    /// A walk asked for and started at `times`, with what helps it.
    #[cold]
    fn walk_assisted<R: TableReader>(
        &mut self,
        address: Gva,
        kind: AccessKind,
        (asked, start): (u64, u64),
        system: &mut System,
        reader: &mut R,
        log: &mut WalkLog,
    ) -> Result<Found, Stopped> {
        let walker = &mut self.walker;
        let native = self.asap.as_mut().zip(system.native().and_then(Process::ordered_nodes));
        let guest = self.guest_asap.as_mut().zip(system.virtual_machine());
        let result = if let Some((asap, nodes)) = native {
            let mut prefetched = asap.prefetch(address, asked, nodes, Some, reader, log);
            let result = walker.walk(address, kind, start, system, reader, &mut prefetched);
            asap.finish(&prefetched);
            result
        } else if let Some((asap, vm)) = guest
            && let Some(nodes) = vm.guest.ordered_nodes()
        {
            let place = |entry| walker.place_of(vm, entry);
            let mut prefetched = asap.prefetch(address, asked, nodes, place, reader, log);
            let result = walker.walk(address, kind, start, system, reader, &mut prefetched);
            asap.finish(&prefetched);
            result
        } else {
            self.walk_unhelped(address, kind, start, system, reader, log)
        };
        if let (Some(pom_tlb), Ok(found)) = (&mut self.pom_tlb, &result) {
            pom_tlb.insert(address, found, reader);
        }
        result
    }

    /// A walk that starts at cycle `start`, with nothing beside the walker and its caches.
    ///
    /// # Errors
    /// As [`Walker::walk`].
    pub(crate) fn walk_unhelped<R: TableReader, T: WalkObserver>(
        &mut self,
        address: Gva,
        kind: AccessKind,
        start: u64,
        system: &mut System,
        reader: &mut R,
        record: &mut T,
    ) -> Result<Found, Stopped> {
        if self.vhpt.is_some() {
            return self.walk_vhpt(address, kind, start, system, reader, record);
        }
        self.walker.walk(address, kind, start, system, reader, record)
    }

    /// A walk of IA-64's: see [`crate::mechanisms::vhpt`].
    fn walk_vhpt<R: TableReader, T: WalkObserver>(
        &mut self,
        address: Gva,
        kind: AccessKind,
        start: u64,
        system: &mut System,
        reader: &mut R,
        record: &mut T,
    ) -> Result<Found, Stopped> {
        let Some(vhpt) = self.vhpt else { unreachable!("it was there") };
        let walker = &mut self.walker;
        if let Some((node, ready)) = vhpt.known::<R>(address, start, &mut self.l2) {
            walker.hold(address, Some(node));
            let result = walker.walk(address, kind, ready, system, reader, record);
            walker.hold(address, None);
            return result;
        }
        let start = vhpt.trap::<R>(start, &self.l2);
        let mut handler = vhpt.handler(record);
        let result = walker.walk(address, kind, start, system, reader, &mut handler);
        let lowest = walker.held(address);
        walker.hold(address, None);
        let mut found = result?;
        vhpt.finish(address, &mut found, lowest, &mut handler, reader, &mut self.l2);
        Ok(found)
    }

    fn count(&mut self, found: &Found, log: &WalkLog, kind: AccessKind, latency: u64, queue: u64) {
        let s = &mut self.statistics;
        let page = &mut s.by_page[usize::from(found.level)];
        page.walks += 1;
        page.accesses += log.count();
        page.latency_cycles += latency;
        for &(stage, class, served) in log.reads() {
            s.reads[stage as usize][usize::from(class)][served as usize] += 1;
        }
        s.queue_cycles += queue;
        s.instruction_side += u64::from(kind == AccessKind::Fetch);
        s.histogram[WalkStatistics::bucket(latency)] += 1;
    }

    fn translate_free(
        &mut self,
        address: Gva,
        kind: AccessKind,
        at: u64,
        system: &mut System,
    ) -> Result<Translated, Stopped> {
        let page = address.raw() >> self.geometry.page_shift();
        let slot = page as usize % Free::ENTRIES;
        let known = self.free.as_ref().and_then(|free| free.known.get(slot));
        if let Some((tag, entry)) = known
            && *tag == page
            && permits(entry.rights, entry.dirty, kind)
        {
            let physical = physical(self.geometry, address, entry.frame, entry.level);
            return Ok(Translated { physical, ready: at });
        }
        // The bits that a walk sets are set; what it reads costs nothing and is not counted.
        let found =
            self.walker.walk(address, kind, at, system, &mut NoClock, &mut WalkLog::new())?;
        let entry = Translation {
            frame: found.frame,
            level: found.level,
            rights: found.rights,
            dirty: found.dirty,
            requested: 0,
            ready: 0,
        };
        if let Some(free) = &mut self.free {
            free.known.resize(Free::ENTRIES, (u64::MAX, entry));
            free.known[slot] = (page, entry);
        }
        let physical = physical(self.geometry, address, entry.frame, entry.level);
        Ok(Translated { physical, ready: at })
    }

    /// Carries a flush out: TLB entries by range; page-walk caches altogether, as INVLPG does.
    pub fn flush(&mut self, flush: &Flush<Gva>) {
        self.walker.flush();
        if let Some(vhpt) = &self.vhpt {
            vhpt.flush(flush.start, flush.length_bytes, &mut self.l2);
        }
        if flush.leaves {
            self.flush_pages(flush.start, flush.length_bytes);
        }
    }

    fn flush_pages(&mut self, start: Gva, length_bytes: u64) {
        for tlb in [&mut self.l1d, &mut self.l1i, &mut self.l2] {
            tlb.flush(start.raw(), length_bytes);
        }
        if let Some(free) = &mut self.free {
            free.known.clear();
        }
        if let Some(pom_tlb) = &mut self.pom_tlb {
            pom_tlb.flush(start, length_bytes);
        }
    }

    /// Carries out a flush of the host's: its own structures by range, and as the processor does not
    /// know which guest-virtual pages lie there, all TLB entries (Intel SDM volume 3, section 28.4.3).
    pub fn flush_host(&mut self, flush: &Flush<Gpa>) {
        self.walker.flush_host(flush);
        if flush.leaves {
            self.flush_pages(Gva::new(0), u64::MAX);
        }
    }

    /// Forgets what it has of the process that leaves the core: TLBs and page-walk caches are not
    /// tagged. A TLB in memory is.
    pub fn switch_context(&mut self) {
        for tlb in [&mut self.l1d, &mut self.l1i, &mut self.l2] {
            tlb.flush(0, u64::MAX);
        }
        self.walker.flush_all();
    }

    /// The TLBs by name, for their statistics.
    pub fn tlbs(&self) -> [(&'static str, &Tlb); 3] {
        [("L1D", &self.l1d), ("L1I", &self.l1i), ("L2", &self.l2)]
    }

    /// The walker, for its page-walk caches and their statistics.
    pub fn walker(&self) -> &Walker {
        &self.walker
    }

    /// Forgets all counts; contents stay.
    pub fn reset_statistics(&mut self) {
        self.l1d.reset_statistics();
        self.l1i.reset_statistics();
        self.l2.reset_statistics();
        self.walker.reset_statistics();
        if let Some(asap) = &mut self.asap {
            asap.statistics = AsapStatistics::default();
        }
        if let Some(asap) = &mut self.guest_asap {
            asap.statistics = AsapStatistics::default();
        }
        if let Some(pom_tlb) = &mut self.pom_tlb {
            pom_tlb.statistics = PomTlbStatistics::default();
        }
        if let Some(segment) = &mut self.segment {
            segment.translations = 0;
        }
        self.statistics = WalkStatistics::default();
    }
}

/// Where `address` lies, in the page at `frame` that is a leaf of `level`.
#[inline]
fn physical(geometry: Geometry, address: Gva, frame: Hpa, level: Level) -> Hpa {
    frame.offset(geometry.within(address.raw(), level))
}

/// The translation that `entry` gives to a look-up asked for at `at` that would be done at `ready`.
#[inline]
fn resolve(
    geometry: Geometry,
    statistics: &mut WalkStatistics,
    address: Gva,
    entry: &Translation,
    (at, ready): (u64, u64),
) -> Translated {
    let physical = physical(geometry, address, entry.frame, entry.level);
    if entry.ready <= ready {
        return Translated { physical, ready };
    }
    statistics.merged += 1;
    // A younger instruction may have asked at an earlier cycle than the one that walked.
    let earlier = entry.requested.saturating_sub(at);
    Translated { physical, ready: ready.max(entry.ready - earlier) }
}

/// True if a page with these rights and dirty bit serves an access: a store to a page whose dirty bit
/// is clear must walk, so that the bit is set.
#[inline]
fn permits(rights: Rights, dirty: bool, kind: AccessKind) -> bool {
    rights.permit(kind) && (dirty || kind != AccessKind::Store)
}
