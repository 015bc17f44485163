//! Recursive page tables: with a root that points back to itself, the same addresses reach the
//! same entries in every layout (ASPLOS 2022, section 3.5).
//!
//! Write a virtual address as indices `(i_n, …, i_1, byte)` and let R be the recursion index. The
//! entry of level b on the path of an address is at `(R × b, i_n, …, i_{b+1}, 8 · i_b)`, whatever
//! nodes lie on the path. A root that spans w levels is n^(w−1) conventional tables side by side;
//! the R-th group of its entries points to each of them as such (the "glue" sub-table).

mod support;

use flatwalk_paging::{
    Address, Attributes, Entry, EntryMemory, Geometry, Gva, Hpa, Leaf, Level, Recursion, Rights,
    Step, Tree,
};
use proptest::prelude::*;
use support::{Case, Memory, Patchy, Sizes, cases_of};

type Table = Tree<Gva, Hpa>;

/// Bits of an entry that kernels give the recursion: present and writable, not for user mode.
const SUPERVISOR: u64 = 0b11;

/// Lets the root point to itself at index `slot`, and checks that this is what the crate would write.
fn recurse(memory: &mut Memory, table: &Table, slot: u64) {
    let recursion = Recursion::new(table.geometry(), slot).unwrap();
    let written: Vec<_> = recursion.entries(table.root()).collect();
    let sizes = Sizes::of(table.geometry());
    let root = table.root();
    let tables = sizes.fan.pow(u32::from(root.width) - 1);
    for i in 0..tables {
        let entry = root.base.raw() + 8 * (slot * tables + i);
        memory.set(entry, (root.base.raw() + 8 * sizes.fan * i) | SUPERVISOR);
        assert_eq!(written[i as usize].0.raw(), entry);
        assert_eq!(written[i as usize].1.0, memory.get(entry));
    }
    assert_eq!(written.len() as u64, tables);
}

/// The address at which the entry of `level` on the path of `address` appears.
fn entry_at(sizes: Sizes, slot: u64, address: u64, level: Level) -> u64 {
    let mut digits = vec![slot; usize::from(level)];
    digits.extend((level + 1..=sizes.levels).rev().map(|l| sizes.digit(address, l)));
    sizes.address(&digits, 8 * sizes.digit(address, level))
}

/// The levels, and the places, of the entries that a normal walk reads.
fn path(memory: &Memory, table: &Table, address: u64) -> Vec<(Level, u64)> {
    let mut walk = table.walk(Gva::new(address));
    let mut path = Vec::new();
    loop {
        path.push((walk.at().bottom(), walk.entry_address().raw()));
        if !matches!(walk.feed(Entry(memory.read(walk.entry_address()))), Step::Table(_)) {
            return path;
        }
    }
}

fn translate(memory: &Memory, table: &Table, address: u64) -> (u64, Leaf<Hpa>) {
    let leaf = table
        .translate(memory, Gva::new(address))
        .unwrap_or_else(|fault| panic!("{address:#x}: {fault:?}"));
    let bytes = Sizes::of(table.geometry()).bytes(leaf.level);
    (leaf.frame.raw() + address % bytes, leaf)
}

/// Reads that a walk of `address` takes.
fn reads(memory: &Memory, table: &Table, address: u64) -> usize {
    path(memory, table, address).len()
}

