//! A table, a map of the pages that it should have, and hardware that walks it.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestCaseResult};

use super::hardware::Hardware;
use super::memory::Memory;
use super::sizes::Sizes;
use super::steps::{Action, Step};
use crate::addr::{Address, Gva, Hpa};
use crate::entry::{Attributes, Rights};
use crate::error::TableError;
use crate::geometry::Level;
use crate::layout::{Layout, Shape};
use crate::mapping::Flush;
use crate::memory::EntryMemory;
use crate::table::PageTable;
use crate::walk::Fault;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    level: Level,
    frame: u64,
    attributes: Attributes,
}

pub(super) struct World<'a> {
    /// What was done, in words.
    done: &'a RefCell<Vec<String>>,
    layout: Layout,
    sizes: Sizes,
    memory: Memory,
    table: PageTable<Gva, Hpa>,
    pages: BTreeMap<u64, Page>,
    hardware: Hardware,
    next_frame: u64,
    /// Pages that were unmapped, and whose nodes stayed.
    left: Vec<u64>,
    /// Of each size, by level from 1: whether such a page was ever mapped.
    ever: [bool; 3],
}

impl<'a> World<'a> {
    /// An empty table, after one for which there was no memory.
    pub(super) fn new(
        layout: Layout,
        done: &'a RefCell<Vec<String>>,
    ) -> Result<Self, TestCaseError> {
        let sizes = Sizes::of(layout.geometry());
        let mut memory = Memory::new(sizes);
        memory.begin(u32::MAX, false);
        let refused = PageTable::<Gva, Hpa>::new(&layout, &layout, &mut memory);
        prop_assert_eq!(refused.err(), Some(TableError::OutOfMemory));
        prop_assert!(memory.live.is_empty(), "a table that failed keeps memory");
        memory.end();
        let table = succeeds(PageTable::new(&layout, &layout, &mut memory), "a new table")?;
        let (pages, hardware) = (BTreeMap::new(), Hardware::default());
        Ok(Self {
            done,
            layout,
            sizes,
            memory,
            table,
            pages,
            hardware,
            next_frame: 1 << 40,
            left: Vec::new(),
            ever: [false; 3],
        })
    }

    fn frame(&mut self, level: Level) -> u64 {
        let bytes = self.sizes.bytes(level);
        let frame = self.next_frame.next_multiple_of(bytes);
        self.next_frame = frame + bytes;
        frame
    }

    /// The page that `address` lies in.
    fn at(&self, address: u64) -> Option<(u64, Page)> {
        let (&start, &page) = self.pages.range(..=address).next_back()?;
        (address - start < self.sizes.bytes(page.level)).then_some((start, page))
    }

    fn nth(&self, index: prop::sample::Index) -> Option<(u64, Page)> {
        if self.pages.is_empty() {
            return None;
        }
        self.pages.iter().nth(index.index(self.pages.len())).map(|(&start, &page)| (start, page))
    }

    fn any_in(&self, start: u64, bytes: u64) -> bool {
        self.at(start).is_some() || self.pages.range(start..=start + (bytes - 1)).next().is_some()
    }

    /// The page at `start`, which is mapped.
    fn page(&mut self, start: u64) -> &mut Page {
        self.pages.get_mut(&start).expect("it is mapped")
    }

    fn say(&self, words: String) {
        let refused = match (self.memory.refuse, self.memory.refuse_large) {
            (0, false) => "",
            (0, true) => ", while memory has no large block",
            _ => ", while memory is refused",
        };
        self.done.borrow_mut().push(words + refused);
    }

    /// Does one thing, and checks all that holds after each.
    pub(super) fn step(&mut self, step: &Step) -> TestCaseResult {
        self.memory.begin(step.refuse, step.refuse_large);
        self.act(&step.action)?;
        self.memory.end();
        self.check()
    }

