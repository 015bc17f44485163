//! Random changes to the tables of every organisation, held against a map of pages, a reading of
//! the raw words, and a TLB with page-walk cache that forgets only what it is told to.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use flatwalk_paging::{
    Address, Attributes, Entry, EntryMemory, EntryMemoryMut, Fault, Flush, Gva, Hpa, Leaf, Level,
    Levels, Made, Mapping, NodeRef, Part, Rights, Step, TableError, Tree, Walk, Width,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::{Case, Counts, Memory, Patchy, RawNode, Sizes, cases, raw_nodes};

type Table = Tree<Gva, Hpa>;

// ---- what is done ---------------------------------------------------------------------------

/// An address by its index at each level (each one of a few) and its offset.
#[derive(Clone, Debug)]
struct Spot {
    digits: [u8; 6],
    byte: u64,
}

/// A page that is mapped, by number, or an address where perhaps nothing is.
#[derive(Clone, Debug)]
enum Target {
    Page(prop::sample::Index, u64),
    Spot(Spot),
}

#[derive(Clone, Debug)]
enum Action {
    Map(Spot, Level, Rights),
    MapBadly(Spot, Level, Bad),
    Unmap(Target),
    Protect(Target, Rights),
    Migrate(Target),
    MigrateBadly(Target, u64),
    ClearUsage(Target),
    Remap(Target, Spot),
    Split(Target),
    Reshape(Target, Level, Width),
    Touch(Target, bool),
    Store(Target, u64),
}

#[derive(Clone, Copy, Debug)]
enum Bad {
    Address(u64),
    Frame(u64),
    HighFrame,
    Hole(u64),
    Level(Level),
}

#[derive(Clone, Debug)]
struct Op {
    action: Action,
    refuse: u32,
    refuse_large: bool,
    /// Whether the table's density is seen to afterwards, and which allocations fail then.
    settle: Option<u32>,
}

fn spots() -> impl Strategy<Value = Spot> {
    let digit = prop_oneof![4 => Just(0u8), 2 => Just(1u8), 1 => Just(2u8), 1 => Just(3u8)];
    (prop::array::uniform6(digit), any::<u64>()).prop_map(|(digits, byte)| Spot { digits, byte })
}

fn targets() -> impl Strategy<Value = Target> {
    prop_oneof![
        5 => (any::<prop::sample::Index>(), any::<u64>()).prop_map(|(i, b)| Target::Page(i, b)),
        1 => spots().prop_map(Target::Spot),
    ]
}

fn rights() -> impl Strategy<Value = Rights> {
    any::<[bool; 3]>().prop_map(|[write, user, execute]| Rights { write, user, execute })
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let bad = prop_oneof![
        (1u64..4096).prop_map(Bad::Address),
        (1u64..4096).prop_map(Bad::Frame),
        Just(Bad::HighFrame),
        any::<u64>().prop_map(Bad::Hole),
        prop_oneof![Just(0u8), 4u8..=255].prop_map(Bad::Level),
    ];
    let action = prop_oneof![
        14 => (spots(), 1u8..=3, rights()).prop_map(|(s, l, r)| Action::Map(s, l, r)),
        1 => (spots(), 1u8..=3, bad).prop_map(|(s, l, b)| Action::MapBadly(s, l, b)),
        6 => targets().prop_map(Action::Unmap),
        2 => (targets(), rights()).prop_map(|(t, r)| Action::Protect(t, r)),
        2 => targets().prop_map(Action::Migrate),
        1 => (targets(), 1u64..4096).prop_map(|(t, b)| Action::MigrateBadly(t, b)),
        2 => targets().prop_map(Action::ClearUsage),
        4 => (targets(), spots()).prop_map(|(t, s)| Action::Remap(t, s)),
        4 => targets().prop_map(Action::Split),
        1 => (targets(), 0u8..=7, 0u8..=4).prop_map(|(t, l, w)| Action::Reshape(t, l, w)),
        12 => (targets(), 2u8..=5, 1u8..=3).prop_map(|(t, l, w)| Action::Reshape(t, l, w)),
        6 => (targets(), any::<bool>()).prop_map(|(t, s)| Action::Touch(t, s)),
        2 => (targets(), any::<u64>()).prop_map(|(t, v)| Action::Store(t, v)),
    ];
    let refuse = prop_oneof![5 => Just(0u32), 2 => 1u32..64, 1 => Just(u32::MAX)];
    let large = prop::bool::weighted(0.2);
    let settle =
        prop_oneof![1 => Just(None), 4 => Just(Some(0u32)), 1 => (1u32..64).prop_map(Some)];
    let op = (action, refuse, large, settle).prop_map(|(action, refuse, refuse_large, settle)| {
        Op { action, refuse, refuse_large, settle }
    });
    prop::collection::vec(op, 1..45)
}

// ---- what should come of it -----------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    bytes: u64,
    level: Level,
    frame: u64,
    attributes: Attributes,
}

/// The pages, by address. Knows nothing of tables.
#[derive(Clone, Debug, Default)]
struct Oracle {
    pages: BTreeMap<u64, Page>,
}

impl Oracle {
    fn at(&self, address: u64) -> Option<(u64, Page)> {
        let (&start, &page) = self.pages.range(..=address).next_back()?;
        (address - start < page.bytes).then_some((start, page))
    }

