//! The page walker: through one table, or through a guest's and the host's behind it.
//!
//! A two-dimensional walk (Bhargava et al., ASPLOS 2008) is the same walk twice. The guest's table
//! yields guest-physical addresses, so each of its entries must be *placed* before it can be read, by
//! a walk of the host's table, and the data too: (g + 1)(h + 1) − 1 accesses for g and h levels.
//! One function walks either stage; only what places an entry differs.
//!
//! - The guest's page-walk caches hold nodes' guest-physical addresses, which the host still has to
//!   translate (Park et al., ASPLOS 2022), or what the host made of them (Compendia, ISMM 2021,
//!   section 5): [`GuestPwc`].
//! - The host's are tagged with guest-physical addresses and serve every walk of its table.
//! - The nested TLB holds translations of pages with guest page tables; data pages do not go in.

use flatwalk_os::{PhysicalMemory, Process, VirtualMachine};
use flatwalk_paging::{
    Address, Entry, EntryMemory, EntryMemoryMut, Flush, Geometry, Gpa, Gva, Hpa, Leaf, Level,
    Partial, Physical, Rights, Step, Walk,
};

use crate::hierarchy::{Response, Served};
use crate::machine::{GuestPwc, Machine, Virtualisation};
use crate::mmu::{Purpose, TableReader};
use crate::pwc::Pwc;
use crate::space::{Space, Untranslated};
use crate::tlb::{Tlb, Translation};

/// Whose table an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The process's own, or the guest's.
    One,
    /// The host's.
    Two,
}

/// Most entries that a walk can read: guest and host of six levels.
const READS: usize = 48;

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
    /// Cycle in which it was asked for.
    pub asked: u64,
    /// When it was there, and who had it.
    pub response: Response,
}

/// What takes note of a walk.
pub trait Record {
    /// An entry was read.
    fn read(&mut self, read: &Read);
}

/// The entries that a walk read, and who had them.
#[derive(Clone, Copy, Debug)]
pub struct Trail {
    reads: [(Stage, Level, Served); READS],
    used: usize,
}

impl Trail {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { reads: [(Stage::One, 0, Served::L1); READS], used: 0 }
    }

    /// A line of a TLB in memory was read. It counts as an entry of level 0.
    pub(crate) fn translations(&mut self, served: Served) {
        self.reads[self.used] = (Stage::One, 0, served);
        self.used += 1;
    }

    /// In the order in which they were read.
    #[inline]
    pub fn reads(&self) -> &[(Stage, Level, Served)] {
        &self.reads[..self.used]
    }
}

impl Record for Trail {
    #[inline]
    fn read(&mut self, read: &Read) {
        self.reads[self.used] = (read.stage, read.level, read.response.served);
        self.used += 1;
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
struct Io<'a, R, T> {
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
    fn place<R: TableReader, T: Record>(
        &mut self,
        entry: A,
        known: bool,
        at: u64,
        io: &mut Io<'_, R, T>,
    ) -> Result<(Hpa, u64), Stopped>;
}

/// Entries lie where they say.
struct Direct;

impl Place<Hpa> for Direct {
    #[inline]
    fn place<R: TableReader, T: Record>(
        &mut self,
        entry: Hpa,
        _known: bool,
        at: u64,
        _io: &mut Io<'_, R, T>,
    ) -> Result<(Hpa, u64), Stopped> {
        Ok((entry, at))
    }
}

/// One stage: its table and its page-walk caches.
struct OneStage<'a, A> {
    stage: Stage,
    geometry: Geometry,
    root: Partial<A>,
    memory: &'a mut PhysicalMemory<A>,
    pwc: &'a mut Pwc<A>,
}

