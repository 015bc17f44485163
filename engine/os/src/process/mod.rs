//! A process: its areas, its page table and its pages, changed by faults and by a trace's events.
//!
//! Two things hold between any two calls:
//! - a base page lies in an area; a large page lies where [`LargePages`](crate::LargePages) allows it;
//! - every frame belongs to one page, or to one page-table node, or is free.
//!
//! Departs from Linux: the first load of an anonymous page gets a frame of its own (no shared zero
//! page, so no second fault at the first store); shared memory is not shared with anyone; nothing is
//! collapsed into large pages later (no khugepaged) but where the scenario of
//! [`LargePages::Below`](crate::LargePages::Below) has them, and nothing is swapped.
//!
//! Each file of this folder adds one thing that a process does. From the bottom up: `pages`, `shape`,
//! `unmap` and `map`, `reconcile`, `gather`, `populate` and `remap`, `fault` and `event`.

mod configuration;
mod event;
mod fault;
mod gather;
mod map;
mod outcome;
mod pages;
mod populate;
mod reconcile;
mod remap;
mod rights;
mod shape;
mod statistics;
#[cfg(test)]
mod tests;
mod unmap;

use flatwalk_paging::keyed::{Design, MakeStore};
use flatwalk_paging::{
    Address, Geometry, Gva, Hpa, Layout, NodeStatistics, PageTable, Part, Physical, Recursion,
    Resizes, Shape, TableError,
};
use rustc_hash::FxHashMap;

pub use self::configuration::Configuration;
use self::outcome::Flushes;
pub use self::outcome::{FaultKind, FaultOutcome, Moved, Outcome};
pub use self::statistics::Statistics;
use crate::buddy::{Buddy, FRAME_BYTES, MAX_ORDER};
use crate::error::OsError;
use crate::frames::Frames;
use crate::memory::PhysicalMemory;
use crate::metered_memory::{MeteredMemory, Work};
use crate::ordered::OrderedNodes;
use crate::placement::Placement;
use crate::policy::{Policy, PolicyShape};
use crate::vma::{AddressSpace, Pages};
use crate::windows::Windows;

/// A process and the memory it runs in.
pub struct Process<In = Gva, Out = Hpa> {
    memory: MeteredMemory<Out>,
    table: PageTable<In, Out>,
    areas: AddressSpace,
    policy: Policy,
    geometry: Geometry,
    /// Pages that are translated without the table.
    segment: Pages,
    /// Large pages by region of a lowest flattened node; kept only where the NF rule applies.
    large_pages: FxHashMap<u64, u32>,
    /// A page each of such nodes that may have become too narrow.
    narrow: Vec<u64>,
    /// Pages whose contents were moved, until they are taken.
    moved: Vec<Moved>,
    data_bytes: u64,
    statistics: Statistics,
}

