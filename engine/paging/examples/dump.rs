//! Prints random tables of every layout as JSON: their words, and what the engine makes of them.
//! An implementation of its own (`tests/oracles/paging.py`) reads the words and has to agree.
//!
//! `cargo run -p flatwalk-paging --example dump -- SEED`

use std::cell::RefCell;
use std::collections::BTreeSet;

use flatwalk_paging::{
    Address, Attributes, Density, EntryMemory, EntryMemoryMut, Fault, Geometry, Gva, Hpa, Layout,
    Level, NodeAllocator, Rights, Shape, Tree, Width, organisations::REGISTRY,
};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};

/// A small generator (xorshift): the dump depends on the seed alone.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }
}

#[derive(Default)]
struct Memory {
    words: FxHashMap<u64, u64>,
    /// Addresses that were read.
    read: RefCell<BTreeSet<u64>>,
    next: u64,
    /// Whether blocks over 16 KiB are refused.
    fragmented: bool,
}

impl EntryMemory<Hpa> for Memory {
    fn read(&self, at: Hpa) -> u64 {
        self.read.borrow_mut().insert(at.raw());
        self.words.get(&at.raw()).copied().unwrap_or(0)
    }
}

impl EntryMemoryMut<Hpa> for Memory {
    fn write(&mut self, at: Hpa, value: u64) {
        self.words.insert(at.raw(), value);
    }
}

impl NodeAllocator<Hpa> for Memory {
    fn allocate(&mut self, size_shift: u8) -> Option<Hpa> {
        // Blocks over 1 GiB do not exist.
        if size_shift > if self.fragmented { 14 } else { 30 } {
            return None;
        }
        let at = self.next.next_multiple_of(1 << size_shift);
        self.next = at + (1 << size_shift);
        Some(Hpa::new(at))
    }

    fn end_bytes(&self) -> u64 {
        1 << 48
    }

    fn free(&mut self, _at: Hpa, _size_shift: u8) {}
}

/// Keeps level 2 and below apart in every other region of level 3.
struct Patchy(Layout);

impl Shape for Patchy {
    fn width(&self, level: Level, address: u64) -> Width {
        let region = address >> self.0.geometry().shift(3);
        if level == 2 && region & 1 == 0 { 1 } else { self.0.width(level, address) }
    }

    fn density(&self) -> Option<Density> {
        self.0.density()
    }
}

/// Addresses whose indices are first, second or last at each level, so that they share nodes.
fn address(geometry: Geometry, random: &mut Random) -> u64 {
    let last = (1 << geometry.index_bits()) - 1;
    let indices = (1..=geometry.levels()).map(|level| {
        let index = [0, 0, 0, 1, last][random.below(5) as usize];
        index << geometry.shift(level)
    });
    let address: u64 = indices.sum::<u64>() | random.below(1 << geometry.page_shift());
    let unused = 64 - u32::from(geometry.address_bits());
    ((address << unused).cast_signed() >> unused).cast_unsigned()
}