    fn act(&mut self, action: &Action) -> TestCaseResult {
        match *action {
            Action::Map { at, level, count, apart, rights } => {
                if level > self.sizes.levels {
                    return Ok(());
                }
                let bytes = self.sizes.bytes(level);
                let [kib, gap] = [bytes, bytes * apart].map(|bytes| bytes >> 10);
                self.say(format!("map {count} pages of {kib} KiB, {gap} KiB apart"));
                let all = self.sizes.all() / u128::from(bytes);
                for i in 0..count {
                    let number = (u128::from(at) + u128::from(i * apart)) % all;
                    let start = self.sizes.canonical(number * u128::from(bytes));
                    self.map(start, level, rights)?;
                }
            }
            Action::Unmap { first, step, with_nodes } => {
                let first = first.index(self.pages.len().max(1));
                let starts: Vec<u64> =
                    self.pages.keys().skip(first).step_by(step).copied().collect();
                self.say(format!("unmap {}", addresses(&starts)));
                for start in starts {
                    self.unmap(start, with_nodes)?;
                }
            }
            Action::FreeEmpty(index, most) => {
                let Some((start, _)) = self.nth(index) else { return Ok(()) };
                self.say(format!("free the nodes around {start:#x} that hold nothing"));
                let around = self.sizes.bytes(3) - 1;
                self.free_empty(start & !around, start | around, most)?;
            }
            Action::Protect(index, rights) => {
                let Some((start, page)) = self.nth(index) else { return Ok(()) };
                self.say(format!("change the rights of {start:#x}"));
                let result = self.table.protect(&mut self.memory, Gva::new(start), rights);
                let (old, flush) = succeeds(result, "a change of rights")?;
                prop_assert_eq!((old.input.raw(), old.frame.raw()), (start, page.frame));
                self.leaf_flush(flush, start, page)?;
                self.page(start).attributes.rights = rights;
            }
            Action::Migrate(index) => {
                let Some((start, page)) = self.nth(index) else { return Ok(()) };
                self.say(format!("move to another frame {start:#x}"));
                let frame = self.frame(page.level);
                let last = start + (self.sizes.bytes(page.level) - 1);
                let result = self.table.migrate(&mut self.memory, Gva::new(last), Hpa::new(frame));
                self.leaf_flush(succeeds(result, "a change")?.1, start, page)?;
                self.page(start).frame = frame;
            }
            Action::ClearUsage(index) => {
                let Some((start, page)) = self.nth(index) else { return Ok(()) };
                self.say(format!("clear the accessed and dirty bits of {start:#x}"));
                let result = self.table.clear_usage(&mut self.memory, Gva::new(start));
                self.leaf_flush(succeeds(result, "a change")?.1, start, page)?;
                let attributes = &mut self.page(start).attributes;
                (attributes.accessed, attributes.dirty) = (false, false);
            }
            Action::Split(index) => {
                if let Some((start, page)) = self.nth(index) {
                    self.say(format!("split {start:#x}"));
                    self.split(start, page)?;
                }
            }
            Action::Reshape(index, level, width) => {
                let Some((start, _)) = self.nth(index) else { return Ok(()) };
                self.say(format!("make the node of level {level} at {start:#x} span {width}"));
                let entries = u128::from(self.sizes.fan).pow(u32::from(width));
                // Reading through 2^20 entries and more is for a test of its own.
                let Some(tree) = self.table.tree_mut().filter(|_| entries <= 1 << 18) else {
                    return Ok(());
                };
                // Above level 3, so that pages keep their sizes.
                if level + 1 < width + 3 && self.layout.density().is_none() {
                    return Ok(());
                }
                let result = tree.reshape(&mut self.memory, Gva::new(start), level, width);
                if let Ok(Some(flush)) = result {
                    prop_assert!(!flush.leaves);
                    self.hardware.flush(&self.table, Some(flush));
                }
            }
            Action::Touch(index, store) => {
                let Some((start, page)) = self.nth(index) else { return Ok(()) };
                let address = Gva::new(start + self.sizes.bytes(page.level) / 3);
                self.say(format!("{} {address:?}", if store { "store to" } else { "load from" }));
                let found = self.hardware.walk(&mut self.memory, &self.table, address, store);
                let found = succeeds(found?, "the walk")?;
                prop_assert_eq!(found.frame.raw(), page.frame, "at {:#x}", start);
                let attributes = &mut self.page(start).attributes;
                attributes.accessed = true;
                attributes.dirty |= store;
            }
            Action::Wrong(index) => {
                self.say("ask for what cannot be".to_owned());
                self.wrong(index)?;
            }
        }
        Ok(())
    }

