//! The memory-management unit: TLBs, page-walk caches, and the walkers that read the page table.
//!
//! The same code runs with a clock and without ([`TableReader`]): functional mode differs in what
//! a read costs, never in what is read. Mechanisms take part through the hooks of [`mechanism`].

pub mod blame;
pub mod event;
pub mod mechanism;
pub mod prefetch;
pub mod pwc;
pub mod segment;
pub mod side_cache;
pub mod statistics;
pub mod timeline;
pub mod tlb;
pub mod walker;
mod walkers;

use flatwalk_os::OsError;
use flatwalk_paging::{
    AccessKind, Address, Attributes, Flush, Geometry, Gpa, Gva, Hpa, Level, Mapping, Rights,
};

use crate::config::machine::Machine;
use crate::counts::Visitor;
use crate::memory::reader::{MemoryPort, NoClock, TableReader};
use crate::mmu::blame::Blame;
use crate::mmu::event::{Found, ReadCount, Request, Stopped, WalkLog, WalkObserver};
use crate::mmu::mechanism::{Hooks, Mechanism, Miss};
use crate::mmu::statistics::WalkStatistics;
use crate::mmu::timeline::Timeline;
use crate::mmu::tlb::{Tlb, Translation};
use crate::mmu::walker::Walker;
use crate::mmu::walkers::Walkers;
use crate::system::{Flushes, Handled, System};

/// A translation and when it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// Where the address lies.
    pub physical: Hpa,
    /// Cycle in which that is known.
    pub ready: u64,
}

/// What is known of a translation that missed the TLBs: what it spent its time on, and who is to wait for it.
pub type Missed<'a> = (&'a mut Timeline, &'a mut Blame);

/// Faults that one access can raise, at most: in a guest each entry read may lie in a page that the
/// host has not backed, chains of hashed tables have up to 255 entries for each of three page
/// sizes, and rights may be lacking.
const MOST_FAULTS: usize = 1024;

/// Translates without cost; see [`crate::config::scheme::TranslationMode::Free`].
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
    offsets: Offsets,
    l1d: Tlb,
    l1i: Tlb,
    l2: Tlb,
    walker: Walker,
    walkers: Walkers,
    free: Option<Free>,
    mechanisms: Vec<Box<dyn Mechanism>>,
    /// How many of them are parts of the walker. These come first.
    parts: usize,
    /// Hooks that some mechanism has.
    hooks: Hooks,
    /// Something translates before the TLBs do: `free` or a mechanism.
    bypassed: bool,
    /// A mechanism takes part in misses of the L2 TLB.
    assisted: bool,
    /// What the walkers did.
    pub statistics: WalkStatistics,
    /// Misses of the L2 TLB, measured or not, that mechanisms look at.
    l2_tlb_misses: u64,
    /// The last miss of the TLBs.
    pub timeline: Timeline,
    /// Where the walks come from.
    pub blame: Blame,
    frontier: u64,
    /// Other cores run the same program: what they are to flush, until they are told.
    to_others: Option<Vec<Flushes>>,
    /// Scratch: lines that prefetchers want …
    wanted: Vec<prefetch::Line>,
    /// … and the prefetches that make some of them wanted.
    origins: Vec<prefetch::Origin>,
}

