//! Every registered organisation through the one interface that operating systems use, held against a
//! map of pages: random changes, allocations that fail at random, nodes merged and taken apart and
//! tables resized in between, and hardware whose caches forget only what they are told to.
//!
//! `FLATWALK_ORGANISATION=name` restricts the test to one organisation, while that is being written.

mod support;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::Mutex;
use std::thread::{self, ScopedJoinHandle};

use flatwalk_paging::keyed::{Answer, SideLines};
use flatwalk_paging::organisations::REGISTRY;
use flatwalk_paging::{
    Address, Attributes, Entry, EntryMemory, EntryMemoryMut, Fault, Flush, Geometry, Gva, Hpa,
    Keyed, Layout, Leaf, Level, Line, NodeRef, PageTable, Rights, Shape, Step, TableError, Walk,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::{Case, Memory, Sizes, cases_of, keyed_cases};

// ---- what is done ---------------------------------------------------------------------------

#[derive(Clone, Debug)]
enum Action {
    /// Maps so many pages of a level, so many of their size apart, from a place on.
    Map {
        at: u64,
        level: Level,
        count: u64,
        apart: u64,
        rights: Rights,
    },
    /// Unmaps every so manieth page.
    Unmap {
        first: prop::sample::Index,
        step: usize,
    },
    Protect(prop::sample::Index, Rights),
    Migrate(prop::sample::Index),
    ClearUsage(prop::sample::Index),
    Split(prop::sample::Index),
    /// Sees to densities, and gives a node on the way another width.
    Reshape(prop::sample::Index, Level, u8),
    /// An access, by hardware.
    Touch(prop::sample::Index, bool),
    /// What must be refused.
    Wrong(prop::sample::Index),
}

#[derive(Clone, Debug)]
struct Op {
    action: Action,
    /// Which of the next allocations fail.
    refuse: u32,
    refuse_large: bool,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let rights =
        || any::<[bool; 3]>().prop_map(|[write, user, execute]| Rights { write, user, execute });
    let index = any::<prop::sample::Index>;
    let apart = prop_oneof![Just(1u64), Just(3), Just(8), Just(9), Just(513)];
    let place = prop_oneof![3 => 0u64..4, 1 => any::<u64>()];
    let action = prop_oneof![
        8 => (place, 1u8..=3, 1u64..40, apart, rights())
            .prop_map(|(at, level, count, apart, rights)| Action::Map { at, level, count, apart, rights }),
        3 => (index(), 1usize..4).prop_map(|(first, step)| Action::Unmap { first, step }),
        2 => (index(), rights()).prop_map(|(i, r)| Action::Protect(i, r)),
        2 => index().prop_map(Action::Migrate),
        1 => index().prop_map(Action::ClearUsage),
        2 => index().prop_map(Action::Split),
        3 => (index(), 1u8..=6, 1u8..=3).prop_map(|(i, l, w)| Action::Reshape(i, l, w)),
        4 => (index(), any::<bool>()).prop_map(|(i, store)| Action::Touch(i, store)),
        1 => index().prop_map(Action::Wrong),
    ];
    let refuse = prop_oneof![5 => Just(0u32), 2 => any::<u32>(), 1 => Just(u32::MAX)];
    let op = (action, refuse, prop::bool::weighted(0.2))
        .prop_map(|(action, refuse, refuse_large)| Op { action, refuse, refuse_large });
    prop::collection::vec(op, 1..30)
}

// ---- hardware -------------------------------------------------------------------------------

/// Caches of what walks read, which forget only what they are told to.
#[derive(Default)]
struct Hardware {
    /// Nodes of a tree by first and last address that they serve, and topmost level.
    nodes: BTreeMap<(u64, u64, Level), NodeRef<Hpa>>,
    /// Side lines by structure and key.
    lines: BTreeMap<(usize, u64), Line>,
}

impl Hardware {
    fn flush(&mut self, table: &PageTable<Gva, Hpa>, flush: Option<Flush<Gva>>) {
        let Some(flush) = flush.filter(|flush| flush.tables) else { return };
        let first = flush.start.raw();
        let last = first.saturating_add(flush.length_bytes.checked_sub(1).expect("a range"));
        self.nodes.retain(|&(start, end, _), _| start > last || end < first);
        let PageTable::Keyed(table) = table else { return };
        if flush.length_bytes == u64::MAX {
            self.lines.clear();
            return;
        }
        if self.lines.is_empty() {
            return;
        }
        // Those that serve an address of the range, which is a page's.
        let step = (flush.length_bytes / 512).max(table.geometry().span(1));
        let addresses = (first..=last).step_by(step as usize).chain([last]).map(Gva::new);
        let mut stale = BTreeSet::new();
        for address in addresses {
            for structure in 0..table.side_needed().len() {
                let key = table.side_key(structure, address, &SideLines::default());
                stale.extend(key.map(|key| (structure, key)));
            }
        }
        self.lines.retain(|line, _| !stale.contains(line));
    }

    /// Walks with what is cached, keeps everything that may be kept, and sets the bits that hardware
    /// sets.
    fn walk(
        &mut self,
        memory: &mut Memory,
        table: &PageTable<Gva, Hpa>,
        input: Gva,
        store: bool,
    ) -> Result<Leaf<Hpa>, Fault<Hpa>> {
        let found = match table {
            PageTable::Tree(tree) => {
                let sizes = Sizes::of(tree.geometry());
                let known = self
                    .nodes
                    .iter()
                    .filter(|((start, end, _), _)| (*start..=*end).contains(&input.raw()));
                let from = known.min_by_key(|((.., level), _)| *level).map(|(_, node)| *node);
                let mut walk = Walk::from(tree.geometry(), from.unwrap_or(tree.root()), input);
                loop {
                    match walk.feed(Entry(memory.read(walk.entry_address()))) {
                        Step::Table(node) => {
                            let bytes = u64::try_from(sizes.entry(node.level + 1)).unwrap();
                            let start = input.raw() - input.raw() % bytes;
                            self.nodes.insert((start, start + (bytes - 1), node.level), node);
                        }
                        Step::Leaf(leaf) => break Ok(leaf),
                        Step::Fault(fault) => break Err(fault),
                    }
                }
            }
            PageTable::Keyed(table) => self.walk_keyed(memory, table, input),
        };
        if let Ok(leaf) = &found {
            memory.write(leaf.entry_address, leaf.entry.touched(store).0);
        }
        found
    }

    fn walk_keyed(
        &mut self,
        memory: &Memory,
        table: &Keyed<Gva, Hpa>,
        input: Gva,
    ) -> Result<Leaf<Hpa>, Fault<Hpa>> {
        let read = |structure, key| {
            let probes = table.side_probes(structure, key);
            let mut lines = probes.as_slice().iter().map(|probe| memory.read_line(probe.at));
            lines.find(|line| table.is_side_line(structure, key, line))
        };
        let mut known = SideLines::default();
        for (structure, &needed) in table.side_needed().iter().enumerate() {
            let Some(key) = table.side_key(structure, input, &known) else { continue };
            if needed
                && !self.lines.contains_key(&(structure, key))
                && let Some(line) = read(structure, key)
            {
                self.lines.insert((structure, key), line);
            }
            if let Some(line) = self.lines.get(&(structure, key)) {
                known.set(structure, *line);
            }
        }
        let mut found = Err(table.not_present(input));
        for first in table.probes(input, &known).as_slice() {
            let mut probe = *first;
            loop {
                match table.answer(input, &probe, &memory.read_line(probe.at)) {
                    Answer::Nothing => break,
                    Answer::Follow(next) => probe = next,
                    Answer::Leaf(leaf) => {
                        assert!(found.is_err(), "{input:?} has two entries");
                        found = Ok(leaf);
                        break;
                    }
                    Answer::Fault(fault) => return Err(fault),
                }
            }
        }
        if found.is_ok() {
            for (structure, _) in table.side_needed().iter().enumerate().filter(|(_, n)| !**n) {
                let Some(key) = table.side_key(structure, input, &known) else { continue };
                self.lines.insert((structure, key), read(structure, key).unwrap_or([0; 8]));
            }
        }
        found
    }
}

// ---- the world ------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    level: Level,
    frame: u64,
    attributes: Attributes,
}

