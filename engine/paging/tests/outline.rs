//! The outline of a tree: what it sums, what it keeps apart, and that it stays small.

mod support;

use flatwalk_paging::{Address, Attributes, Geometry, Gva, Hpa, Level, Part, Rights, Tree};
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
            Part { under, level, width, is_fallback, first, last, nodes, tables, pages, replicas }
        };
    let expected = [
        part(0, (4, 2), (0, u64::MAX), 1, [4, 0, 0]),
        part(0, (2, 2), (0, 2 * GIB - 1), 2, [0, 2, 512]),
        part(0, (2, 1), (2 * GIB, 3 * GIB - 1), 1, [1, 0, 0]),
        part(0, (2, 2), (top, top + GIB - 1), 1, [0, 1, 0]),
        part(2, (1, 1), (2 * GIB, 2 * GIB + 2 * MIB - 1), 1, [0, 2, 0]),
    ];
    assert_eq!(outline, expected);
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