impl<A: Physical> OneStage<'_, A> {
    #[inline]
    fn walk<In: Address, R: TableReader, T: Record>(
        &mut self,
        input: In,
        purpose: Purpose,
        at: u64,
        entries: &mut impl Place<A>,
        io: &mut Io<'_, R, T>,
    ) -> Result<(Leaf<A>, u64), Stopped> {
        let from = self.pwc.look_up(input.raw(), at);
        let mut known = from.is_some();
        let mut now = if R::TIMED { at + self.pwc.latency() } else { at };
        let mut walk: Walk<In, A> = Walk::from(self.geometry, from.unwrap_or(self.root), input);
        let store = purpose == Purpose::Store;
        loop {
            let node = walk.at();
            let entry_address = walk.entry_address();
            let (place, placed) = entries.place(entry_address, known, now, io)?;
            known = false;
            io.reader.expect(place);
            let entry = Entry(self.memory.read(entry_address));
            let step = walk.feed(entry);
            // The accessed bit of every entry used and the dirty bit of a leaf stored through are
            // set by the walker (Intel SDM volume 3, section 4.8).
            let touched = match &step {
                Step::Table(_) => entry.touched(false),
                Step::Leaf(leaf) if allows(leaf.rights, purpose) => entry.touched(store),
                Step::Leaf(_) | Step::Fault(_) => entry,
            };
            if touched != entry {
                self.memory.write(entry_address, touched.0);
            }
            let response = io.reader.read_entry(place, placed, touched != entry);
            now = response.ready;
            io.record.read(&Read {
                stage: self.stage,
                input: input.raw(),
                node: node.base.raw(),
                top: node.level,
                level: node.bottom(),
                entry_address: entry_address.raw(),
                entry,
                asked: placed,
                response,
            });
            let protection = match step {
                Step::Table(node) => {
                    self.pwc.insert(input.raw(), node, now);
                    continue;
                }
                Step::Leaf(leaf) if allows(leaf.rights, purpose) => {
                    return Ok((Leaf { entry: touched, ..leaf }, now));
                }
                Step::Leaf(_) => true,
                Step::Fault(_) => false,
            };
            let untranslated = match self.stage {
                Stage::One => Untranslated::Virtual(Gva::new(input.raw())),
                Stage::Two => Untranslated::GuestPhysical(Gpa::new(input.raw())),
            };
            return Err(Stopped { at: now, untranslated, protection });
        }
    }
}

/// The host's stage, as the guest's walk uses it.
struct Host<'a> {
    stage: OneStage<'a, Hpa>,
    nested_tlb: Option<&'a mut Tlb>,
    guest_pwc: GuestPwc,
}

impl Host<'_> {
    fn offset(&self, at: Gpa, frame: Hpa, level: Level) -> Hpa {
        frame.offset(at.raw() & (self.stage.geometry.span(level) - 1))
    }

    /// Where the host put the page of `at`; `None` if nowhere.
    fn known_place(&self, at: Gpa) -> Option<Hpa> {
        let mut walk: Walk<Gpa, Hpa> = Walk::from(self.stage.geometry, self.stage.root, at);
        loop {
            match walk.feed(Entry(self.stage.memory.read(walk.entry_address()))) {
                Step::Table(_) => {}
                Step::Leaf(leaf) => return Some(self.offset(at, leaf.frame, leaf.level)),
                Step::Fault(_) => return None,
            }
        }
    }
}

impl Place<Gpa> for Host<'_> {
    fn place<R: TableReader, T: Record>(
        &mut self,
        entry: Gpa,
        known: bool,
        at: u64,
        io: &mut Io<'_, R, T>,
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
            if let Some((found, _)) = tlb.look_up(entry.raw()) {
                let ready = if R::TIMED { at.max(found.ready) } else { at };
                return Ok((self.offset(entry, found.frame, found.level), ready));
            }
        }
        // Processors write accessed bits to guest tables, so the host sees their pages as written
        // (Intel SDM volume 3, section 28.3.5).
        let (leaf, ready) = self.stage.walk(entry, Purpose::Store, at, &mut Direct, io)?;
        if let Some(tlb) = &mut self.nested_tlb {
            let (frame, level, rights) = (leaf.frame, leaf.level, leaf.rights);
            let found = Translation { frame, level, rights, dirty: true, requested: at, ready };
            tlb.insert(entry.raw(), found);
        }
        Ok((self.offset(entry, leaf.frame, leaf.level), ready))
    }
}