impl<In: Address, Out: Physical> Process<In, Out> {
    /// A process that has mapped nothing yet.
    ///
    /// # Errors
    /// [`OsError::Setting`], [`OsError::MemorySize`], or [`OsError::OutOfMemory`] if there is not even
    /// room for the root.
    pub fn new(configuration: &Configuration) -> Result<Self, OsError>
    where
        dyn Design: MakeStore<Out>,
    {
        let mut memory = metered_memory(configuration)?;
        let Configuration { layout, large_pages, touched, .. } = configuration;
        let policy = Policy::new(layout.clone(), *large_pages, touched.clone());
        let areas = AddressSpace::default();
        let geometry = configuration.layout.geometry();
        if !configuration.ordered_levels.is_empty() {
            let ordered = OrderedNodes::new(&configuration.layout, &configuration.ordered_levels);
            memory.ordered = Some(Box::new(ordered));
        }
        let shape = PolicyShape { policy: &policy, areas: &areas, blocks: 0 };
        let made = PageTable::new(&configuration.layout, &shape, &mut memory);
        let table = made.map_err(|error| match error {
            TableError::OutOfMemory => OsError::OutOfMemory {
                memory_bytes: configuration.memory_bytes,
                data_bytes: 0,
                table_bytes: 0,
                free_bytes: memory.free_bytes(),
            },
            other => OsError::Table(other),
        })?;
        if configuration.layout.is_made_with_machine() {
            // No program pays for that.
            let _: Work = memory.take_work();
        }
        if let Some(index) = configuration.recursive_index {
            let recursion = recursion(&configuration.layout, index)?;
            let tree = table.tree().ok_or_else(|| no_recursion(index))?;
            let physical = &mut memory.physical;
            let windows = Windows::new(recursion, geometry, tree.root(), physical);
            memory.windows = Some(Box::new(windows));
        }
        let mut statistics = Statistics::default();
        if let Some(tree) = table.tree() {
            let (level, wanted) = configuration.layout.groups()[0];
            debug_assert_eq!(level, tree.root().level);
            statistics.node_fallbacks += u64::from(tree.root().width < wanted);
        }
        let large_pages = FxHashMap::default();
        let segment = configuration.segment.clone().unwrap_or(0..0);
        let shift = geometry.page_shift();
        let segment = segment.start >> shift..segment.end >> shift;
        Ok(Self {
            memory,
            table,
            areas,
            policy,
            geometry,
            segment,
            large_pages,
            narrow: Vec::new(),
            moved: Vec::new(),
            data_bytes: 0,
            statistics,
        })
    }

    /// Physical memory, which hardware reads entries from.
    #[inline]
    pub fn memory(&self) -> &PhysicalMemory<Out> {
        &self.memory.physical
    }

    /// Physical memory, for the hardware that sets accessed and dirty bits.
    #[inline]
    pub fn memory_mut(&mut self) -> &mut PhysicalMemory<Out> {
        &mut self.memory.physical
    }

    /// The page table.
    #[inline]
    pub fn table(&self) -> &PageTable<In, Out> {
        &self.table
    }

    /// The page table, and the physical memory that it is in, for the hardware that walks it.
    #[inline]
    pub fn table_and_memory(&mut self) -> (&PageTable<In, Out>, &mut PhysicalMemory<Out>) {
        (&self.table, &mut self.memory.physical)
    }

    /// The same, and its nodes that are kept in order, if there are any.
    #[allow(clippy::type_complexity, reason = "three things that are borrowed together")]
    pub fn table_memory_and_order(
        &mut self,
    ) -> (&PageTable<In, Out>, &mut PhysicalMemory<Out>, Option<&OrderedNodes<Out>>) {
        (&self.table, &mut self.memory.physical, self.memory.ordered.as_deref())
    }

    /// The areas.
    pub fn areas(&self) -> &AddressSpace {
        &self.areas
    }

    /// The allocator.
    pub fn frames(&self) -> &Frames {
        &self.memory.frames
    }

    /// Addresses that are translated without the table.
    pub fn segment(&self) -> std::ops::Range<u64> {
        let shift = self.geometry.page_shift();
        self.segment.start << shift..self.segment.end << shift
    }

    /// The page-table nodes that are kept in order, if there are any.
    pub fn ordered_nodes(&self) -> Option<&OrderedNodes<Out>> {
        self.memory.ordered.as_deref()
    }

    /// Counts since the start.
    pub fn statistics(&self) -> Statistics {
        let Resizes { grown, shrunk, refused, curtailed } = self.table.resizes();
        let windows = self.memory.windows.as_ref();
        let [window_accesses, window_reads, unlinked_accesses] =
            windows.map_or([0; 3], |windows| windows.counts());
        Statistics {
            resizes: grown + shrunk,
            resize_refusals: refused + curtailed,
            window_accesses,
            window_reads,
            unlinked_accesses,
            ..self.statistics
        }
    }

    /// Bytes in pages that are mapped now.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Present page-table nodes, by level and width.
    pub fn nodes(&self) -> Vec<NodeStatistics> {
        self.table.statistics()
    }

