//! A process: its areas, its page table and its pages, changed by faults and by a trace's events.
//!
//! Two things hold between any two calls:
//! - a base page lies in an area; a large page lies where [`LargePages`] allows it;
//! - every frame belongs to one page, or to one page-table node, or is free.
//!
//! Departs from Linux: the first load of an anonymous page gets a frame of its own (no shared zero
//! page, so no second fault at the first store); shared memory is not shared with anyone; nothing is
//! collapsed into large pages later (no khugepaged), and nothing is swapped.

use flatwalk_paging::keyed::{Design, MakeStore};
use flatwalk_paging::{
    AccessKind, Address, Attributes as EntryAttributes, DensityChanges, Entry, EntryMemory, Fault,
    Flush, Geometry, Gva, Hpa, Layout, Level, Levels, Made, Mapping, NodeStatistics, PageTable,
    Physical, Recursion, Resizes, Rights, Shape, Step, TableError, Width,
};
use flatwalk_trace::{Advice, Backing, Event, Protection};
use rustc_hash::FxHashMap;

use crate::buddy::{Buddy, FRAME_BYTES, Frames};
use crate::error::OsError;
use crate::memory::PhysicalMemory;
use crate::metered_memory::{MeteredMemory, Work};
use crate::ordered::OrderedNodes;
use crate::policy::{LargePages, Policy, PolicyShape, accessible};
use crate::vma::{AddressSpace, Attributes, Pages, Vma};
use crate::windows::Windows;

/// What a process runs on and how the operating system decides.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// What the page table is like.
    pub layout: Layout,
    /// Which memory large pages back.
    pub large_pages: LargePages,
    /// Physical memory in bytes.
    pub memory_bytes: u64,
    /// Of that, bytes at the end that are hardware's from the start.
    pub reserved_bytes: u64,
    /// Addresses that hardware translates without the table: nothing is populated there.
    pub segment: Option<std::ops::Range<u64>>,
    /// Share of the 2 MiB blocks that cannot be had whole from the start, 0 to 1; see
    /// [`Buddy::fragment`].
    pub fragmentation: f64,
    /// Probability that an allocation of 2 MiB or more fails although there is memory, 0 to 1.
    pub large_failure_probability: f64,
    /// Levels of entries whose nodes stand in contiguous memory, in the order of the addresses that
    /// they translate, as ASAP wants; see [`OrderedNodes`].
    pub ordered_levels: Vec<Level>,
    /// Index at which the root leads back to itself, if the kernel accesses page-table entries by virtual
    /// addresses; see [`Recursion`]. Of trees that are not merged by density.
    pub recursive_index: Option<u16>,
    /// Whether the 2 MiB blocks that frames come from are drawn at random; see [`Buddy::scatter`].
    pub scattered: bool,
    /// Seed of all three.
    pub seed: u64,
}

/// What a fault led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The page was missing and is mapped now.
    Mapped,
    /// The page was there but did not allow the access; the trace says that it succeeded, so it does
    /// allow it now.
    Upgraded,
    /// The page was there and allowed the access.
    Spurious,
}

/// A fault that was handled. The access can be repeated once the flushes are done.
#[must_use = "hardware may go on using old translations until the flushes are done"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultOutcome<In = Gva> {
    /// What it led to.
    pub kind: FaultKind,
    /// Level that the page is a leaf of now: 1 for a base page.
    pub level: Level,
    /// What it took.
    pub work: Work,
    /// What to flush.
    pub flushes: Vec<Flush<In>>,
}

/// An event that was carried out.
#[must_use = "hardware may go on using old translations until the flushes are done"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<In = Gva> {
    /// What it took.
    pub work: Work,
    /// What to flush.
    pub flushes: Vec<Flush<In>>,
}

/// Counts since the start (subtract two to get a period's).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Faults of all kinds.
    pub faults: u64,
    /// Faults that mapped a large page.
    pub large_page_faults: u64,
    /// Large pages mapped, by faults or populating.
    pub large_pages_mapped: u64,
    /// Regions that should have had a large page, but there was no block for it.
    pub large_page_fallbacks: u64,
    /// Page-table nodes narrower than they should be, for want of a large block.
    pub node_fallbacks: u64,
    /// Nodes taken apart because of the NF rule.
    pub demotions: u64,
    /// Nodes merged with their children because they had become dense.
    pub merges: u64,
    /// Merged nodes taken apart because they had become sparse.
    pub unmerges: u64,
    /// Times that either was due, but there was no memory for it.
    pub merge_refusals: u64,
    /// Times that a hashed table began to grow or to shrink.
    pub resizes: u64,
    /// Times that there was no contiguous memory for that, or not for as much as was due.
    pub resize_refusals: u64,
    /// Page-table entries that the kernel accessed by virtual addresses, of a recursive table.
    pub window_accesses: u64,
    /// Page-table entries that the hardware read to find those.
    pub window_reads: u64,
    /// Entries that the kernel accessed otherwise, as they were not linked into that table.
    pub unlinked_accesses: u64,
    /// Large pages split.
    pub splits: u64,
    /// Pages mapped ahead of any access, by events.
    pub populated_pages: u64,
    /// Pages mapped at addresses that no event had mapped.
    pub implicit_mappings: u64,
    /// Accesses that succeeded in the trace against the rights of their area.
    pub protection_mismatches: u64,
    /// Pages given back.
    pub pages_freed: u64,
    /// Page-table nodes given back.
    pub nodes_freed: u64,
    /// Events that concern memory.
    pub events: u64,
}

