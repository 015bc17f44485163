//! Merging by density (Compendia, ISMM 2021): when nodes are merged and taken apart, and what then
//! stands in every entry, against a model that knows pages only; and the paper's figures as examples.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use flatwalk_paging::{
    Address, Attributes, Density, DensityChanges, Geometry, Gva, Hpa, Layout, Level, Rights, Shape,
    Step, Tree, Walk, Width,
};
use proptest::prelude::*;
use serde_json::json;
use support::{Memory, RawNode, Sizes, raw_nodes};

type Table = Tree<Gva, Hpa>;

/// A table number: level and how many tables of that level come before it.
type Id = (Level, u64);

fn layout(geometry: Geometry, merge: f64, unmerge: f64) -> Layout {
    let parameters = json!({ "merge_fraction": merge, "unmerge_fraction": unmerge, "merge_us": 0 });
    support::layout("compendia", geometry, &parameters)
}

// ---- the model ------------------------------------------------------------------------------

/// What an entry of a conventional table would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Empty,
    Page,
    Table,
}

/// Pages, and which tables are merged with their children.
struct Model {
    sizes: Sizes,
    density: Density,
    /// Level of the page by the offset of its first byte.
    pages: BTreeMap<u128, Level>,
    merged: BTreeSet<Id>,
}

impl Model {
    fn id(&self, level: Level, offset: u128) -> Id {
        (level, (offset / self.sizes.entry(level + 1)) as u64)
    }

    /// Offset of the first byte that slot `i` of a table translates.
    fn start(&self, (level, prefix): Id, i: u64) -> u128 {
        (u128::from(prefix) * u128::from(self.sizes.fan) + u128::from(i)) * self.sizes.entry(level)
    }

    fn child(&self, (level, prefix): Id, i: u64) -> Id {
        (level - 1, prefix * self.sizes.fan + i)
    }

    fn slot(&self, table: Id, i: u64) -> Slot {
        let start = self.start(table, i);
        let inside = self.pages.range(start..start + self.sizes.entry(table.0)).next();
        match inside {
            None => Slot::Empty,
            Some((_, &level)) if level >= table.0 => Slot::Page,
            Some(_) => Slot::Table,
        }
    }

    fn is_merged(&self, table: Id) -> bool {
        self.merged.contains(&table)
    }

    /// Entries that lead to a table that is not merged.
    fn gain(&self, table: Id) -> u32 {
        let gains =
            |&i: &u64| self.slot(table, i) == Slot::Table && !self.is_merged(self.child(table, i));
        (0..self.sizes.fan).filter(gains).count() as u32
    }

    /// What a walk past `offset` finds at each level from 2 up.
    fn path(&self, offset: u128) -> Vec<(Id, Slot)> {
        let digit = |level| self.sizes.digit(self.sizes.canonical(offset), level);
        (2..=self.sizes.levels)
            .map(|level| (self.id(level, offset), self.slot(self.id(level, offset), digit(level))))
            .collect()
    }

    fn map(&mut self, offset: u128, level: Level, memory_for_large: bool) -> [u32; 3] {
        let before = self.path(offset);
        self.pages.insert(offset, level);
        let after = self.path(offset);
        let mut done = [0; 3];
        for (&(table, was), &(_, is)) in before.iter().zip(&after) {
            let filled = was != Slot::Table && is == Slot::Table;
            if !filled || self.is_merged(table) || self.gain(table) < self.density.merge_slots {
                continue;
            }
            if !memory_for_large {
                done[2] += 1;
                continue;
            }
            self.merged.insert(table);
            done[0] += 1;
            let parent = self.id(table.0 + 1, offset);
            if table.0 < self.sizes.levels {
                self.split_sparse(parent, true, &mut done);
            }
        }
        done
    }

    fn unmap(&mut self, offset: u128, memory: bool) -> [u32; 3] {
        self.pages.remove(&offset);
        let mut done = [0; 3];
        for (table, slot) in self.path(offset) {
            let (level, prefix) = table;
            let (first, bytes) = (self.start(table, 0), self.sizes.entry(level + 1));
            let alive = self.pages.range(first..first + bytes).next().is_some();
            if !alive && (level, prefix) != (self.sizes.levels, 0) {
                self.merged.remove(&table);
            } else if slot == Slot::Empty {
                self.split_sparse(table, memory, &mut done);
            }
        }
        done
    }