/// The walker's own state: its page-walk caches.
#[derive(Clone, Debug)]
pub enum Walker {
    /// For one table.
    Native(Box<Pwc<Hpa>>),
    /// For two.
    Nested(Box<Nested>),
}

/// What two-dimensional walks use.
#[derive(Clone, Debug)]
pub struct Nested {
    /// Pointers to the guest's nodes.
    pub guest: Pwc<Gpa>,
    /// Pointers to the host's nodes, tagged with guest-physical addresses.
    pub host: Pwc<Hpa>,
    /// Pages with guest page tables.
    pub tlb: Option<Tlb>,
    guest_pwc: GuestPwc,
}

impl Walker {
    /// For `machine` without a hypervisor.
    pub fn native(machine: &Machine, geometry: Geometry) -> Self {
        Self::Native(Box::new(Pwc::new(&machine.pwc, geometry)))
    }

    /// For a guest whose table has geometry `guest` over a host whose table has `host`.
    pub fn nested(
        machine: &Machine,
        virtualisation: &Virtualisation,
        guest: Geometry,
        host: Geometry,
    ) -> Self {
        let tlb = &virtualisation.nested_tlb;
        Self::Nested(Box::new(Nested {
            guest: Pwc::new(&machine.pwc, guest),
            host: Pwc::new(&virtualisation.pwc, host),
            tlb: (!tlb.is_empty()).then(|| Tlb::new(tlb, host)),
            guest_pwc: virtualisation.guest_pwc,
        }))
    }

    /// The same walker with nothing in its caches, and none to put anything in.
    #[must_use]
    pub fn without_caches(&self) -> Self {
        match self {
            Self::Native(pwc) => Self::Native(Box::new(pwc.none())),
            Self::Nested(nested) => Self::Nested(Box::new(Nested {
                guest: nested.guest.none(),
                host: nested.host.none(),
                tlb: None,
                guest_pwc: nested.guest_pwc,
            })),
        }
    }

    /// Translates `address` from cycle `at` on.
    ///
    /// # Errors
    /// Where and why the walk stopped.
    #[inline]
    pub fn walk<R: TableReader, T: Record>(
        &mut self,
        address: Gva,
        purpose: Purpose,
        at: u64,
        space: &mut Space,
        reader: &mut R,
        record: &mut T,
    ) -> Result<Found, Stopped> {
        let io = &mut Io { reader, record };
        match (self, space) {
            (Self::Native(pwc), Space::Native(process)) => {
                let mut stage = OneStage::new(Stage::One, pwc, process);
                let (leaf, ready) = stage.walk(address, purpose, at, &mut Direct, io)?;
                let Leaf { frame, level, rights, entry, .. } = leaf;
                Ok(Found { frame, level, rights, dirty: entry.is_dirty(), ready })
            }
            (Self::Nested(nested), Space::Virtual(vm)) => nested.walk(address, purpose, at, vm, io),
            _ => unreachable!("a walker is made for the space that it walks"),
        }
    }

    /// Makes `node` all that the page-walk caches of one table know, on the path of `address`; nothing
    /// if there is none.
    pub fn hold(&mut self, address: Gva, node: Option<Partial<Hpa>>) {
        if let Self::Native(pwc) = self {
            pwc.flush();
            if let Some(node) = node {
                pwc.insert(address.raw(), node, 0);
            }
        }
    }

    /// The last node that the page-walk caches of one table got to know on the path of `address`.
    pub fn held(&self, address: Gva) -> Option<Partial<Hpa>> {
        let Self::Native(pwc) = self else { return None };
        pwc.probe(address.raw()).into_iter().find_map(|(_, node)| node)
    }

