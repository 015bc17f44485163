//! The shape of the page table: without large blocks, with many large pages, and by density.

use flatwalk_paging::{Flush, Level, Width};

use super::*;
use crate::metered_memory::Work;
use crate::process::outcome::Flushes;

fn widths(process: &Process) -> Vec<(Level, Width, u64)> {
    process.nodes().iter().map(|n| (n.level, n.width, n.nodes)).collect()
}

#[test]
fn under_fragmentation_nodes_fall_back_to_conventional_ones() {
    let whole = configuration(fpt(), none());
    let mut process = process(&Configuration { fragmentation: 1.0, ..whole }, 0, GIB);
    let _ = touch(&mut process, 0);
    assert_eq!(widths(&process), [(4, 1, 1), (3, 1, 1), (2, 1, 1), (1, 1, 1)]);
    assert_eq!(process.statistics().node_fallbacks, 2);
}

#[test]
fn a_region_that_will_be_large_is_not_flattened_to_the_leaves() {
    for (length, expected) in
        [(32 * LARGE, vec![(4, 2, 1), (2, 1, 1)]), (31 * LARGE, vec![(4, 2, 1), (2, 2, 1)])]
    {
        let fpt = guarded(Geometry::X86_4, &["L4L3", "L2L1"], 32);
        let configuration = configuration(fpt, LargePages::Transparent(Thp::Always));
        let mut process = process(&configuration, GIB, length);
        assert_eq!(touch(&mut process, GIB).level, 2);
        assert_eq!(widths(&process), expected);
        // Base pages elsewhere are not concerned.
        let _ = process.apply(&map(5 * GIB, LARGE / 2, RW)).unwrap();
        let _ = touch(&mut process, 5 * GIB);
        assert!(widths(&process).iter().any(|&(level, width, _)| (level, width) == (2, 2)));
    }
}

#[test]
fn a_node_is_taken_apart_when_large_pages_grow_too_many() {
    let fpt = guarded(Geometry::X86_4, &["L4L3", "L2L1"], 4);
    let configuration = configuration(fpt, LargePages::Transparent(Thp::Always));
    let mut process = process(&configuration, 0, LARGE / 2);
    let _ = touch(&mut process, 0);
    assert_eq!(widths(&process), [(4, 2, 1), (2, 2, 1)]);
    for i in 1..=4 {
        let _ = process.apply(&Event::Break { from: i * LARGE, to: (i + 1) * LARGE }).unwrap();
        let outcome = touch(&mut process, i * LARGE);
        assert_eq!(outcome.level, 2);
        let taken_apart = outcome.flushes.first().is_some_and(|flush| flush.tables);
        assert_eq!(taken_apart, i == 4);
    }
    assert_eq!(process.statistics().demotions, 1);
    assert_eq!(widths(&process), [(4, 2, 1), (2, 1, 1), (1, 1, 1)]);
}

#[test]
fn large_pages_that_cannot_come_do_not_keep_a_node_narrow() {
    let nf = |threshold| guarded(Geometry::X86_4, &["L4L3", "L2L1"], threshold);
    let narrow = [(4, 2, 1), (2, 1, 1)];
    // The program touches ten regions of a GiB.
    let ten = vec![(GIB, GIB + 9 * LARGE + 1)];
    let sparse = Configuration { touched: ten, ..configuration(nf(32), all()) };
    let mut process = process(&sparse, GIB, GIB);
    let _ = touch(&mut process, GIB);
    assert_eq!(widths(&process), [(4, 2, 1), (2, 2, 1)]);
    // Without a word of that, or with 32 of them, it is not flattened.
    for touched in [vec![], vec![(GIB, GIB + 31 * LARGE + 1)]] {
        let mut process = super::process(&Configuration { touched, ..sparse.clone() }, GIB, GIB);
        let _ = touch(&mut process, GIB);
        assert_eq!(widths(&process), narrow);
    }
    // Memory has blocks for a few only.
    let few = Configuration { fragmentation: 0.96, ..configuration(nf(32), all()) };
    let mut process = super::process(&few, GIB, GIB / 2);
    (0..256).for_each(|i| drop(touch(&mut process, GIB + i * LARGE)));
    assert!(widths(&process).contains(&(2, 2, 1)), "{:?}", widths(&process));
    assert!(process.statistics().large_page_fallbacks > 200);
    assert_eq!((process.statistics().demotions, process.statistics().promotions), (0, 0));
}