    fn split_sparse(&mut self, table: Id, memory: bool, done: &mut [u32; 3]) {
        if !self.is_merged(table) || self.gain(table) >= self.density.unmerge_slots {
            return;
        }
        // A node for itself, unless the one above has its entries, and for each child.
        let above = (table.0 + 1, table.1 / self.sizes.fan);
        if memory || (self.is_merged(above) && self.gain(table) == 0) {
            self.merged.remove(&table);
            done[1] += 1;
        } else {
            done[2] += 1;
        }
    }

    // ---- what it says stands where ----------------------------------------------------------

    /// The entry of the table's slot `i` in a node where the table itself has its entries.
    fn own(&self, table: Id, i: u64) -> Word {
        match self.slot(table, i) {
            Slot::Empty => Word::Absent,
            Slot::Page => Word::Page { replica: false },
            Slot::Table => {
                let width = if self.is_merged(self.child(table, i)) { 2 } else { 1 };
                Word::Table { width, overlapping: false }
            }
        }
    }

    /// The entry of the table's slot `i` in the node that the table above was merged into.
    fn in_node_above(&self, table: Id, i: u64) -> Word {
        if !self.is_merged(table) {
            return self.own(table, i);
        }
        match self.own(table, i) {
            known @ (Word::Page { .. } | Word::Table { width: 2, .. }) => known,
            _ => Word::Table { width: 2, overlapping: true },
        }
    }

    fn check(&self, memory: &Memory, nodes: &[RawNode]) {
        let found: BTreeSet<Id> = nodes
            .iter()
            .filter(|node| node.width == 2)
            .map(|node| self.id(node.top, self.sizes.offset(node.start)))
            .collect();
        assert_eq!(found, self.merged);
        for node in nodes {
            let table = self.id(node.top, self.sizes.offset(node.start));
            let fan = self.sizes.fan;
            let word = |i: u64| Word::of(memory.get(node.base + 8 * i), node.bottom());
            for i in 0..fan {
                if node.width == 1 {
                    assert_eq!(word(i), self.own(table, i), "{table:?}, entry {i}");
                    continue;
                }
                for j in 0..fan {
                    let expected = match self.slot(table, i) {
                        Slot::Empty => Word::Absent,
                        Slot::Page => Word::Page { replica: true },
                        Slot::Table => self.in_node_above(self.child(table, i), j),
                    };
                    assert_eq!(word(i * fan + j), expected, "merged {table:?}, entry {i}, {j}");
                }
            }
        }
    }
}

/// What can be told from an entry alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Absent,
    Page { replica: bool },
    Table { width: Width, overlapping: bool },
}

impl Word {
    fn of(word: u64, level: Level) -> Self {
        let bit = |n: u32| word >> n & 1 == 1;
        if word == 0 {
            Self::Absent
        } else if level == 1 || bit(7) {
            Self::Page { replica: bit(59) }
        } else {
            Self::Table { width: if bit(58) { 2 } else { 1 }, overlapping: bit(59) }
        }
    }
}

// ---- the table next to the model -----------------------------------------------------------

struct World {
    layout: Layout,
    memory: Memory,
    table: Table,
    model: Model,
}

impl World {
    fn new(layout: Layout) -> Self {
        let sizes = Sizes::of(layout.geometry());
        let mut memory = Memory::new(sizes);
        let table = Table::new(layout.geometry(), &layout, &mut memory).unwrap();
        let (pages, merged) = (BTreeMap::new(), BTreeSet::new());
        let model = Model { sizes, density: layout.density().unwrap(), pages, merged };
        Self { layout, memory, table, model }
    }

    /// An x86-64 table with the paper's thresholds.
    fn paper(geometry: Geometry) -> Self {
        Self::new(layout(geometry, 0.125, 0.0625))
    }

    fn map(&mut self, address: u64, level: Level) -> [u32; 3] {
        self.map_with(address, level, true)
    }