fn build(
    case: &Case,
    patches: bool,
    refuse_large: bool,
    pages: &[(Vec<u64>, Level)],
) -> (Memory, Table, Vec<u64>) {
    let mut memory = Memory::new(case.sizes);
    let shape = Patchy { case, patches };
    memory.begin(0, refuse_large);
    let mut table = Table::new(case.geometry, &shape, &mut memory).unwrap();
    let mut mapped = Vec::new();
    for (number, (digits, level)) in pages.iter().enumerate() {
        // Every other page finds no large block for its nodes.
        memory.begin(0, refuse_large || number % 2 == 1);
        let bytes = case.sizes.bytes(*level);
        let at = case.sizes.address(&digits[..usize::from(case.sizes.levels)], 0);
        let at = at - at % bytes;
        let frame = Hpa::new((1 << 40) + number as u64 * (1 << 30));
        let attributes = Attributes::new(Rights::ALL);
        if table.map(&mut memory, &shape, Gva::new(at), frame, *level, attributes).is_ok() {
            mapped.push(at);
        }
    }
    (memory, table, mapped)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_addresses_reach_every_entry_of_every_layout(
        slot in 256u64..512,
        patches: bool,
        refuse_large: bool,
        pages in prop::collection::vec(
            // The recursion slot (256 and up at the root) is lost to users.
            (0u64..256, prop::collection::vec(prop_oneof![0u64..3, 0u64..512], 5), 1u8..=3),
            1..8,
        ),
        within in any::<u64>(),
    ) {
        let pages: Vec<(Vec<u64>, Level)> = pages
            .into_iter()
            .map(|(root, mut digits, level)| { digits[0] = root; (digits, level) })
            .collect();
        for case in [Geometry::X86_3, Geometry::X86_4, Geometry::X86_5].into_iter().flat_map(cases_of) {
            let (mut memory, table, mapped) = build(&case, patches, refuse_large, &pages);
            recurse(&mut memory, &table, slot);
            for at in mapped {
                let bytes = case.sizes.bytes(translate(&memory, &table, at).1.level);
                let address = at + within % bytes;
                for (level, place) in path(&memory, &table, address) {
                    let window = entry_at(case.sizes, slot, address, level);
                    let recursion = Recursion::new(case.geometry, slot).unwrap();
                    prop_assert_eq!(recursion.window(Gva::new(address), level).raw(), window);
                    prop_assert!(recursion.contains(window) && !recursion.contains(address));
                    let (seen, leaf) = translate(&memory, &table, window);
                    prop_assert_eq!(
                        seen, place, "{}: entry of level {} for {:#x}", case.name, level, address
                    );
                    prop_assert!(!leaf.rights.user, "tables are the kernel's alone");
                    prop_assert!(leaf.rights.write);
                }
            }
        }
    }
}

/// The traces that the designs page works out by hand.
#[test]
fn recursive_walks_read_as_many_entries_as_worked_out_by_hand() {
    let address = |case: &Case, level| entry_at(case.sizes, 300, 0x1234_5678_9000, level);
    // Groups root first; level of the entry that is looked at; entries that the walk reads.
    for (widths, level, count) in [
        (&[1, 1, 1, 1][..], 1, 4),
        (&[2, 1, 1], 1, 3),
        (&[2, 1, 1], 4, 3),
        (&[2, 2], 1, 2),
        (&[1, 2, 1], 1, 3),
        (&[1, 2, 1], 2, 3),
        (&[1, 1, 2], 1, 3),
        (&[3, 1], 1, 2),
    ] {
        let case = support::case(Geometry::X86_4, widths);
        let at = (0..4).rev().map(|l| case.sizes.digit(0x1234_5678_9000, l + 1)).collect();
        let (mut memory, table, mapped) = build(&case, false, false, &[(at, 1)]);
        assert_eq!(mapped, [0x1234_5678_9000]);
        recurse(&mut memory, &table, 300);
        assert_eq!(reads(&memory, &table, address(&case, level)), count, "{widths:?} L{level}");
    }
}

/// A walker that knows no flattening can be pointed to the glue sub-table of a flattened root.
#[test]
fn the_glue_table_serves_a_conventional_walker() {
    let case = support::case(Geometry::X86_4, &[2, 1, 1]);
    let at = 0x1234_5678_9000;
    let digits = (1..=4).rev().map(|l| case.sizes.digit(at, l)).collect();
    let (mut memory, table, _) = build(&case, false, false, &[(digits, 1)]);
    recurse(&mut memory, &table, 300);
    let glue = table.root().base.offset(300 * 4096);
    let root = flatwalk_paging::NodeRef { base: glue, level: 4, width: 1, rights: Rights::ALL };
    assert_eq!(Recursion::new(case.geometry, 300).unwrap().glue(table.root()), root);
    let mut walk = flatwalk_paging::Walk::from(case.geometry, root, Gva::new(at));
    let mut steps = 0;
    let leaf = loop {
        steps += 1;
        match walk.feed(Entry(memory.read(walk.entry_address()))) {
            Step::Table(next) => assert_eq!(next.width, 1),
            Step::Leaf(leaf) => break leaf,
            Step::Fault(fault) => panic!("{fault:?}"),
        }
    };
    assert_eq!((steps, leaf.frame), (4, translate(&memory, &table, at).1.frame));
}
