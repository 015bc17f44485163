//! What the tests share: a sparse memory with an allocator that can refuse, every layout of every
//! organisation, and arithmetic on addresses that owes nothing to the crate's.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use flatwalk_paging::organisations::{self, REGISTRY};
use flatwalk_paging::{
    Address, Density, EntryMemory, EntryMemoryMut, Geometry, Hpa, Layout, LayoutError, Level,
    NodeAllocator, NodeRef, Shape, Width,
};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

/// Word that freed nodes are filled with: a present, writable pointer (or base page) to nowhere.
const POISON: u64 = 0x000b_adba_dbad_b007;
/// Blocks up to this size are used again; larger ones have addresses to spare.
const REUSED_BYTES: u64 = 1 << 21;
/// Where the memory ends that tests map pages to.
const END_BYTES: u64 = 1 << 48;
/// Larger blocks than 1 GiB do not exist.
const LARGEST_SHIFT: u8 = 30;

/// Physical memory: words that are zero until written, and an allocator for nodes.
#[derive(Default)]
pub struct Memory {
    words: FxHashMap<u64, Box<[u64; 512]>>,
    written: BTreeSet<u64>,
    free: BTreeMap<u64, Vec<u64>>,
    /// Blocks given out: address and bytes.
    pub live: BTreeMap<u64, u64>,
    next: u64,
    /// Smallest node of the table under test; blocks above it are "large".
    pub small_bytes: u64,
    /// Which of the next allocations fail (bit 0: the very next).
    pub refuse: u32,
    /// Whether all large allocations fail.
    pub refuse_large: bool,
    /// What happened since [`Memory::begin`].
    pub counts: Counts,
    reads: Cell<u64>,
    /// Addresses read since then.
    read_at: RefCell<BTreeSet<u64>>,
}

/// What was asked of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub refused: u64,
    /// Of them, those for no more than the smallest node.
    pub refused_small: u64,
    pub allocated: u64,
    pub allocated_bytes: u64,
    pub freed: u64,
    pub reads: u64,
    pub writes: u64,
}

impl Memory {
    pub fn new(sizes: Sizes) -> Self {
        let small_bytes = (sizes.fan * 8).max(4096);
        Self { next: 1 << 32, small_bytes, ..Self::default() }
    }

    /// Starts counting anew, with these refusals ahead.
    pub fn begin(&mut self, refuse: u32, refuse_large: bool) {
        self.counts = Counts::default();
        self.reads.set(0);
        self.read_at.take();
        (self.refuse, self.refuse_large) = (refuse, refuse_large);
    }

    /// The counts; no more refusals.
    pub fn end(&mut self) -> Counts {
        (self.refuse, self.refuse_large) = (0, false);
        Counts { reads: self.reads.get(), ..self.counts }
    }

    /// The blocks given out, by address, that were read since [`Memory::begin`].
    pub fn blocks_read(&self) -> BTreeSet<u64> {
        let block = |&at: &u64| self.live.range(..=at).next_back().map(|(&start, _)| start);
        self.read_at.borrow().iter().filter_map(block).collect()
    }

    /// Words other than zero from `start` on, with their addresses.
    pub fn words_in(&self, start: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.written.range(start..start + bytes).flat_map(move |&frame| {
            let words = self.words[&frame].iter().enumerate();
            words.filter(|(_, w)| **w != 0).map(move |(i, &w)| (frame + 8 * i as u64, w))
        })
    }

    /// Every word in every block that is given out.
    pub fn image(&self) -> BTreeMap<u64, u64> {
        self.live.iter().flat_map(|(&start, &bytes)| self.words_in(start, bytes)).collect()
    }

    fn forget(&mut self, start: u64, bytes: u64) {
        let frames: Vec<u64> = self.written.range(start..start + bytes).copied().collect();
        for frame in frames {
            self.written.remove(&frame);
            self.words.remove(&frame);
        }
    }

    pub fn set(&mut self, at: u64, value: u64) {
        assert_eq!(at % 8, 0);
        let frame = at & !4095;
        self.written.insert(frame);
        let words = self.words.entry(frame).or_insert_with(|| Box::new([0; 512]));
        words[(at % 4096 / 8) as usize] = value;
    }

    pub fn get(&self, at: u64) -> u64 {
        assert_eq!(at % 8, 0);
        self.words.get(&(at & !4095)).map_or(0, |words| words[(at % 4096 / 8) as usize])
    }
}

impl EntryMemory<Hpa> for Memory {
    fn read(&self, at: Hpa) -> u64 {
        self.reads.set(self.reads.get() + 1);
        self.read_at.borrow_mut().insert(at.raw());
        self.get(at.raw())
    }
}

