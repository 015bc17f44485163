//! The page walker: through one table, or through a guest's and the host's behind it.
//!
//! A two-dimensional walk (Bhargava et al., ASPLOS 2008) is the same walk twice. The guest's table
//! yields guest-physical addresses, so each of its entries must be *placed* before it can be read, by
//! a walk of the host's table, and the data too: (g + 1)(h + 1) − 1 accesses for g and h levels.
//! One function walks either stage; only what places an entry differs.
//!
//! A hashed table is walked by reads that are made at once ([`HashedStage`]); in two dimensions each
//! of the guest's is placed by a walk of its own, beside the others.
//!
//! - The guest's page-walk caches hold nodes' guest-physical addresses, which the host still has to
//!   translate (Park et al., ASPLOS 2022), or what the host made of them (Compendia, ISMM 2021,
//!   section 5): [`GuestPwc`].
//! - The host's are tagged with guest-physical addresses and serve every walk of its table.
//! - The nested TLB holds translations of pages with guest page tables; data pages do not go in.

use flatwalk_os::{OrderedNodes, PhysicalMemory, VirtualMachine};
use flatwalk_paging::hashed::{Answer, Part, Probe};
use flatwalk_paging::{
    AccessKind, Address, Attributes, Entry, EntryMemory, EntryMemoryMut, Flush, Geometry, Gpa, Gva,
    Hashed, Hpa, Layout, Leaf, Level, NodeRef, PageTable, Physical, Rights, Step, Structure, Tree,
    Walk,
};

use crate::ConfigError;
use crate::config::machine::{GuestPwc, Machine, Virtualisation, WalkEnd};
use crate::mechanisms::asap::{Asap, AsapStatistics};
use crate::mechanisms::direct_segment::Segment;
use crate::memory::hierarchy::{Response, Served};
use crate::memory::simulator_prefetch::prefetch;
use crate::mmu::TableReader;
use crate::mmu::cwc::Cwc;
use crate::mmu::pwc::Pwc;
use crate::mmu::tlb::{Tlb, Translation};
use crate::system::{System, Untranslated};

/// Whose table an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The process's own, or the guest's.
    One,
    /// The host's.
    Two,
}

/// Entries that walks of trees read at most: guest and host of six levels.
const READS: usize = 48;

/// The number that counts of reads have for the walk table of `level`, beside those for levels of
/// entries.
pub fn walk_table_count(level: Level) -> Level {
    level + 3
}

/// An entry that a walk reads.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Whose table it belongs to.
    pub stage: Stage,
    /// The address that the stage translates.
    pub input: u64,
    /// Address of the node, in the memory that its table is in.
    pub node: u64,
    /// Topmost level that the node spans.
    pub top: Level,
    /// Lowest level that the node spans, which its entries belong to.
    pub level: Level,
    /// Address of the entry, in the memory that its table is in.
    pub entry_address: u64,
    /// The entry as it was found.
    pub entry: Entry,
    /// Of a hashed table: what was read.
    pub line: Option<LineRead>,
    /// Cycle in which it was asked for.
    pub asked: u64,
    /// When it was there, and who had it.
    pub response: Response,
}

/// What a walk read of a hashed table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRead {
    /// What it is part of.
    pub part: Part,
    /// The way.
    pub way: u8,
    /// Number of the line in it.
    pub number: u64,
    /// It is the line that was looked for.
    pub found: bool,
}

/// What takes note of a walk.
pub trait WalkObserver {
    /// An entry was read.
    fn read(&mut self, read: &Read);
}

/// The entries that a walk read, and who had them.
#[derive(Clone, Debug)]
pub struct WalkLog {
    reads: [(Stage, Level, Served); READS],
    used: usize,
    /// What has no room there: of hashed tables in two dimensions.
    more: Vec<(Stage, Level, Served)>,
}

impl WalkLog {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { reads: [(Stage::One, 0, Served::L1); READS], used: 0, more: Vec::new() }
    }

    /// A line of a TLB in memory was read. It counts as an entry of level 0.
    pub(crate) fn translations(&mut self, served: Served) {
        self.note((Stage::One, 0, served));
    }

    #[inline]
    fn note(&mut self, note: (Stage, Level, Served)) {
        match self.reads.get_mut(self.used) {
            Some(slot) => {
                *slot = note;
                self.used += 1;
            }
            None => self.more.push(note),
        }
    }

    /// In the order in which they were read.
    #[inline]
    pub fn reads(&self) -> impl Iterator<Item = &(Stage, Level, Served)> {
        self.reads[..self.used].iter().chain(&self.more)
    }

    /// How many they are.
    #[inline]
    pub fn count(&self) -> u64 {
        (self.used + self.more.len()) as u64
    }
}

impl WalkObserver for WalkLog {
    #[inline]
    fn read(&mut self, read: &Read) {
        self.note((read.stage, read.level, read.response.served));
    }
}

/// A walk that ended without a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// When.
    pub at: u64,
    /// Where.
    pub untranslated: Untranslated,
    /// A page is there, but does not permit the access.
    pub protection: bool,
}

/// What a walk reads through, and what it leaves behind.
struct WalkPorts<'a, R, T> {
    reader: &'a mut R,
    record: &'a mut T,
}

/// A page that a whole walk found, in the host's memory.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Physical address of the page.
    pub frame: Hpa,
    /// Its level: the smaller of both stages' pages.
    pub level: Level,
    /// What both stages permit.
    pub rights: Rights,
    /// Both stages' dirty bits are set.
    pub dirty: bool,
    /// When it is known.
    pub ready: u64,
}