    /// Forgets what may hang together with a change of the process's or guest's table.
    pub fn flush(&mut self) {
        match self {
            Self::Native(pwc) => pwc.flush(),
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
            Self::Native(pwc) => pwc.reset_statistics(),
            Self::Nested(nested) => {
                nested.guest.reset_statistics();
                nested.host.reset_statistics();
                if let Some(tlb) = &mut nested.tlb {
                    tlb.reset_statistics();
                }
            }
        }
    }
}

impl<'a, A: Physical> OneStage<'a, A> {
    #[inline]
    fn new<In: Address>(
        stage: Stage,
        pwc: &'a mut Pwc<A>,
        process: &'a mut Process<In, A>,
    ) -> Self {
        let (geometry, root) = (process.table().geometry(), process.table().root());
        Self { stage, geometry, root, memory: process.memory_mut(), pwc }
    }
}

impl Nested {
    fn walk<R: TableReader, T: Record>(
        &mut self,
        address: Gva,
        purpose: Purpose,
        at: u64,
        vm: &mut VirtualMachine,
        io: &mut Io<'_, R, T>,
    ) -> Result<Found, Stopped> {
        let mut host = Host {
            stage: OneStage::new(Stage::Two, &mut self.host, &mut vm.host),
            nested_tlb: self.tlb.as_mut(),
            guest_pwc: self.guest_pwc,
        };
        let mut guest = OneStage::new(Stage::One, &mut self.guest, &mut vm.guest);
        let (leaf, now) = guest.walk(address, purpose, at, &mut host, io)?;
        let within = address.raw() & (guest.geometry.span(leaf.level) - 1);
        let data = leaf.frame.offset(within);
        let (page, ready) = host.stage.walk(data, purpose, now, &mut Direct, io)?;
        let level = leaf.level.min(page.level);
        let at = host.offset(data, page.frame, page.level);
        let within = data.raw() & (host.stage.geometry.span(level) - 1);
        Ok(Found {
            frame: Hpa::new(at.raw() - within),
            level,
            rights: leaf.rights.and(page.rights),
            dirty: leaf.entry.is_dirty() && page.entry.is_dirty(),
            ready,
        })
    }
}

/// True if a path with `rights` permits an access.
#[inline]
fn allows(rights: Rights, purpose: Purpose) -> bool {
    match purpose {
        Purpose::Load => true,
        Purpose::Store => rights.write,
        Purpose::Fetch => rights.execute,
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_os::Random;
    use flatwalk_trace::Event;

    use super::*;
    use crate::mmu::NoClock;
    use crate::run::{Mode, Piece};
    use crate::testing::{DATA, Do, Scenario, go, host_table, scheme};

    const PAGE: u64 = 4096;

    /// Whatever was mapped, unmapped and cached, the unit says what the two tables say.
    #[test]
    fn agrees_with_the_tables_of_every_combination() {
        let layouts: [&[&str]; 4] = [&[], &["L4L3", "L2L1"], &["L3L2"], &["L4L3L2"]];
        for (guest, host) in layouts.iter().flat_map(|g| layouts.iter().map(move |h| (g, h))) {
            for (large_pages, host_large_pages) in [(0, 0), (50, 0), (50, 50), (0, 100)] {
                let mut scenario = Scenario::new(scheme(4, guest));
                scenario.scheme.host = Some(host_table(4, host));
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
                    let Space::Virtual(vm) = &run.space else { panic!("there is no guest") };
                    let expected = vm.translate(Gva::new(at)).unwrap();
                    let purpose = Purpose::Load;
                    let found =
                        run.mmu.translate(Gva::new(at), purpose, 0, &mut run.space, &mut NoClock);
                    assert_eq!(
                        found.unwrap().physical,
                        expected,
                        "{guest:?} over {host:?}, {at:#x}"
                    );
                }
            }
        }
    }
}