    /// Maps and, where the page is, says so.
    fn map(&mut self, start: u64, level: Level, rights: Rights) -> TestCaseResult {
        let (bytes, frame) = (self.sizes.bytes(level), self.frame(level));
        let attributes = Attributes::new(rights);
        let occupied = self.any_in(start, bytes);
        let input = Gva::new(start);
        let empty = self.table.is_empty(&self.memory, input, level);
        prop_assert_eq!(empty, !occupied, "whether {:#x} is empty", start);
        let before = self.memory.counts.refused;
        let Self { table, memory, layout, .. } = self;
        match table.map(memory, layout, input, Hpa::new(frame), level, attributes) {
            Ok(made) => {
                prop_assert!(!occupied, "{:#x} was mapped, and is mapped again", start);
                self.pages.insert(start, Page { level, frame, attributes });
                self.hardware.flush(&self.table, made.flush);
                let done = self.table.merge_dense(&mut self.memory, input, made.filled);
                self.hardware.flush(&self.table, done.flush);
            }
            Err(TableError::Occupied(at)) => {
                prop_assert!(occupied && at == start, "{:#x} was not mapped", start);
            }
            Err(error) => {
                prop_assert_eq!(error, TableError::OutOfMemory);
                prop_assert!(self.memory.counts.refused > before, "there was memory");
            }
        }
        Ok(())
    }

    fn unmap(&mut self, start: u64, with_nodes: bool) -> TestCaseResult {
        let Some(page) = self.pages.remove(&start) else { return Ok(()) };
        let input = Gva::new(start + (self.sizes.bytes(page.level) - 1));
        let result = if with_nodes {
            self.table.unmap(&mut self.memory, input)
        } else {
            self.table.unmap_page(&mut self.memory, input)
        };
        let (mapping, flush) = succeeds(result, "unmapping")?;
        prop_assert_eq!(
            (mapping.input.raw(), mapping.frame.raw(), mapping.level, mapping.attributes),
            (start, page.frame, page.level, page.attributes),
            "unmapping {:#x}",
            start
        );
        self.leaf_flush(flush, start, page)?;
        if with_nodes {
            let done = self.table.split_sparse(&mut self.memory, input);
            self.hardware.flush(&self.table, done.flush);
        } else {
            self.left.push(start);
        }
        Ok(())
    }

    /// Frees the nodes from `first` to `last` that hold nothing, but for those for `most` pages of level 2 or more.
    fn free_empty(&mut self, first: u64, last: u64, most: u64) -> TestCaseResult {
        let bytes = self.sizes.bytes(2);
        let keeps = |first: Gva, last: Gva| (last.raw() - first.raw()) / bytes >= most;
        let [first, last] = [first, last].map(Gva::new);
        let Self { table, memory, .. } = self;
        let freed = table.free_empty(memory, first, last, &mut { keeps });
        let freed = succeeds(freed, "freeing what is empty")?;
        self.hardware.flush(&self.table, freed);
        let Self { table, memory, .. } = self;
        let done = table.split_sparse_in(memory, first, last, &mut { keeps });
        self.hardware.flush(&self.table, done.flush);
        Ok(())
    }