impl EntryMemoryMut<Hpa> for Memory {
    fn write(&mut self, at: Hpa, value: u64) {
        self.counts.writes += 1;
        self.set(at.raw(), value);
    }
}

impl NodeAllocator<Hpa> for Memory {
    fn allocate(&mut self, size_shift: u8) -> Option<Hpa> {
        let refused = self.refuse & 1 != 0;
        self.refuse >>= 1;
        let bytes = 1u64 << size_shift;
        if refused || size_shift > LARGEST_SHIFT || (self.refuse_large && bytes > self.small_bytes)
        {
            self.counts.refused += 1;
            self.counts.refused_small += u64::from(bytes == self.small_bytes);
            return None;
        }
        let at = self.free.get_mut(&bytes).and_then(Vec::pop).unwrap_or_else(|| {
            let at = self.next.next_multiple_of(bytes);
            self.next = at + bytes;
            at
        });
        self.forget(at, bytes);
        self.live.insert(at, bytes);
        self.counts.allocated += 1;
        self.counts.allocated_bytes += bytes;
        Some(Hpa::new(at))
    }

    fn end_bytes(&self) -> u64 {
        END_BYTES
    }

    fn free(&mut self, at: Hpa, size_shift: u8) {
        let (at, bytes) = (at.raw(), 1u64 << size_shift);
        assert_eq!(self.live.remove(&at), Some(bytes), "freed what was not given out: {at:#x}");
        self.counts.freed += 1;
        self.forget(at, bytes);
        if bytes <= REUSED_BYTES {
            for frame in (at..at + bytes).step_by(4096) {
                self.written.insert(frame);
                self.words.insert(frame, Box::new([POISON; 512]));
            }
            self.free.entry(bytes).or_default().push(at);
        }
    }
}

/// Sizes by multiplication: bytes of a base page, entries of a level, number of levels.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub page: u64,
    pub fan: u64,
    pub levels: Level,
}

impl Sizes {
    pub fn of(geometry: Geometry) -> Self {
        Self {
            page: 1 << geometry.page_shift(),
            fan: 1 << geometry.index_bits(),
            levels: geometry.levels(),
        }
    }

    /// Bytes that an entry of `level` translates.
    pub fn entry(self, level: Level) -> u128 {
        (1..level).fold(u128::from(self.page), |bytes, _| bytes * u128::from(self.fan))
    }

    /// Bytes of a page of `level` (1 to 3).
    pub fn bytes(self, level: Level) -> u64 {
        u64::try_from(self.entry(level)).unwrap()
    }

    /// Bytes that the table translates, both halves together.
    pub fn all(self) -> u128 {
        self.entry(self.levels + 1)
    }

    /// The canonical address with this offset from the start of the address space.
    pub fn canonical(self, offset: u128) -> u64 {
        let offset = offset % self.all();
        let raised =
            if offset >= self.all() / 2 { offset + (1 << 64) - self.all() } else { offset };
        u64::try_from(raised).unwrap()
    }

    /// The offset of a canonical address.
    pub fn offset(self, address: u64) -> u128 {
        u128::from(address) % self.all()
    }

    /// The index of `address` among the entries of `level`.
    pub fn digit(self, address: u64, level: Level) -> u64 {
        (self.offset(address) / self.entry(level) % u128::from(self.fan)) as u64
    }

    /// The canonical address with these indices, root first, and byte offset.
    pub fn address(self, digits: &[u64], byte: u64) -> u64 {
        let fold = |sum: u128, &digit: &u64| sum * u128::from(self.fan) + u128::from(digit);
        let pages = digits.iter().fold(0, fold);
        self.canonical(pages * u128::from(self.page) + u128::from(byte))
    }
}

/// A node as its parent's word describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawNode {
    pub base: u64,
    pub top: Level,
    pub width: Width,
    pub used: u64,
    /// First address that it serves.
    pub start: u64,
}

impl RawNode {
    pub fn bottom(self) -> Level {
        self.top + 1 - self.width
    }
}