struct World<'a> {
    name: &'a str,
    layout: Layout,
    sizes: Sizes,
    memory: Memory,
    table: PageTable<Gva, Hpa>,
    pages: BTreeMap<u64, Page>,
    hardware: Hardware,
    next_frame: u64,
}

impl<'a> World<'a> {
    fn new(name: &'a str, layout: Layout) -> Self {
        let sizes = Sizes::of(layout.geometry());
        let mut memory = Memory::new(sizes);
        memory.begin(u32::MAX, false);
        let refused = PageTable::<Gva, Hpa>::new(&layout, &layout, &mut memory);
        assert_eq!(refused.err(), Some(TableError::OutOfMemory), "{name}");
        assert!(memory.live.is_empty(), "{name}: a table that failed keeps memory");
        memory.end();
        let table = PageTable::new(&layout, &layout, &mut memory).unwrap();
        let (pages, hardware) = (BTreeMap::new(), Hardware::default());
        Self { name, layout, sizes, memory, table, pages, hardware, next_frame: 1 << 40 }
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

    fn step(&mut self, op: &Op) {
        self.memory.begin(op.refuse, op.refuse_large);
        self.act(&op.action);
        self.memory.end();
        self.check();
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Map { at, level, count, apart, rights } => {
                if level > self.sizes.levels {
                    return;
                }
                let bytes = self.sizes.bytes(level);
                let all = self.sizes.all() / u128::from(bytes);
                for i in 0..count {
                    let number = (u128::from(at) + u128::from(i * apart)) % all;
                    let start = self.sizes.canonical(number * u128::from(bytes));
                    self.map(start, level, rights);
                }
            }
            Action::Unmap { first, step } => {
                let first = first.index(self.pages.len().max(1));
                let starts: Vec<u64> =
                    self.pages.keys().skip(first).step_by(step).copied().collect();
                for start in starts {
                    self.unmap(start);
                }
            }
            Action::Protect(index, rights) => {
                let Some((start, page)) = self.nth(index) else { return };
                let result = self.table.protect(&mut self.memory, Gva::new(start), rights);
                let (old, flush) = result.unwrap();
                assert_eq!((old.input.raw(), old.frame.raw()), (start, page.frame));
                self.leaf_flush(flush, start, page);
                self.pages.get_mut(&start).unwrap().attributes.rights = rights;
            }
            Action::Migrate(index) => {
                let Some((start, page)) = self.nth(index) else { return };
                let frame = self.frame(page.level);
                let last = start + (self.sizes.bytes(page.level) - 1);
                let result = self.table.migrate(&mut self.memory, Gva::new(last), Hpa::new(frame));
                self.leaf_flush(result.unwrap().1, start, page);
                self.pages.get_mut(&start).unwrap().frame = frame;
            }
            Action::ClearUsage(index) => {
                let Some((start, page)) = self.nth(index) else { return };
                let result = self.table.clear_usage(&mut self.memory, Gva::new(start));
                self.leaf_flush(result.unwrap().1, start, page);
                let attributes = &mut self.pages.get_mut(&start).unwrap().attributes;
                (attributes.accessed, attributes.dirty) = (false, false);
            }
            Action::Split(index) => {
                if let Some((start, page)) = self.nth(index) {
                    self.split(start, page);
                }
            }
            Action::Reshape(index, level, width) => {
                let Some((start, _)) = self.nth(index) else { return };
                let entries = u128::from(self.sizes.fan).pow(u32::from(width));
                // Reading through 2^20 entries and more is for a test of its own.
                let Some(tree) = self.table.tree_mut().filter(|_| entries <= 1 << 18) else {
                    return;
                };
                // Above level 3, so that pages keep their sizes.
                if level + 1 < width + 3 && self.layout.density().is_none() {
                    return;
                }
                let result = tree.reshape(&mut self.memory, Gva::new(start), level, width);
                if let Ok(Some(flush)) = result {
                    assert!(!flush.leaves);
                    self.hardware.flush(&self.table, Some(flush));
                }
            }
            Action::Touch(index, store) => {
                let Some((start, page)) = self.nth(index) else { return };
                let address = Gva::new(start + self.sizes.bytes(page.level) / 3);
                let found = self.hardware.walk(&mut self.memory, &self.table, address, store);
                assert_eq!(found.unwrap().frame.raw(), page.frame, "{}", self.name);
                let attributes = &mut self.pages.get_mut(&start).unwrap().attributes;
                attributes.accessed = true;
                attributes.dirty |= store;
            }
            Action::Wrong(index) => self.wrong(index),
        }
    }