/// A process and the memory it runs in.
pub struct Process<In = Gva, Out = Hpa> {
    kernel: MeteredMemory<Out>,
    table: PageTable<In, Out>,
    areas: AddressSpace,
    policy: Policy,
    geometry: Geometry,
    /// Pages that are translated without the table.
    segment: Pages,
    /// Large pages by region of a lowest flattened node; kept only where the NF rule applies.
    large_pages: FxHashMap<u64, u32>,
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
        let fraction = |setting, value: f64| {
            let allowed = "a fraction, 0 to 1";
            let error = || OsError::Setting { setting, value: value.to_string(), allowed };
            (0.0..=1.0).contains(&value).then_some(value).ok_or_else(error)
        };
        let fragmentation = fraction("fragmentation", configuration.fragmentation)?;
        let failure =
            fraction("large_failure_probability", configuration.large_failure_probability)?;
        let mut memory = PhysicalMemory::new(configuration.memory_bytes)?;
        let usable = configuration.memory_bytes.saturating_sub(configuration.reserved_bytes);
        let mut buddy = Buddy::new(usable);
        buddy.fragment(fragmentation, configuration.seed);
        buddy.fail_large_allocations(failure, !configuration.seed);
        if configuration.scattered {
            memory.expect_scattered();
            buddy.scatter(configuration.seed.rotate_left(32));
        }
        let mut kernel = MeteredMemory::new(memory, Frames::new(buddy));
        let policy = Policy::new(configuration.layout.clone(), configuration.large_pages);
        let areas = AddressSpace::default();
        let geometry = configuration.layout.geometry();
        if !configuration.ordered_levels.is_empty() {
            let ordered = OrderedNodes::new(&configuration.layout, &configuration.ordered_levels);
            kernel.ordered = Some(Box::new(ordered));
        }
        let shape = PolicyShape { policy: &policy, areas: &areas };
        let table = PageTable::new(&configuration.layout, &shape, &mut kernel).map_err(|_| {
            let memory_bytes = configuration.memory_bytes;
            OsError::OutOfMemory { memory_bytes, data_bytes: 0, table_bytes: 0 }
        })?;
        if configuration.layout.is_made_with_machine() {
            // No program pays for that.
            let _: Work = kernel.take_work();
        }
        if let Some(index) = configuration.recursive_index {
            let recursion = recursion(&configuration.layout, index)?;
            let tree = table.tree().ok_or_else(|| no_recursion(index))?;
            let memory = &mut kernel.memory;
            let windows = Windows::new(recursion, geometry, tree.root(), memory);
            kernel.windows = Some(Box::new(windows));
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
            kernel,
            table,
            areas,
            policy,
            geometry,
            segment,
            large_pages,
            data_bytes: 0,
            statistics,
        })
    }

    /// Physical memory, which hardware reads entries from.
    #[inline]
    pub fn memory(&self) -> &PhysicalMemory<Out> {
        &self.kernel.memory
    }

    /// Physical memory, for the hardware that sets accessed and dirty bits.
    #[inline]
    pub fn memory_mut(&mut self) -> &mut PhysicalMemory<Out> {
        &mut self.kernel.memory
    }

    /// The page table.
    #[inline]
    pub fn table(&self) -> &PageTable<In, Out> {
        &self.table
    }

    /// The page table, and the physical memory that it is in, for the hardware that walks it.
    #[inline]
    pub fn table_and_memory(&mut self) -> (&PageTable<In, Out>, &mut PhysicalMemory<Out>) {
        (&self.table, &mut self.kernel.memory)
    }

    /// The same, and where its nodes stand in order, if they are to.
    #[allow(clippy::type_complexity, reason = "three things that are borrowed together")]
    pub fn table_memory_and_order(
        &mut self,
    ) -> (&PageTable<In, Out>, &mut PhysicalMemory<Out>, Option<&OrderedNodes<Out>>) {
        (&self.table, &mut self.kernel.memory, self.kernel.ordered.as_deref())
    }

    /// The areas.
    pub fn areas(&self) -> &AddressSpace {
        &self.areas
    }

    /// The allocator.
    pub fn frames(&self) -> &Frames {
        &self.kernel.frames
    }

    /// Addresses that are translated without the table.
    pub fn segment(&self) -> std::ops::Range<u64> {
        let shift = self.geometry.page_shift();
        self.segment.start << shift..self.segment.end << shift
    }

    /// Where page-table nodes stand in order, if they are to.
    pub fn ordered_nodes(&self) -> Option<&OrderedNodes<Out>> {
        self.kernel.ordered.as_deref()
    }

    /// Counts since the start.
    pub fn statistics(&self) -> Statistics {
        let Resizes { grown, shrunk, refused, curtailed } = self.table.resizes();
        let windows = self.kernel.windows.as_ref();
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

    /// Page-table nodes that there are now, by level and width.
    pub fn nodes(&self) -> Vec<NodeStatistics> {
        self.table.statistics()
    }

    /// Bytes in page-table nodes now.
    pub fn page_table_bytes(&self) -> u64 {
        self.nodes().iter().map(|nodes| nodes.nodes * nodes.node_bytes).sum()
    }

    /// Handles the fault that an access to `address` raised: maps the page, or grants the right that
    /// was missing.
    ///
    /// # Errors
    /// [`OsError::BeyondAddressSpace`] or [`OsError::OutOfMemory`].
    pub fn fault(&mut self, address: In, access: AccessKind) -> Result<FaultOutcome<In>, OsError> {
        self.outside_windows(address.raw())?;
        let page = address.raw() >> self.geometry.page_shift();
        let mut flushes = Flushes::default();
        let mut found = self.table.translate(&self.kernel, address);
        if found.is_ok_and(|leaf| !permits(leaf.rights, access)) && self.areas.find(page).is_none()
        {
            // A large page that reaches beyond its areas; the area that comes up here splits it.
            self.area_of(page, &mut flushes)?;
            found = self.table.translate(&self.kernel, address);
        }
        let (kind, level) = match found {
            Ok(leaf) if permits(leaf.rights, access) => {
                let split = flushes.leaves.is_some();
                (if split { FaultKind::Upgraded } else { FaultKind::Spurious }, leaf.level)
            }
            Ok(leaf) => {
                let rights = granted(leaf.rights, access);
                self.statistics.protection_mismatches += 1;
                let Self { table, kernel, .. } = self;
                let (_, flush) = table.protect(kernel, address, rights).map_err(OsError::Table)?;
                flushes.add(flush);
                (FaultKind::Upgraded, leaf.level)
            }
            Err(Fault::NotPresent { .. }) => {
                let vma = self.area_of(page, &mut flushes)?;
                let level = self.map_page(page, &vma, access, &mut flushes)?;
                self.statistics.large_page_faults += u64::from(level > 1);
                (FaultKind::Mapped, level)
            }
            Err(Fault::NotCanonical) => return Err(self.beyond(address.raw())),
            Err(Fault::Reserved { .. }) => {
                return Err(OsError::Table(TableError::Corrupt(address.raw())));
            }
        };
        self.statistics.faults += 1;
        let Outcome { work, flushes } = self.outcome(flushes);
        Ok(FaultOutcome { kind, level, work, flushes })
    }

    /// Carries out an event.
    ///
    /// # Errors
    /// [`OsError::BeyondAddressSpace`] or [`OsError::OutOfMemory`].
    pub fn apply(&mut self, event: &Event) -> Result<Outcome<In>, OsError> {
        let mut flushes = Flushes::default();
        match *event {
            Event::Map { address, length, protection, backing, shared } => {
                let pages = self.pages(address, length)?;
                let attributes =
                    Attributes { protection, backing, shared, huge: None, implicit: false };
                self.areas.map(pages.clone(), attributes);
                let replaced = self.given_up(address, length)?;
                self.reconcile(&replaced, Effect::Discard, &mut flushes)?;
                if replaced != pages {
                    self.reconcile(&pages, Effect::Reprotect, &mut flushes)?;
                }
            }
            Event::Unmap { address, length } => {
                let pages = self.given_up(address, length)?;
                self.areas.unmap(pages.clone());
                self.reconcile(&pages, Effect::Discard, &mut flushes)?;
            }
            Event::Remap { from, from_length, to, to_length } => {
                let (from, to) = (self.pages(from, from_length)?, self.pages(to, to_length)?);
                self.statistics.events += 1;
                return self.remap(&from, &to);
            }
            Event::Protect { address, length, protection } => {
                let pages = self.pages(address, length)?;
                self.areas.update(pages.clone(), |attributes| attributes.protection = protection);
                self.reconcile(&pages, Effect::Reprotect, &mut flushes)?;
            }
            Event::Advise { address, length, advice } => {
                let pages = self.pages(address, length)?;
                match advice {
                    Advice::HugePage => {
                        self.areas.update(pages, |attributes| attributes.huge = Some(true));
                    }
                    Advice::NoHugePage => {
                        self.areas.update(pages, |attributes| attributes.huge = Some(false));
                    }
                    Advice::DontNeed => {
                        let pages = self.given_up(address, length)?;
                        self.reconcile(&pages, Effect::Discard, &mut flushes)?;
                    }
                    Advice::Populate => {
                        let areas: Vec<_> = self.areas.intersecting(pages.clone()).collect();
                        for vma in
                            areas.into_iter().filter(|vma| accessible(vma.attributes.protection))
                        {
                            let part =
                                vma.pages.start.max(pages.start)..vma.pages.end.min(pages.end);
                            // The program waits for it, page by page.
                            self.populate(&part, AccessKind::Load, Touch::Singly, &mut flushes)?;
                        }
                    }
                }
            }
            Event::Break { from, to } => {
                if to >= from {
                    let grown = self.whole_pages(from, to)?;
                    for hole in self.areas.holes(grown.clone()) {
                        self.areas.map(hole, HEAP);
                    }
                    self.reconcile(&grown, Effect::Reprotect, &mut flushes)?;
                } else {
                    let shrunk = self.whole_pages(to, from)?;
                    self.areas.unmap(shrunk.clone());
                    self.reconcile(&shrunk, Effect::Discard, &mut flushes)?;
                }
            }
            Event::Populate { address, length, store } => {
                let pages = self.pages(address, length)?;
                let access = if store { AccessKind::Store } else { AccessKind::Load };
                self.populate(&pages, access, Touch::InRuns, &mut flushes)?;
            }
            Event::ThreadStart { .. }
            | Event::ThreadExit { .. }
            | Event::Marker { .. }
            | Event::Root { .. }
            | Event::Entry { .. } => {
                return Ok(Outcome { work: Work::default(), flushes: Vec::new() });
            }
        }
        self.statistics.events += 1;
        Ok(self.outcome(flushes))
    }

    // ---- mapping --------------------------------------------------------------------------------

    /// Handles a fault for a store to each page of `length_bytes` from `address` that is not mapped, as
    /// [`Process::fault`] does one by one; but what that takes is not metered. Returns what is to be
    /// flushed.
    ///
    /// # Errors
    /// As [`Process::fault`].
    pub fn back(&mut self, address: In, length_bytes: u64) -> Result<Vec<Flush<In>>, OsError> {
        let pages = self.pages(address.raw(), length_bytes)?;
        let mut all = Vec::new();
        let touched = self.touch(&pages, AccessKind::Store, Touch::InRuns, &mut |flushes| {
            all.extend(flushes.into_iter());
        })?;
        self.statistics.faults += touched.pages;
        self.statistics.large_page_faults += touched.large;
        let _: Outcome<In> = self.outcome(Flushes::default());
        Ok(all)
    }

    /// Maps each page of `pages` that is not mapped.
    fn populate(
        &mut self,
        pages: &Pages,
        access: AccessKind,
        how: Touch,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let touched = self.touch(pages, access, how, &mut |more| {
            more.into_iter().for_each(|flush| flushes.add(flush));
        })?;
        self.statistics.populated_pages += touched.pages;
        Ok(())
    }

    /// Touches each page of `pages` that is not mapped. `changed` gets what is to be flushed.
    fn touch(
        &mut self,
        pages: &Pages,
        access: AccessKind,
        how: Touch,
        changed: &mut impl FnMut(Flushes<In>),
    ) -> Result<Touched, OsError> {
        let mut touched = Touched::default();
        let mut page = pages.start;
        while page < pages.end {
            if self.segment.contains(&page) {
                page = self.segment.end;
                continue;
            }
            let mut flushes = Flushes::default();
            let vma = self.area_of(page, &mut flushes)?;
            changed(flushes);
            let stop = pages.end.min(vma.pages.end).min(self.region(page).end);
            let mut found = Vec::new();
            self.visit(page..stop, &mut found)?;
            let mut mapped = found.iter().map(|mapping| self.pages_of(mapping)).collect::<Vec<_>>();
            mapped.reverse();
            while page < stop {
                if let Some(there) = mapped.pop_if(|there| there.start <= page) {
                    page = there.end;
                    continue;
                }
                let mut flushes = Flushes::default();
                let level = self.map_page(page, &vma, access, &mut flushes)?;
                changed(flushes);
                touched.pages += 1;
                if level > 1 {
                    touched.large += 1;
                    page = self.region(page).end;
                    continue;
                }
                page += 1;
                if how == Touch::InRuns {
                    let end = mapped.last().map_or(stop, |there| there.start);
                    let run = self.map_run(page..end, &vma, access)?;
                    touched.pages += run;
                    page += run;
                }
            }
        }
        Ok(touched)
    }

    /// Maps the first of `pages`, which are missing and will be base pages, as far as their entries
    /// stand beside one another. Returns how many.
    fn map_run(&mut self, pages: Pages, vma: &Vma, access: AccessKind) -> Result<u64, OsError> {
        // Where the kernel accesses entries by virtual addresses, it is counted how often.
        if pages.is_empty() || self.kernel.windows.is_some() {
            return Ok(0);
        }
        let attributes = new_page(vma, vma.attributes.protection, access);
        let mismatched = !permits(rights(vma.attributes.protection), access);
        let (input, shift) = (self.address(pages.start), self.geometry.page_shift());
        let Self { table, kernel, .. } = self;
        let frame = |kernel: &mut MeteredMemory<Out>| kernel.allocate_data(shift);
        let mapped = table
            .map_run(kernel, input, pages.end - pages.start, attributes, frame)
            .map_err(|error| self.table_error(error))?;
        self.data_bytes += mapped << shift;
        self.statistics.implicit_mappings += if vma.attributes.implicit { mapped } else { 0 };
        self.statistics.protection_mismatches += if mismatched { mapped } else { 0 };
        Ok(mapped)
    }

    /// Maps the page that is missing at `page`, as large as the policy and memory allow. Returns its
    /// level.
    fn map_page(
        &mut self,
        page: u64,
        vma: &Vma,
        access: AccessKind,
        flushes: &mut Flushes<In>,
    ) -> Result<Level, OsError> {
        let region = self.region(page);
        let large = match self.policy.large(&self.areas, &region) {
            Some(protection) if self.is_empty(&region)? => Some(protection),
            _ => None,
        };
        let mut place = None;
        if let Some(protection) = large {
            match self.kernel.allocate_data(self.geometry.shift(2)) {
                Some(frame) => place = Some((region.start, frame, 2, protection)),
                None => self.statistics.large_page_fallbacks += 1,
            }
        }
        let (start, frame, level, protection) = match place {
            Some(place) => place,
            None => match self.kernel.allocate_data(self.geometry.page_shift()) {
                Some(frame) => (page, frame, 1, vma.attributes.protection),
                None => return Err(self.out_of_memory()),
            },
        };
        self.statistics.implicit_mappings += u64::from(vma.attributes.implicit);
        let mismatched = !permits(rights(protection), access);
        self.statistics.protection_mismatches += u64::from(mismatched);
        let attributes = new_page(vma, protection, access);
        self.enter(start, frame, level, attributes, flushes)?;
        Ok(level)
    }

    /// Enters a page into the table; where there is no memory for nodes, gives its frame back.
    fn enter(
        &mut self,
        page: u64,
        frame: Out,
        level: Level,
        attributes: EntryAttributes,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let input = self.address(page);
        let Self { table, kernel, policy, areas, .. } = self;
        if let Some(ordered) = &mut kernel.ordered {
            let pages = 1 << (self.geometry.shift(level) - self.geometry.page_shift());
            ordered.area = areas.intersecting(page..page + pages).next().map(|vma| vma.pages);
        }
        let shape = PolicyShape { policy, areas };
        match table.map(kernel, &shape, input, frame, level, attributes) {
            Ok(made) => self.apply_outcome(made, input, flushes),
            Err(error) => {
                self.kernel.free_data(frame, self.geometry.shift(level));
                return Err(self.table_error(error));
            }
        }
        self.data_bytes += self.geometry.span(level);
        if level > 1 {
            self.statistics.large_pages_mapped += 1;
            self.count_large(page, flushes)?;
        }
        Ok(())
    }

    /// Counts a large page, and takes the flattened node above it apart if that is one too many.
    fn count_large(&mut self, page: u64, flushes: &mut Flushes<In>) -> Result<(), OsError> {
        let Some((level, width)) = self.policy.guarded_nodes else { return Ok(()) };
        let count = self.large_pages.entry(page >> self.guarded_shift(level)).or_default();
        *count += 1;
        if *count != self.policy.layout.no_flatten_threshold() {
            return Ok(());
        }
        let input = self.address(page);
        if self.node_width(input, level) != Some(width) {
            return Ok(());
        }
        let Self { table, kernel, .. } = self;
        let Some(tree) = table.tree_mut() else { return Ok(()) };
        match tree.reshape(kernel, input, level, width - 1) {
            Ok(Some(flush)) => {
                self.statistics.demotions += 1;
                flushes.add(flush);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => Err(self.table_error(error)),
        }
    }

    // ---- taking away ----------------------------------------------------------------------------

    /// Brings the pages in `range` into line with the areas, which have changed there already.
    fn reconcile(
        &mut self,
        range: &Pages,
        effect: Effect,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        for chunk in self.chunks(range.clone()) {
            let mut mapped = Vec::new();
            self.visit(chunk, &mut mapped)?;
            for mapping in mapped {
                if mapping.level == 1 {
                    self.reconcile_base(&mapping, range, effect, flushes)?;
                } else {
                    self.reconcile_large(&mapping, range, effect, flushes)?;
                }
            }
        }
        Ok(())
    }

    fn reconcile_base(
        &mut self,
        mapping: &Mapping<In, Out>,
        range: &Pages,
        effect: Effect,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let page = self.pages_of(mapping).start;
        if effect == Effect::Discard && range.contains(&page) {
            return self.release(mapping.input, flushes);
        }
        match self.areas.find(page) {
            Some(vma) => self.reprotect(mapping, vma.attributes.protection, flushes),
            None => self.release(mapping.input, flushes),
        }
    }

    fn reconcile_large(
        &mut self,
        mapping: &Mapping<In, Out>,
        range: &Pages,
        effect: Effect,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let pages = self.pages_of(mapping);
        let discarded = match effect {
            Effect::Discard => pages.start.max(range.start)..pages.end.min(range.end),
            Effect::Reprotect => pages.start..pages.start,
        };
        if discarded == pages || self.areas.intersecting(pages.clone()).next().is_none() {
            return self.release(mapping.input, flushes);
        }
        if let Some(protection) =
            self.policy.keeps_large(&self.areas, &pages, !discarded.is_empty())
        {
            // What is discarded but still in an area will be used anew: that is what costs.
            for page in discarded {
                let within = (page - pages.start) << self.geometry.page_shift();
                self.kernel.memory.zero(mapping.frame.offset(within), self.geometry.page_shift());
                let used = self.areas.find(page).is_some();
                self.kernel.work.data_bytes += if used { self.geometry.span(1) } else { 0 };
            }
            return self.reprotect(mapping, protection, flushes);
        }
        self.split(mapping.input, flushes)?;
        let mut parts = Vec::new();
        self.visit(pages, &mut parts)?;
        for part in parts {
            self.reconcile_base(&part, range, effect, flushes)?;
        }
        Ok(())
    }

    /// Moves the pages in `from` to `to` (mremap).
    fn remap(&mut self, from: &Pages, to: &Pages) -> Result<Outcome<In>, OsError> {
        let (mut departed, mut arrived) = (Flushes::default(), Flushes::default());
        if from.start == to.start {
            self.areas.remap(from.clone(), to.clone());
            let changed = from.end.min(to.end)..from.end.max(to.end);
            self.reconcile(&changed, Effect::Discard, &mut departed)?;
            return Ok(self.outcome(departed));
        }
        // Large pages that reach beyond either end cannot move, or are in the way.
        for end in [from.start, from.end, to.start, to.end] {
            self.split_across(end, &mut departed)?;
        }
        let mut moved = Vec::new();
        for chunk in self.chunks(from.clone()) {
            self.visit(chunk, &mut moved)?;
        }
        for mapping in &mut moved {
            *mapping = self.remove(mapping.input, &mut departed)?;
        }
        self.areas.remap(from.clone(), to.clone());
        self.reconcile(to, Effect::Discard, &mut arrived)?;
        for mapping in moved {
            self.arrive(&mapping, from, to, &mut arrived)?;
        }
        let mut outcome = self.outcome(departed);
        outcome.flushes.extend(arrived.into_iter());
        Ok(outcome)
    }

    /// Enters a page that was removed from `from` at its place in `to`, in pieces where a large page
    /// does not fit; what is beyond the end is given back.
    fn arrive(
        &mut self,
        mapping: &Mapping<In, Out>,
        from: &Pages,
        to: &Pages,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let pages = self.pages_of(mapping);
        let start = to.start + (pages.start - from.start);
        let end = start + (pages.end - pages.start);
        let aligned = start.is_multiple_of(pages.end - pages.start);
        if aligned && end <= to.end {
            return self.enter(start, mapping.frame, mapping.level, mapping.attributes, flushes);
        }
        self.statistics.splits += u64::from(mapping.level > 1);
        let base = self.geometry.span(1);
        for (i, page) in (start..end).enumerate() {
            let frame = mapping.frame.offset(i as u64 * base);
            // A large page may have reached beyond its areas; its pieces must not.
            if let Some(vma) = self.areas.find(page).filter(|_| page < to.end) {
                let rights = rights(vma.attributes.protection);
                let attributes = EntryAttributes { rights, ..mapping.attributes };
                self.enter(page, frame, 1, attributes, flushes)?;
            } else {
                self.kernel.free_data(frame, self.geometry.page_shift());
                self.statistics.pages_freed += 1;
            }
        }
        Ok(())
    }

    /// Splits the large page that reaches across the start of `page`, if there is one.
    fn split_across(&mut self, page: u64, flushes: &mut Flushes<In>) -> Result<(), OsError> {
        let region = self.region(page);
        if page == region.start {
            return Ok(());
        }
        let input = self.address(page);
        match self.table.translate(&self.kernel, input) {
            Ok(leaf) if leaf.level > 1 => {}
            _ => return Ok(()),
        }
        self.split(input, flushes)?;
        // What reached beyond the areas belongs to none now.
        self.reconcile(&region, Effect::Reprotect, flushes)
    }

    fn split(&mut self, input: In, flushes: &mut Flushes<In>) -> Result<(), OsError> {
        let Self { table, kernel, policy, areas, geometry, .. } = self;
        if let Some(ordered) = &mut kernel.ordered {
            let page = input.raw() >> geometry.page_shift();
            ordered.area = areas.find(page).map(|vma| vma.pages);
        }
        match table.split(kernel, &PolicyShape { policy, areas }, input) {
            Ok(made) => {
                self.statistics.splits += 1;
                self.forget_large(input);
                self.apply_outcome(made, input, flushes);
                Ok(())
            }
            Err(error) => Err(self.table_error(error)),
        }
    }

    /// Unmaps a page and frees its frame.
    fn release(&mut self, input: In, flushes: &mut Flushes<In>) -> Result<(), OsError> {
        let mapping = self.remove(input, flushes)?;
        self.kernel.free_data(mapping.frame, self.geometry.shift(mapping.level));
        self.statistics.pages_freed += 1;
        Ok(())
    }

    /// Unmaps a page, and keeps its frame.
    fn remove(
        &mut self,
        input: In,
        flushes: &mut Flushes<In>,
    ) -> Result<Mapping<In, Out>, OsError> {
        let Self { table, kernel, .. } = self;
        let (mapping, flush) = table.unmap(kernel, input).map_err(OsError::Table)?;
        let thinned = kernel.unmetered(|kernel| table.split_sparse(kernel, input));
        flushes.add(flush);
        self.count_density_changes(thinned, flushes);
        self.data_bytes -= self.geometry.span(mapping.level);
        if mapping.level > 1 {
            self.forget_large(mapping.input);
        }
        Ok(mapping)
    }

    /// Sees to the densities where entries of the levels `filled` came to lead to new nodes.
    fn merge_dense(&mut self, input: In, filled: Levels, flushes: &mut Flushes<In>) {
        if !filled.is_empty() {
            let Self { table, kernel, .. } = self;
            let densified = kernel.unmetered(|kernel| table.merge_dense(kernel, input, filled));
            self.count_density_changes(densified, flushes);
        }
    }

    fn count_density_changes(&mut self, done: DensityChanges<In>, flushes: &mut Flushes<In>) {
        self.statistics.merges += u64::from(done.merged);
        self.statistics.unmerges += u64::from(done.unmerged);
        self.statistics.merge_refusals += u64::from(done.refused);
        self.kernel.work.density_changes += u64::from(done.merged + done.unmerged);
        done.flush.into_iter().for_each(|flush| flushes.add(flush));
    }

    fn reprotect(
        &mut self,
        mapping: &Mapping<In, Out>,
        protection: Protection,
        flushes: &mut Flushes<In>,
    ) -> Result<(), OsError> {
        let rights = rights(protection);
        if rights != mapping.attributes.rights {
            let Self { table, kernel, .. } = self;
            let (_, flush) =
                table.protect(kernel, mapping.input, rights).map_err(OsError::Table)?;
            flushes.add(flush);
        }
        Ok(())
    }

    fn forget_large(&mut self, input: In) {
        if let Some((level, _)) = self.policy.guarded_nodes {
            let region = input.raw() >> self.geometry.page_shift() >> self.guarded_shift(level);
            if let Some(count) = self.large_pages.get_mut(&region) {
                *count -= 1;
                if *count == 0 {
                    self.large_pages.remove(&region);
                }
            }
        }
    }

    // ---- small things ---------------------------------------------------------------------------

    /// The area of `page`; where there is none, the holes of its region become one, implicitly.
    fn area_of(&mut self, page: u64, flushes: &mut Flushes<In>) -> Result<Vma, OsError> {
        if let Some(vma) = self.areas.find(page) {
            return Ok(vma);
        }
        let region = self.region(page);
        for hole in self.areas.holes(region.clone()) {
            self.areas.map(hole, Attributes::IMPLICIT);
        }
        self.reconcile(&region, Effect::Reprotect, flushes)?;
        Ok(self
            .areas
            .find(page)
            .unwrap_or(Vma { pages: page..page + 1, attributes: Attributes::IMPLICIT }))
    }

    /// True if no page is mapped in `region`.
    fn is_empty(&self, region: &Pages) -> Result<bool, OsError> {
        let start = self.address(region.start);
        if !self.geometry.is_canonical(start.raw()) {
            return Err(self.beyond(start.raw()));
        }
        Ok(self.table.is_empty(&self.kernel, start, 2))
    }

    /// Width of the node with topmost level `level` on the path of `input`.
    fn node_width(&self, input: In, level: Level) -> Option<Width> {
        let mut walk = self.table.tree()?.walk(input);
        while walk.at().level > level {
            match walk.feed(Entry(self.kernel.read(walk.entry_address()))) {
                Step::Table(_) => {}
                Step::Leaf(_) | Step::Fault(_) => return None,
            }
        }
        (walk.at().level == level).then_some(walk.at().width)
    }

    fn visit(&self, pages: Pages, found: &mut Vec<Mapping<In, Out>>) -> Result<(), OsError> {
        let bytes = pages.end.saturating_sub(pages.start) << self.geometry.page_shift();
        self.table
            .visit(&self.kernel, self.address(pages.start), bytes, &mut |mapping| {
                found.push(mapping);
            })
            .map_err(OsError::Table)
    }

    /// `pages` cut at the boundaries of level-3 entries (1 GiB), so that looking through any range
    /// takes bounded memory.
    fn chunks(&self, pages: Pages) -> impl Iterator<Item = Pages> + use<In, Out> {
        let size = 1_u64 << (2 * self.geometry.index_bits());
        let mut at = pages.start;
        std::iter::from_fn(move || {
            let start = at;
            at = pages.end.min((start / size + 1) * size);
            (start < pages.end).then_some(start..at)
        })
    }

    /// The pages of a 2 MiB region, the one that `page` lies in.
    fn region(&self, page: u64) -> Pages {
        let size = 1_u64 << self.geometry.index_bits();
        let start = page & !(size - 1);
        start..start + size
    }

    fn pages_of(&self, mapping: &Mapping<In, Out>) -> Pages {
        let start = mapping.input.raw() >> self.geometry.page_shift();
        start..start + (self.geometry.span(mapping.level) >> self.geometry.page_shift())
    }

    fn address(&self, page: u64) -> In {
        In::new(page << self.geometry.page_shift())
    }

    /// log2 of the pages under a node with topmost level `level`.
    fn guarded_shift(&self, level: Level) -> u8 {
        self.geometry.shift(level + 1) - self.geometry.page_shift()
    }

    /// The pages that `length` bytes from `address` lie in.
    fn pages(&self, address: u64, length: u64) -> Result<Pages, OsError> {
        let shift = self.geometry.page_shift();
        let start = address >> shift;
        let Some(above) = length.checked_sub(1) else { return Ok(start..start) };
        let last = address.checked_add(above).ok_or_else(|| self.beyond(address))?;
        for end in [address, last] {
            if !self.geometry.is_canonical(end) {
                return Err(self.beyond(end));
            }
            self.outside_windows(end)?;
        }
        if address >> 63 == last >> 63 {
            Ok(start..(last >> shift) + 1)
        } else {
            Err(self.beyond(last))
        }
    }

    /// The pages that are free when `length` bytes from `address` are given up. Traced programs know
    /// pages of 4 KiB: a larger one that they give up in part stays, for the rest of it.
    fn given_up(&self, address: u64, length: u64) -> Result<Pages, OsError> {
        let touched = self.pages(address, length)?;
        let page_bytes = self.geometry.span(1);
        if page_bytes == FRAME_BYTES || touched.is_empty() {
            return Ok(touched);
        }
        let start = address.div_ceil(page_bytes);
        let last = (address + (length - 1)) | (FRAME_BYTES - 1);
        let end = if last % page_bytes == page_bytes - 1 { touched.end } else { touched.end - 1 };
        Ok(start..end.max(start))
    }

    /// The pages that lie wholly above `from` and not wholly above `to`: those a moving break adds.
    fn whole_pages(&self, from: u64, to: u64) -> Result<Pages, OsError> {
        let end = self.pages(from, to - from)?.end;
        Ok(from.div_ceil(self.geometry.span(1)).min(end)..end)
    }

    /// Counts and flushes what a change of the table asks for, and sees to densities.
    fn apply_outcome(&mut self, made: Made<In>, input: In, flushes: &mut Flushes<In>) {
        self.statistics.node_fallbacks += u64::from(made.fallbacks);
        made.flush.into_iter().for_each(|flush| flushes.add(flush));
        self.merge_dense(input, made.filled, flushes);
    }

    fn outcome(&mut self, flushes: Flushes<In>) -> Outcome<In> {
        let work = self.kernel.take_work();
        self.statistics.nodes_freed += work.nodes_freed;
        Outcome { work, flushes: flushes.into_iter().collect() }
    }

    /// Refuses addresses at which a recursive table shows itself.
    fn outside_windows(&self, address: u64) -> Result<(), OsError> {
        match &self.kernel.windows {
            Some(windows) if windows.recursion().contains(address) => {
                Err(OsError::InWindow { address })
            }
            _ => Ok(()),
        }
    }

    fn beyond(&self, address: u64) -> OsError {
        OsError::BeyondAddressSpace { address, bits: self.geometry.address_bits() }
    }

    fn out_of_memory(&self) -> OsError {
        OsError::OutOfMemory {
            memory_bytes: self.kernel.memory.size_bytes(),
            data_bytes: self.data_bytes,
            table_bytes: self.page_table_bytes(),
        }
    }

    fn table_error(&self, error: TableError) -> OsError {
        if error == TableError::OutOfMemory { self.out_of_memory() } else { OsError::Table(error) }
    }
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

/// How pages are touched ahead of any access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touch {
    /// Each by itself, as by faults.
    Singly,
    /// Those whose entries stand beside one another together.
    InRuns,
}

/// What touching pages mapped.
#[derive(Clone, Copy, Default)]
struct Touched {
    /// Pages of any size.
    pages: u64,
    /// Large ones among them.
    large: u64,
}

/// What happens to the pages in a range beside what the areas demand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// They are given back.
    Discard,
    /// They get the rights of their areas.
    Reprotect,
}