    fn split(&mut self, start: u64, page: Page) -> TestCaseResult {
        // A page of level 3 may have 2^22 entries: too many for this test's time.
        if page.level == 3 && self.sizes.fan > 16 {
            return Ok(());
        }
        let before = self.memory.counts.refused;
        if page.level > 1 {
            // For a moment, where it fails.
            self.ever[usize::from(page.level) - 2] = true;
        }
        let Self { table, memory, layout, .. } = self;
        match table.split(memory, layout, Gva::new(start)) {
            Ok(made) => {
                self.leaf_flush(made.flush.expect("a split leaves something stale"), start, page)?;
                let done = self.table.merge_dense(&mut self.memory, Gva::new(start), made.filled);
                self.hardware.flush(&self.table, done.flush);
                self.pages.remove(&start);
                let bytes = self.sizes.bytes(page.level - 1);
                for i in 0..self.sizes.fan {
                    let part =
                        Page { level: page.level - 1, frame: page.frame + i * bytes, ..page };
                    self.pages.insert(start + i * bytes, part);
                }
            }
            Err(TableError::NoSuchPage(0)) => prop_assert_eq!(page.level, 1),
            Err(error) => {
                prop_assert_eq!(error, TableError::OutOfMemory);
                prop_assert!(self.memory.counts.refused > before, "there was memory");
            }
        }
        Ok(())
    }

    fn wrong(&mut self, index: prop::sample::Index) -> TestCaseResult {
        let Self { table, memory, layout, sizes, .. } = self;
        let attributes = Attributes::new(Rights::ALL);
        let page_bytes = sizes.page;
        let mut map = |at, frame, level| {
            table.map(memory, layout, Gva::new(at), Hpa::new(frame), level, attributes).err()
        };
        let misaligned = |address| TableError::Misaligned { address, page_bytes };
        prop_assert_eq!(map(8, 0, 1), Some(misaligned(8)));
        prop_assert_eq!(map(0, 8, 1), Some(misaligned(8)));
        prop_assert_eq!(map(0, 1 << 52, 1), Some(TableError::FrameTooHigh(1 << 52)));
        prop_assert_eq!(map(0, 0, 4), Some(TableError::NoSuchPage(4)));
        let bits = layout.geometry().address_bits();
        if bits < 64 {
            let address = sizes.page << (bits - 12);
            let beyond = TableError::NotCanonical { address, bits };
            if !layout.geometry().is_canonical(address) {
                prop_assert_eq!(map(address, 0, 1), Some(beyond));
                prop_assert_eq!(
                    self.table.unmap(&mut self.memory, Gva::new(address)).err(),
                    Some(beyond)
                );
            }
        }
        let nowhere = self.sizes.canonical(self.sizes.all() / 128 * index.index(128) as u128);
        if self.at(nowhere).is_none() {
            let input = Gva::new(nowhere);
            let missing = TableError::NotMapped(nowhere);
            prop_assert_eq!(self.table.lookup(&self.memory, input), Err(missing));
            prop_assert_eq!(self.table.unmap(&mut self.memory, input).err(), Some(missing));
            prop_assert_eq!(self.table.clear_usage(&mut self.memory, input).err(), Some(missing));
        }
        Ok(())
    }

    fn leaf_flush(&mut self, flush: Flush<Gva>, start: u64, page: Page) -> TestCaseResult {
        let last = start + (self.sizes.bytes(page.level) - 1);
        prop_assert!(flush.leaves, "what is flushed");
        prop_assert!(flush.start.raw() <= start && last <= flush.last.raw(), "what is flushed");
        self.hardware.flush(&self.table, Some(flush));
        Ok(())
    }