    /// Maps and, where the page is, tells so.
    fn map(&mut self, start: u64, level: Level, rights: Rights) {
        let (bytes, frame) = (self.sizes.bytes(level), self.frame(level));
        let attributes = Attributes::new(rights);
        let occupied = self.any_in(start, bytes);
        let input = Gva::new(start);
        assert_eq!(self.table.is_empty(&self.memory, input, level), !occupied, "{}", self.name);
        let before = self.memory.counts.refused;
        let Self { table, memory, layout, .. } = self;
        match table.map(memory, layout, input, Hpa::new(frame), level, attributes) {
            Ok(made) => {
                assert!(!occupied, "{}", self.name);
                self.pages.insert(start, Page { level, frame, attributes });
                self.hardware.flush(&self.table, made.flush);
                let done = self.table.merge_dense(&mut self.memory, input, made.filled);
                self.hardware.flush(&self.table, done.flush);
            }
            Err(TableError::Occupied(at)) => assert!(occupied && at == start, "{}", self.name),
            Err(error) => {
                assert_eq!(error, TableError::OutOfMemory, "{}", self.name);
                assert!(self.memory.counts.refused > before, "{}: there was memory", self.name);
            }
        }
    }

    fn unmap(&mut self, start: u64) {
        let page = self.pages.remove(&start).unwrap();
        let input = Gva::new(start + (self.sizes.bytes(page.level) - 1));
        let (mapping, flush) = self.table.unmap(&mut self.memory, input).unwrap();
        assert_eq!(
            (mapping.input.raw(), mapping.frame.raw(), mapping.level, mapping.attributes),
            (start, page.frame, page.level, page.attributes),
            "{}",
            self.name
        );
        self.leaf_flush(flush, start, page);
        let done = self.table.split_sparse(&mut self.memory, input);
        self.hardware.flush(&self.table, done.flush);
    }