    /// The table in outline, if it is a tree.
    pub fn outline(&self) -> Option<Vec<Part>> {
        self.table.outline(&self.memory.physical)
    }

    /// Bytes in page-table nodes now.
    pub fn page_table_bytes(&self) -> u64 {
        self.nodes().iter().map(|nodes| nodes.nodes * nodes.node_bytes).sum()
    }

    /// Ends an operation: the work since the last one, and what is to be flushed.
    fn outcome(&mut self, flushes: Flushes<In>) -> Outcome<In> {
        let work = self.memory.take_work();
        self.statistics.nodes_freed += work.nodes_freed;
        let (nodes, moved) = (self.take_made(), std::mem::take(&mut self.moved));
        Outcome { work, nodes, moved, flushes: flushes.into_iter().collect() }
    }

    /// Addresses of the page-table nodes that were made since the last operation.
    pub(crate) fn take_made(&mut self) -> Vec<std::ops::Range<u64>> {
        std::mem::take(&mut self.memory.made)
    }

    fn beyond(&self, address: u64) -> OsError {
        OsError::BeyondAddressSpace { address, bits: self.geometry.address_bits() }
    }

    fn out_of_memory(&self) -> OsError {
        OsError::OutOfMemory {
            memory_bytes: self.memory.physical.size_bytes(),
            data_bytes: self.data_bytes,
            table_bytes: self.page_table_bytes(),
            free_bytes: self.memory.free_bytes(),
        }
    }

    fn table_error(&self, error: TableError) -> OsError {
        if error == TableError::OutOfMemory { self.out_of_memory() } else { OsError::Table(error) }
    }
}

/// The memory of a process, fragmented as the configuration says.
fn metered_memory<A: Physical>(configuration: &Configuration) -> Result<MeteredMemory<A>, OsError> {
    let fragmentation = fraction("fragmentation", configuration.fragmentation)?;
    let failure = fraction("large_failure_probability", configuration.large_failure_probability)?;
    let physical = PhysicalMemory::new(configuration.memory_bytes)?;
    let mut buddy = Buddy::new(usable_bytes(configuration));
    buddy.fragment(fragmentation, configuration.seed);
    buddy.fail_large_allocations(failure, !configuration.seed);
    buddy.place(configuration.placement, configuration.seed.rotate_left(32));
    let tables_last = configuration.placement == Placement::Apart;
    Ok(MeteredMemory::new(physical, Frames::new(buddy, tables_last)))
}

/// Memory for data and tables. What is reserved ends it at a whole block of the largest size, if there is one: the
/// allocator would use what is left of such a block first, and pages would lie elsewhere than without.
fn usable_bytes(configuration: &Configuration) -> u64 {
    let &Configuration { memory_bytes, reserved_bytes, .. } = configuration;
    let left = memory_bytes.saturating_sub(reserved_bytes);
    let whole = left & !((FRAME_BYTES << MAX_ORDER) - 1);
    if reserved_bytes == 0 || whole == 0 { left } else { whole }
}

fn fraction(setting: &'static str, value: f64) -> Result<f64, OsError> {
    let allowed = "a fraction, 0 to 1";
    let error = || OsError::Setting { setting, value: value.to_string(), allowed };
    (0.0..=1.0).contains(&value).then_some(value).ok_or_else(error)
}

/// The recursion of a table of `layout` at `index`.
fn recursion(layout: &Layout, index: u16) -> Result<Recursion, OsError> {
    let fixed = layout.density().is_none();
    let recursion = Recursion::new(layout.geometry(), index.into()).filter(|_| fixed);
    recursion.ok_or_else(|| no_recursion(index))
}

fn no_recursion(index: u16) -> OsError {
    OsError::Setting {
        setting: "recursive_index",
        value: index.to_string(),
        allowed: "256 to 511, of a table that is a tree with nodes as large as pages and a root that stays",
    }
}