/// Where an entry lies in the host's memory, and when that is known.
trait Place<A> {
    /// `known`: a page-walk cache has just said where its node lies.
    fn place<R: TableReader, T: WalkObserver>(
        &mut self,
        entry: A,
        known: bool,
        at: u64,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<(Hpa, u64), Stopped>;
}

/// Entries lie where they say.
struct Direct;

impl Place<Hpa> for Direct {
    #[inline]
    fn place<R: TableReader, T: WalkObserver>(
        &mut self,
        entry: Hpa,
        _known: bool,
        at: u64,
        _io: &mut WalkPorts<'_, R, T>,
    ) -> Result<(Hpa, u64), Stopped> {
        Ok((entry, at))
    }
}

/// One stage of translation, and the hardware that walks its table.
trait Translates<In, A> {
    /// Bytes of a page of `level`.
    fn span(&self, level: Level) -> u64;

    /// The page of `input`, at no cost.
    fn known(&self, input: In) -> Option<(A, Level)>;

    /// Walks for `input` from cycle `at` on; `entries` says where what is read lies. Returns the page,
    /// and when it is known.
    fn walk<R: TableReader, T: WalkObserver>(
        &mut self,
        input: In,
        kind: AccessKind,
        at: u64,
        entries: &mut impl Place<A>,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<(Leaf<A>, u64), Stopped>;
}

/// A walk of `stage` for `input` that ended at cycle `at` without a translation.
fn stopped(stage: Stage, input: u64, at: u64, protection: bool) -> Stopped {
    let untranslated = match stage {
        Stage::One => Untranslated::Virtual(Gva::new(input)),
        Stage::Two => Untranslated::GuestPhysical(Gpa::new(input)),
    };
    Stopped { at, untranslated, protection }
}

/// One stage: its table, which is a tree, and its page-walk caches.
struct TreeStage<'a, A> {
    stage: Stage,
    geometry: Geometry,
    root: NodeRef<A>,
    memory: &'a mut PhysicalMemory<A>,
    pwc: &'a mut Pwc<A>,
}

impl<In: Address, A: Physical> Translates<In, A> for TreeStage<'_, A> {
    #[inline]
    fn span(&self, level: Level) -> u64 {
        self.geometry.span(level)
    }

    fn known(&self, input: In) -> Option<(A, Level)> {
        let mut walk: Walk<In, A> = Walk::from(self.geometry, self.root, input);
        loop {
            match walk.feed(Entry(self.memory.read(walk.entry_address()))) {
                Step::Table(_) => {}
                Step::Leaf(leaf) => return Some((leaf.frame, leaf.level)),
                Step::Fault(_) => return None,
            }
        }
    }

    #[inline]
    fn walk<R: TableReader, T: WalkObserver>(
        &mut self,
        input: In,
        kind: AccessKind,
        at: u64,
        entries: &mut impl Place<A>,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<(Leaf<A>, u64), Stopped> {
        let from = self.pwc.look_up(input.raw(), at);
        let mut known = from.is_some();
        let mut now = if R::TIMED { at + self.pwc.latency() } else { at };
        let mut walk: Walk<In, A> = Walk::from(self.geometry, from.unwrap_or(self.root), input);
        let store = kind == AccessKind::Store;
        loop {
            let node = walk.at();
            let entry_address = walk.entry_address();
            let (place, placed) = entries.place(entry_address, known, now, ports)?;
            known = false;
            ports.reader.prefetch_hint(place);
            let entry = Entry(self.memory.read(entry_address));
            let step = walk.feed(entry);
            // The accessed bit of every entry used and the dirty bit of a leaf stored through are
            // set by the walker (Intel SDM volume 3, section 4.8).
            let touched = match &step {
                Step::Table(_) => entry.touched(false),
                Step::Leaf(leaf) if leaf.rights.permit(kind) => entry.touched(store),
                Step::Leaf(_) | Step::Fault(_) => entry,
            };
            if touched != entry {
                self.memory.write(entry_address, touched.0);
            }
            let response = ports.reader.read_entry(place, placed, touched != entry);
            now = response.ready;
            ports.record.read(&Read {
                stage: self.stage,
                input: input.raw(),
                node: node.base.raw(),
                top: node.level,
                level: node.bottom(),
                entry_address: entry_address.raw(),
                entry,
                line: None,
                asked: placed,
                response,
            });
            let protection = match step {
                Step::Table(node) => {
                    self.pwc.insert(input.raw(), node, now);
                    continue;
                }
                Step::Leaf(leaf) if leaf.rights.permit(kind) => {
                    return Ok((Leaf { entry: touched, ..leaf }, now));
                }
                Step::Leaf(_) => true,
                Step::Fault(_) => false,
            };
            return Err(stopped(self.stage, input.raw(), now, protection));
        }
    }
}

/// One stage: its table, which is hashed, and its cuckoo walk caches.
///
/// All first reads are made in the cycle in which the page's number is hashed and the caches have
/// answered; where they lead to further ones, as in a chain, each of those follows on its own.
/// The walk ends with the one that finds the entry, or with the last ([`WalkEnd`]); a page fault
/// always with the last. Lines of walk tables that the caches lack are read afterwards.
struct HashedStage<'a, In, A> {
    stage: Stage,
    table: &'a Hashed<In, A>,
    memory: &'a mut PhysicalMemory<A>,
    cwc: &'a mut Cwc,
}