impl Mmu {
    /// The unit of `machine` for a process whose table has `geometry`, and whose walks `walker` makes,
    /// with `mechanisms`; `free` if translation costs nothing. `blame` is to say where they come from.
    pub fn new(
        machine: &Machine,
        geometry: Geometry,
        walker: Walker,
        mut mechanisms: Vec<Box<dyn Mechanism>>,
        free: bool,
        blame: Blame,
    ) -> Self {
        mechanisms.sort_by_key(|mechanism| !mechanism.hooks().part_of_walker);
        let parts = mechanisms.partition_point(|mechanism| mechanism.hooks().part_of_walker);
        let all = mechanisms.iter().map(|mechanism| mechanism.hooks());
        let hooks = all.fold(Hooks::default(), Hooks::or);
        Self {
            geometry,
            offsets: Offsets::new(geometry),
            l1d: Tlb::new(&machine.tlb.l1d, geometry),
            l1i: Tlb::new(&machine.tlb.l1i, geometry),
            l2: Tlb::new(&machine.tlb.l2, geometry),
            // What reads of free walks cost is no matter, and nobody asks caches.
            walker: if free { walker.without_caches() } else { walker },
            walkers: Walkers::new(machine.walker.concurrent),
            free: free.then(|| Free { known: Vec::new() }),
            mechanisms,
            parts,
            hooks,
            bypassed: free || hooks.translate,
            assisted: hooks.look_up || hooks.walk || hooks.part_of_walker,
            statistics: WalkStatistics::default(),
            l2_tlb_misses: 0,
            timeline: Timeline::default(),
            blame,
            frontier: 0,
            to_others: None,
            wanted: Vec::new(),
            origins: Vec::new(),
        }
    }

    /// The unit of another core that runs the same program, like this one now.
    #[must_use]
    pub fn for_another_core(&self) -> Self {
        let mechanisms = self.mechanisms.iter().map(|mechanism| mechanism.for_another_core());
        Self {
            geometry: self.geometry,
            offsets: self.offsets,
            l1d: self.l1d.clone(),
            l1i: self.l1i.clone(),
            l2: self.l2.clone(),
            walker: self.walker.clone(),
            walkers: self.walkers.clone(),
            free: self.free.clone(),
            mechanisms: mechanisms.collect(),
            parts: self.parts,
            hooks: self.hooks,
            bypassed: self.bypassed,
            assisted: self.assisted,
            statistics: WalkStatistics::default(),
            l2_tlb_misses: 0,
            timeline: Timeline::default(),
            frontier: 0,
            to_others: None,
            wanted: Vec::new(),
            origins: Vec::new(),
            blame: Blame::new(None),
        }
    }

    /// Other cores run the same program from now on: flushes are kept for them.
    pub fn keep_flushes(&mut self) {
        self.to_others.get_or_insert_default();
    }