/// Every node that can be reached, by following words according to the specification.
pub fn raw_nodes(memory: &Memory, sizes: Sizes, root: NodeRef<Hpa>) -> Vec<RawNode> {
    let mut nodes = Vec::new();
    let mut seen = BTreeMap::new();
    let mut pending = vec![(root.base.raw(), root.level, root.width, 0u128)];
    while let Some((base, top, width, offset)) = pending.pop() {
        // Several entries lead to a node that overlaps, all for the same addresses.
        if let Some(known) = seen.insert(base, (top, width, offset)) {
            assert_eq!(known, (top, width, offset), "a node is used as two");
            continue;
        }
        let bottom = top + 1 - width;
        let mut used = 0;
        for (at, word) in memory.words_in(base, sizes.fan.pow(u32::from(width)) * 8) {
            assert_eq!(word & 1, 1, "a word without the present bit is zero: {word:#x} at {at:#x}");
            used += 1;
            if bottom > 1 && word & (1 << 7) == 0 {
                let child = word & 0x000f_ffff_ffff_f000;
                let child_width = match word >> 57 & 3 {
                    0 => 1,
                    2 => 2,
                    1 => 3,
                    _ => panic!("reserved width in {word:#x} at {at:#x}"),
                };
                let child_top = bottom - 1 + (word >> 59 & 1) as Level;
                let start = offset + u128::from((at - base) / 8) * sizes.entry(bottom);
                let start = start - start % sizes.entry(child_top + 1);
                pending.push((child, child_top, child_width, start));
            }
        }
        nodes.push(RawNode { base, top, width, used, start: sizes.canonical(offset) });
    }
    nodes
}

/// A layout under test.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub geometry: Geometry,
    pub sizes: Sizes,
    pub layout: Layout,
    /// Group widths, root first.
    pub widths: Vec<Width>,
    /// If nodes are merged by how full they are: when.
    pub density: Option<Density>,
}

impl Case {
    /// Width that a node with this topmost level should have.
    pub fn wanted(&self, level: Level) -> Width {
        let mut top = self.sizes.levels;
        for &width in &self.widths {
            if top == level {
                return width;
            }
            top -= width;
        }
        1
    }

    /// Whether one group spans both levels.
    pub fn joins(&self, upper: Level, lower: Level) -> bool {
        let mut top = self.sizes.levels;
        self.widths.iter().any(|&width| {
            let bottom = top + 1 - width;
            let both = top >= upper && lower >= bottom;
            top = top.saturating_sub(width);
            both
        })
    }
}

/// All ways to group `levels` levels into nodes of one to three, root first.
pub fn groupings(levels: Level) -> Vec<Vec<Width>> {
    if levels == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for width in 1..=levels.min(3) {
        for mut rest in groupings(levels - width) {
            rest.insert(0, width);
            all.push(rest);
        }
    }
    all
}

/// The names of the groups that span more than one level, as scheme files write them.
pub fn names(levels: Level, widths: &[Width]) -> Vec<String> {
    let mut top = levels;
    let mut names = Vec::new();
    for &width in widths {
        if width > 1 {
            let levels: Vec<String> = (0..width).map(|i| format!("L{}", top - i)).collect();
            names.push(levels.concat());
        }
        top -= width;
    }
    names
}

/// The layout of `organisation` with these parameters.
pub fn layout(organisation: &str, geometry: Geometry, parameters: &Value) -> Layout {
    let parameters = parameters.as_object().expect("a JSON object");
    organisations::layout(organisation, geometry, parameters).expect("valid parameters")
}

/// The layouts of an organisation for `geometry` with those of the `parameters` that are its own, each
/// with its number among them; none, if it has not got that geometry.
fn layouts_of<'a>(
    organisation: &organisations::Organisation,
    geometry: Geometry,
    parameters: impl IntoIterator<Item = &'a Value>,
) -> Vec<(usize, Layout)> {
    let mut layouts = Vec::new();
    let mut refused = false;
    for (number, parameters) in parameters.into_iter().enumerate() {
        match (organisation.layout)(geometry, parameters.as_object().expect("a JSON object")) {
            Ok(layout) => layouts.push((number, layout)),
            Err(LayoutError::Parameters { .. }) => {}
            Err(LayoutError::Value { key: "levels", .. }) => refused = true,
            Err(error) => panic!("{parameters}: {error}"),
        }
    }
    assert!(refused || !layouts.is_empty(), "no layout of {} is tested", organisation.name);
    layouts
}

/// Parameters of tables without a tree: some that are always being resized, and some that are crowded.
fn keyed_parameters() -> Vec<Value> {
    let ways = |ways: u32, lines: u32, grow: f64, walk_tables: Option<[u32; 2]>| {
        json!({
            "ways": ways, "initial_entries": lines, "grow_occupancy": grow, "growth_factor": 4,
            "shrink_occupancy": grow / 2.5, "walk_table_entries": walk_tables,
        })
    };
    vec![
        ways(3, 64, 0.05, Some([64, 64])),
        ways(2, 64, 0.02, None),
        ways(4, 128, 0.9, Some([64, 128])),
        json!({ "buckets": 32 }),
        json!({}),
    ]
}