#[test]
fn a_node_is_widened_where_large_pages_did_not_come_or_are_gone() {
    let nf = guarded(Geometry::X86_4, &["L4L3", "L2L1"], 4);
    // Allocations fail although there are blocks, so that nobody can know.
    let many = guarded(Geometry::X86_4, &["L4L3", "L2L1"], 24);
    let failing = Configuration { large_failure_probability: 0.5, ..configuration(many, all()) };
    let mut process = process(&failing, GIB, 32 * LARGE);
    let mut flushes = Vec::new();
    for i in 0..32 {
        flushes.extend(touch(&mut process, GIB + i * LARGE).flushes);
    }
    let Statistics { large_page_fallbacks, promotions, demotions, .. } = process.statistics();
    assert!(large_page_fallbacks > 8, "{large_page_fallbacks}");
    assert_eq!((promotions, demotions), (1, 0));
    assert!(widths(&process).iter().any(|&(level, width, _)| (level, width) == (2, 2)));
    assert!(flushes.iter().any(|flush| flush.tables && flush.length_bytes() == u128::from(GIB)));

    let mut process = super::process(&configuration(nf, all()), GIB, 8 * LARGE);
    (0..8).for_each(|i| drop(touch(&mut process, GIB + i * LARGE)));
    assert!(widths(&process).contains(&(2, 1, 1)));
    // Discarded, they come back when they are touched again.
    let discard = Event::Advise { address: GIB, length: 5 * LARGE, advice: Advice::DontNeed };
    let _ = process.apply(&discard).unwrap();
    assert!(widths(&process).contains(&(2, 1, 1)));
    let _ = process.apply(&Event::Unmap { address: GIB, length: 6 * LARGE }).unwrap();
    assert_eq!(widths(&process), [(4, 2, 1), (2, 2, 1)]);
    assert_eq!((process.statistics().promotions, process.statistics().demotions), (1, 0));
}

#[test]
fn dense_nodes_are_merged_as_faults_fill_them_and_taken_apart_as_pages_go() {
    let configuration = configuration(merging(Geometry::X86_4, 64, 32), none());
    let mut process = process(&configuration, GIB, GIB);
    let faults: Vec<_> = (0..65).map(|i| touch(&mut process, GIB + i * LARGE)).collect();
    let changes: Vec<_> = faults.iter().map(|fault| fault.work.density_changes).collect();
    assert_eq!((changes[63], changes.iter().sum::<u64>()), (1, 1));
    assert_eq!(widths(&process), [(4, 1, 1), (3, 1, 1), (2, 2, 1)]);
    // All of the region's nodes moved, and no page.
    let last = Gva::new(2 * GIB - 1);
    let moved = Flush { start: Gva::new(GIB), last, leaves: false, tables: true };
    assert_eq!(faults[63].flushes, [moved]);
    // The change itself is charged as a whole: otherwise the fault took what its like took.
    let charged =
        |i: usize| Work { density_changes: 0, nodes: 0, nodes_freed: 0, ..faults[i].work };
    assert_eq!(charged(63), charged(62));
    assert_eq!(faults[63].work.nodes_freed, 65);
    // A page of a region where none was yet needs no node.
    assert_eq!((faults[64].work.nodes, faults[64].work.node_bytes), (0, 0));
    let statistics = process.statistics();
    assert_eq!((statistics.merges, statistics.unmerges, statistics.merge_refusals), (1, 0, 0));

    let unmap = |address, length| Event::Unmap { address, length };
    let left = process.apply(&unmap(GIB, 33 * LARGE)).unwrap();
    assert_eq!(left.work.density_changes, 0, "32 are left");
    let gone = process.apply(&unmap(GIB + 33 * LARGE, LARGE)).unwrap();
    assert_eq!(gone.work.density_changes, 1);
    assert_eq!(widths(&process), [(4, 1, 1), (3, 1, 1), (2, 1, 1), (1, 1, 31)]);
    assert!(
        gone.flushes.iter().any(|f| f.leaves && f.length_bytes() == u128::from(PAGE)),
        "{gone:?}"
    );
    assert!(
        gone.flushes.iter().any(|f| !f.leaves && f.tables && f.length_bytes() == u128::from(GIB))
    );
    assert_eq!(process.statistics().unmerges, 1);
}

#[test]
fn a_flush_of_everything_stays_one_whatever_is_added() {
    let top = Gva::new(u64::MAX - (PAGE - 1));
    let page = Flush { start: top, last: Gva::new(u64::MAX), leaves: true, tables: false };
    let everything = Flush::everything(true, true);
    for both in [[everything, page], [page, everything]] {
        let mut flushes = Flushes::default();
        for flush in both {
            flushes.add(flush);
        }
        assert!(flushes.into_iter().eq([everything]));
    }
    assert_eq!((page.length_bytes(), everything.length_bytes()), (u128::from(PAGE), 1 << 64));
}

#[test]
fn without_large_blocks_dense_nodes_stay_conventional() {
    let fragmented = Configuration {
        large_failure_probability: 1.0,
        ..configuration(merging(Geometry::X86_4, 64, 32), none())
    };
    let mut process = process(&fragmented, GIB, GIB);
    for i in 0..70 {
        assert_eq!(touch(&mut process, GIB + i * LARGE).work.density_changes, 0);
    }
    assert_eq!(widths(&process), [(4, 1, 1), (3, 1, 1), (2, 1, 1), (1, 1, 70)]);
    let statistics = process.statistics();
    // Tried again as each further slot fills.
    assert_eq!((statistics.merges, statistics.merge_refusals), (0, 7));
    assert_eq!(statistics.node_fallbacks, 0, "nothing was to be flattened at once");
}