impl<In: Address, A: Physical> HashedStage<'_, In, A> {
    /// Reads the lines of walk tables that are `missing`, from cycle `at` on.
    #[cold]
    fn refill<R: TableReader, T: WalkObserver>(
        &mut self,
        input: In,
        missing: [bool; 2],
        at: u64,
        entries: &mut impl Place<A>,
        ports: &mut WalkPorts<'_, R, T>,
    ) {
        for (level, _) in (2..).zip(missing).filter(|&(_, missing)| missing) {
            let Some((key, probes)) = self.table.walk_table_probes(input, level) else { continue };
            // Where there is no line, nothing of that size or a smaller one is mapped.
            let (mut kept, mut ready) = ([0; 8], at);
            for probe in probes.as_slice() {
                // Nobody waits for it, so nobody sees to a page that the host has not backed.
                let Ok((place, placed)) = entries.place(probe.at, false, at, ports) else { return };
                let line = self.memory.read_line(probe.at);
                let response = ports.reader.read_entry(place, placed, false);
                let found = Hashed::<In, A>::is_walk_table_line(&line, key);
                self.record(input, probe, Entry::ABSENT, found, placed, response, ports.record);
                ready = ready.max(response.ready);
                kept = if found { line } else { kept };
            }
            self.cwc.insert(level, key, kept, ready);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "all of it is noted")]
    #[inline]
    fn record(
        &self,
        input: In,
        probe: &Probe<A>,
        entry: Entry,
        found: bool,
        asked: u64,
        response: Response,
        record: &mut impl WalkObserver,
    ) {
        let level = match probe.part {
            Part::WalkTable(level) => walk_table_count(level),
            Part::Pages(level)
            | Part::Chain(level)
            | Part::Open(level)
            | Part::Anchor(level)
            | Part::Frame(level) => level,
        };
        let Probe { part, way, .. } = *probe;
        record.read(&Read {
            stage: self.stage,
            input: input.raw(),
            node: probe.base.raw(),
            top: level,
            level,
            entry_address: probe.at.raw(),
            entry,
            line: Some(LineRead { part, way, number: probe.line(), found }),
            asked,
            response,
        });
    }
}

impl<In: Address, A: Physical> Translates<In, A> for HashedStage<'_, In, A> {
    fn span(&self, level: Level) -> u64 {
        self.table.geometry().span(level)
    }

    fn known(&self, input: In) -> Option<(A, Level)> {
        self.table.translate(&*self.memory, input).ok().map(|leaf| (leaf.frame, leaf.level))
    }

    #[inline]
    fn walk<R: TableReader, T: WalkObserver>(
        &mut self,
        input: In,
        kind: AccessKind,
        at: u64,
        entries: &mut impl Place<A>,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<(Leaf<A>, u64), Stopped> {
        let known = self.cwc.look_up(self.table, input, at);
        let start = if R::TIMED { at + self.cwc.latency() } else { at };
        let probes = self.table.probes(input, known.hint);
        // So that the host's reads, too, are under way together.
        for probe in probes.as_slice() {
            prefetch(self.memory.word(probe.at));
        }
        let (mut found, mut last) = (None, start);
        for first in probes.as_slice() {
            let (mut next, mut now) = (Some(*first), start);
            // What a read leads to is read after it; beside the other reads, though.
            while let Some(probe) = next {
                let (place, placed) = entries.place(probe.at, false, now, ports)?;
                ports.reader.prefetch_hint(place);
                let line = self.memory.read_line(probe.at);
                let answer = self.table.answer(input, &probe, &line);
                let leaf = match answer {
                    Answer::Leaf(leaf) => Some(leaf),
                    Answer::Nothing | Answer::Follow(_) | Answer::Fault(_) => None,
                };
                next = match answer {
                    Answer::Follow(next) => Some(next),
                    Answer::Nothing | Answer::Leaf(_) | Answer::Fault(_) => None,
                };
                let touched = leaf
                    .filter(|leaf| leaf.rights.permit(kind))
                    .map(|leaf| (leaf, leaf.entry.touched(kind == AccessKind::Store)))
                    .filter(|(leaf, entry)| *entry != leaf.entry);
                if let Some((leaf, entry)) = touched {
                    self.memory.write(leaf.entry_address, entry.0);
                }
                let response = ports.reader.read_entry(place, placed, touched.is_some());
                let entry = leaf.map_or(Entry::ABSENT, |leaf| leaf.entry);
                self.record(input, &probe, entry, leaf.is_some(), placed, response, ports.record);
                now = response.ready;
                last = last.max(now);
                if let Some(leaf) = leaf {
                    let entry = touched.map_or(leaf.entry, |(_, entry)| entry);
                    found = Some((Leaf { entry, ..leaf }, now));
                }
            }
        }
        let Some((leaf, ready)) = found else {
            return Err(stopped(self.stage, input.raw(), last, false));
        };
        let now = match self.cwc.end() {
            WalkEnd::MatchingProbe => ready,
            WalkEnd::LastProbe => last,
        };
        if !leaf.rights.permit(kind) {
            return Err(stopped(self.stage, input.raw(), now, true));
        }
        if known.missing != [false; 2] {
            self.refill(input, known.missing, now, entries, ports);
        }
        Ok((leaf, now))
    }
}

/// A stage without a table: registers translate.
struct SegmentStage<'a, A> {
    geometry: Geometry,
    segment: &'a mut Segment<A>,
}

impl<A: Physical> SegmentStage<'_, A> {
    /// The page of a level that a segment is made of which leads to `found`.
    fn page(&self, found: A) -> (A, Level) {
        let level = if self.segment.is_aligned(self.geometry.span(2)) { 2 } else { 1 };
        (A::new(found.raw() & !(self.geometry.span(level) - 1)), level)
    }
}

impl<In: Address, A: Physical> Translates<In, A> for SegmentStage<'_, A> {
    fn span(&self, level: Level) -> u64 {
        self.geometry.span(level)
    }

    fn known(&self, input: In) -> Option<(A, Level)> {
        self.segment.place(input).map(|found| self.page(found))
    }

    fn walk<R: TableReader, T: WalkObserver>(
        &mut self,
        input: In,
        _purpose: AccessKind,
        at: u64,
        _entries: &mut impl Place<A>,
        _io: &mut WalkPorts<'_, R, T>,
    ) -> Result<(Leaf<A>, u64), Stopped> {
        let Some(found) = self.segment.translate(input) else {
            return Err(stopped(Stage::Two, input.raw(), at, false));
        };
        let (frame, level) = self.page(found);
        let attributes = Attributes { rights: Rights::ALL, accessed: true, dirty: true };
        let entry = Entry::leaf(frame, level > 1, attributes);
        Ok((Leaf { frame, level, rights: Rights::ALL, entry_address: A::new(0), entry }, at))
    }
}