/// Every grouping of `geometry`'s levels in every organisation that offers it.
pub fn cases_of(geometry: Geometry) -> Vec<Case> {
    let sizes = Sizes::of(geometry);
    let conventional = vec![1; usize::from(sizes.levels)];
    // Conventional; grouped; merging by density: as soon as anything can gain, and a little later.
    let mut choices = vec![(conventional.clone(), json!({}))];
    for widths in groupings(sizes.levels).into_iter().filter(|widths| *widths != conventional) {
        let flatten = names(sizes.levels, &widths);
        choices.push((widths, json!({ "flatten": flatten })));
    }
    let share = |n: u64| (n.min(sizes.fan) as f64 - 0.5) / sizes.fan as f64;
    for (merge, unmerge) in [(1, 1), (2, 1), (3, 2)] {
        let (merge, unmerge) = (share(merge), share(unmerge));
        let parameters =
            json!({ "merge_fraction": merge, "unmerge_fraction": unmerge, "merge_us": 0 });
        choices.push((conventional.clone(), parameters));
    }
    let others = keyed_parameters();
    let mut cases = Vec::new();
    for organisation in REGISTRY {
        let all = choices.iter().map(|(_, parameters)| parameters).chain(&others);
        for (number, layout) in layouts_of(organisation, geometry, all) {
            // Tables without a tree: see `keyed_cases`.
            let Some((widths, parameters)) = choices.get(number).filter(|_| layout.is_tree())
            else {
                continue;
            };
            let (bits, levels) = (geometry.index_bits(), sizes.levels);
            let (density, widths) = (layout.density(), widths.clone());
            let name = format!("{} {bits}x{levels} {parameters}", organisation.name);
            cases.push(Case { name, geometry, sizes, layout, widths, density });
        }
    }
    cases
}

/// Tables without a tree of `geometry`, of every organisation that has them.
pub fn keyed_cases(geometry: Geometry) -> Vec<(String, Layout)> {
    let parameters = keyed_parameters();
    let mut cases = Vec::new();
    for organisation in REGISTRY {
        let trees = [
            json!({ "flatten": ["L2L1"] }),
            json!({ "merge_fraction": 0.5, "unmerge_fraction": 0.1, "merge_us": 0 }),
        ];
        for (number, layout) in layouts_of(organisation, geometry, parameters.iter().chain(&trees))
        {
            if !layout.is_tree() {
                let name = format!("{} {geometry:?} {}", organisation.name, parameters[number]);
                cases.push((name, layout));
            }
        }
    }
    cases
}

/// The named grouping, for example `&[2, 2]` for L4L3 and L2L1.
pub fn case(geometry: Geometry, widths: &[Width]) -> Case {
    cases_of(geometry).into_iter().find(|case| case.widths == widths).expect("every grouping")
}

pub fn ia64(levels: Level) -> Geometry {
    Geometry::new(14, 11, levels).unwrap()
}

/// Every case of every geometry that matters, and of odd ones that reach corners quickly.
pub fn cases() -> Vec<Case> {
    let geometry = |page, bits, levels| Geometry::new(page, bits, levels).unwrap();
    let odd = [geometry(12, 3, 4), geometry(13, 2, 6), geometry(16, 4, 2), geometry(12, 1, 5)];
    let mut all: Vec<Case> = [Geometry::X86_3, Geometry::X86_4, Geometry::X86_5, ia64(3), ia64(4)]
        .into_iter()
        .chain(odd)
        .flat_map(cases_of)
        .collect();
    // All 64 address bits; three levels together would be a node of 2^24 entries.
    let full = cases_of(geometry(16, 8, 6)).into_iter();
    all.extend(full.filter(|case| case.widths.iter().all(|&width| width < 3)));
    all
}

/// A layout in which every other region of level 3 keeps level 2 and below unflattened, as the
/// rule for regions with many large pages makes it.
#[derive(Clone, Copy)]
pub struct Patchy<'a> {
    pub case: &'a Case,
    /// False: the plain layout.
    pub patches: bool,
}

impl Patchy<'_> {
    fn patched(&self, level: Level, address: u64) -> bool {
        self.patches && level == 2 && self.case.sizes.digit(address, 3).is_multiple_of(2)
    }

    /// The width that a node should have, from the case's own list.
    pub fn wanted(&self, level: Level, address: u64) -> Width {
        if self.patched(level, address) { 1 } else { self.case.wanted(level) }
    }
}

impl Shape for Patchy<'_> {
    fn width(&self, level: Level, address: u64) -> Width {
        if self.patched(level, address) { 1 } else { self.case.layout.width(level, address) }
    }

    fn density(&self) -> Option<Density> {
        self.case.layout.density()
    }
}
