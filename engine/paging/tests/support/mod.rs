//! What the tests share: every layout of every organisation, and nodes as their words describe them.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::BTreeMap;

#[allow(unused_imports, reason = "each test file uses its own part")]
pub use flatwalk_paging::conformance::{Counts, Memory, Sizes};
use flatwalk_paging::organisations::{self, REGISTRY};
use flatwalk_paging::{
    Address, Density, Geometry, Hpa, Layout, LayoutError, Level, NodeRef, Shape, Width,
};
use serde_json::{Value, json};

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
/// with its number among them.
fn layouts_of(
    organisation: &organisations::Organisation,
    geometry: Geometry,
    parameters: &[Value],
) -> Vec<(usize, Layout)> {
    let mut layouts = Vec::new();
    for (number, parameters) in parameters.iter().enumerate() {
        match (organisation.layout)(geometry, parameters.as_object().expect("a JSON object")) {
            Ok(layout) => layouts.push((number, layout)),
            // Other organisations' parameters; or a geometry, or levels, that it has not got.
            Err(LayoutError::Parameters { .. } | LayoutError::Value { .. }) => {}
            Err(error) => panic!("{parameters}: {error}"),
        }
    }
    layouts
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
    let parameters: Vec<_> = choices.iter().map(|(_, parameters)| parameters.clone()).collect();
    let mut cases = Vec::new();
    for organisation in REGISTRY {
        for (number, layout) in layouts_of(organisation, geometry, &parameters) {
            // Tables without a tree: see `keyed_cases`.
            if !layout.is_tree() {
                continue;
            }
            let (widths, parameters) = &choices[number];
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
    let mut cases = Vec::new();
    for organisation in REGISTRY {
        let parameters = (organisation.examples)();
        for (number, layout) in layouts_of(organisation, geometry, &parameters) {
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