/// The host's stage, as the guest's walk uses it.
struct Host<'a, S> {
    stage: S,
    asap: Option<(&'a mut Asap, &'a OrderedNodes<Hpa>)>,
    nested_tlb: Option<&'a mut Tlb>,
    guest_pwc: GuestPwc,
}

impl<S: Translates<Gpa, Hpa>> Host<'_, S> {
    fn offset(&self, at: Gpa, frame: Hpa, level: Level) -> Hpa {
        frame.offset(at.raw() & (self.stage.span(level) - 1))
    }

    /// Where the host put the page of `at`; `None` if nowhere.
    fn known_place(&self, at: Gpa) -> Option<Hpa> {
        let (frame, level) = self.stage.known(at)?;
        Some(self.offset(at, frame, level))
    }

    /// A walk of both tables.
    fn walk<G: Translates<Gva, Gpa>, R: TableReader, T: WalkObserver>(
        &mut self,
        mut guest: G,
        address: Gva,
        kind: AccessKind,
        at: u64,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<Found, Stopped> {
        let (leaf, now) = guest.walk(address, kind, at, self, ports)?;
        let within = address.raw() & (guest.span(leaf.level) - 1);
        let mut found =
            self.walk_for_data(leaf.frame.offset(within), leaf.level, kind, now, ports)?;
        found.rights = found.rights.and(leaf.rights);
        found.dirty &= leaf.entry.is_dirty();
        Ok(found)
    }

    /// A walk for `data`, which lies in a page of `level` of the guest's.
    fn walk_for_data<R: TableReader, T: WalkObserver>(
        &mut self,
        data: Gpa,
        level: Level,
        kind: AccessKind,
        at: u64,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<Found, Stopped> {
        let (page, ready) = self.walk_stage(data, kind, at, ports)?;
        let level = level.min(page.level);
        let at = self.offset(data, page.frame, page.level);
        let within = data.raw() & (self.stage.span(level) - 1);
        let frame = Hpa::new(at.raw() - within);
        Ok(Found { frame, level, rights: page.rights, dirty: page.entry.is_dirty(), ready })
    }

    /// A walk of the host's table alone.
    #[inline]
    fn walk_stage<R: TableReader, T: WalkObserver>(
        &mut self,
        input: Gpa,
        kind: AccessKind,
        at: u64,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<(Leaf<Hpa>, u64), Stopped> {
        let Some((asap, nodes)) = &mut self.asap else {
            return self.stage.walk(input, kind, at, &mut Direct, ports);
        };
        let WalkPorts { reader, record } = ports;
        let mut prefetched = asap.prefetch(input, at, nodes, Some, &mut **reader, &mut **record);
        let helped = &mut WalkPorts { reader: &mut **reader, record: &mut prefetched };
        let result = self.stage.walk(input, kind, at, &mut Direct, helped);
        asap.finish(&prefetched);
        result
    }
}

impl<S: Translates<Gpa, Hpa>> Place<Gpa> for Host<'_, S> {
    fn place<R: TableReader, T: WalkObserver>(
        &mut self,
        entry: Gpa,
        known: bool,
        at: u64,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<(Hpa, u64), Stopped> {
        if known
            && self.guest_pwc == GuestPwc::HostPhysical
            && let Some(place) = self.known_place(entry)
        {
            return Ok((place, at));
        }
        let mut at = at;
        if let Some(tlb) = &mut self.nested_tlb {
            if R::TIMED {
                at += tlb.latency();
            }
            if let Some((&Translation { frame, level, ready, .. }, _)) = tlb.look_up(entry.raw()) {
                let ready = if R::TIMED { at.max(ready) } else { at };
                return Ok((self.offset(entry, frame, level), ready));
            }
        }
        // Processors write accessed bits to guest tables, so the host sees their pages as written
        // (Intel SDM volume 3, section 28.3.5).
        let (leaf, ready) = self.walk_stage(entry, AccessKind::Store, at, ports)?;
        if let Some(tlb) = &mut self.nested_tlb {
            let (frame, level, rights) = (leaf.frame, leaf.level, leaf.rights);
            let found = Translation { frame, level, rights, dirty: true, requested: at, ready };
            tlb.insert(entry.raw(), found);
        }
        Ok((self.offset(entry, leaf.frame, leaf.level), ready))
    }
}

/// What a walker keeps of one table.
#[derive(Clone, Debug)]
pub enum Caches<A> {
    /// Pointers to nodes of a tree.
    Tree(Pwc<A>),
    /// Lines of the walk tables of a hashed table.
    Hashed(Cwc),
}

impl<A: Physical> Caches<A> {
    /// What `machine` has for tables of `layout`: page-walk caches are `pwc`.
    fn new(
        machine: &Machine,
        pwc: &crate::config::machine::Pwc,
        layout: &Layout,
    ) -> Result<Self, ConfigError> {
        let geometry = layout.geometry();
        Ok(match layout.structure() {
            Structure::Tree => Self::Tree(Pwc::new(pwc, geometry)),
            Structure::Hashed(_) => {
                let missing = || ConfigError::NoHashedWalks(machine.name.clone());
                let config = machine.hashed_walks.as_ref().ok_or_else(missing)?;
                Self::Hashed(Cwc::new(config, geometry))
            }
        })
    }

    fn none(&self) -> Self {
        match self {
            Self::Tree(pwc) => Self::Tree(pwc.none()),
            Self::Hashed(cwc) => Self::Hashed(cwc.none()),
        }
    }

    /// The geometry of the table.
    pub fn geometry(&self) -> Geometry {
        match self {
            Self::Tree(pwc) => pwc.geometry(),
            Self::Hashed(cwc) => cwc.geometry(),
        }
    }

    fn flush(&mut self) {
        match self {
            Self::Tree(pwc) => pwc.flush(),
            Self::Hashed(cwc) => cwc.flush(),
        }
    }

    fn reset_statistics(&mut self) {
        match self {
            Self::Tree(pwc) => pwc.reset_statistics(),
            Self::Hashed(cwc) => cwc.reset_statistics(),
        }
    }
}

/// The walker's own state: its caches.
#[derive(Clone, Debug)]
pub enum Walker {
    /// For one table.
    Native(Box<Caches<Hpa>>),
    /// For two.
    Nested(Box<Nested>),
}

/// What two-dimensional walks use.
#[derive(Clone, Debug)]
pub struct Nested {
    /// What is kept of the guest's table.
    pub guest: Caches<Gpa>,
    /// What is kept of the host's table, tagged with guest-physical addresses.
    pub host: Caches<Hpa>,
    /// Pages with guest page tables.
    pub tlb: Option<Tlb>,
    guest_pwc: GuestPwc,
    /// What prefetches entries of the host's table.
    asap: Option<Box<Asap>>,
    guest_segment: Option<Segment<Gpa>>,
    host_segment: Option<Segment>,
}

impl Walker {
    /// For `machine` without a hypervisor, and tables of `layout`.
    ///
    /// # Errors
    /// [`ConfigError::NoHashedWalks`].
    pub fn native(machine: &Machine, layout: &Layout) -> Result<Self, ConfigError> {
        Ok(Self::Native(Box::new(Caches::new(machine, &machine.pwc, layout)?)))
    }

    /// For a guest whose table is of layout `guest` over a host whose table is of `host`.
    ///
    /// # Errors
    /// [`ConfigError::NoHashedWalks`].
    pub fn nested(
        machine: &Machine,
        virtualisation: &Virtualisation,
        guest: &Layout,
        host: &Layout,
    ) -> Result<Self, ConfigError> {
        let tlb = &virtualisation.nested_tlb;
        Ok(Self::Nested(Box::new(Nested {
            guest: Caches::new(machine, &machine.pwc, guest)?,
            host: Caches::new(machine, &virtualisation.pwc, host)?,
            tlb: (!tlb.is_empty()).then(|| Tlb::new(tlb, host.geometry())),
            guest_pwc: virtualisation.guest_pwc,
            asap: None,
            guest_segment: None,
            host_segment: None,
        })))
    }

    /// Prefetches entries of the host's table from now on, if there is one.
    pub fn set_host_asap(&mut self, asap: Option<Asap>) {
        if let Self::Nested(nested) = self {
            nested.asap = asap.map(Box::new);
        }
    }

    /// Translates by `segment` where that can, instead of walking the guest's table.
    pub fn set_guest_segment(&mut self, segment: Segment<Gpa>) {
        if let Self::Nested(nested) = self {
            nested.guest_segment = Some(segment);
        }
    }

    /// Translates by `segment` instead of walking the host's table.
    pub fn set_host_segment(&mut self, segment: Segment) {
        if let Self::Nested(nested) = self {
            nested.host_segment = Some(segment);
        }
    }

    fn nest(&self) -> Option<&Nested> {
        match self {
            Self::Native(_) => None,
            Self::Nested(nested) => Some(nested),
        }
    }

    /// What was prefetched from the host's table, if anything is.
    pub fn host_asap(&self) -> Option<AsapStatistics> {
        self.nest()?.asap.as_ref().map(|asap| asap.statistics)
    }

    /// The segment to the guest's memory, if there is one that is not beside the L1 TLB.
    pub fn guest_segment(&self) -> Option<&Segment<Gpa>> {
        self.nest()?.guest_segment.as_ref()
    }

    /// The segment to the host's memory, if there is one.
    pub fn host_segment(&self) -> Option<&Segment> {
        self.nest()?.host_segment.as_ref()
    }

    /// Where in the host's memory `address` lies now, at no cost; `None` where it is not backed.
    pub fn place_of(&self, vm: &VirtualMachine, address: Gpa) -> Option<Hpa> {
        if let Some(segment) = self.host_segment() {
            return segment.place(address);
        }
        let table = vm.host.table();
        let leaf = table.translate(vm.host.memory(), address).ok()?;
        Some(leaf.frame.offset(address.raw() & (table.geometry().span(leaf.level) - 1)))
    }

    /// The same walker with nothing in its caches, and none to put anything in.
    #[must_use]
    pub fn without_caches(&self) -> Self {
        match self {
            Self::Native(caches) => Self::Native(Box::new(caches.none())),
            Self::Nested(nested) => Self::Nested(Box::new(Nested {
                guest: nested.guest.none(),
                host: nested.host.none(),
                tlb: None,
                guest_pwc: nested.guest_pwc,
                asap: None,
                guest_segment: nested.guest_segment.clone(),
                host_segment: nested.host_segment.clone(),
            })),
        }
    }

    /// Translates `address` from cycle `at` on.
    ///
    /// # Errors
    /// Where and why the walk stopped.
    #[inline]
    pub fn walk<R: TableReader, T: WalkObserver>(
        &mut self,
        address: Gva,
        kind: AccessKind,
        at: u64,
        system: &mut System,
        reader: &mut R,
        record: &mut T,
    ) -> Result<Found, Stopped> {
        let ports = &mut WalkPorts { reader, record };
        match (self, system) {
            (Self::Native(caches), System::Native(process)) => {
                let (table, memory) = process.table_and_memory();
                let (leaf, ready) = match (&mut **caches, table) {
                    (Caches::Tree(pwc), PageTable::Tree(tree)) => {
                        let mut stage = TreeStage::new(Stage::One, tree, memory, pwc);
                        stage.walk(address, kind, at, &mut Direct, ports)?
                    }
                    (Caches::Hashed(cwc), PageTable::Hashed(table)) => {
                        let mut stage = HashedStage { stage: Stage::One, table, memory, cwc };
                        stage.walk(address, kind, at, &mut Direct, ports)?
                    }
                    _ => unreachable!("caches are made for the table that is walked"),
                };
                let Leaf { frame, level, rights, entry, .. } = leaf;
                Ok(Found { frame, level, rights, dirty: entry.is_dirty(), ready })
            }
            (Self::Native(caches), System::Recorded(recorded)) => {
                let Caches::Tree(pwc) = &mut **caches else {
                    unreachable!("caches are made for the table that is walked")
                };
                let geometry = recorded.geometry();
                let (root, memory) = recorded.root_and_memory(address);
                let mut stage = TreeStage { stage: Stage::One, geometry, root, memory, pwc };
                let (leaf, ready) = stage.walk(address, kind, at, &mut Direct, ports)?;
                let Leaf { frame, level, rights, entry, .. } = leaf;
                Ok(Found { frame, level, rights, dirty: entry.is_dirty(), ready })
            }
            (Self::Nested(nested), System::Virtual(vm)) => {
                nested.walk(address, kind, at, vm, ports)
            }
            _ => unreachable!("a walker is made for the system that it walks"),
        }
    }

    /// Makes `node` all that the page-walk caches of one table know, on the path of `address`; nothing
    /// if there is none.
    pub fn hold(&mut self, address: Gva, node: Option<NodeRef<Hpa>>) {
        if let Self::Native(caches) = self
            && let Caches::Tree(pwc) = &mut **caches
        {
            pwc.flush();
            if let Some(node) = node {
                pwc.insert(address.raw(), node, 0);
            }
        }
    }

    /// The last node that the page-walk caches of one table got to know on the path of `address`.
    pub fn held(&self, address: Gva) -> Option<NodeRef<Hpa>> {
        let Self::Native(caches) = self else { return None };
        let Caches::Tree(pwc) = &**caches else { return None };
        pwc.probe(address.raw()).into_iter().find_map(|(_, node)| node)
    }

    /// Forgets what may hang together with a change of the process's or guest's table.
    pub fn flush(&mut self) {
        match self {
            Self::Native(caches) => caches.flush(),
            Self::Nested(nested) => nested.guest.flush(),
        }
    }

    /// Forgets what may hang together with a change of the host's table. Where only its nodes moved,
    /// guest nodes and pages are where they were.
    pub fn flush_host(&mut self, flush: &Flush<Gpa>) {
        if let Self::Nested(nested) = self {
            nested.host.flush();
            if flush.leaves {
                nested.guest.flush();
                if let Some(tlb) = &mut nested.tlb {
                    tlb.flush(flush.start.raw(), flush.length_bytes);
                }
            }
        }
    }

    /// Forgets everything.
    pub fn flush_all(&mut self) {
        self.flush();
        if let Self::Nested(nested) = self {
            nested.host.flush();
            if let Some(tlb) = &mut nested.tlb {
                tlb.flush(0, u64::MAX);
            }
        }
    }

    /// Forgets all counts; contents stay.
    pub fn reset_statistics(&mut self) {
        match self {
            Self::Native(caches) => caches.reset_statistics(),
            Self::Nested(nested) => {
                nested.guest.reset_statistics();
                nested.host.reset_statistics();
                if let Some(tlb) = &mut nested.tlb {
                    tlb.reset_statistics();
                }
                if let Some(asap) = &mut nested.asap {
                    asap.statistics = AsapStatistics::default();
                }
                nested.guest_segment.iter_mut().for_each(|segment| segment.translations = 0);
                nested.host_segment.iter_mut().for_each(|segment| segment.translations = 0);
            }
        }
    }
}

impl<'a, A: Physical> TreeStage<'a, A> {
    #[inline]
    fn new<In: Address>(
        stage: Stage,
        tree: &Tree<In, A>,
        memory: &'a mut PhysicalMemory<A>,
        pwc: &'a mut Pwc<A>,
    ) -> Self {
        Self { stage, geometry: tree.geometry(), root: tree.root(), memory, pwc }
    }
}

impl Nested {
    fn walk<R: TableReader, T: WalkObserver>(
        &mut self,
        address: Gva,
        kind: AccessKind,
        at: u64,
        vm: &mut VirtualMachine,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<Found, Stopped> {
        let nested_tlb = self.tlb.as_mut();
        let guest_pwc = self.guest_pwc;
        let data = self.guest_segment.as_mut().and_then(|segment| segment.translate(address));
        let (host_table, memory, nodes) = vm.host.table_memory_and_order();
        let asap = self.asap.as_deref_mut().zip(nodes);
        let guest = vm.guest.table_and_memory();
        let guest = GuestSide { data, caches: &mut self.guest, table: guest.0, memory: guest.1 };
        if let Some(segment) = &mut self.host_segment {
            let stage = SegmentStage { geometry: host_table.geometry(), segment };
            let host = Host { stage, asap: None, nested_tlb: None, guest_pwc };
            return guest.over(host, address, kind, at, ports);
        }
        match (&mut self.host, host_table) {
            (Caches::Tree(pwc), PageTable::Tree(tree)) => {
                let stage = TreeStage::new(Stage::Two, tree, memory, pwc);
                guest.over(Host { stage, asap, nested_tlb, guest_pwc }, address, kind, at, ports)
            }
            (Caches::Hashed(cwc), PageTable::Hashed(table)) => {
                let stage = HashedStage { stage: Stage::Two, table, memory, cwc };
                guest.over(Host { stage, asap, nested_tlb, guest_pwc }, address, kind, at, ports)
            }
            _ => unreachable!("caches are made for the table that is walked"),
        }
    }
}

/// The guest's side of a walk.
struct GuestSide<'a> {
    /// Where a segment says that the data is.
    data: Option<Gpa>,
    caches: &'a mut Caches<Gpa>,
    table: &'a PageTable<Gva, Gpa>,
    memory: &'a mut PhysicalMemory<Gpa>,
}

impl GuestSide<'_> {
    /// A walk over `host`.
    fn over<S: Translates<Gpa, Hpa>, R: TableReader, T: WalkObserver>(
        self,
        mut host: Host<'_, S>,
        address: Gva,
        kind: AccessKind,
        at: u64,
        ports: &mut WalkPorts<'_, R, T>,
    ) -> Result<Found, Stopped> {
        let Self { data, caches, table, memory } = self;
        if let Some(data) = data {
            // Segments are made of large pages.
            return host.walk_for_data(data, 2, kind, at, ports);
        }
        match (caches, table) {
            (Caches::Tree(pwc), PageTable::Tree(tree)) => {
                let guest = TreeStage::new(Stage::One, tree, memory, pwc);
                host.walk(guest, address, kind, at, ports)
            }
            (Caches::Hashed(cwc), PageTable::Hashed(table)) => {
                let guest = HashedStage { stage: Stage::One, table, memory, cwc };
                host.walk(guest, address, kind, at, ports)
            }
            _ => unreachable!("caches are made for the table that is walked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_os::Random;
    use flatwalk_trace::Event;

    use super::*;
    use crate::driver::run::{Mode, Piece, Run};
    use crate::mmu::NoClock;
    use crate::tests::testing::{
        DATA, Do, Scenario, as_host, chained_scheme, cuckoo_scheme, go, inverted_scheme, scheme,
    };

    const PAGE: u64 = 4096;

    /// Whatever was mapped, unmapped and cached, the unit says what the two tables say.
    #[test]
    fn agrees_with_the_tables_of_every_combination() {
        let schemes = || {
            let trees = [&[][..], &["L4L3", "L2L1"], &["L3L2"], &["L4L3L2"]];
            // Ones that grow all the time, and one whose reads nothing narrows down.
            let hashed = [
                cuckoo_scheme(64, true),
                cuckoo_scheme(4096, false),
                chained_scheme("hashed", 32),
                chained_scheme("clustered", 64),
                chained_scheme("open", 32),
                inverted_scheme(),
            ];
            trees.into_iter().map(|flatten| scheme(4, flatten)).chain(hashed)
        };
        for (guest, host) in schemes().flat_map(|g| schemes().map(move |h| (g.clone(), h))) {
            for (large_pages, host_large_pages) in [(0, 0), (50, 0), (50, 50), (0, 100)] {
                let mut scenario = Scenario::new(guest.clone());
                scenario.scheme.host = Some(as_host(host.clone()));
                scenario.mode = Mode::Functional;
                (scenario.large_pages, scenario.host_large_pages) = (large_pages, host_large_pages);
                let pages = 8 << 9;
                let mut run = scenario.start(&[(DATA, pages * PAGE)], false);
                let mut random = Random::new(u64::from(large_pages) + 7);
                for round in 0..300 {
                    let at = DATA + random.below(pages) * PAGE;
                    if round % 20 == 19 {
                        let event = Event::Unmap { address: at, length: 4 * PAGE };
                        run.take(&Piece::Event(event)).unwrap();
                    }
                    let access = if round % 3 == 0 { Do::Store(at) } else { Do::Load(at) };
                    go(&mut run, &[access]);
                    let System::Virtual(vm) = &run.system else { panic!("there is no guest") };
                    let expected = vm.translate(Gva::new(at)).unwrap();
                    let kind = AccessKind::Load;
                    let found =
                        run.mmu.translate(Gva::new(at), kind, 0, &mut run.system, &mut NoClock);
                    assert_eq!(
                        found.unwrap().physical,
                        expected,
                        "{guest:?} over {host:?}, {at:#x}"
                    );
                }
            }
        }
    }

    /// Accesses of the next walk, and its latency.
    fn walk(run: &mut Run, address: u64) -> (u64, u64) {
        run.mmu.reset_statistics();
        go(run, &[Do::Chase(address)]);
        let total = run.mmu.statistics.total();
        assert_eq!(total.walks, 1, "{address:#x}");
        (total.accesses, total.latency_cycles)
    }

    const LARGE: u64 = 2 << 20;

    #[test]
    fn a_hashed_walk_reads_what_the_walk_tables_leave_open() {
        let mut scenario = Scenario::new(cuckoo_scheme(64, true));
        scenario.large_pages = 50;
        // Large pages below, base pages above, in regions of 16 MiB of their own but one.
        let mut run = scenario.start(&[(DATA, 100 * LARGE)], true);
        let [large, small, mixed] = [0, 99, 51].map(|i| DATA + i * LARGE);
        // Nothing is known: both sizes in three ways; then the lines of both walk tables, in two ways.
        assert_eq!(walk(&mut run, large).0, 6 + 4);
        assert_eq!(walk(&mut run, large + LARGE).0, 1, "the way of a large page is known");
        assert_eq!(walk(&mut run, small).0, 3, "there are no large pages there");
        assert_eq!(walk(&mut run, mixed).0, 3 + 1, "there may be both");
        // One line of the smaller walk table has 1 GiB; of the larger 512 GiB.
        let far = DATA + (64 << 30);
        let mapped = [(DATA, LARGE), (far, LARGE)];
        let mut run = Scenario::new(cuckoo_scheme(64, true)).start(&mapped, true);
        assert_eq!(walk(&mut run, DATA).0, 3 + 4, "no large page was ever mapped");
        assert_eq!(walk(&mut run, far).0, 3 + 2, "only one of the lines is missing");
        let mut run = Scenario::new(cuckoo_scheme(64, false)).start(&[(DATA, LARGE)], true);
        assert_eq!(walk(&mut run, DATA).0, 3, "without walk tables");
    }

    #[test]
    fn a_hashed_walk_takes_as_long_as_the_read_that_finds_the_entry_or_as_all() {
        // Hashing takes 2 cycles, memory 142, and a line is on the bus for one cycle.
        let mut scenario = Scenario::new(cuckoo_scheme(64, false));
        scenario.machine.l1d.as_mut().expect("it is timed").mshrs = 16;
        let mut latencies = Vec::new();
        for end in [WalkEnd::MatchingProbe, WalkEnd::LastProbe] {
            scenario.machine.hashed_walks.as_mut().expect("it can").end = end;
            let mut run = scenario.start(&[(DATA, 64 * PAGE)], true);
            // Lines of eight entries, each read for the first time.
            let walks = (0..8).map(|i| walk(&mut run, DATA + 8 * i * PAGE).1);
            latencies.push(walks.collect::<Vec<_>>());
        }
        let [first, last] = [&latencies[0], &latencies[1]];
        assert!((144..=146).contains(&first[0]) && last[0] == 146, "{latencies:?}");
        assert!(first.iter().zip(last).all(|(first, last)| first <= last), "{latencies:?}");
        assert!(first.contains(&144), "the first read finds it at times: {latencies:?}");
    }

    #[test]
    fn a_nested_hashed_walk_has_three_rounds() {
        let mut scenario = Scenario::new(cuckoo_scheme(64, false));
        scenario.scheme.host = Some(as_host(cuckoo_scheme(4096, false)));
        let virtualisation = scenario.machine.virtualisation.as_mut().expect("it has guests");
        virtualisation.nested_tlb.clear();
        let l1d = scenario.machine.l1d.as_mut().expect("it is timed");
        (l1d.mshrs, l1d.size_bytes, l1d.ways) = (64, 1 << 15, 8);
        scenario.machine.l2.as_mut().expect("it is timed").mshrs = 64;
        scenario.machine.llc.as_mut().expect("it is timed").mshrs = 64;
        let mut run = scenario.start(&[(DATA, LARGE)], true);
        // Faults of the host for the guest's table come first.
        go(&mut run, &[Do::Load(DATA)]);
        let all = Flush { start: Gva::new(0), length_bytes: u64::MAX, leaves: true, tables: true };
        run.mmu.flush(&all);
        let (accesses, latency) = walk(&mut run, DATA + 256 * PAGE);
        assert_eq!(accesses, 9 + 3 + 3);
        // Three rounds one after the other; within a round, reads are under way together.
        assert!((3 * 2..=3 * (144 + 9) + 2).contains(&latency), "{latency}");
    }

    #[test]
    fn an_inverted_walk_reads_an_anchor_and_then_frame_by_frame() {
        let mut run = Scenario::new(inverted_scheme()).start(&[(DATA, 4096 * PAGE)], true);
        let accesses = |i| walk(&mut run, DATA + i * PAGE).0;
        let all: Vec<u64> = (0..4096).map(accesses).collect();
        // 8 Mi anchors for 4 Ki pages: few share one.
        assert!(all.iter().all(|accesses| (2..=4).contains(accesses)), "{all:?}");
        assert!(all.iter().filter(|&&accesses| accesses == 2).count() > 4000, "{all:?}");
        // Half as many pages as there are anchors, in a machine whose memory is full to the half.
        let mut scenario = Scenario::new(inverted_scheme());
        scenario.mode = Mode::Functional;
        scenario.machine.os.memory_bytes = 1 << 30;
        let pages = 1 << 17;
        let mut run = scenario.start(&[(DATA, pages * PAGE)], true);
        go(&mut run, &(0..pages).map(|i| Do::Load(DATA + i * PAGE)).collect::<Vec<_>>());
        let total = run.mmu.statistics.total();
        assert_eq!(total.walks, pages);
        // An anchor, and the half of the others of a chain at the load a half: 1 + 1 + a / 2.
        let mean = total.accesses as f64 / total.walks as f64;
        assert!((mean - 2.25).abs() < 0.01, "{mean}");
    }

    #[test]
    fn open_addressing_reads_one_line_and_few_behind_it() {
        // 1024 lines of eight pages each, up to 0.6 of which are in use.
        let mut scenario = Scenario::new(chained_scheme("open", 1024));
        scenario.mode = Mode::Functional;
        let lines = 600;
        let mut run = scenario.start(&[(DATA, 8 * lines * PAGE)], true);
        let apart = (0..lines).map(|i| Do::Load(DATA + 8 * i * PAGE));
        go(&mut run, &apart.collect::<Vec<_>>());
        let total = run.mmu.statistics.total();
        assert_eq!((total.walks, run.system.statistics().resizes), (lines, 0));
        // Knuth, volume 3, section 6.4: (1 + 1 / (1 − a)) / 2 lines for one that is there.
        let mean = total.accesses as f64 / total.walks as f64;
        let load = lines as f64 / 1024.0;
        assert!((mean - 0.5 * (1.0 + 1.0 / (1.0 - load))).abs() < 0.2, "{mean}");
    }

    #[test]
    fn a_chain_is_read_node_by_node() {
        // As many pages as buckets, so that some share one; a walk ends with its first or a later read.
        for (name, pages_in_a_node, least) in [("hashed", 1, 1), ("clustered", 16, 1)] {
            let pages = 32 * pages_in_a_node;
            let scenario = Scenario::new(chained_scheme(name, 32));
            let mut run = scenario.start(&[(DATA, pages * PAGE)], true);
            let walks: Vec<_> = (0..pages)
                .step_by(pages_in_a_node as usize)
                .map(|i| walk(&mut run, DATA + (i + pages_in_a_node / 2) * PAGE))
                .collect();
            let (accesses, _): (Vec<u64>, Vec<u64>) = walks.iter().copied().unzip();
            assert!(accesses.iter().all(|n| (least..=8).contains(n)), "{name}: {accesses:?}");
            assert!(accesses.iter().any(|&n| n > least + 1), "{name}: no two share a bucket");
            // Hashing takes 2 cycles, and each read 4 at least, one after the other.
            for (accesses, latency) in walks {
                assert!(latency >= 2 + 4 * accesses, "{name}: {accesses} in {latency} cycles");
            }
        }
    }
}
