//! Exact figures of walks and of tables, and walks through memory that no table wrote.

mod support;

use flatwalk_paging::organisations;
use flatwalk_paging::{
    Address, Attributes, Decoded, Entry, EntryMemory, EntryMemoryMut, Fault, Geometry,
    GeometryError, Gva, Hpa, LayoutError, Level, NodeAllocator, NodeRef, Rights, Step, TableError,
    Tree, Walk, Width,
};
use proptest::prelude::*;
use support::{Case, Memory, Patchy, case, cases, ia64};

type Table = Tree<Gva, Hpa>;

fn table(case: &Case, patches: bool) -> (Memory, Table) {
    let mut memory = Memory::new(case.sizes);
    let table = Table::new(case.geometry, &Patchy { case, patches }, &mut memory).unwrap();
    (memory, table)
}

fn map(memory: &mut Memory, table: &mut Table, case: &Case, patches: bool, at: u64, level: Level) {
    let attributes = Attributes::new(Rights::ALL);
    let frame = Hpa::new(1 << 40);
    let shape = Patchy { case, patches };
    let _ = table.map(memory, &shape, Gva::new(at), frame, level, attributes).unwrap();
}

/// Entries that a walk from the root reads.
fn reads(memory: &mut Memory, table: &Table, address: u64) -> u64 {
    memory.begin(0, false);
    table.translate(memory, Gva::new(address)).unwrap();
    memory.end().reads
}

