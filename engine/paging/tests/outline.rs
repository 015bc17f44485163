//! The outline of a tree: what it sums, what it keeps apart, and that it stays small.

mod support;

use flatwalk_paging::{
    Address, Attributes, Entry, EntryKind, Geometry, Gva, Hpa, Level, Part, Rights, Tree,
};
use support::{Case, Memory, Patchy, case};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A table in which `pages` are mapped, each at its address and level, one after the other; those from
/// number `narrow` on while there is no large block for nodes.
fn outline(case: &Case, pages: &[(u64, Level)], narrow: usize) -> Vec<Part> {
    let mut memory = Memory::new(case.sizes);
    let shape = Patchy { case, patches: false };
    let mut table = Tree::<Gva, Hpa>::new(case.geometry, &shape, &mut memory).unwrap();
    for (number, &(at, level)) in pages.iter().enumerate() {
        memory.begin(0, number >= narrow);
        let (frame, attributes) = (Hpa::new(1 << 40), Attributes::new(Rights::ALL));
        let _ = table.map(&mut memory, &shape, Gva::new(at), frame, level, attributes).unwrap();
    }
    table.outline(&memory)
}

#[test]
fn neighbours_are_summed_and_fall_backs_are_kept_apart() {
    let case = case(Geometry::X86_4, &[2, 2]);
    let top = 0xffff_8000_0000_0000;
    let pages = [(0, 1), (GIB, 1), (GIB + 2 * MIB, 2), (top, 1), (2 * GIB, 1), (2 * GIB + 4096, 1)];
    let outline = outline(&case, &pages, 4);
    let part =
        |under, (level, width), (first, last), nodes, [tables, pages, replicas]: [u64; 3]| {
            let is_fallback = (level, width) == (2, 1);
            let (node, entries, entries_left) = (0, Vec::new(), 0);
            Part {
                under,
                level,
                width,
                is_fallback,
                first,
                last,
                nodes,
                tables,
                pages,
                replicas,
                node,
                entries,
                entries_left,
            }
        };
    let expected = [
        part(0, (4, 2), (0, u64::MAX), 1, [4, 0, 0]),
        part(0, (2, 2), (0, 2 * GIB - 1), 2, [0, 2, 512]),
        part(0, (2, 1), (2 * GIB, 3 * GIB - 1), 1, [1, 0, 0]),
        part(0, (2, 2), (top, top + GIB - 1), 1, [0, 1, 0]),
        part(2, (1, 1), (2 * GIB, 2 * GIB + 2 * MIB - 1), 1, [0, 2, 0]),
    ];
    let found: Vec<_> = outline
        .into_iter()
        .map(|part| Part { node: 0, entries: Vec::new(), entries_left: 0, ..part })
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn the_first_node_of_a_part_is_there_entry_by_entry() {
    let case = case(Geometry::X86_4, &[2, 1, 1]);
    // Three pages, a gap, and then every other page: more pieces than are kept.
    let first = [0, 1, 2].map(|page| (page * 4096, 1));
    let others = (2..12).map(|page| (page * 8192, 1));
    let pages: Vec<_> =
        first.into_iter().chain(others).chain([(2 * MIB, 2), (4 * MIB, 1)]).collect();
    let outline = outline(&case, &pages, pages.len());
    let entries = |part: &Part| -> Vec<_> {
        part.entries.iter().map(|run| (run.index, run.count, run.kind)).collect()
    };
    let [root, middle, lowest, other] = &outline[..] else { panic!("{outline:x?}") };
    assert_eq!(entries(root), [(0, 1, EntryKind::Table)]);
    let (table, page) = (EntryKind::Table, EntryKind::Page);
    assert_eq!(entries(middle), [(0, 1, table), (1, 1, page), (2, 1, table)]);
    let expected = [(0, 3), (4, 1), (6, 1), (8, 1), (10, 1), (12, 1)].map(|(i, n)| (i, n, page));
    assert_eq!((entries(lowest), lowest.entries_left), (expected.to_vec(), 5));
    assert_eq!((lowest.pages, other.pages), (13, 1));
    let leads_to = Entry(middle.entries[0].word);
    assert_eq!(leads_to.0 & !0xfff & !(0xfff << 52), lowest.node);
}

#[test]
fn a_table_of_many_pieces_has_a_small_outline() {
    let case = case(Geometry::X86_4, &[1, 1, 1, 1]);
    // Three hundred pages, each 64 GiB from the next, but for two that are close to theirs.
    let mut pages: Vec<_> = (0..300).map(|i| (i * 64 * GIB, 1)).collect();
    pages.extend([(7 * 64 * GIB + 4 * MIB, 1), (250 * 64 * GIB + 8 * MIB, 1)]);
    let outline = outline(&case, &pages, pages.len());
    let of = |level| outline.iter().filter(move |part| part.level == level);
    assert_eq!([4, 3, 2, 1].map(|level| of(level).count()), [1, 1, 32, 32]);
    let nodes = |level| of(level).map(|part| part.nodes).sum::<u64>();
    assert_eq!([4, 3, 2, 1].map(nodes), [1, 38, 300, 302]);
}

#[test]
fn a_wide_gap_outlasts_narrow_ones() {
    let case = case(Geometry::X86_4, &[1, 1, 1, 1]);
    // Every other 2 MiB has a page, of 512 below and of 512 above a gap of 64 GiB.
    let half = |from: u64| (0..512).map(move |i| (from + i * 4 * MIB, 1));
    let pages: Vec<_> = half(0).chain(half(66 * GIB)).collect();
    let outline = outline(&case, &pages, pages.len());
    let lowest: Vec<_> = outline.iter().filter(|part| part.level == 1).collect();
    assert_eq!(lowest.len(), 32);
    assert!(lowest.iter().any(|part| part.first == 66 * GIB), "{lowest:x?}");
}