    /// What holds after every step.
    fn check(&mut self) -> TestCaseResult {
        let found = self.table.mappings(&self.memory);
        let listed = found.iter().map(|m| {
            let page = Page { level: m.level, frame: m.frame.raw(), attributes: m.attributes };
            (m.input.raw(), page)
        });
        prop_assert!(
            listed.eq(self.pages.iter().map(|(&start, &page)| (start, page))),
            "the pages listed are not those mapped: {:?} instead of {:?}",
            found,
            self.pages
        );
        for page in self.pages.values() {
            self.ever[usize::from(page.level) - 1] = true;
        }
        // A sample: every page, near and far ends, and the bytes around it, is too much for a debug
        // build.
        let step = self.pages.len().div_ceil(60).max(1);
        let sample: Vec<_> = self.pages.iter().step_by(step).map(|(&s, &p)| (s, p)).collect();
        for (start, page) in sample {
            let bytes = self.sizes.bytes(page.level);
            let ends = [start, start + (bytes - 1)].map(Gva::new);
            for address in ends {
                let known = succeeds(self.table.translate(&self.memory, address), "translating")?;
                prop_assert_eq!(
                    (known.frame.raw(), known.level),
                    (page.frame, page.level),
                    "at {:#x}",
                    start
                );
            }
            for address in ends {
                if let PageTable::Keyed(table) = &self.table {
                    let first = table.first_probes(address, |at| self.memory.read_line(at));
                    let mut levels = first.as_slice().iter().map(|probe| probe.level);
                    prop_assert!(
                        levels.all(|level| self.ever[usize::from(level) - 1]),
                        "a walk of {:#x} asks for a size that was never mapped",
                        address.raw()
                    );
                }
                let walked = self.hardware.walk(&mut self.memory, &self.table, address, false);
                let walked = succeeds(walked?, "the walk of a page's end")?;
                prop_assert_eq!(
                    (walked.frame.raw(), walked.level),
                    (page.frame, page.level),
                    "at {:#x}",
                    start
                );
            }
            self.page(start).attributes.accessed = true;
            for beside in [start.wrapping_sub(1), start.wrapping_add(bytes)] {
                if self.at(beside).is_none() && self.table.geometry().is_canonical(beside) {
                    let input = Gva::new(beside);
                    let walked = self.hardware.walk(&mut self.memory, &self.table, input, false)?;
                    prop_assert!(
                        matches!(walked, Err(Fault::NotPresent { .. })),
                        "nothing is mapped at {beside:#x}, and a walk finds {walked:?}"
                    );
                }
            }
            let mut seen = Vec::new();
            let (first, length) =
                (Gva::new(start + bytes / 2), bytes.min(u64::MAX - start - bytes / 2));
            let last = start + bytes / 2 + (length - 1);
            if self.table.geometry().is_canonical(last) {
                let Self { table, memory, .. } = self;
                succeeds(
                    table.visit(memory, first, length, &mut |m| seen.push(m.input.raw())),
                    "visiting pages",
                )?;
                let inside = self
                    .pages
                    .range(..=last)
                    .filter(|(s, p)| *s + (self.sizes.bytes(p.level) - 1) >= first.raw());
                prop_assert!(seen.iter().eq(inside.map(|(start, _)| start)), "at {start:#x}");
            }
        }
        let bytes: u64 = self.table.statistics().iter().map(|s| s.nodes * s.node_bytes).sum();
        prop_assert_eq!(bytes, self.memory.live.values().sum::<u64>(), "page-table bytes");
        Ok(())
    }

    /// Takes all pages away, and the table. True if it had grown.
    pub(super) fn end(mut self) -> Result<bool, TestCaseError> {
        let resized = self.table.resizes();
        let starts: Vec<u64> = self.pages.keys().copied().collect();
        for (number, start) in starts.into_iter().enumerate() {
            self.unmap(start, number % 2 == 0)?;
        }
        self.check()?;
        for start in std::mem::take(&mut self.left) {
            self.free_empty(start, start, u64::MAX)?;
        }
        self.check()?;
        if let Some(tree) = self.table.tree() {
            let nodes: u64 = tree.statistics().iter().map(|shape| shape.nodes).sum();
            prop_assert_eq!(nodes, 1, "nodes of a table without pages");
        }
        self.table.destroy(&mut self.memory);
        prop_assert!(self.memory.live.is_empty(), "memory is lost");
        Ok(resized.grown > 0)
    }
}

/// What `result` gave, or a failure in words.
fn succeeds<T, E: std::fmt::Debug>(result: Result<T, E>, what: &str) -> Result<T, TestCaseError> {
    result.map_err(|error| TestCaseError::fail(format!("{what} failed: {error:?}")))
}

/// Addresses in words.
fn addresses(starts: &[u64]) -> String {
    let shown: Vec<_> = starts.iter().take(6).map(|start| format!("{start:#x}")).collect();
    let more = if starts.len() > shown.len() {
        format!(", … {} in all", starts.len())
    } else {
        String::new()
    };
    format!("{}{more}", shown.join(", "))
}