fn table(name: &str, layout: &Layout, random: &mut Random) -> Value {
    let geometry = layout.geometry();
    let shape = Patchy(layout.clone());
    let mut memory = Memory { next: 1 << 32, ..Memory::default() };
    let mut tree: Tree<Gva, Hpa> =
        Tree::new(geometry, &shape, &mut memory).expect("there is memory");
    let mut probes = BTreeSet::new();
    for page in 0..24 {
        let at = address(geometry, random);
        let level = 1 + random.below(3.min(geometry.levels().into())) as Level;
        memory.fragmented = random.below(4) == 0;
        let start = Gva::new(at & !(geometry.span(level) - 1));
        let frame = Hpa::new((1 << 45) + page * geometry.span(3));
        let [write, user, execute] = [0, 1, 2].map(|_| random.below(4) > 0);
        let attributes = Attributes::new(Rights { write, user, execute });
        // What is occupied already stays as it is.
        if let Ok(made) = tree.map(&mut memory, &shape, start, frame, level, attributes) {
            let _ = tree.merge_dense(&mut memory, start, made.filled);
        }
        if random.below(6) == 0 && tree.unmap(&mut memory, Gva::new(at)).is_ok() {
            let _ = tree.split_sparse(&mut memory, Gva::new(at));
        }
        for offset in [0, geometry.span(level) - 1, geometry.span(level)] {
            probes.insert(start.raw().wrapping_add(offset));
        }
        probes.insert(at);
    }
    let walk = |memory: &Memory, at| tree.translate(memory, Gva::new(at));
    // Spoil a few of the words that walks read, so that every kind of entry occurs.
    memory.read.take();
    probes.retain(|&at| geometry.is_canonical(at));
    for &at in &probes {
        let _ = walk(&memory, at);
    }
    let read: Vec<u64> = memory.read.take().into_iter().collect();
    for _ in 0..random.below(8) {
        let at = read[random.below(read.len() as u64) as usize];
        let bit = [0, 1, 2, 7, 12, 21, 57, 58, 59, 63][random.below(10) as usize];
        *memory.words.entry(at).or_default() ^= 1 << bit;
    }
    let answers: Vec<Value> = probes
        .into_iter()
        .map(|at| match walk(&memory, at) {
            Ok(leaf) => {
                let physical = leaf.frame.raw() + (at & (geometry.span(leaf.level) - 1));
                let Rights { write, user, execute } = leaf.rights;
                json!({"address": at, "physical": physical, "level": leaf.level, "write": write,
                    "user": user, "execute": execute, "entry": leaf.entry_address.raw()})
            }
            Err(Fault::NotPresent { level, entry_address }) => json!({"address": at,
                "fault": "not present", "level": level, "entry": entry_address.raw()}),
            Err(Fault::Reserved { level, entry_address }) => json!({"address": at,
                "fault": "reserved", "level": level, "entry": entry_address.raw()}),
            Err(Fault::NotCanonical) => unreachable!("filtered out above"),
        })
        .collect();
    let root = tree.root();
    // The lines of memory that walks touch: as much as hardware would fetch.
    let lines: BTreeSet<u64> = memory.read.take().into_iter().map(|at| at & !63).collect();
    let words = lines.into_iter().flat_map(|line| (line..line + 64).step_by(8));
    let words: Vec<(u64, u64)> =
        words.map(|at| (at, memory.words.get(&at).copied().unwrap_or(0))).collect();
    json!({
        "name": name,
        "page_shift": geometry.page_shift(),
        "index_bits": geometry.index_bits(),
        "levels": geometry.levels(),
        "root": {"base": root.base.raw(), "level": root.level, "width": root.width},
        "words": words,
        "answers": answers,
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seed: u64 = std::env::args().nth(1).ok_or("usage: dump SEED")?.parse()?;
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let groups: [&[&str]; 10] = [
        &["L2L1"],
        &["L3L2"],
        &["L3L2L1"],
        &["L4L3"],
        &["L4L3", "L2L1"],
        &["L4L3L2"],
        &["L5L4"],
        &["L5L4", "L2L1"],
        &["L5L4", "L3L2"],
        &["L5L4", "L3L2L1"],
    ];
    let ia64 = |levels| Geometry::new(14, 11, levels);
    let odd = Geometry::new(12, 5, 4)?;
    // A node is merged as soon as two of its entries gain, and stays for one.
    let density = |geometry: Geometry| {
        let entries = geometry.node_entries(1) as f64;
        json!({ "merge_fraction": 1.5 / entries, "unmerge_fraction": 0.5 / entries, "merge_us": 0 })
    };
    let mut tables = Vec::new();
    for geometry in [Geometry::X86_3, Geometry::X86_4, Geometry::X86_5, ia64(3)?, ia64(4)?, odd] {
        for organisation in REGISTRY {
            // An organisation says itself what it takes.
            let flattened = groups.map(|groups| json!({ "flatten": groups }));
            for parameters in [json!({}), density(geometry)].iter().chain(&flattened) {
                let keys = parameters.as_object().expect("an object");
                let layout = (organisation.layout)(geometry, keys);
                if let Some(layout) = layout.ok().filter(Layout::is_tree) {
                    let name = format!("{} {geometry:?} {parameters}", organisation.name);
                    tables.push(table(&name, &layout, &mut random));
                }
            }
        }
    }
    println!("{}", Value::Array(tables));
    Ok(())
}