    /// Whether any page lies in these bytes, in part at least.
    fn any_in(&self, start: u64, bytes: u64) -> bool {
        self.at(start).is_some() || self.pages.range(start..=start + (bytes - 1)).next().is_some()
    }

    /// Cuts the page at `start` into pages of the level below.
    fn cut(&mut self, start: u64, sizes: Sizes) {
        let page = self.pages.remove(&start).unwrap();
        let bytes = sizes.bytes(page.level - 1);
        for offset in (0..page.bytes).step_by(usize::try_from(bytes).unwrap()) {
            let frame = page.frame + offset;
            let part = Page { bytes, level: page.level - 1, frame, ..page };
            self.pages.insert(start + offset, part);
        }
    }
}

// ---- a TLB and a page-walk cache that only forget what they are told to ---------------------

#[derive(Default)]
struct Caches {
    /// By first address, bytes, frame and dirty bit.
    leaves: BTreeMap<(u64, u64, u64, bool), Rights>,
    /// By first address, last address, base, level and width.
    tables: BTreeMap<(u64, u64, u64, Level, Width), NodeRef<Hpa>>,
}

impl Caches {
    fn flush(&mut self, flush: Flush<Gva>) {
        let (first, last) = (flush.start.raw(), flush.last.raw());
        if flush.leaves {
            self.leaves
                .retain(|&(start, bytes, ..), _| start > last || start + (bytes - 1) < first);
        }
        if flush.tables {
            self.tables.retain(|&(start, end, ..), _| start > last || end < first);
        }
    }

    /// Walks from `from`, keeps everything that hardware may keep, and returns the answer.
    fn walk(
        &mut self,
        memory: &Memory,
        table: &Table,
        from: NodeRef<Hpa>,
        address: u64,
    ) -> Result<Leaf<Hpa>, Fault<Hpa>> {
        let sizes = Sizes::of(table.geometry());
        let mut walk = Walk::from(table.geometry(), from, Gva::new(address));
        loop {
            match walk.feed(Entry(memory.read(walk.entry_address()))) {
                Step::Table(at) => {
                    let bytes = u64::try_from(sizes.entry(at.level + 1)).unwrap();
                    let start = address - address % bytes;
                    let key = (start, start + (bytes - 1), at.base.raw(), at.level, at.width);
                    self.tables.insert(key, at);
                }
                Step::Leaf(leaf) => {
                    let bytes = sizes.bytes(leaf.level);
                    let (start, frame) = (address - address % bytes, leaf.frame.raw());
                    let key = (start, bytes, frame, leaf.entry.is_dirty());
                    self.leaves.insert(key, leaf.rights);
                    return Ok(leaf);
                }
                Step::Fault(fault) => return Err(fault),
            }
        }
    }
}

// ---- the world ------------------------------------------------------------------------------

struct World<'a> {
    case: &'a Case,
    shape: Patchy<'a>,
    memory: Memory,
    table: Table,
    oracle: Oracle,
    caches: Caches,
    next_frame: u64,
    /// Data words by physical address.
    data: BTreeMap<u64, u64>,
    random: u64,
    /// Where entries were filled (of these levels) or a page was taken away since densities were
    /// last seen to.
    unsettled: Vec<(u64, Option<Levels>)>,
}

/// All that a failed operation must leave as it was.
#[derive(PartialEq, Eq, Debug)]
struct Snapshot {
    image: BTreeMap<u64, u64>,
    live: BTreeMap<u64, u64>,
    statistics: Vec<(Level, Width, u64, u64, u64)>,
    root: (u64, Level, Width),
}