/// What an operation has made stale so far: one range around all pages, and one around the nodes that
/// changed while pages stayed.
struct Flushes<In> {
    leaves: Option<Flush<In>>,
    tables: Option<Flush<In>>,
}

impl<In> Default for Flushes<In> {
    fn default() -> Self {
        Self { leaves: None, tables: None }
    }
}

impl<In: Address> Flushes<In> {
    fn add(&mut self, more: Flush<In>) {
        let known = if more.leaves { &mut self.leaves } else { &mut self.tables };
        *known = Some(match *known {
            None => more,
            Some(known) => {
                let last = |flush: Flush<In>| {
                    flush.start.raw().wrapping_add(flush.length_bytes.wrapping_sub(1))
                };
                let start = known.start.min(more.start);
                let last = last(known).max(last(more));
                Flush {
                    start,
                    length_bytes: (last - start.raw()).wrapping_add(1),
                    leaves: more.leaves,
                    tables: known.tables | more.tables,
                }
            }
        });
    }

    fn into_iter(self) -> impl Iterator<Item = Flush<In>> {
        self.leaves.into_iter().chain(self.tables)
    }
}

/// The program-break heap.
const HEAP: Attributes = Attributes {
    protection: Protection { read: true, write: true, execute: false },
    backing: Backing::Heap,
    shared: false,
    huge: None,
    implicit: false,
};

/// The rights of a page: on x86 whatever can be used at all can be read. A page without any rights
/// stays in the table, but closed to user mode.
fn rights(protection: Protection) -> Rights {
    Rights { write: protection.write, user: accessible(protection), execute: protection.execute }
}

/// The rights that a page with `rights` has after `access`, which succeeded.
fn granted(mut rights: Rights, access: AccessKind) -> Rights {
    rights.user = true;
    rights.write |= access == AccessKind::Store;
    rights.execute |= access == AccessKind::Fetch;
    rights
}

/// What a page of `vma` with `protection` is after its first access. Linux makes new pages accessed, and
/// private anonymous ones that may be written dirty.
fn new_page(vma: &Vma, protection: Protection, access: AccessKind) -> EntryAttributes {
    let Attributes { backing, shared, .. } = vma.attributes;
    let private = backing != Backing::File && !shared;
    EntryAttributes {
        rights: granted(rights(protection), access),
        accessed: true,
        dirty: access == AccessKind::Store || (private && protection.write),
    }
}

fn permits(rights: Rights, access: AccessKind) -> bool {
    rights.user && rights.permit(access)
}

#[cfg(test)]
mod tests;