    /// Maps a page, and sees to the densities with or without memory for merged nodes.
    fn map_with(&mut self, address: u64, level: Level, memory_for_large: bool) -> [u32; 3] {
        let at = Gva::new(address);
        let attributes = Attributes::new(Rights::ALL);
        let frame = Hpa::new(1 << 45);
        let memory = &mut self.memory;
        let change = self.table.map(memory, &self.layout, at, frame, level, attributes).unwrap();
        memory.begin(if memory_for_large { 0 } else { u32::MAX }, false);
        let done = counts(self.table.merge_dense(memory, at, change.filled));
        self.memory.end();
        let expected = self.model.map(self.model.sizes.offset(address), level, memory_for_large);
        assert_eq!(done, expected, "merged, taken apart, refused at {address:#x}");
        done
    }

    /// Unmaps a page, and sees to the densities with or without any memory.
    fn unmap_with(&mut self, address: u64, memory: bool) -> [u32; 3] {
        let at = Gva::new(address);
        let _ = self.table.unmap(&mut self.memory, at).unwrap();
        self.memory.begin(if memory { 0 } else { u32::MAX }, false);
        let done = counts(self.table.split_sparse(&mut self.memory, at));
        self.memory.end();
        let expected = self.model.unmap(self.model.sizes.offset(address), memory);
        assert_eq!(done, expected, "merged, taken apart, refused at {address:#x}");
        done
    }

    fn check(&self) {
        let nodes = raw_nodes(&self.memory, self.model.sizes, self.table.root());
        self.model.check(&self.memory, &nodes);
        assert_eq!(nodes.len(), self.memory.live.len(), "all nodes can be reached");
    }

    /// Entries that a walk from the root reads.
    fn reads(&self, address: u64) -> u32 {
        self.reads_of(self.table.walk(Gva::new(address)))
    }

    /// Entries that the rest of a walk reads.
    fn reads_of(&self, mut walk: Walk<Gva, Hpa>) -> u32 {
        let mut reads = 1;
        while let Step::Table(_) = self.step(&mut walk) {
            reads += 1;
        }
        reads
    }

    fn step(&self, walk: &mut Walk<Gva, Hpa>) -> Step<Hpa> {
        walk.feed(flatwalk_paging::Entry(self.memory.get(walk.entry_address().raw())))
    }

    /// Nodes by level and width, root first.
    fn nodes(&self) -> Vec<(Level, Width, u64)> {
        self.table.statistics().iter().map(|s| (s.level, s.width, s.nodes)).collect()
    }
}

fn counts(done: DensityChanges<Gva>) -> [u32; 3] {
    [done.merged, done.unmerged, done.refused]
}

#[derive(Clone, Debug)]
enum Action {
    /// Digits, root first; level; memory for large nodes.
    Map(Vec<u64>, Level, bool),
    Unmap(prop::sample::Index, bool),
    /// All pages of one region, in order.
    UnmapRun(prop::sample::Index, usize),
}

fn actions(levels: usize) -> impl Strategy<Value = Vec<Action>> {
    // Nearly one path, so that tables become dense.
    let digit = prop_oneof![3 => Just(0u64), 2 => 0u64..3, 2 => 0u64..8];
    let action = prop_oneof![
        8 => (prop::collection::vec(digit, levels), prop_oneof![6 => Just(1u8), 3 => Just(2u8), 1 => Just(3u8)], prop::bool::weighted(0.8))
            .prop_map(|(digits, level, memory)| Action::Map(digits, level, memory)),
        2 => (any::<prop::sample::Index>(), prop::bool::weighted(0.8))
            .prop_map(|(index, memory)| Action::Unmap(index, memory)),
        1 => (any::<prop::sample::Index>(), 2usize..20)
            .prop_map(|(index, pages)| Action::UnmapRun(index, pages)),
    ];
    prop::collection::vec(action, 1..120)
}