impl<'a> World<'a> {
    fn new(case: &'a Case, patches: bool, refuse: u32) -> Option<Self> {
        let mut memory = Memory::new(case.sizes);
        let shape = Patchy { case, patches };
        memory.begin(refuse, false);
        let table = Table::new(case.geometry, &shape, &mut memory);
        let counts = memory.end();
        match table {
            Ok(table) => Some(Self {
                case,
                shape,
                memory,
                table,
                oracle: Oracle::default(),
                caches: Caches::default(),
                next_frame: 1 << 40,
                data: BTreeMap::new(),
                random: 0x9e37_79b9_7f4a_7c15,
                unsettled: Vec::new(),
            }),
            Err(error) => {
                assert_eq!(error, TableError::OutOfMemory);
                assert!(counts.refused_small > 0 && memory.live.is_empty());
                None
            }
        }
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn address(&self, spot: &Spot) -> u64 {
        let fan = self.case.sizes.fan;
        let values = [0, 1, 2, fan - 1];
        let used = usize::from(self.case.sizes.levels);
        let digits: Vec<u64> =
            spot.digits[..used].iter().map(|&d| values[usize::from(d)] % fan).collect();
        self.case.sizes.address(&digits, spot.byte % self.case.sizes.page)
    }

    fn target(&self, target: &Target) -> u64 {
        match target {
            Target::Page(index, byte) if !self.oracle.pages.is_empty() => {
                let number = index.index(self.oracle.pages.len());
                let (start, page) = self.oracle.pages.iter().nth(number).unwrap();
                start + byte % page.bytes
            }
            Target::Page(_, byte) => self.case.sizes.canonical(u128::from(*byte)),
            Target::Spot(spot) => self.address(spot),
        }
    }

    /// A frame that nothing else uses.
    fn frame(&mut self, level: Level) -> u64 {
        let bytes = self.case.sizes.bytes(level);
        let frame = self.next_frame.next_multiple_of(bytes);
        self.next_frame = frame + bytes;
        frame
    }

    fn snapshot(&self) -> Snapshot {
        let root = self.table.root();
        let statistics = self.table.statistics();
        Snapshot {
            image: self.memory.image(),
            live: self.memory.live.clone(),
            statistics: statistics
                .iter()
                .map(|s| (s.level, s.width, s.node_bytes, s.nodes, s.entries_used))
                .collect(),
            root: (root.base.raw(), root.level, root.width),
        }
    }

    fn raw(&self) -> Vec<RawNode> {
        raw_nodes(&self.memory, self.case.sizes, self.table.root())
    }

    /// The pages of level 3 that the table may keep as pages of level 2: where one node spans both.
    fn smash(&mut self, allowed: bool) {
        let large: Vec<u64> =
            self.oracle.pages.iter().filter(|(_, p)| p.level == 3).map(|(&a, _)| a).collect();
        for start in large {
            let found = self.table.lookup(&self.memory, Gva::new(start)).unwrap().level;
            if found == 2 {
                assert!(allowed, "page of level 3 at {start:#x} lost");
                self.oracle.cut(start, self.case.sizes);
            }
        }
    }

    // ---- one step ---------------------------------------------------------------------------

    fn step(&mut self, op: &Op) {
        let before = self.snapshot();
        let nodes_before = self.raw();
        self.memory.begin(op.refuse, op.refuse_large);
        let done = self.act(op, &nodes_before);
        let counts = self.memory.end();
        match done {
            Done::Failed => assert_eq!(before, self.snapshot(), "a failure changed something"),
            Done::Unlike(error, expected) => panic!("got {error:?} instead of {expected:?}"),
            Done::Changed(flush, made) => {
                if let Some(flush) = flush {
                    self.caches.flush(flush);
                    if counts.freed == 0 && !matches!(op.action, Action::Reshape(..)) {
                        assert!(!flush.tables, "no node went, yet tables are flushed");
                    }
                }
                if let Some(made) = made {
                    self.check_made(made, counts, &nodes_before);
                }
            }
        }
        let unsettled = std::mem::take(&mut self.unsettled);
        if let Some(refuse) = op.settle {
            for (address, filled) in unsettled {
                self.settle(address, filled, refuse);
            }
        }
        self.check();
    }

    fn settle(&mut self, address: u64, filled: Option<Levels>, refuse: u32) {
        let before = self.snapshot();
        self.memory.begin(refuse, false);
        let (address, memory) = (Gva::new(address), &mut self.memory);
        let done = match filled {
            Some(filled) => self.table.merge_dense(memory, address, filled),
            None => self.table.split_sparse(memory, address),
        };
        let counts = self.memory.end();
        assert_eq!(done.flush.is_some(), done.merged + done.unmerged > 0);
        assert!(u64::from(done.refused) <= counts.refused);
        match done.flush {
            Some(flush) => {
                assert!(flush.tables && !flush.leaves, "pages stay where they are");
                self.caches.flush(flush);
            }
            None => assert_eq!(before, self.snapshot(), "a change that is not reported"),
        }
    }

    fn check_made(&self, made: Made<Gva>, counts: Counts, nodes_before: &[RawNode]) {
        let fresh: Vec<RawNode> = self
            .raw()
            .into_iter()
            .filter(|n| !nodes_before.iter().any(|b| (b.base, b.top) == (n.base, n.top)))
            .collect();
        if made.fallbacks > 0 {
            assert!(counts.refused > 0);
        }
        let narrower = |n: &&RawNode| n.width < self.shape.wanted(n.top, n.start);
        if counts.freed == 0 && fresh.iter().all(|n| n.width <= self.shape.wanted(n.top, n.start)) {
            // Not a change of shape: every new node is as wide as wanted and as memory allowed.
            assert_eq!(fresh.iter().filter(narrower).count(), made.fallbacks as usize);
            let missed = |n: &RawNode| u64::from(self.shape.wanted(n.top, n.start) - n.width);
            assert_eq!(fresh.iter().map(missed).sum::<u64>(), counts.refused);
            let bytes: u64 = fresh.iter().map(|n| self.bytes(*n)).sum();
            assert_eq!((counts.allocated, counts.allocated_bytes), (fresh.len() as u64, bytes));
        }
    }

    fn act(&mut self, op: &Op, nodes: &[RawNode]) -> Done {
        let sizes = self.case.sizes;
        match &op.action {
            Action::Map(spot, level, rights) => {
                let bytes = sizes.bytes(*level);
                let start = self.address(spot);
                let start = start - start % bytes;
                self.map(start, *level, *rights, nodes)
            }
            Action::MapBadly(spot, level, bad) => self.map_badly(spot, *level, *bad),
            Action::Unmap(target) => self.unmap(self.target(target)),
            Action::Protect(target, rights) => {
                let rights = *rights;
                self.update(
                    target,
                    |table, memory, address| table.protect(memory, address, rights),
                    |page| page.attributes.rights = rights,
                )
            }
            Action::Migrate(target) => {
                let address = self.target(target);
                let level = self.oracle.at(address).map_or(1, |(_, page)| page.level);
                let frame = self.frame(level);
                self.update(
                    target,
                    |table, memory, address| table.migrate(memory, address, Hpa::new(frame)),
                    |page| page.frame = frame,
                )
            }
            Action::MigrateBadly(target, by) => {
                let address = self.target(target);
                let page_bytes = self.oracle.at(address).map_or(1, |(_, page)| page.bytes);
                let result = self.table.migrate(&mut self.memory, Gva::new(address), Hpa::new(*by));
                let expected = match page_bytes {
                    1 => TableError::NotMapped(address),
                    _ => TableError::Misaligned { address: *by, page_bytes },
                };
                Done::expect(result, expected)
            }
            Action::ClearUsage(target) => self.update(target, Table::clear_usage, |page| {
                (page.attributes.accessed, page.attributes.dirty) = (false, false);
            }),
            Action::Remap(target, spot) => {
                let (from, to) = (self.target(target), self.address(spot));
                self.remap(from, to)
            }
            Action::Split(target) => self.split(self.target(target)),
            Action::Reshape(target, level, width) => {
                let address = self.target(target);
                self.reshape(address, *level, *width, nodes)
            }
            Action::Touch(target, store) => {
                let address = self.target(target);
                if let Some((start, _)) = self.oracle.at(address) {
                    self.touch(address, *store);
                    let attributes = &mut self.oracle.pages.get_mut(&start).unwrap().attributes;
                    attributes.accessed = true;
                    attributes.dirty |= *store;
                }
                Done::Changed(None, None)
            }
            Action::Store(target, value) => {
                let address = self.target(target) & !7;
                if let Some((start, page)) = self.oracle.at(address) {
                    let leaf = self.table.translate(&self.memory, Gva::new(address)).unwrap();
                    let within = address % sizes.bytes(leaf.level);
                    self.memory.set(leaf.frame.raw() + within, *value);
                    self.data.insert(page.frame + (address - start), *value);
                }
                Done::Changed(None, None)
            }
        }
    }

    /// Uses a mapped page as hardware does: every entry on the path becomes accessed.
    fn touch(&mut self, address: u64, store: bool) {
        let mut walk = self.table.walk(Gva::new(address));
        loop {
            let at = walk.entry_address();
            let entry = Entry(self.memory.read(at));
            let step = walk.feed(entry);
            let leaf = matches!(step, Step::Leaf(_));
            assert!(leaf || matches!(step, Step::Table(_)), "{address:#x} is mapped: {step:?}");
            self.memory.write(at, entry.touched(leaf && store).0);
            if leaf {
                return;
            }
        }
    }

    fn unmap(&mut self, address: u64) -> Done {
        let result = self.table.unmap(&mut self.memory, Gva::new(address));
        let Some((start, page)) = self.oracle.at(address) else {
            return Done::expect(result, TableError::NotMapped(address));
        };
        let (mapping, flush) = result.unwrap();
        assert_eq!(mapping, as_mapping(start, page));
        self.unsettled.push((address, None));
        self.oracle.pages.remove(&start);
        Self::check_leaf_flush(flush, start, page);
        Done::Changed(Some(flush), None)
    }

    fn split(&mut self, address: u64) -> Done {
        // The pieces of a page of 32 GiB may take 2^22 entries: too many for this test's time.
        let huge = self.oracle.at(address).is_some_and(|(_, page)| page.level == 3);
        if huge && self.case.sizes.fan > 512 {
            return Done::Failed;
        }
        let result = self.table.split(&mut self.memory, &self.shape, Gva::new(address));
        let Some((start, page)) = self.oracle.at(address) else {
            return Done::expect(result, TableError::NotMapped(address));
        };
        if page.level == 1 {
            return Done::expect(result, TableError::NoSuchPage(0));
        }
        match result {
            Ok(made) => {
                self.oracle.cut(start, self.case.sizes);
                self.unsettled.push((address, Some(made.filled)));
                Self::check_leaf_flush(made.flush.unwrap(), start, page);
                Done::Changed(made.flush, Some(made))
            }
            Err(error) => self.out_of_memory(error),
        }
    }

    fn map(&mut self, start: u64, level: Level, rights: Rights, nodes: &[RawNode]) -> Done {
        let bytes = self.case.sizes.bytes(level);
        let frame = self.frame(level);
        let attributes = Attributes::new(rights);
        let result = self.table.map(
            &mut self.memory,
            &self.shape,
            Gva::new(start),
            Hpa::new(frame),
            level,
            attributes,
        );
        if level > self.case.sizes.levels {
            return Done::expect(result, TableError::NoSuchPage(level));
        }
        if self.oracle.any_in(start, bytes) {
            return Done::expect(result, TableError::Occupied(start));
        }
        match result {
            Ok(made) => {
                assert_eq!(made.flush, None, "nothing was there");
                self.oracle.pages.insert(start, Page { bytes, level, frame, attributes });
                self.unsettled.push((start, Some(made.filled)));
                self.check_reads(start, nodes);
                self.smash(self.case.joins(3, 2) || self.reshaped_over(3, start));
                Done::Changed(None, Some(made))
            }
            Err(error) => self.out_of_memory(error),
        }
    }

    /// Whether the node with the leaves of `address` spans levels below `level`, so that pages of
    /// that level are cut up.
    fn reshaped_over(&self, level: Level, address: u64) -> bool {
        self.case.density.is_none()
            && self.path(&self.raw(), address).last().unwrap().bottom() < level
    }

    /// Each node on the way was read, and no other.
    fn check_reads(&self, address: u64, before: &[RawNode]) {
        let read = self.memory.blocks_read();
        let bases = |path: Vec<RawNode>| path.iter().map(|n| n.base).collect::<BTreeSet<_>>();
        let path = bases(self.path(&self.raw(), address));
        if self.case.density.is_none() {
            assert_eq!(read, path);
            return;
        }
        // Pointers to lower nodes may lead past others, which have the page's entry all the same.
        let mut walk = self.table.walk(Gva::new(address));
        let mut walked = BTreeSet::from([walk.at().base.raw()]);
        while let Step::Table(node) = walk.feed(Entry(self.memory.get(walk.entry_address().raw())))
        {
            walked.insert(node.base.raw());
        }
        assert!(walked.is_subset(&read), "on the way");
        let all = &path | &bases(self.path(before, address));
        // A merged node that all entries lead past cannot be reached, but has the entry too.
        assert!(read.difference(&all).count() <= 1, "off the way");
    }

    fn map_badly(&mut self, spot: &Spot, level: Level, bad: Bad) -> Done {
        let sizes = self.case.sizes;
        if level > sizes.levels {
            return Done::Failed;
        }
        let bytes = sizes.bytes(level);
        let address = self.address(spot);
        let (mut start, mut frame, mut asked) = (address - address % bytes, bytes, level);
        let misaligned = |address| TableError::Misaligned { address, page_bytes: bytes };
        let expected = match bad {
            Bad::Address(by) => {
                start += by % bytes;
                misaligned(start)
            }
            Bad::Frame(by) => {
                frame += by % bytes;
                misaligned(frame)
            }
            Bad::HighFrame => {
                frame = 1 << 52;
                TableError::FrameTooHigh(frame)
            }
            Bad::Hole(somewhere) => {
                let hole = (1u128 << 64) - sizes.all();
                if hole == 0 {
                    return Done::Failed;
                }
                let offset = sizes.all() / 2 + u128::from(somewhere) % hole;
                start = u64::try_from(offset).unwrap();
                let bits = self.case.geometry.address_bits();
                assert_eq!(
                    self.table.translate(&self.memory, Gva::new(start)),
                    Err(Fault::NotCanonical)
                );
                TableError::NotCanonical { address: start, bits }
            }
            Bad::Level(wrong) => {
                asked = wrong;
                TableError::NoSuchPage(wrong)
            }
        };
        let attributes = Attributes::new(Rights::ALL);
        let result = self.table.map(
            &mut self.memory,
            &self.shape,
            Gva::new(start),
            Hpa::new(frame),
            asked,
            attributes,
        );
        Done::expect(result, expected)
    }

    fn update(
        &mut self,
        target: &Target,
        change: impl FnOnce(
            &mut Table,
            &mut Memory,
            Gva,
        ) -> Result<(Mapping<Gva, Hpa>, Flush<Gva>), TableError>,
        expected: impl FnOnce(&mut Page),
    ) -> Done {
        let address = self.target(target);
        let result = change(&mut self.table, &mut self.memory, Gva::new(address));
        let Some((start, page)) = self.oracle.at(address) else {
            return Done::expect(result, TableError::NotMapped(address));
        };
        let (mapping, flush) = result.unwrap();
        assert_eq!(mapping, as_mapping(start, page), "the mapping before the change");
        expected(self.oracle.pages.get_mut(&start).unwrap());
        Self::check_leaf_flush(flush, start, page);
        Done::Changed(Some(flush), None)
    }

    fn check_leaf_flush(flush: Flush<Gva>, start: u64, page: Page) {
        assert!(flush.leaves);
        assert_eq!((flush.start.raw(), flush.last.raw()), (start, start + (page.bytes - 1)));
    }

    fn remap(&mut self, from: u64, to: u64) -> Done {
        let found = self.oracle.at(from);
        let bytes = found.map_or(self.case.sizes.page, |(_, page)| page.bytes);
        let to = to - to % bytes;
        let result = self.table.remap(&mut self.memory, &self.shape, Gva::new(from), Gva::new(to));
        let Some((start, page)) = found else {
            return Done::expect(result, TableError::NotMapped(from));
        };
        if self.oracle.any_in(to, bytes) {
            return Done::expect(result, TableError::Occupied(to));
        }
        match result {
            Ok(made) => {
                Self::check_leaf_flush(made.flush.unwrap(), start, page);
                self.unsettled.push((to, Some(made.filled)));
                self.unsettled.push((from, None));
                self.oracle.pages.remove(&start);
                self.oracle.pages.insert(to, page);
                self.smash(self.case.joins(3, 2) || self.reshaped_over(3, to));
                Done::Changed(made.flush, None)
            }
            Err(error) => self.out_of_memory(error),
        }
    }

    /// A failure that is right if not even the smallest node could be had.
    fn out_of_memory(&self, error: TableError) -> Done {
        if error == TableError::OutOfMemory && self.memory.counts.refused_small > 0 {
            Done::Failed
        } else {
            Done::Unlike(error, TableError::OutOfMemory)
        }
    }

    fn bytes(&self, node: RawNode) -> u64 {
        (self.case.sizes.fan.pow(u32::from(node.width)) * 8).max(4096)
    }

    /// The nodes that serve `address`, root first.
    fn path(&self, nodes: &[RawNode], address: u64) -> Vec<RawNode> {
        let sizes = self.case.sizes;
        let place = |n: &RawNode, a: u64| sizes.offset(a) / sizes.entry(n.top + 1);
        let mut path: Vec<RawNode> =
            nodes.iter().filter(|n| place(n, n.start) == place(n, address)).copied().collect();
        path.sort_by_key(|n| std::cmp::Reverse(n.top));
        path
    }

    fn reshape(&mut self, address: u64, level: Level, width: Width, nodes: &[RawNode]) -> Done {
        let sizes = self.case.sizes;
        let impossible = TableError::Shape { address, level, width };
        let path = self.path(nodes, address);
        let node = path.iter().find(|n| n.top == level).copied();
        let node = node.or_else(|| self.part_of_merged(&path, address, level));
        let widest = if self.case.density.is_some() { 2 } else { 3 };
        // Reading 2^22 words and more is for a test of its own.
        let entries = |width: Width| sizes.fan.pow(u32::from(width.clamp(1, 3)));
        if node.is_some_and(|n| entries(n.width.max(width)) > 1 << 20) {
            return Done::Failed;
        }
        let result = self.table.reshape(&mut self.memory, Gva::new(address), level, width);
        if width == 0 || width > widest || width > level || level > sizes.levels {
            return Done::expect(result, impossible);
        }
        let Some(node) = node else {
            let spanned = self.case.density.is_none()
                && path.iter().any(|n| n.top > level && n.bottom() <= level);
            let expected = if spanned { impossible } else { TableError::NotMapped(address) };
            return Done::expect(result, expected);
        };
        // Where every entry leads past it, a merged node may be there or not.
        let hidden = node.width == 1 && self.leads_past(&path, address, level);
        if hidden && let Ok(Some(flush)) = result {
            return Done::Changed(Some(flush), None);
        }
        if width == node.width || (hidden && matches!(result, Ok(None))) {
            assert!(matches!(result, Ok(None)), "{result:?}");
            return Done::Failed;
        }
        let bottom = level + 1 - width;
        let inside = |n: &RawNode| {
            n.top < level
                && sizes.offset(n.start) / sizes.entry(level + 1)
                    == sizes.offset(address) / sizes.entry(level + 1)
        };
        let across = |n: &RawNode| inside(n) && n.top >= bottom && n.bottom() < bottom;
        if self.case.density.is_none() && nodes.iter().any(across) {
            return Done::expect(result, impossible);
        }
        match result {
            Ok(Some(flush)) => {
                assert!(!flush.leaves && flush.tables);
                let now = self.raw();
                let made = self.path(&now, address).into_iter().find(|n| n.top == level);
                // What is taken apart within a merged node above becomes a part of that.
                let part = self.case.density.is_some() && (width == 1 || hidden);
                assert!(made.map_or(part, |n| n.width == width));
                self.smash(self.case.density.is_none() && bottom < 3 && level >= 3);
                Done::Changed(Some(flush), None)
            }
            Ok(None) => panic!("the node has width {}, not {width}", node.width),
            // A change of shape does not make do with other nodes than it needs.
            Err(TableError::OutOfMemory) if self.memory.counts.refused > 0 => Done::Failed,
            Err(error) => self.out_of_memory(error),
        }
    }

    /// The part of a merged node that stands for the node of `level` on the path of `address`.
    fn part_of_merged(&self, path: &[RawNode], address: u64, level: Level) -> Option<RawNode> {
        let sizes = self.case.sizes;
        self.case.density?;
        let whole = path.iter().find(|n| n.top == level + 1 && n.width == 2)?;
        let bytes = sizes.entry(level + 1);
        let first = sizes.canonical(sizes.offset(address) / bytes * bytes);
        let beyond = self.oracle.at(first).is_some_and(|(_, page)| page.level > level);
        let there = !beyond && self.oracle.any_in(first, u64::try_from(bytes).unwrap());
        there.then_some(RawNode { top: level, width: 1, used: 0, start: first, ..*whole })
    }

    /// Whether all entries in the part of a merged node that stands for the node of `level` on the
    /// path of `address` are large pages or lead to merged nodes below.
    fn leads_past(&self, path: &[RawNode], address: u64, level: Level) -> bool {
        let Some(whole) = path.iter().find(|n| n.top == level + 1 && n.width == 2) else {
            return false;
        };
        let sizes = self.case.sizes;
        let first = whole.base + sizes.digit(address, level + 1) * sizes.fan * 8;
        (0..sizes.fan).all(|i| {
            let word = self.memory.get(first + 8 * i);
            word & 1 == 1 && (word & (1 << 7) != 0 || word >> 58 & 3 == 1)
        })
    }

    // ---- what holds after every step --------------------------------------------------------

    fn check(&mut self) {
        let pages: Vec<(u64, Page)> = self.oracle.pages.iter().map(|(&a, &p)| (a, p)).collect();
        let stride = (pages.len() / 40).max(1);
        let skip = self.random() as usize % stride;
        for &(start, page) in pages.iter().skip(skip).step_by(stride) {
            let inside = start + self.random() % page.bytes;
            let around = [start, start + (page.bytes - 1), inside];
            let beside = [start.wrapping_sub(1), start.wrapping_add(page.bytes)];
            for address in around.into_iter().chain(beside) {
                self.check_translation(address);
            }
        }
        for _ in 0..8 {
            let anywhere = self.case.sizes.canonical(u128::from(self.random()) << 4);
            self.check_translation(anywhere);
        }
        self.check_caches();
        self.check_nodes();
        self.check_outline();
        self.check_visits(&pages);
        for (&at, &value) in &self.data {
            assert_eq!(self.memory.get(at), value);
        }
    }

    fn check_translation(&mut self, address: u64) {
        if !self.case.geometry.is_canonical(address) {
            let answer = self.table.translate(&self.memory, Gva::new(address));
            assert_eq!(answer, Err(Fault::NotCanonical));
            return;
        }
        let answer = self.caches.walk(&self.memory, &self.table, self.table.root(), address);
        assert_eq!(answer, self.table.translate(&self.memory, Gva::new(address)));
        self.agree(address, answer);
        let found = self.table.lookup(&self.memory, Gva::new(address));
        match self.oracle.at(address) {
            Some((start, page)) => assert_eq!(found, Ok(as_mapping(start, page))),
            None => assert_eq!(found, Err(TableError::NotMapped(address))),
        }
    }

    /// `answer` is what the oracle says.
    fn agree(&self, address: u64, answer: Result<Leaf<Hpa>, Fault<Hpa>>) {
        match (self.oracle.at(address), answer) {
            (Some((start, page)), Ok(leaf)) => {
                let bytes = self.case.sizes.bytes(leaf.level);
                assert_eq!(leaf.frame.raw() + address % bytes, page.frame + (address - start));
                assert_eq!((leaf.level, leaf.rights), (page.level, page.attributes.rights));
                let word = address & !7;
                if let Some(&value) = self.data.get(&(page.frame + (word - start))) {
                    let at = leaf.frame.raw() + word % bytes;
                    assert_eq!(self.memory.get(at), value, "what was stored");
                }
            }
            (None, Err(Fault::NotPresent { .. })) => {}
            (page, answer) => panic!("{address:#x} is {page:?} but translates to {answer:?}"),
        }
    }

    /// Whatever is cached and was not flushed still tells the truth.
    fn check_caches(&mut self) {
        for (&(start, bytes, frame, dirty), &rights) in &self.caches.leaves {
            let mut at = start;
            while at - start < bytes {
                let Some((page_start, page)) = self.oracle.at(at) else {
                    panic!("stale TLB entry for {start:#x}: {at:#x} is not mapped");
                };
                assert_eq!(page.frame + (at - page_start), frame + (at - start), "stale TLB entry");
                assert_eq!(page.attributes.rights, rights, "stale rights in the TLB");
                assert!(page.attributes.dirty || !dirty, "stale dirty bit in the TLB");
                let next = page_start.wrapping_add(page.bytes);
                if next <= at {
                    break;
                }
                at = next;
            }
        }
        let mut caches = std::mem::take(&mut self.caches);
        let known: Vec<_> = caches.tables.iter().map(|(&key, &at)| (key, at)).collect();
        for ((start, end, ..), from) in known {
            let inside = self.oracle.pages.range(start..=end).map(|(&a, _)| a);
            let mut addresses: Vec<u64> = inside.clone().take(2).collect();
            addresses.extend(inside.rev().take(1));
            addresses.extend([start, end, start + self.random() % (end - start)]);
            for address in addresses {
                let answer = caches.walk(&self.memory, &self.table, from, address);
                self.agree(address, answer);
            }
        }
        self.caches = caches;
    }

    /// The nodes that can be reached are those that were given out and those that are counted.
    fn check_nodes(&self) {
        let nodes = self.raw();
        let mut reached = BTreeMap::new();
        let mut shapes: BTreeMap<(Level, Width), (u64, u64, u64)> = BTreeMap::new();
        for (i, node) in nodes.iter().enumerate() {
            let bytes = (self.case.sizes.fan.pow(u32::from(node.width)) * 8).max(4096);
            assert_eq!(reached.insert(node.base, bytes), None, "a node has two parents");
            assert!(i == 0 || node.used > 0, "an empty node was kept");
            let shape = shapes.entry((node.top, node.width)).or_default();
            *shape = (bytes, shape.1 + 1, shape.2 + node.used);
        }
        if self.case.density.is_some() && reached.len() < self.memory.live.len() {
            // A merged node that all entries lead past is of no use, but may be asked for.
            let bytes = (self.case.sizes.fan.pow(2) * 8).max(4096);
            let hidden = self.memory.live.iter().filter(|(base, _)| !reached.contains_key(base));
            assert!(hidden.into_iter().all(|(_, &size)| size == bytes));
            return;
        }
        assert_eq!(reached, self.memory.live);
        let statistics = self.table.statistics();
        let counted: Vec<_> = statistics
            .iter()
            .map(|s| ((s.level, s.width), (s.node_bytes, s.nodes, s.entries_used)))
            .collect();
        assert!(counted.iter().rev().copied().eq(shapes), "{counted:?}");
    }

    /// The outline's parts sum to the nodes that can be reached, each within a part of its shape.
    fn check_outline(&self) {
        if self.entries() >= 1 << 14 {
            return;
        }
        let parts = self.table.outline(&self.memory);
        let (all, sizes) = (self.raw(), self.case.sizes);
        let mut sums: BTreeMap<(Level, Width), (u64, u64)> = BTreeMap::new();
        for part in &parts {
            let sum = sums.entry((part.level, part.width)).or_default();
            *sum = (sum.0 + part.nodes, sum.1 + part.tables + part.pages + part.replicas);
        }
        let statistics = self.table.statistics();
        let counted = statistics.iter().map(|s| ((s.level, s.width), (s.nodes, s.entries_used)));
        assert!(counted.rev().eq(sums), "{parts:?}");
        for node in all {
            let start = sizes.offset(node.start);
            let holds = |part: &Part| {
                (part.level, part.width) == (node.top, node.width)
                    && (sizes.offset(part.first)..=sizes.offset(part.last)).contains(&start)
            };
            assert!(parts.iter().any(holds), "{node:?} is not in {parts:?}");
        }
    }

    fn check_visits(&mut self, pages: &[(u64, Page)]) {
        let all: Vec<_> = pages.iter().map(|&(start, page)| as_mapping(start, page)).collect();
        if self.entries() < 1 << 14 {
            assert_eq!(self.table.mappings(&self.memory), all);
        }
        // Around a page, a window that begins and ends within pages.
        if !pages.is_empty() {
            let (start, page) = pages[self.random() as usize % pages.len()];
            let first = start.saturating_sub(self.random() % (2 * page.bytes));
            let length = 1 + self.random() % (3 * page.bytes);
            let last = first.saturating_add(length - 1);
            let mut seen = Vec::new();
            let visited = self.table.visit(&self.memory, Gva::new(first), length, &mut |mapping| {
                seen.push(mapping);
            });
            let canonical = |a| self.case.geometry.is_canonical(a);
            if canonical(first) && canonical(last) {
                assert_eq!(visited, Ok(()));
                let expected = pages
                    .iter()
                    .filter(|&&(start, page)| start <= last && start + (page.bytes - 1) >= first);
                let expected: Vec<_> = expected.map(|&(a, page)| as_mapping(a, page)).collect();
                assert_eq!(seen, expected, "visit of {first:#x} to {last:#x}");
            } else {
                assert!(matches!(visited, Err(TableError::NotCanonical { .. })));
            }
        }
    }

    /// How many entries all nodes have together.
    fn entries(&self) -> u64 {
        self.memory.live.values().sum::<u64>() / 8
    }

    fn finish(mut self) {
        if self.entries() < 1 << 20 {
            let all: Vec<_> = self.oracle.pages.iter().map(|(&a, &p)| as_mapping(a, p)).collect();
            assert_eq!(self.table.mappings(&self.memory), all);
        }
        self.table.destroy(&mut self.memory);
        assert!(self.memory.live.is_empty(), "destroy left nodes behind");
    }
}

fn as_mapping(start: u64, page: Page) -> Mapping<Gva, Hpa> {
    Mapping {
        input: Gva::new(start),
        frame: Hpa::new(page.frame),
        level: page.level,
        attributes: page.attributes,
    }
}

/// How a step ended.
enum Done {
    /// With an error, the right one, or with nothing to do: nothing may have changed.
    Failed,
    /// With another error than it should.
    Unlike(TableError, TableError),
    /// With a change.
    Changed(Option<Flush<Gva>>, Option<Made<Gva>>),
}

impl Done {
    fn expect<T: std::fmt::Debug>(result: Result<T, TableError>, expected: TableError) -> Self {
        match result {
            Err(error) if error == expected => Self::Failed,
            Err(error) => Self::Unlike(error, expected),
            Ok(done) => panic!("{done:?} instead of {expected:?}"),
        }
    }
}

/// Sequences that a layout is tried with: more where nodes are small. `PROPTEST_CASES` changes it.
fn sequences(case: &Case) -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    asked.unwrap_or(if case.sizes.fan < 32 { 100 } else { 12 })
}

#[test]
fn every_table_agrees_with_a_map_of_pages() {
    for case in cases() {
        let config =
            Config { cases: sequences(&case), failure_persistence: None, ..Config::default() };
        let strategy = (any::<bool>(), prop_oneof![3 => Just(0u32), 1 => 0u32..8], ops());
        let outcome = TestRunner::new(config).run(&strategy, |(patches, refuse, ops)| {
            if let Some(mut world) = World::new(&case, patches, refuse) {
                for op in &ops {
                    world.step(op);
                }
                world.finish();
            }
            Ok(())
        });
        if let Err(failure) = outcome {
            panic!("{}: {failure}", case.name);
        }
    }
}