    /// What was flushed since this was last asked for, and is to be on the other cores, too.
    pub fn take_flushes(&mut self) -> Vec<Flushes> {
        self.to_others.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The turn goes to another core's unit, and with it what is of all cores together: where walks come
    /// from, and what mechanisms have so.
    pub fn hand_over(&mut self, to: &mut Self) {
        std::mem::swap(&mut self.blame, &mut to.blame);
        for (mechanism, other) in self.mechanisms.iter_mut().zip(&mut to.mechanisms) {
            mechanism.hand_over(&mut **other);
        }
    }

    /// The mechanisms, in the order in which they are called.
    pub fn mechanisms(&self) -> impl Iterator<Item = &dyn Mechanism> {
        self.mechanisms.iter().map(|mechanism| &**mechanism)
    }

    /// The same, to call their hooks.
    pub fn mechanisms_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Mechanism>> {
        self.mechanisms.iter_mut()
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

    /// Translates what is requested, in `system`. `instruction` gives the address of the instruction whose
    /// access it is, and is asked where a TLB misses.
    ///
    /// # Errors
    /// The page fault that the operating system, or the host's, must handle.
    #[inline(always)]
    pub fn translate<R: TableReader>(
        &mut self,
        request: Request,
        instruction: impl FnOnce() -> u64,
        system: &mut System,
        reader: &mut R,
    ) -> Result<Translated, Stopped> {
        if self.bypassed {
            return self.translate_bypassed(request, instruction, system, reader);
        }
        self.translate_in_l1(request, instruction, system, reader)
    }

    #[inline(never)]
    fn translate_bypassed<R: TableReader>(
        &mut self,
        request: Request,
        instruction: impl FnOnce() -> u64,
        system: &mut System,
        reader: &mut R,
    ) -> Result<Translated, Stopped> {
        if self.free.is_some() {
            return self.translate_free(request, system);
        }
        let mut mechanisms = self.mechanisms.iter_mut();
        if let Some(physical) = mechanisms.find_map(|m| m.translate(request.address)) {
            // It is looked up alongside the L1 TLB and takes as long.
            let ready = if R::TIMED { request.at + self.l1d.latency() - 1 } else { request.at };
            return Ok(Translated { physical, ready });
        }
        self.translate_in_l1(request, instruction, system, reader)
    }

    /// The first-level TLB for accesses of `kind`.
    #[inline]
    fn l1(&mut self, kind: AccessKind) -> &mut Tlb {
        if kind == AccessKind::Fetch { &mut self.l1i } else { &mut self.l1d }
    }

    #[inline(always)]
    fn translate_in_l1<R: TableReader>(
        &mut self,
        request: Request,
        instruction: impl FnOnce() -> u64,
        system: &mut System,
        reader: &mut R,
    ) -> Result<Translated, Stopped> {
        let Request { address, kind, at } = request;
        let l1 = if kind == AccessKind::Fetch { &mut self.l1i } else { &mut self.l1d };
        let found = l1.look_up(address.raw());
        if let Some((entry, latency)) = found
            && permits(entry.rights, entry.dirty, kind)
        {
            let ready = if R::TIMED { at + latency - 1 } else { at };
            let parts = (self.offsets, &mut self.statistics, &mut self.walkers);
            return Ok(resolve(parts, address, entry, (at, ready)));
        }
        let refused = found.map(|(entry, _)| *entry);
        self.translate_missed(request, refused, instruction, system, reader)
    }

    /// The first-level TLB has missed, or has what was `refused`. Apart, so that hits stay short.
    #[inline(never)]
    fn translate_missed<R: TableReader>(
        &mut self,
        request: Request,
        refused: Option<Translation>,
        instruction: impl FnOnce() -> u64,
        system: &mut System,
        reader: &mut R,
    ) -> Result<Translated, Stopped> {
        self.blame.instruction = instruction();
        if let Some(entry) = &refused {
            self.l1(request.kind).refuse(entry);
        }
        self.translate_in_l2(request, refused, system, reader)
    }

    #[inline(never)]
    fn translate_in_l2<R: TableReader>(
        &mut self,
        request: Request,
        refused: Option<Translation>,
        system: &mut System,
        reader: &mut R,
    ) -> Result<Translated, Stopped> {
        let Request { address, kind, at } = request;
        let mut ready = if R::TIMED { at + self.l1(kind).latency() - 1 } else { at };
        let found = self.l2.look_up(address.raw()).map(|(entry, latency)| (*entry, latency));
        if R::TIMED {
            ready += found.map_or_else(|| self.l2.latency(), |(_, latency)| latency);
        }
        let found = found.map(|(entry, _)| entry);
        if let Some(entry) = found {
            if permits(entry.rights, entry.dirty, kind) {
                self.l1(kind).insert(address.raw(), entry);
                let parts = (self.offsets, &mut self.statistics, &mut self.walkers);
                return Ok(resolve(parts, address, &entry, (at, ready)));
            }
            self.l2.refuse(&entry);
        }
        if kind == AccessKind::Store && refused.or(found).is_some_and(|entry| entry.rights.write) {
            self.statistics.dirty_updates += 1;
        }
        self.statistics.l2_tlb_misses += 1;
        self.l2_tlb_misses += 1;
        // A walk takes long enough for them to be at hand.
        self.l2.prefetch_victim(address.raw());
        self.l1(kind).prefetch_victim(address.raw());
        let mut log = std::mem::take(&mut self.timeline.log);
        log.clear();
        let found = self.walk(Request { at: ready, ..request }, system, reader, &mut log);
        self.timeline.log = log;
        let found = found?;
        let mut entry = found.translation(at);
        if R::TIMED {
            let t = &self.timeline;
            entry.waited = (t.start - t.wanted + t.delay).try_into().unwrap_or(u16::MAX);
        }
        if self.hooks.fill {
            self.fill_watched(address, entry, reader);
        } else {
            self.l2.insert(address.raw(), entry);
        }
        self.l1(kind).insert(address.raw(), entry);
        let physical = self.offsets.physical(address, entry.frame, entry.level);
        Ok(Translated { physical, ready: found.ready })
    }

    /// Fills the L2 TLB where mechanisms want to know what comes and goes.
    #[cold]
    fn fill_watched<R: TableReader>(&mut self, address: Gva, entry: Translation, reader: &mut R) {
        let evicted = self.l2.victim(address.raw(), entry.level);
        self.l2.insert(address.raw(), entry);
        for mechanism in self.mechanisms.iter_mut().filter(|m| m.hooks().fill) {
            if let Some((page, old)) = evicted {
                mechanism.evicted(Gva::new(page), &old, reader);
            }
            mechanism.filled(address, &entry, reader);
        }
    }

    /// One walk, whose reads go to `log`.
    fn walk<R: TableReader>(
        &mut self,
        request: Request,
        system: &mut System,
        reader: &mut R,
        log: &mut WalkLog,
    ) -> Result<Found, Stopped> {
        let Request { address, kind, at } = request;
        let mut wanted = at;
        // The cycle from which on a walker is held that was taken for more than the walk.
        let mut held = None;
        if self.hooks.look_up {
            if R::TIMED && self.hooks.look_up_in_walker {
                held = Some(self.walkers.earliest(at));
            }
            let first = held.unwrap_or(at);
            match self.look_up_in_mechanisms(Request { at: first, ..request }, system, reader, log)
            {
                Ok(mut found) => {
                    let delay =
                        held.map_or(0, |held| self.walkers.book(held, found.ready, self.frontier));
                    found.ready += delay;
                    let (queue, ready) = (first - at + delay, found.ready);
                    self.count(&found, log, request, ready - at, queue);
                    self.note_times(at, (ready - queue, ready - delay), delay, ready);
                    return Ok(found);
                }
                Err(missed) => wanted = missed,
            }
        }
        let start = if R::TIMED && held.is_none() { self.walkers.earliest(wanted) } else { wanted };
        let mut result = if self.assisted {
            let request = Request { at: wanted, ..request };
            let (mut miss, others) = self.miss(request, system, reader, log);
            miss.start = start;
            miss.walk(others)
        } else {
            self.walker.walk(address, kind, start, system, reader, log)
        };
        // A wait before the look-up counts as one between it and the walk.
        wanted -= held.map_or(0, |held| held - at);
        let mut queue = start - wanted;
        if let Ok(found) = &result {
            reader.prefetch_hint(self.offsets.physical(address, found.frame, found.level));
        }
        if R::TIMED {
            let end = match &mut result {
                Ok(found) => &mut found.ready,
                Err(stopped) => &mut stopped.at,
            };
            let delay = self.walkers.book(held.unwrap_or(start), *end, self.frontier);
            queue += delay;
            *end += delay;
            let ready = *end;
            self.note_times(at, (wanted, start), delay, ready);
        }
        if self.hooks.walk {
            let (mut miss, others) = self.miss(request, system, reader, log);
            miss.is_over(others, &mut result);
        }
        if let Ok(found) = &result {
            self.count(found, log, request, found.ready - at, queue);
        } else {
            self.statistics.faulting += 1;
            self.statistics.faulting_accesses += log.count();
        }
        result
    }

    /// Notes when what was missed at cycle `missed` went on, and was known.
    #[inline]
    fn note_times(&mut self, missed: u64, (wanted, start): (u64, u64), delay: u64, ready: u64) {
        let t = &mut self.timeline;
        (t.missed, t.wanted, t.start, t.delay, t.ready) = (missed, wanted, start, delay, ready);
    }

    /// What mechanisms may use at `request`, and those that are no parts of the walker. A walk would start
    /// at once.
    fn miss<'a>(
        &'a mut self,
        request: Request,
        system: &'a mut System,
        port: &'a mut dyn MemoryPort,
        log: &'a mut dyn WalkObserver,
    ) -> (Miss<'a>, &'a mut [Box<dyn Mechanism>]) {
        let (parts, others) = self.mechanisms.split_at_mut(self.parts);
        let miss = Miss {
            request,
            start: request.at,
            geometry: self.geometry,
            tlb: &mut self.l2,
            walker: &mut self.walker,
            parts,
            walkers: &mut self.walkers,
            frontier: self.frontier,
            system,
            port,
            log,
        };
        (miss, others)
    }

    /// What a mechanism has for the request; or the cycle in which a walk is wanted.
    #[cold]
    fn look_up_in_mechanisms<R: TableReader>(
        &mut self,
        request: Request,
        system: &mut System,
        reader: &mut R,
        log: &mut WalkLog,
    ) -> Result<Found, u64> {
        let (mut miss, others) = self.miss(request, system, reader, log);
        for mechanism in others.iter_mut().filter(|m| m.hooks().look_up) {
            match mechanism.look_up(&mut miss) {
                Ok(found) if found.permits(request.kind) => return Ok(found),
                Ok(Found { ready: missed, .. }) | Err(missed) => miss.request.at = missed,
            }
        }
        Err(miss.request.at)
    }

    /// What mechanisms have for the request, or the cycle in which a walk is wanted; and how many
    /// lines they read for it. They change, so a copy is to be asked.
    pub(crate) fn ask_mechanisms<R: TableReader>(
        &mut self,
        request: Request,
        system: &mut System,
        reader: &mut R,
    ) -> (Result<Found, u64>, u64) {
        let mut log = WalkLog::default();
        let found = self.look_up_in_mechanisms(request, system, reader, &mut log);
        (found, log.count())
    }

    /// A walk that starts at once, with nothing but the walker and its caches.
    ///
    /// # Errors
    /// As [`Walker::walk`].
    pub(crate) fn walk_bare<R: TableReader, T: WalkObserver>(
        &mut self,
        request: Request,
        system: &mut System,
        reader: &mut R,
        observer: &mut T,
    ) -> Result<Found, Stopped> {
        let Request { address, kind, at } = request;
        if self.hooks.part_of_walker {
            return self.miss(request, system, reader, observer).0.walk(&mut []);
        }
        self.walker.walk(address, kind, at, system, reader, observer)
    }

    fn count(&mut self, found: &Found, log: &WalkLog, of: Request, latency: u64, queue: u64) {
        self.blame.walk(of.address.raw());
        let s = &mut self.statistics;
        let page = &mut s.by_page[usize::from(found.level)];
        page.walks += 1;
        page.accesses += log.count();
        page.latency_cycles += latency;
        for (stage, class, served) in log.reads() {
            s.reads[stage as usize][usize::from(class)][served as usize] += 1;
        }
        s.queue_cycles += queue;
        s.instruction_side += u64::from(of.kind == AccessKind::Fetch);
        s.histogram[WalkStatistics::bucket(latency)] += 1;
    }

    fn translate_free(
        &mut self,
        Request { address, kind, at }: Request,
        system: &mut System,
    ) -> Result<Translated, Stopped> {
        let page = address.raw() >> self.geometry.page_shift();
        let slot = page as usize % Free::ENTRIES;
        let known = self.free.as_ref().and_then(|free| free.known.get(slot));
        if let Some((tag, entry)) = known
            && *tag == page
            && permits(entry.rights, entry.dirty, kind)
        {
            let physical = self.offsets.physical(address, entry.frame, entry.level);
            return Ok(Translated { physical, ready: at });
        }
        // The bits that a walk sets are set; what it reads costs nothing and is not counted.
        let found =
            self.walker.walk(address, kind, at, system, &mut NoClock, &mut ReadCount::default())?;
        let entry = Translation { ready: 0, ..found.translation(0) };
        if let Some(free) = &mut self.free {
            free.known.resize(Free::ENTRIES, (u64::MAX, entry));
            free.known[slot] = (page, entry);
        }
        let physical = self.offsets.physical(address, entry.frame, entry.level);
        Ok(Translated { physical, ready: at })
    }

    /// Lets the operating system handle the fault that `stopped` the request, and translates again,
    /// until that succeeds. `resume` gets each fault that was handled, the cycle in which it was raised,
    /// and what the time until then was spent on; it returns the cycle in which the request is made again.
    ///
    /// # Errors
    /// When the operating system cannot handle a fault.
    ///
    /// # Panics
    /// If an access still faults after more faults than it can raise: a mistake in the model.
    #[cold]
    pub fn translate_after_fault<R: TableReader>(
        &mut self,
        request: Request,
        mut stopped: Stopped,
        system: &mut System,
        reader: &mut R,
        mut resume: impl FnMut(&Handled, u64, Missed<'_>, &mut R) -> u64,
    ) -> Result<Translated, OsError> {
        let instruction = self.blame.instruction;
        for _ in 0..MOST_FAULTS {
            let mut all = Vec::new();
            system.fault(stopped.untranslated, request.kind, &mut |handled| all.push(handled))?;
            let mut at = stopped.at;
            for handled in &all {
                self.carry_out(&handled.flushes);
                let missed = (&mut self.timeline, &mut self.blame);
                at = resume(handled, at, missed, reader);
            }
            match self.translate(Request { at, ..request }, || instruction, system, reader) {
                Ok(translated) => return Ok(translated),
                Err(again) => stopped = again,
            }
        }
        unreachable!("the fault at {:?} was handled, and it faults again", request.address)
    }

    /// Whether a mechanism may protect page-table lines in the caches.
    pub fn may_protect_page_tables(&self) -> bool {
        self.hooks.protect
    }

    /// Whether mechanisms want to know what was touched in parts that are not run.
    pub fn wants_populated(&self) -> bool {
        self.hooks.populate
    }

    /// A page was touched in a part of the program that is not run.
    pub fn populated(&mut self, page: &Mapping<Gva, Hpa>) {
        let &Mapping { input, frame, level, attributes } = page;
        let Attributes { rights, dirty, .. } = attributes;
        let found = Found { frame, level, rights, dirty, ready: 0 };
        for mechanism in self.mechanisms.iter_mut().filter(|m| m.hooks().populate) {
            mechanism.populated(input, &found);
        }
    }

    /// Carries out the flushes that the operating systems ask for.
    pub fn carry_out(&mut self, flushes: &Flushes) {
        if let Some(kept) = &mut self.to_others
            && !flushes.is_empty()
        {
            kept.push(flushes.clone());
        }
        self.carry_out_here(flushes);
    }

    /// The same of what another core's unit flushed.
    pub fn carry_out_here(&mut self, flushes: &Flushes) {
        for flush in &flushes.host {
            self.flush_host(flush);
        }
        for flush in &flushes.own {
            self.flush(flush);
        }
    }

    /// Carries a flush out: TLB entries by range; page-walk caches altogether, as INVLPG does.
    pub fn flush(&mut self, flush: &Flush<Gva>) {
        self.walker.flush();
        self.flush_but_walker(flush);
    }

    fn flush_but_walker(&mut self, flush: &Flush<Gva>) {
        for mechanism in &mut self.mechanisms {
            mechanism.flush(flush, &mut self.l2);
        }
        if !flush.leaves {
            return;
        }
        for tlb in [&mut self.l1d, &mut self.l1i, &mut self.l2] {
            tlb.flush(flush.start.raw(), flush.last.raw());
        }
        if let Some(free) = &mut self.free {
            free.known.clear();
        }
    }

    /// Carries out a flush of the host's: its own structures by range, and as the processor does not
    /// know which guest-virtual pages lie there, all TLB entries (Intel SDM volume 3, section 28.4.3).
    pub fn flush_host(&mut self, flush: &Flush<Gpa>) {
        self.walker.flush_host(flush);
        if flush.leaves {
            self.flush_but_walker(&Flush::everything(true, false));
        }
    }

    /// Forgets what it has of the process that leaves the core: TLBs and page-walk caches are not
    /// tagged.
    pub fn switch_context(&mut self) {
        for tlb in [&mut self.l1d, &mut self.l1i, &mut self.l2] {
            tlb.flush(0, u64::MAX);
        }
        self.walker.flush_all();
        self.mechanisms.iter_mut().for_each(|mechanism| mechanism.switch_context());
    }

    /// The TLBs by name, for their statistics.
    pub fn tlbs(&self) -> [(&'static str, &Tlb); 3] {
        [("L1D", &self.l1d), ("L1I", &self.l1i), ("L2", &self.l2)]
    }

    /// Misses of the L2 TLB so far, measured or not.
    pub fn l2_tlb_misses(&self) -> u64 {
        self.l2_tlb_misses
    }

    /// The walker, for its page-walk caches and their statistics.
    pub fn walker(&self) -> &Walker {
        &self.walker
    }

    /// Shows the counts that are of all cores together.
    pub fn shared_counts(&mut self, visit: &mut Visitor<'_>) {
        self.blame.counts(visit);
    }

    /// Shows its counts.
    pub fn counts(&mut self, visit: &mut Visitor<'_>) {
        for tlb in [&mut self.l1d, &mut self.l1i, &mut self.l2] {
            tlb.counts(visit);
        }
        self.walker.counts(visit);
        for mechanism in &mut self.mechanisms {
            mechanism.counts(visit);
        }
        visit(&mut self.statistics);
    }
}

impl Found {
    /// What a TLB keeps of it, for a request made at cycle `requested`.
    #[inline]
    pub fn translation(&self, requested: u64) -> Translation {
        let Self { frame, level, rights, dirty, ready } = *self;
        Translation { frame, level, rights, dirty, requested, ready, waited: 0 }
    }

    /// Whether an access may use it; where not, the table is to be walked.
    #[inline]
    pub fn permits(&self, kind: AccessKind) -> bool {
        permits(self.rights, self.dirty, kind)
    }
}

/// By the level that a page is a leaf of: the bits of an address that say where in the page it lies.
#[derive(Clone, Copy, Debug)]
struct Offsets([u64; 4]);

impl Offsets {
    fn new(geometry: Geometry) -> Self {
        let mut offsets = [0; 4];
        for level in 1..=geometry.largest() {
            offsets[usize::from(level)] = geometry.span(level) - 1;
        }
        Self(offsets)
    }

    /// Where `address` lies, in the page at `frame` that is a leaf of `level`.
    #[inline]
    fn physical(self, address: Gva, frame: Hpa, level: Level) -> Hpa {
        frame.offset(address.raw() & self.0[usize::from(level) % self.0.len()])
    }
}

/// The translation that `entry` gives to a look-up asked for at `at` that would be done at `ready`.
#[inline]
fn resolve(
    (offsets, statistics, walkers): (Offsets, &mut WalkStatistics, &mut Walkers),
    address: Gva,
    entry: &Translation,
    (at, ready): (u64, u64),
) -> Translated {
    let physical = offsets.physical(address, entry.frame, entry.level);
    if entry.ready <= ready {
        return Translated { physical, ready };
    }
    statistics.merged += 1;
    let known = entry.ready_for(at, |at| walkers.earliest(at));
    Translated { physical, ready: ready.max(known) }
}

/// True if a page with these rights and dirty bit serves an access: a store to a page whose dirty bit
/// is clear must walk, so that the bit is set.
#[inline]
fn permits(rights: Rights, dirty: bool, kind: AccessKind) -> bool {
    rights.permit(kind) && (dirty || kind != AccessKind::Store)
}