    fn split(&mut self, start: u64, page: Page) {
        // A page of level 3 may have 2^22 entries: too many for this test's time.
        if page.level == 3 && self.sizes.fan > 16 {
            return;
        }
        let before = self.memory.counts.refused;
        let Self { table, memory, layout, .. } = self;
        match table.split(memory, layout, Gva::new(start)) {
            Ok(made) => {
                self.leaf_flush(made.flush.unwrap(), start, page);
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
            Err(TableError::NoSuchPage(0)) => assert_eq!(page.level, 1),
            Err(error) => {
                assert_eq!(error, TableError::OutOfMemory, "{}", self.name);
                assert!(self.memory.counts.refused > before, "{}: there was memory", self.name);
            }
        }
    }

    fn wrong(&mut self, index: prop::sample::Index) {
        let Self { table, memory, layout, sizes, .. } = self;
        let attributes = Attributes::new(Rights::ALL);
        let page_bytes = sizes.page;
        let mut map = |at, frame, level| {
            table.map(memory, layout, Gva::new(at), Hpa::new(frame), level, attributes).unwrap_err()
        };
        let misaligned = |address| TableError::Misaligned { address, page_bytes };
        assert_eq!(map(8, 0, 1), misaligned(8));
        assert_eq!(map(0, 8, 1), misaligned(8));
        assert_eq!(map(0, 1 << 52, 1), TableError::FrameTooHigh(1 << 52));
        assert_eq!(map(0, 0, 4), TableError::NoSuchPage(4));
        let bits = layout.geometry().address_bits();
        if bits < 64 {
            let address = sizes.page << (bits - 12);
            let beyond = TableError::NotCanonical { address, bits };
            if !layout.geometry().is_canonical(address) {
                assert_eq!(map(address, 0, 1), beyond);
                assert_eq!(
                    self.table.unmap(&mut self.memory, Gva::new(address)).unwrap_err(),
                    beyond
                );
            }
        }
        let nowhere = self.sizes.canonical(self.sizes.all() / 128 * index.index(128) as u128);
        if self.at(nowhere).is_none() {
            let input = Gva::new(nowhere);
            let missing = TableError::NotMapped(nowhere);
            assert_eq!(self.table.lookup(&self.memory, input), Err(missing));
            assert_eq!(self.table.unmap(&mut self.memory, input).unwrap_err(), missing);
            assert_eq!(self.table.clear_usage(&mut self.memory, input).unwrap_err(), missing);
        }
    }

    fn leaf_flush(&mut self, flush: Flush<Gva>, start: u64, page: Page) {
        let first = flush.start.raw();
        let last = first.saturating_add(flush.length_bytes - 1);
        assert!(flush.leaves && first <= start);
        assert!(start + (self.sizes.bytes(page.level) - 1) <= last, "{}", self.name);
        self.hardware.flush(&self.table, Some(flush));
    }

    /// What holds after every step.
    fn check(&mut self) {
        let name = self.name;
        let found = self.table.mappings(&self.memory);
        let listed = found.iter().map(|m| {
            let page = Page { level: m.level, frame: m.frame.raw(), attributes: m.attributes };
            (m.input.raw(), page)
        });
        assert!(listed.eq(self.pages.iter().map(|(&start, &page)| (start, page))), "{name}");
        // A sample: every page, near and far ends, and the bytes around it, is too much for a debug
        // build.
        let step = self.pages.len().div_ceil(60).max(1);
        let sample: Vec<_> = self.pages.iter().step_by(step).map(|(&s, &p)| (s, p)).collect();
        for (start, page) in sample {
            let bytes = self.sizes.bytes(page.level);
            let ends = [start, start + (bytes - 1)].map(Gva::new);
            for address in ends {
                let known = self.table.translate(&self.memory, address).unwrap();
                assert_eq!((known.frame.raw(), known.level), (page.frame, page.level), "{name}");
            }
            for address in ends {
                let walked = self.hardware.walk(&mut self.memory, &self.table, address, false);
                let walked =
                    walked.unwrap_or_else(|fault| panic!("{name}: {fault:?}, {address:?}"));
                assert_eq!((walked.frame.raw(), walked.level), (page.frame, page.level), "{name}");
            }
            self.pages.get_mut(&start).unwrap().attributes.accessed = true;
            for beside in [start.wrapping_sub(1), start.wrapping_add(bytes)] {
                if self.at(beside).is_none() && self.table.geometry().is_canonical(beside) {
                    let input = Gva::new(beside);
                    let walked = self.hardware.walk(&mut self.memory, &self.table, input, false);
                    assert!(matches!(walked, Err(Fault::NotPresent { .. })), "{name} {beside:#x}");
                }
            }
            let mut seen = Vec::new();
            let (first, length) =
                (Gva::new(start + bytes / 2), bytes.min(u64::MAX - start - bytes / 2));
            let last = start + bytes / 2 + (length - 1);
            if self.table.geometry().is_canonical(last) {
                self.table
                    .visit(&self.memory, first, length, &mut |m| seen.push(m.input.raw()))
                    .unwrap();
                let inside = self
                    .pages
                    .range(..=last)
                    .filter(|(s, p)| *s + (self.sizes.bytes(p.level) - 1) >= first.raw());
                assert!(seen.iter().eq(inside.map(|(start, _)| start)), "{name} {start:#x}");
            }
        }
        let bytes: u64 = self.table.statistics().iter().map(|s| s.nodes * s.node_bytes).sum();
        assert_eq!(bytes, self.memory.live.values().sum::<u64>(), "{name}: page-table bytes");
    }

    fn end(mut self) -> bool {
        let resized = self.table.resizes();
        let starts: Vec<u64> = self.pages.keys().copied().collect();
        for start in starts {
            self.unmap(start);
        }
        self.check();
        self.table.destroy(&mut self.memory);
        assert!(self.memory.live.is_empty(), "{}: memory is lost", self.name);
        resized.grown > 0
    }
}

/// The layouts under test: some of each organisation, in geometries of all kinds.
fn layouts() -> Vec<(String, Layout)> {
    let odd = |page, bits, levels| Geometry::new(page, bits, levels).unwrap();
    let geometries =
        [Geometry::X86_4, Geometry::X86_3, Geometry::X86_5, odd(14, 11, 3), odd(12, 3, 4)];
    let mut layouts = Vec::new();
    for geometry in geometries {
        layouts.extend(keyed_cases(geometry));
        // Pages must keep their sizes: no group joins levels 3 and 2.
        let mut trees = cases_of(geometry);
        trees.retain(|case| !case.joins(3, 2));
        for organisation in REGISTRY {
            let of = |case: &&Case| case.name.starts_with(organisation.name);
            let mine: Vec<_> = trees.iter().filter(of).collect();
            let some = mine.iter().step_by(mine.len().div_ceil(2).max(1));
            layouts.extend(some.map(|case| (case.name.clone(), case.layout.clone())));
        }
    }
    for organisation in REGISTRY {
        let tested = layouts.iter().any(|(name, _)| name.starts_with(organisation.name));
        assert!(tested, "no layout of {} is tested", organisation.name);
    }
    layouts
}

/// Does to tables of `layout` what [`ops`] draws; returns how many of them were resized.
fn resized(name: &str, layout: &Layout) -> u32 {
    let cases = if layout.is_tree() { 3 } else { 12 };
    let mut runner = TestRunner::new(Config { cases, ..Config::default() });
    let count = Cell::new(0);
    let result = runner.run(&ops(), |ops| {
        let mut world = World::new(name, layout.clone());
        for op in &ops {
            world.step(op);
        }
        count.set(count.get() + u32::from(world.end()));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{name}: {error}");
    }
    count.get()
}

#[test]
fn every_organisation_maps_what_it_is_told_and_nothing_else() {
    let mut layouts = layouts();
    let only = std::env::var("FLATWALK_ORGANISATION").ok();
    if let Some(only) = &only {
        layouts.retain(|(name, _)| name.split(' ').next() == Some(only));
        assert!(!layouts.is_empty(), "no organisation is called {only}");
    }
    let layouts = Mutex::new(layouts.into_iter());
    let next = || layouts.lock().expect("nothing panics with it").next();
    let work =
        || std::iter::from_fn(next).map(|(name, layout)| resized(&name, &layout)).sum::<u32>();
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let grown: u32 = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let counts = workers.into_iter().map(ScopedJoinHandle::join);
        counts.map(|count| count.unwrap_or_else(|panic| resume_unwind(panic))).sum()
    });
    assert!(only.is_some() || grown > 20, "only {grown} tables were resized");
}