#[test]
fn cold_walks_read_exactly_as_many_entries_as_the_designs_say() {
    /// Groups, root first; reads for a base page, a 2 MiB page and a 1 GiB page.
    type Row = (Geometry, &'static [Width], [u64; 3]);
    let expected: [Row; 14] = [
        (Geometry::X86_3, &[1, 1, 1], [3, 2, 1]),
        (Geometry::X86_4, &[1, 1, 1, 1], [4, 3, 2]),
        (Geometry::X86_5, &[1, 1, 1, 1, 1], [5, 4, 3]),
        (Geometry::X86_4, &[2, 1, 1], [3, 2, 1]),
        (Geometry::X86_4, &[1, 2, 1], [3, 2, 2]),
        (Geometry::X86_4, &[1, 1, 2], [3, 3, 2]),
        (Geometry::X86_4, &[2, 2], [2, 2, 1]),
        (Geometry::X86_4, &[3, 1], [2, 1, 1]),
        (Geometry::X86_5, &[2, 2, 1], [3, 2, 2]),
        (Geometry::X86_5, &[1, 2, 2], [3, 3, 2]),
        (Geometry::X86_5, &[2, 3], [2, 2, 2]),
        (Geometry::X86_3, &[3], [1, 1, 1]),
        (ia64(3), &[1, 1, 1], [3, 2, 1]),
        (ia64(4), &[1, 1, 1, 1], [4, 3, 2]),
    ];
    for (geometry, widths, counts) in expected {
        let case = case(geometry, widths);
        for (level, count) in (1..).zip(counts) {
            let (mut memory, mut table) = table(&case, false);
            let at = case.sizes.canonical(case.sizes.all() - u128::from(case.sizes.bytes(level)));
            map(&mut memory, &mut table, &case, false, at, level);
            let last_byte = at + (case.sizes.bytes(level) - 1);
            for address in [at, last_byte] {
                let seen = reads(&mut memory, &table, address);
                assert_eq!(seen, count, "{}, a page of level {level}", case.name);
            }
        }
    }
}

#[test]
fn a_region_with_many_large_pages_is_not_flattened() {
    let case = case(Geometry::X86_4, &[2, 2]);
    let (mut memory, mut table) = table(&case, true);
    let gib = case.sizes.bytes(3);
    // Region 0 keeps L2 and L1 apart; region 1 is flattened.
    for region in 0..2 {
        map(&mut memory, &mut table, &case, true, region * gib, 1);
        map(&mut memory, &mut table, &case, true, region * gib + (2 << 20), 2);
    }
    let all = [0, 2 << 20, gib, gib + (2 << 20)].map(|at| reads(&mut memory, &table, at));
    assert_eq!(all, [3, 2, 2, 2]);
    let shapes: Vec<_> =
        table.statistics().iter().map(|s| (s.level, s.width, s.nodes, s.entries_used)).collect();
    assert_eq!(shapes, [(4, 2, 1, 2), (2, 2, 1, 513), (2, 1, 1, 2), (1, 1, 1, 1)]);
}

#[test]
fn without_large_blocks_every_layout_walks_as_a_conventional_one() {
    for case in cases() {
        let mut memory = Memory::new(case.sizes);
        memory.begin(0, true);
        let shape = Patchy { case: &case, patches: false };
        let mut table = Table::new(case.geometry, &shape, &mut memory).unwrap();
        let attributes = Attributes::new(Rights::ALL);
        let frame = Hpa::new(1 << 40);
        let _ = table.map(&mut memory, &shape, Gva::new(0), frame, 1, attributes).unwrap();
        let small = |width: Width| case.sizes.fan.pow(u32::from(width)) * 8 <= memory.small_bytes;
        if small(2) {
            continue; // No block is large here.
        }
        assert_eq!(reads(&mut memory, &table, 0), u64::from(case.sizes.levels), "{}", case.name);
    }
}

#[test]
fn tables_of_8_gib_have_the_published_sizes() {
    /// Groups, root first; level, width and number of nodes.
    type Row = (&'static [Width], &'static [(Level, Width, u64)]);
    let expected: [Row; 2] = [
        (&[1, 1, 1, 1], &[(4, 1, 1), (3, 1, 1), (2, 1, 8), (1, 1, 4096)]),
        (&[2, 2], &[(4, 2, 1), (2, 2, 8)]),
    ];
    for (widths, nodes) in expected {
        let case = case(Geometry::X86_4, widths);
        let (mut memory, mut table) = table(&case, false);
        for page in 0..8u64 << 18 {
            map(&mut memory, &mut table, &case, false, page << 12, 1);
        }
        let shapes: Vec<_> =
            table.statistics().iter().map(|s| (s.level, s.width, s.nodes)).collect();
        assert_eq!(shapes, nodes);
        let bytes: u64 = table.statistics().iter().map(|s| s.nodes * s.node_bytes).sum();
        assert_eq!(bytes, if widths.len() == 4 { 4106 << 12 } else { 9 << 21 });
        assert_eq!(memory.live.values().sum::<u64>(), bytes);
        let used = table.statistics().last().unwrap().entries_used;
        assert_eq!(used, 8 << 18, "one entry a page");
    }
}

#[test]
fn a_gigabyte_node_can_be_listed_and_taken_apart() {
    let case = case(Geometry::X86_4, &[3, 1]);
    let (mut memory, mut table) = table(&case, false);
    let top = case.sizes.canonical(case.sizes.all() - 4096);
    for (at, level) in [(0x1000, 1), (5 << 30, 3), (top, 1)] {
        map(&mut memory, &mut table, &case, false, at, level);
    }
    let before = table.mappings(&memory);
    assert_eq!(before.len(), 1 + 512 + 1, "the 1 GiB page is stored as 512 of 2 MiB");
    let flush = table.reshape(&mut memory, Gva::new(0), 4, 2).unwrap().unwrap();
    assert_eq!((flush.start.raw(), flush.last.raw()), (0, u64::MAX), "both halves");
    let shapes: Vec<_> =
        table.statistics().iter().map(|s| (s.level, s.width, s.nodes, s.entries_used)).collect();
    assert_eq!(shapes, [(4, 2, 1, 3), (2, 1, 3, 514), (1, 1, 2, 2)]);
    assert_eq!(table.mappings(&memory), before);
    let _ = table.reshape(&mut memory, Gva::new(0), 4, 3).unwrap().unwrap();
    let shapes: Vec<_> =
        table.statistics().iter().map(|s| (s.level, s.width, s.nodes, s.entries_used)).collect();
    assert_eq!(shapes, [(4, 3, 1, 514), (1, 1, 2, 2)]);
}

#[test]
fn replicas_share_their_accessed_and_dirty_bits() {
    type Step = fn(&mut Table, &mut Memory, &Case);
    let case = case(Geometry::X86_4, &[2, 2]);
    let at = Gva::new(6 << 21);
    let steps: [(&str, Step); 5] = [
        ("nothing", |_, _, _| {}),
        ("protect", |table, memory, _| {
            let _ = table.protect(memory, Gva::new(6 << 21), Rights::ALL).unwrap();
        }),
        ("demotion", |table, memory, _| {
            let _ = table.reshape(memory, Gva::new(6 << 21), 2, 1).unwrap().unwrap();
        }),
        ("promotion", |table, memory, _| {
            let _ = table.reshape(memory, Gva::new(6 << 21), 2, 1).unwrap().unwrap();
            let _ = table.reshape(memory, Gva::new(6 << 21), 2, 2).unwrap().unwrap();
        }),
        ("split", |table, memory, case| {
            let shape = Patchy { case, patches: false };
            let _ = table.split(memory, &shape, Gva::new(6 << 21)).unwrap();
        }),
    ];
    for (name, step) in steps {
        let (mut memory, mut table) = table(&case, false);
        map(&mut memory, &mut table, &case, false, at.raw(), 2);
        // A load through one replica, a store through another, far from the first.
        for (page, store) in [(3, false), (400, true)] {
            let leaf = table.translate(&memory, at.offset(page << 12)).unwrap();
            assert_eq!(leaf.level, 2);
            memory.write(leaf.entry_address, leaf.entry.touched(store).0);
        }
        step(&mut table, &mut memory, &case);
        // Wherever one looks, in whatever is left of the page.
        for page in [0, 3, 400, 511] {
            let found = table.lookup(&memory, at.offset(page << 12)).unwrap();
            assert_eq!(
                (found.attributes.accessed, found.attributes.dirty),
                (true, true),
                "after {name}"
            );
        }
        let (old, _) = table.unmap(&mut memory, at.offset(17 << 12)).unwrap();
        assert!(old.attributes.accessed && old.attributes.dirty, "unmapped after {name}");
    }
}

#[test]
fn rights_are_those_that_every_entry_on_the_path_gives() {
    let case = case(Geometry::X86_4, &[1, 1, 1, 1]);
    let (mut memory, mut table) = table(&case, false);
    map(&mut memory, &mut table, &case, false, 0, 1);
    let mut walk = table.walk(Gva::new(0));
    let bits = [(1u64, "write"), (2, "user")];
    loop {
        let at = walk.entry_address();
        let word = memory.read(at);
        for (bit, name) in bits {
            memory.write(at, word & !(1 << bit));
            let rights = table.translate(&memory, Gva::new(0)).unwrap().rights;
            assert_eq!((rights.write, rights.user), (bit != 1, bit != 2), "{name}");
        }
        memory.write(at, word | 1 << 63);
        assert!(!table.translate(&memory, Gva::new(0)).unwrap().rights.execute);
        memory.write(at, word);
        if let Step::Leaf(leaf) = walk.feed(Entry(word)) {
            assert_eq!(leaf.rights, Rights::ALL);
            return;
        }
    }
}

#[test]
fn what_cannot_be_is_an_error_with_a_reason() {
    use GeometryError::{AddressBits, IndexBits, Levels, PageShift};
    assert_eq!(Geometry::new(12, 9, 1), Err(Levels(1)));
    assert_eq!(Geometry::new(12, 9, 7), Err(Levels(7)));
    assert_eq!(Geometry::new(11, 9, 4), Err(PageShift(11)));
    assert_eq!(Geometry::new(17, 9, 4), Err(PageShift(17)));
    assert_eq!(Geometry::new(12, 0, 4), Err(IndexBits(0)));
    assert_eq!(Geometry::new(12, 14, 4), Err(IndexBits(14)));
    assert_eq!(Geometry::new(14, 13, 4), Err(AddressBits(66)));
    assert!(matches!(organisations::find("radics"), Err(LayoutError::UnknownOrganisation { .. })));
    for organisation in organisations::REGISTRY {
        assert_eq!(organisations::find(organisation.name).unwrap().name, organisation.name);
    }
    let case = case(Geometry::X86_4, &[2, 2]);
    let mut memory = Memory::new(case.sizes);
    memory.begin(u32::MAX, false);
    let shape = Patchy { case: &case, patches: false };
    let error = Table::new(case.geometry, &shape, &mut memory).unwrap_err();
    assert_eq!(error, TableError::OutOfMemory);
    assert!(memory.live.is_empty());
}

#[test]
fn a_geometry_from_a_file_is_checked() {
    let read = |text: &str| serde_json::from_str::<Geometry>(text).map_err(|e| e.to_string());
    let good = read(r#"{"page_shift": 12, "index_bits": 9, "levels": 4}"#);
    assert_eq!(good, Ok(Geometry::X86_4));
    let text = serde_json::to_string(&ia64(3)).unwrap();
    assert_eq!(read(&text), Ok(ia64(3)));
    for (bad, why) in [
        (r#"{"page_shift": 0, "index_bits": 9, "levels": 4}"#, "page shift"),
        (r#"{"page_shift": 12, "index_bits": 60, "levels": 4}"#, "indexed by"),
        (r#"{"page_shift": 12, "index_bits": 9, "levels": 4, "depth": 1}"#, "depth"),
    ] {
        assert!(read(bad).unwrap_err().contains(why), "{bad}");
    }
}

/// The numbered lines at the head of `entry.rs`, one by one.
#[test]
fn an_entry_means_what_the_first_line_that_applies_says() {
    const PRESENT: u64 = 1;
    const LARGE: u64 = 1 << 7;
    const TWO: u64 = 1 << 58;
    const THREE: u64 = 1 << 57;
    const OVERLAP: u64 = 1 << 59;
    let table = |base: u64, level, width| Decoded::Table { base: Hpa::new(base), level, width };
    let page = |frame: u64, level| Decoded::Mapped { frame: Hpa::new(frame), level };
    let gib = 1 << 30;
    let mib = 1 << 20;
    for (word, level, meaning) in [
        (0, 4, Decoded::Absent),
        (!PRESENT, 1, Decoded::Absent),
        (PRESENT | LARGE | gib, 3, page(gib, 3)),
        (PRESENT | LARGE | gib, 4, Decoded::Reserved),
        (PRESENT | LARGE | (2 * mib), 3, Decoded::Reserved),
        (PRESENT | LARGE | (2 * mib), 2, page(2 * mib, 2)),
        (PRESENT | LARGE | (2 * mib), 1, page(2 * mib, 2)),
        (PRESENT | LARGE | mib, 1, Decoded::Reserved),
        (PRESENT | TWO | THREE | 0x5000, 1, page(0x5000, 1)),
        (PRESENT | TWO | THREE | gib, 4, Decoded::Reserved),
        (PRESENT | TWO | mib, 4, Decoded::Reserved),
        (PRESENT | THREE | (2 * mib), 4, Decoded::Reserved),
        (PRESENT | 0x5000, 2, table(0x5000, 1, 1)),
        (PRESENT | TWO | (2 * mib), 3, table(2 * mib, 2, 2)),
        (PRESENT | THREE | gib, 4, table(gib, 3, 3)),
        (PRESENT | TWO | (2 * mib), 2, page(2 * mib, 2)),
        (PRESENT | THREE | gib, 3, page(gib, 3)),
        (PRESENT | THREE | gib, 2, Decoded::Reserved),
        // With O, as one of the level above.
        (PRESENT | OVERLAP | LARGE | gib, 3, Decoded::Reserved),
        (PRESENT | OVERLAP | LARGE | gib, 2, page(gib, 3)),
        (PRESENT | OVERLAP | LARGE | (2 * mib), 1, page(2 * mib, 2)),
        (PRESENT | OVERLAP | 0x5000, 1, Decoded::Reserved),
        (PRESENT | OVERLAP | 0x5000, 4, Decoded::Reserved),
        (PRESENT | OVERLAP | TWO | (2 * mib), 3, table(2 * mib, 3, 2)),
        (PRESENT | OVERLAP | TWO | (2 * mib), 2, table(2 * mib, 2, 2)),
        (PRESENT | OVERLAP | TWO | (2 * mib), 1, page(2 * mib, 2)),
        (PRESENT | OVERLAP | TWO | mib, 3, Decoded::Reserved),
        (PRESENT | OVERLAP | THREE | gib, 3, table(gib, 3, 3)),
        (PRESENT | OVERLAP | THREE | gib, 2, page(gib, 3)),
        (PRESENT | OVERLAP | THREE | gib, 1, Decoded::Reserved),
    ] {
        assert_eq!(Entry(word).decode(Geometry::X86_5, level), meaning, "{word:#x} at L{level}");
    }
    // A table of two levels has no pages of a third.
    let two = Geometry::new(12, 9, 2).unwrap();
    for word in [LARGE | gib, THREE | gib] {
        assert_eq!(Entry(PRESENT | OVERLAP | word).decode::<Hpa>(two, 2), Decoded::Reserved);
    }
    // With 3 bits a level, a node of two levels takes 4 KiB and a page of level 2 takes 32 KiB.
    let odd = Geometry::new(12, 3, 4).unwrap();
    assert_eq!(Entry(PRESENT | TWO | 0x5000).decode::<Hpa>(odd, 2), Decoded::Reserved);
}

/// Memory of arbitrary words: any present bit, page size, width and address.
struct Garbage(u64);

impl EntryMemory<Hpa> for Garbage {
    fn read(&self, at: Hpa) -> u64 {
        assert_eq!(at.raw() % 8, 0, "an entry is aligned");
        let mut word = (at.raw() ^ self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word ^= word >> 29;
        word = word.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word ^= word >> 32;
        // Mostly present, mostly a table, mostly aligned: so that walks go deep.
        let masks = [u64::MAX, !0x80, !(0x80 | 0x1f_f000), !(0x80 | 0x3fff_f000), !(3 << 57)];
        (word | u64::from(word >> 40 & 7 != 0)) & masks[(word >> 50) as usize % masks.len()]
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_walk_over_garbage_ends(
        which in any::<prop::sample::Index>(),
        seed: u64,
        base in any::<u64>().prop_map(|b| b & 0x000f_ffff_ffff_f000),
        addresses in prop::collection::vec(any::<u64>(), 50),
    ) {
        let cases = cases();
        let case = which.get(&cases);
        let sizes = case.sizes;
        let memory = Garbage(seed);
        for address in addresses {
            let width = case.widths[0];
            let root =
                NodeRef { base: Hpa::new(base), level: sizes.levels, width, rights: Rights::ALL };
            let mut walk = Walk::from(case.geometry, root, Gva::new(address));
            let mut steps = 0;
            loop {
                let at = walk.at();
                let (first, entry) = (at.base.raw(), walk.entry_address().raw());
                let bytes = sizes.fan.pow(u32::from(at.width)) * 8;
                prop_assert!(entry.wrapping_sub(first) < bytes, "the entry lies in its node");
                steps += 1;
                prop_assert!(steps <= sizes.levels, "at most one step a level");
                match walk.feed(Entry(memory.read(walk.entry_address()))) {
                    Step::Table(next) => {
                        prop_assert!([at.bottom() - 1, at.bottom()].contains(&next.level));
                        prop_assert!(next.bottom() < at.bottom(), "nearer the pages");
                        prop_assert!((1..=next.level).contains(&next.width));
                        let bytes = sizes.fan.pow(u32::from(next.width)) * 8;
                        prop_assert_eq!(next.base.raw() % bytes.max(4096), 0);
                    }
                    Step::Leaf(leaf) => {
                        prop_assert!((1..=3).contains(&leaf.level));
                        prop_assert!(leaf.level >= at.bottom());
                        prop_assert_eq!(leaf.frame.raw() % sizes.bytes(leaf.level), 0);
                        prop_assert_eq!(leaf.entry_address.raw(), entry);
                        break;
                    }
                    Step::Fault(
                        Fault::NotPresent { level, entry_address }
                        | Fault::Reserved { level, entry_address },
                    ) => {
                        prop_assert_eq!((level, entry_address.raw()), (at.bottom(), entry));
                        break;
                    }
                    Step::Fault(Fault::NotCanonical) => prop_assert!(false, "only before a walk"),
                }
            }
        }
    }

    #[test]
    fn words_that_something_else_wrote_lead_to_errors_at_worst(
        which in any::<prop::sample::Index>(),
        maps in prop::collection::vec((0u64..4, 0u64..4, 0u64..4, 1u8..=3), 1..12),
        words in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0u8..4), 1..6),
        acts in prop::collection::vec((any::<prop::sample::Index>(), 0u8..10, 1u8..=4), 1..12),
    ) {
        let cases: Vec<Case> =
            cases().into_iter().filter(|c| c.sizes.fan < 32 && c.sizes.levels >= 4).collect();
        let case = which.get(&cases);
        let shape = Patchy { case, patches: true };
        let (mut memory, mut table) = table(case, true);
        let mut starts = Vec::new();
        let attributes = Attributes::new(Rights::ALL);
        for (a, b, c, level) in maps {
            let fan = case.sizes.fan;
            let mut digits = vec![0; usize::from(case.sizes.levels) - 3];
            digits.extend([a % fan, b % fan, c % fan]);
            let at = case.sizes.address(&digits, 0);
            let at = Gva::new(at - at % case.sizes.bytes(level));
            let mapped =
                table.map(&mut memory, &shape, at, Hpa::new(1 << 40), level, attributes);
            if let Ok(made) = mapped {
                let _ = table.merge_dense(&mut memory, at, made.filled);
            }
            starts.push(at);
        }
        let image: Vec<(u64, u64)> = memory.image().into_iter().collect();
        for (index, word, kind) in words {
            let &(at, was) = index.get(&image);
            // Anything; another bit; a pointer to some node of this table, the root perhaps.
            let nodes: Vec<u64> = memory.live.keys().copied().collect();
            let word = match kind {
                0 => word,
                1 => was ^ 1 << (word % 64),
                2 => nodes[word as usize % nodes.len()] | 7 | (word >> 32 & 7) << 57,
                _ => 0,
            };
            memory.set(at, word);
        }
        for (index, act, number) in acts {
            let at = *index.get(&starts);
            let (memory, number) = (&mut memory, number);
            let _ = match act {
                0 => match table.map(memory, &shape, at, Hpa::new(1 << 40), 1, attributes) {
                    Ok(made) => {
                        let _ = table.merge_dense(memory, at, made.filled);
                        None
                    }
                    Err(error) => Some(error),
                },
                1 => table.unmap(memory, at).err(),
                2 => table.protect(memory, at, Rights::ALL).err(),
                3 => table.migrate(memory, at, Hpa::new(0)).err(),
                4 => table.split(memory, &shape, at).err(),
                5 => table.remap(memory, &shape, at, starts[0]).err(),
                6 => table.reshape(memory, at, number, 2).err(),
                7 => table.reshape(memory, at, number, 1).err(),
                8 => {
                    let _ = table.split_sparse(memory, at);
                    None
                }
                _ => {
                    let _ = table.translate(memory, at);
                    table.mappings(memory);
                    table.visit(memory, at, 1 << 30, &mut |_| {}).err()
                }
            };
        }
        table.destroy(&mut memory);
        prop_assert!(memory.live.is_empty());
    }
}

#[test]
fn a_node_that_two_entries_lead_to_is_not_freed_twice() {
    let case = &case(Geometry::X86_4, &[1, 1, 1, 1]);
    let (mut memory, mut table) = table(case, false);
    for at in [0, 1 << 21] {
        map(&mut memory, &mut table, case, false, at, 1);
    }
    let image = memory.image();
    // The two entries of level 2 stand side by side.
    let (&first, &node) = image.iter().find(|&(at, _)| image.contains_key(&(at + 8))).unwrap();
    memory.set(first + 8, node);
    let live = memory.live.clone();
    let refused = table.reshape(&mut memory, Gva::new(0), 2, 2);
    assert_eq!(refused.unwrap_err(), TableError::Corrupt(0));
    assert_eq!(memory.live, live);
    table.destroy(&mut memory);
    assert!(memory.live.is_empty());
}

#[test]
fn the_test_allocator_refuses_and_recycles() {
    let case = case(Geometry::X86_4, &[1, 1, 1, 1]);
    let mut memory = Memory::new(case.sizes);
    let first = memory.allocate(12).unwrap();
    memory.write(first, 7);
    memory.free(first, 12);
    assert_ne!(memory.read(first), 0, "a freed node is poisoned");
    let again = memory.allocate(12).unwrap();
    assert_eq!((again, memory.read(again)), (first, 0), "and zeroed when it is given out again");
    memory.begin(0b01, true);
    assert_eq!(memory.allocate(12), None);
    assert_eq!(memory.allocate(21), None);
    assert!(memory.allocate(12).is_some());
}