fn play(layout: Layout, actions: &[Action]) {
    let mut world = World::new(layout);
    let sizes = world.model.sizes;
    for action in actions {
        let page = |world: &World, index: &prop::sample::Index, by: usize| {
            let pages = &world.model.pages;
            let number = (index.index(pages.len().max(1)) + by) % pages.len().max(1);
            pages.keys().nth(number).map(|&offset| sizes.canonical(offset))
        };
        match action {
            Action::Map(digits, level, memory) => {
                let address = sizes.address(digits, 0);
                let address = address - address % sizes.bytes(*level);
                let offset = sizes.offset(address);
                let free = |world: &World| {
                    let before = world.model.pages.range(..=offset).next_back();
                    let clear = before.is_none_or(|(&at, &l)| at + sizes.entry(l) <= offset);
                    let range = offset..offset + sizes.entry(*level);
                    clear && world.model.pages.range(range).next().is_none()
                };
                if free(&world) {
                    world.map_with(address, *level, *memory);
                }
            }
            Action::Unmap(index, memory) => {
                if let Some(address) = page(&world, index, 0) {
                    world.unmap_with(address, *memory);
                }
            }
            Action::UnmapRun(index, pages) => {
                for by in 0..*pages {
                    if let Some(address) = page(&world, index, by) {
                        world.unmap_with(address, true);
                    }
                }
            }
        }
        world.check();
    }
    world.table.destroy(&mut world.memory);
    assert!(world.memory.live.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nodes_are_merged_and_taken_apart_exactly_as_the_rule_says(
        merge in 1u32..5,
        hysteresis in 0u32..3,
        four in actions(4),
        five in actions(5),
    ) {
        let share = |slots: u32| (f64::from(slots) - 0.5) / 8.0;
        let unmerge = merge.saturating_sub(hysteresis).max(1);
        for (levels, actions) in [(4, four), (5, five)] {
            let geometry = Geometry::new(12, 3, levels).unwrap();
            play(layout(geometry, share(merge), share(unmerge)), &actions);
        }
    }
}

// ---- the paper's figures --------------------------------------------------------------------

const PAGE: u64 = 4 << 10;
const LARGE: u64 = 2 << 20;
const GIB: u64 = 1 << 30;
const PUD: u64 = 512 * GIB;

#[test]
fn a_pmd_is_merged_when_an_eighth_of_it_leads_to_ptes_and_at_no_other_time() {
    let mut world = World::paper(Geometry::X86_4);
    for i in 0..63 {
        assert_eq!(world.map(i * LARGE, 1), [0; 3]);
    }
    for page in 1..512 {
        assert_eq!(world.map(page * PAGE, 1), [0; 3], "a change of a PTE alone");
    }
    for i in 100..400 {
        assert_eq!(world.map(i * LARGE, 2), [0; 3], "large pages count as zero");
    }
    world.check();
    assert_eq!(world.nodes(), [(4, 1, 1), (3, 1, 1), (2, 1, 1), (1, 1, 63)]);
    assert_eq!(world.map(63 * LARGE, 1), [1, 0, 0]);
    assert_eq!(world.nodes(), [(4, 1, 1), (3, 1, 1), (2, 2, 1)]);
    world.check();
    assert_eq!((world.reads(5 * PAGE), world.reads(200 * LARGE)), (3, 3));
    assert_eq!(world.map(64 * LARGE, 1), [0; 3], "it is merged already");
}

#[test]
fn without_memory_it_stays_as_it_is_until_the_next_slot_fills() {
    let mut world = World::paper(Geometry::X86_4);
    for i in 0..511 {
        let refused = u32::from(i >= 63);
        assert_eq!(world.map_with(i * LARGE, 1, false), [0, 0, refused]);
    }
    assert_eq!(world.map(PAGE, 1), [0; 3], "no slot of the PMD fills");
    let before = world.memory.live.len();
    assert_eq!(world.map(511 * LARGE, 1), [1, 0, 0]);
    // Section 4: 513 frames become one of 2 MiB.
    assert_eq!(before + 1 - (world.memory.live.len() - 1), 513);
    assert_eq!(world.nodes(), [(4, 1, 1), (3, 1, 1), (2, 2, 1)]);
    world.check();
}

#[test]
fn it_is_taken_apart_below_the_lower_threshold_and_drops_what_is_empty() {
    let mut world = World::paper(Geometry::X86_4);
    for i in 0..100 {
        world.map(i * LARGE, 1);
        world.map(i * LARGE + PAGE, 1);
    }
    for i in 0..68 {
        assert_eq!(world.unmap_with(i * LARGE, true), [0; 3], "a page is left");
        assert_eq!(world.unmap_with(i * LARGE + PAGE, true), [0; 3], "32 or more are left");
    }
    assert_eq!(world.nodes(), [(4, 1, 1), (3, 1, 1), (2, 2, 1)]);
    world.unmap_with(68 * LARGE, true);
    assert_eq!(world.unmap_with(68 * LARGE + PAGE, false), [0, 0, 1], "but no memory for 32 nodes");
    assert_eq!(world.nodes(), [(4, 1, 1), (3, 1, 1), (2, 2, 1)]);
    world.unmap_with(69 * LARGE, true);
    assert_eq!(world.unmap_with(69 * LARGE + PAGE, true), [0, 1, 0]);
    assert_eq!(world.nodes(), [(4, 1, 1), (3, 1, 1), (2, 1, 1), (1, 1, 30)]);
    world.check();
}

/// Maps a page in each of the regions of `bytes` from `start` on.
fn sparse(world: &mut World, start: u64, bytes: u64, regions: std::ops::Range<u64>) {
    for i in regions {
        world.map(start + i * bytes, 1);
    }
}

#[test]
fn branching_overlap_has_the_best_of_both_worlds() {
    // Figure 9(c): a PUD/PMD, below it one PMD/PTE among PTEs.
    let mut world = World::paper(Geometry::X86_4);
    sparse(&mut world, 0, GIB, 0..64);
    sparse(&mut world, 7 * GIB, LARGE, 1..64);
    world.check();
    assert_eq!(world.nodes(), [(4, 1, 1), (3, 2, 1), (2, 2, 1), (1, 1, 63)]);
    let dense = 7 * GIB + 9 * LARGE;
    assert_eq!((world.reads(3 * GIB), world.reads(dense)), (3, 3));
    // The first walk leaves the base of the PMD/PTE under VA[47:30]: any other takes one access.
    let mut walk = world.table.walk(Gva::new(dense));
    let mut known = walk.at();
    while let Step::Table(at) = world.step(&mut walk) {
        known = at;
    }
    assert_eq!((known.level, known.width), (2, 2));
    let other = Gva::new(7 * GIB + 40 * LARGE);
    assert_eq!(world.reads_of(Walk::from(Geometry::X86_4, known, other)), 1);
    // So it does where no page was when the nodes were merged.
    world.map(7 * GIB + 500 * LARGE, 1);
    let fresh = Gva::new(7 * GIB + 500 * LARGE);
    assert_eq!(world.reads_of(Walk::from(Geometry::X86_4, known, fresh)), 1);
    world.check();
}

#[test]
fn multi_layer_overlap_leads_past_the_middle_and_drops_it_when_useless() {
    // Figure 11: a PGD/PUD, below it a PUD/PMD, below that a PMD/PTE among PTEs.
    let mut world = World::paper(Geometry::X86_4);
    sparse(&mut world, 0, PUD, 0..64);
    assert_eq!(world.nodes()[0], (4, 2, 1));
    sparse(&mut world, 5 * PUD, GIB, 1..64);
    assert_eq!(world.nodes()[1], (3, 2, 1));
    sparse(&mut world, 5 * PUD + 9 * GIB, LARGE, 1..64);
    world.check();
    let dense = 5 * PUD + 9 * GIB + 40 * LARGE;
    assert_eq!(world.reads(dense), 2, "11(b): straight from the PGD/PUD");
    assert_eq!(world.reads(5 * PUD + 8 * GIB), 3, "through the PUD/PMD");
    assert_eq!(world.reads(6 * PUD), 3, "PGD/PUD, PMD, PTE");
    // More PMDs merge, until the PUD/PMD serves fewer than 32 others.
    for pmd in (0..64).filter(|&pmd| pmd != 9).take(31) {
        sparse(&mut world, 5 * PUD + pmd * GIB, LARGE, 1..64);
    }
    assert_eq!(world.nodes()[1], (3, 2, 1));
    sparse(&mut world, 5 * PUD + 60 * GIB, LARGE, 1..63);
    assert_eq!(world.map(5 * PUD + 60 * GIB + 63 * LARGE, 1), [1, 1, 0]);
    assert_eq!(world.nodes(), [(4, 2, 1), (2, 2, 33), (2, 1, 63 + 31), (1, 1, 63 + 31)]);
    assert_eq!(world.reads(dense), 2);
    assert_eq!(world.reads(5 * PUD + 50 * GIB), 3, "PGD/PUD, PMD of 4 KiB, PTE");
    world.check();
}

#[test]
fn with_4_kib_pages_merging_goes_to_the_leaves() {
    // Figure 8: on one path where all is dense, PGD/PUD and PMD/PTE; and 12(b) with five levels.
    let mut world = World::paper(Geometry::X86_4);
    for gib in 0..64 {
        sparse(&mut world, gib * GIB, LARGE, 0..64);
    }
    assert_eq!(world.nodes(), [(4, 1, 1), (3, 1, 1), (2, 2, 64)], "no PUD/PMD in between");
    sparse(&mut world, 0, PUD, 1..64);
    assert_eq!(world.nodes()[..2], [(4, 2, 1), (2, 2, 64)]);
    assert_eq!(world.reads(33 * GIB + 5 * LARGE), 2);
    world.check();

    let mut world = World::paper(Geometry::X86_5);
    sparse(&mut world, 0, 512 * PUD, 0..63);
    for gib in 0..64 {
        sparse(&mut world, gib * GIB, LARGE, u64::from(gib == 0)..64);
    }
    sparse(&mut world, 0, PUD, 1..64);
    assert_eq!(world.nodes()[..2], [(5, 1, 1), (4, 2, 1)], "the PGD stays sparse");
    assert_eq!(world.reads(33 * GIB + 5 * LARGE), 3);
    sparse(&mut world, 0, 512 * PUD, 63..65);
    assert_eq!(world.nodes()[0], (5, 2, 1), "until many other P4Ds gain");
    assert_eq!(world.reads(33 * GIB + 5 * LARGE), 3, "five levels in three nodes at best");
    world.check();
}

#[test]
fn with_large_pages_merging_goes_to_the_levels_above() {
    // Figure 12(c): PGD/P4D and PUD/PMD, two accesses; with four levels PUD/PMD alone.
    for (geometry, count) in [(Geometry::X86_4, 2), (Geometry::X86_5, 2)] {
        let mut world = World::paper(geometry);
        for gib in 0..64 {
            for i in 0..64 {
                world.map(gib * GIB + i * LARGE, 2);
            }
        }
        let levels = geometry.levels();
        if levels == 5 {
            assert_eq!(world.nodes(), [(5, 1, 1), (4, 1, 1), (3, 2, 1)]);
            for p4d in 1..65 {
                world.map(p4d * 512 * PUD, 2);
            }
            assert_eq!(world.nodes()[..2], [(5, 2, 1), (3, 2, 1)]);
        } else {
            assert_eq!(world.nodes(), [(4, 1, 1), (3, 2, 1)]);
        }
        assert_eq!(world.reads(33 * GIB + 7 * LARGE + 5 * PAGE), count);
        world.check();
    }
}

#[test]
fn large_pages_lie_in_both_of_two_overlapping_nodes() {
    // Section 4.5: directly in the PUD/PMD, and in 512 replicas in the PMD/PTE.
    let mut world = World::paper(Geometry::X86_4);
    sparse(&mut world, 0, GIB, 0..64);
    sparse(&mut world, 0, LARGE, 1..64);
    let at = 100 * LARGE;
    world.map(at, 2);
    world.check();
    assert_eq!(world.reads(at), 2, "the PGD, and the PUD/PMD");
    let merged = raw_nodes(&world.memory, world.model.sizes, world.table.root());
    let pte = merged.iter().find(|node| (node.top, node.width) == (2, 2)).unwrap();
    let from_cache = flatwalk_paging::NodeRef {
        base: Hpa::new(pte.base),
        level: 2,
        width: 2,
        rights: Rights::ALL,
    };
    let mut walk = Walk::from(Geometry::X86_4, from_cache, Gva::new(at + 77 * PAGE));
    let Step::Leaf(leaf) = world.step(&mut walk) else { panic!("a replica is a leaf") };
    assert_eq!((leaf.level, leaf.frame), (2, Hpa::new(1 << 45)));
    // Whichever entry the hardware marks dirty, the page is.
    world.memory.set(leaf.entry_address.raw(), leaf.entry.touched(true).0);
    assert!(world.table.lookup(&world.memory, Gva::new(at)).unwrap().attributes.dirty);
    world.unmap_with(at, true);
    world.check();
}
