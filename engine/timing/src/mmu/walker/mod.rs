//! The page walker: through one table, or through a guest's and the host's behind it.
//!
//! A two-dimensional walk (Bhargava et al., ASPLOS 2008) is the same walk twice. The guest's table
//! yields guest-physical addresses, so each of its entries must be *placed* before it can be read, by
//! a walk of the host's table, and the data too: (g + 1)(h + 1) − 1 accesses for g and h levels.
//! One function walks either stage; only what places an entry differs.
//!
//! A table without a tree is walked by reads that are made at once ([`KeyedStage`]); in two dimensions
//! each of the guest's is placed by a walk of its own, at the same time as the others.
//!
//! - The guest's page-walk caches hold nodes' guest-physical addresses, which the host still has to
//!   translate (Park et al., ASPLOS 2022), or what the host made of them (Ainsworth and Jones, ISMM
//!   2021, section 5): [`GuestPwc`].
//! - The host's are tagged with guest-physical addresses and serve every walk of its table.
//! - The nested TLB holds translations of pages with guest page tables; data pages do not go in.

mod keyed;
mod nested;
mod tree;

use flatwalk_os::VirtualMachine;
use flatwalk_paging::{
    AccessKind, Address, Flush, Geometry, Gpa, Gva, Hpa, Layout, Leaf, Level, NodeRef, PageTable,
    Physical,
};

use crate::ConfigError;
use crate::config::machine::{Machine, Virtualisation};
use crate::counts::Visitor;
use crate::memory::reader::TableReader;
use crate::mmu::event::{Found, Stage, Stopped, WalkObserver};
use crate::mmu::pwc::Pwc;
use crate::mmu::segment::Segment;
use crate::mmu::side_cache::SideCache;
use crate::mmu::tlb::Tlb;
use crate::system::System;

use keyed::KeyedStage;
pub use nested::Nested;
use tree::TreeStage;

/// What a walk reads through, and what it leaves behind.
struct WalkPorts<'a, R, T> {
    reader: &'a mut R,
    observer: &'a mut T,
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
    /// How far `address` lies within its page of `level`, in bytes.
    fn within(&self, address: u64, level: Level) -> u64;

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

/// What a walker keeps of one table.
#[derive(Clone, Debug)]
pub enum Caches<A> {
    /// Pointers to nodes of a tree.
    Tree(Pwc<A>),
    /// Side lines of a table without a tree.
    Keyed(SideCache),
}

impl<A: Physical> Caches<A> {
    /// What `machine` has for tables of `layout`: page-walk caches are `pwc`.
    fn new(
        machine: &Machine,
        pwc: &crate::config::machine::Pwc,
        layout: &Layout,
    ) -> Result<Self, ConfigError> {
        let geometry = layout.geometry();
        let Some(design) = layout.design() else {
            return Ok(Self::Tree(Pwc::new(pwc, geometry)));
        };
        let missing = || ConfigError::NoHashedWalks(machine.name.clone());
        let config = machine.hashed_walks.as_ref().ok_or_else(missing)?;
        Ok(Self::Keyed(SideCache::new(config, geometry, design)))
    }

    fn none(&self) -> Self {
        match self {
            Self::Tree(pwc) => Self::Tree(pwc.none()),
            Self::Keyed(side) => Self::Keyed(side.none()),
        }
    }

    /// The geometry of the table.
    pub fn geometry(&self) -> Geometry {
        match self {
            Self::Tree(pwc) => pwc.geometry(),
            Self::Keyed(side) => side.geometry(),
        }
    }

    /// Names of what walks read, by class, in the order of output.
    pub fn read_names(&self) -> Vec<(u8, String)> {
        match self {
            Self::Tree(pwc) => {
                let levels = (1..=pwc.geometry().levels()).rev();
                levels.map(|level| (level, format!("L{level}"))).collect()
            }
            Self::Keyed(side) => side.design().read_names(),
        }
    }

    fn flush(&mut self) {
        match self {
            Self::Tree(pwc) => pwc.flush(),
            Self::Keyed(side) => side.flush(),
        }
    }

    fn counts(&mut self, visit: &mut Visitor<'_>) {
        match self {
            Self::Tree(pwc) => pwc.counts(visit),
            Self::Keyed(side) => side.counts(visit),
        }
    }
}

/// Segments of a guest, to its own memory, and of a host.
pub(super) type Segments = (Option<Segment<Gpa>>, Option<Segment>);

/// The walker's own state: its caches.
#[derive(Clone, Debug)]
pub enum Walker {
    /// For one table.
    Native(Box<Caches<Hpa>>),
    /// For two.
    Nested(Box<Nested>),
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
            guest_segment: None,
            host_segment: None,
        })))
    }

    /// The segments within it, with what they count: the guest's, and the host's.
    pub(super) fn segments(&self) -> Segments {
        (self.guest_segment().cloned(), self.host_segment().cloned())
    }

    /// Gives it segments.
    pub(super) fn set_segments(&mut self, (guest, host): Segments) {
        if let Self::Nested(nested) = self {
            (nested.guest_segment, nested.host_segment) = (guest, host);
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

    /// The segment to the guest's memory, if there is one that is not next to the L1 TLB.
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
        Some(leaf.frame.offset(table.geometry().within(address.raw(), leaf.level)))
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
        observer: &mut T,
    ) -> Result<Found, Stopped> {
        let ports = &mut WalkPorts { reader, observer };
        match (self, system) {
            (Self::Native(caches), System::Native(process)) => {
                let (table, memory) = process.table_and_memory();
                let (leaf, ready) = match (&mut **caches, table) {
                    (Caches::Tree(pwc), PageTable::Tree(tree)) => {
                        let mut stage = TreeStage::new(Stage::One, tree, memory, pwc);
                        stage.walk(address, kind, at, &mut Direct, ports)?
                    }
                    (Caches::Keyed(side), PageTable::Keyed(table)) => {
                        let mut stage = KeyedStage { stage: Stage::One, table, memory, side };
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

    /// Lets walks of one table start at `node` from now on, where the machine has no page-walk
    /// caches that know more.
    pub fn start_at(&mut self, node: Option<NodeRef<Hpa>>) {
        if let Self::Native(caches) = self
            && let Caches::Tree(pwc) = &mut **caches
        {
            pwc.start_at(node);
        }
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
                    tlb.flush(flush.start.raw(), flush.last.raw());
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

    /// Shows its counts.
    pub fn counts(&mut self, visit: &mut Visitor<'_>) {
        match self {
            Self::Native(caches) => caches.counts(visit),
            Self::Nested(nested) => {
                nested.guest.counts(visit);
                nested.host.counts(visit);
                if let Some(tlb) = &mut nested.tlb {
                    tlb.counts(visit);
                }
                nested.guest_segment.iter_mut().for_each(|s| visit(&mut s.translations));
                nested.host_segment.iter_mut().for_each(|s| visit(&mut s.translations));
            }
        }
    }
}

#[cfg(test)]
mod tests;
