//! Two-dimensional walks: through a guest's table, and the host's behind it.

use flatwalk_os::{OrderedNodes, PhysicalMemory, VirtualMachine};
use flatwalk_paging::{
    AccessKind, Address, Attributes, Entry, Geometry, Gpa, Gva, Hpa, Leaf, Level, PageTable,
    Physical, Rights,
};

use super::keyed::KeyedStage;
use super::tree::TreeStage;
use super::{Caches, Direct, Place, Translates, WalkPorts};
use crate::config::machine::GuestPwc;
use crate::memory::reader::TableReader;
use crate::mmu::event::{Found, Stage, Stopped, WalkObserver, stopped};
use crate::mmu::segment::Segment;
use crate::mmu::tlb::{Tlb, Translation};

/// A stage without a table: registers translate.
struct SegmentStage<'a, A> {
    geometry: Geometry,
    segment: &'a mut Segment<A>,
}

impl<A: Physical> SegmentStage<'_, A> {
    /// The page of a level that a segment is made of which leads to `found`.
    fn page(&self, found: A) -> (A, Level) {
        let level = if self.segment.is_aligned(self.geometry.span(2)) { 2 } else { 1 };
        (A::new(found.raw() - self.geometry.within(found.raw(), level)), level)
    }
}

impl<In: Address, A: Physical> Translates<In, A> for SegmentStage<'_, A> {
    fn within(&self, address: u64, level: Level) -> u64 {
        self.geometry.within(address, level)
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
    /// Where the nodes of its table stand in order, if they do.
    nodes: Option<&'a OrderedNodes<Hpa>>,
    nested_tlb: Option<&'a mut Tlb>,
    pub(super) guest_pwc: GuestPwc,
}

impl<S: Translates<Gpa, Hpa>> Host<'_, S> {
    fn offset(&self, at: Gpa, frame: Hpa, level: Level) -> Hpa {
        frame.offset(self.stage.within(at.raw(), level))
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
        let within = guest.within(address.raw(), leaf.level);
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
        let within = self.stage.within(data.raw(), level);
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
        ports.observer.before_host_walk(input, at, self.nodes, ports.reader);
        let result = self.stage.walk(input, kind, at, &mut Direct, ports);
        ports.observer.after_host_walk();
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
            if let Some((&found, _)) = tlb.look_up(entry.raw()) {
                let ready = if R::TIMED { at.max(found.ready_for(at, |at| at)) } else { at };
                return Ok((self.offset(entry, found.frame, found.level), ready));
            }
        }
        // Processors write accessed bits to guest tables, so the host sees their pages as written
        // (Intel SDM volume 3, section 28.3.5).
        let (leaf, ready) = self.walk_stage(entry, AccessKind::Store, at, ports)?;
        if let Some(tlb) = &mut self.nested_tlb {
            let (frame, level, rights) = (leaf.frame, leaf.level, leaf.rights);
            // The walker is the walk's own.
            let waited = 0;
            let found =
                Translation { frame, level, rights, dirty: true, requested: at, ready, waited };
            tlb.insert(entry.raw(), found);
        }
        Ok((self.offset(entry, leaf.frame, leaf.level), ready))
    }
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
    pub(super) guest_pwc: GuestPwc,
    pub(super) guest_segment: Option<Segment<Gpa>>,
    pub(super) host_segment: Option<Segment>,
}

impl Nested {
    pub(super) fn walk<R: TableReader, T: WalkObserver>(
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
        let guest = vm.guest.table_and_memory();
        let guest = GuestSide { data, caches: &mut self.guest, table: guest.0, memory: guest.1 };
        if let Some(segment) = &mut self.host_segment {
            let stage = SegmentStage { geometry: host_table.geometry(), segment };
            let host = Host { stage, nodes: None, nested_tlb: None, guest_pwc };
            return guest.over(host, address, kind, at, ports);
        }
        match (&mut self.host, host_table) {
            (Caches::Tree(pwc), PageTable::Tree(tree)) => {
                let stage = TreeStage::new(Stage::Two, tree, memory, pwc);
                guest.over(Host { stage, nodes, nested_tlb, guest_pwc }, address, kind, at, ports)
            }
            (Caches::Keyed(side), PageTable::Keyed(table)) => {
                let stage = KeyedStage { stage: Stage::Two, table, memory, side };
                guest.over(Host { stage, nodes, nested_tlb, guest_pwc }, address, kind, at, ports)
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
            (Caches::Keyed(side), PageTable::Keyed(table)) => {
                let guest = KeyedStage { stage: Stage::One, table, memory, side };
                host.walk(guest, address, kind, at, ports)
            }
            _ => unreachable!("caches are made for the table that is walked"),
        }
    }
}
