//! Page-table nodes outlive their pages, and go with the areas, as Linux's do.

use super::*;

fn discard(address: u64, length: u64) -> Event {
    Event::Advise { address, length, advice: Advice::DontNeed }
}

fn unmap(address: u64, length: u64) -> Event {
    Event::Unmap { address, length }
}

/// Nodes freed by an event, and whether page-walk caches were flushed.
fn freed(process: &mut Process, event: &Event) -> (u64, bool) {
    let outcome = process.apply(event).unwrap();
    (outcome.work.nodes_freed, outcome.flushes.iter().any(|flush| flush.tables))
}

#[test]
fn what_a_program_discards_leaves_its_nodes() {
    for (flatten, nodes) in [(&[][..], 3), (&["L2L1"], 2), (&["L3L2"], 2), (&["L4L3", "L2L1"], 1)] {
        let layout = layout(Geometry::X86_4, flatten);
        let mut process = process(&configuration(layout, none()), GIB, 64 * PAGE);
        assert_eq!(touch(&mut process, GIB).work.nodes, nodes, "but for the root");
        for _ in 0..3 {
            assert_eq!(freed(&mut process, &discard(GIB, 64 * PAGE)), (0, false), "{flatten:?}");
            let again = touch(&mut process, GIB);
            assert_eq!((again.work.nodes, again.work.node_bytes), (0, 0), "{flatten:?}");
        }
        // Also if there is no page any more when the area goes.
        let _ = process.apply(&discard(GIB, 64 * PAGE)).unwrap();
        assert_eq!(freed(&mut process, &unmap(GIB, 64 * PAGE)), (nodes, true), "{flatten:?}");
    }
}

#[test]
fn nodes_stay_while_another_area_lies_in_their_reach() {
    let layout = layout(Geometry::X86_4, &["L4L3", "L2L1"]);
    let mut process = process(&configuration(layout, none()), GIB, PAGE);
    // In the same GiB, without a page of its own.
    let _ = process.apply(&map(2 * GIB - PAGE, PAGE, NONE)).unwrap();
    let _ = touch(&mut process, GIB);
    assert_eq!(freed(&mut process, &unmap(GIB, PAGE)), (0, false));
    assert_eq!(freed(&mut process, &unmap(2 * GIB - PAGE, PAGE)), (1, true));
    // One that takes another's place is another: the old one's nodes go.
    let _ = process.apply(&map(GIB, GIB, RW)).unwrap();
    let _ = touch(&mut process, GIB);
    assert_eq!(freed(&mut process, &map(GIB, GIB, RW)), (1, true));
    let _ = touch(&mut process, GIB);
    assert_eq!(freed(&mut process, &map(GIB, GIB - PAGE, RW)), (0, false), "a page is left");
    // Moved away, all of them are.
    let _ = touch(&mut process, GIB);
    let moved = Event::Remap { from: GIB, from_length: GIB, to: 8 * GIB, to_length: GIB };
    assert_eq!(freed(&mut process, &moved), (1, true));
    // A heap that shrinks keeps what it shares a node with.
    let _ = process.apply(&Event::Break { from: 20 * GIB, to: 22 * GIB }).unwrap();
    for at in [20 * GIB, 21 * GIB, 22 * GIB - PAGE] {
        let _ = touch(&mut process, at);
    }
    let shrunk = |to| Event::Break { from: 22 * GIB, to };
    assert_eq!(freed(&mut process, &shrunk(22 * GIB - PAGE)), (0, false));
    assert_eq!(freed(&mut process, &shrunk(20 * GIB + PAGE)), (1, true));
}

#[test]
fn a_large_page_takes_the_place_of_an_empty_node() {
    let layout = layout(Geometry::X86_4, &[]);
    let always = LargePages::Transparent(Thp::Always);
    let mut process = process(&configuration(layout, always), GIB, LARGE);
    let advise = |advice| Event::Advise { address: GIB, length: LARGE, advice };
    let _ = process.apply(&advise(Advice::NoHugePage)).unwrap();
    assert_eq!(touch(&mut process, GIB).level, 1);
    let _ = process.apply(&discard(GIB, LARGE)).unwrap();
    let _ = process.apply(&advise(Advice::HugePage)).unwrap();
    let large = touch(&mut process, GIB);
    assert_eq!((large.level, large.work.nodes_freed), (2, 1));
    assert!(large.flushes.iter().any(|flush| flush.tables));
}

#[test]
fn merged_nodes_stay_merged_while_pages_come_and_go() {
    let mut process = process(&configuration(merging(Geometry::X86_4, 8, 4), none()), GIB, GIB);
    for _ in 0..3 {
        (0..8).for_each(|i| drop(touch(&mut process, GIB + i * LARGE)));
        let _ = process.apply(&discard(GIB, GIB)).unwrap();
    }
    let changes = |process: &Process| {
        let statistics = process.statistics();
        (statistics.merges, statistics.unmerges)
    };
    assert_eq!(changes(&process), (1, 0), "no merging under alterations to only the PTE layer");
    (0..8).for_each(|i| drop(touch(&mut process, GIB + i * LARGE)));
    let _ = process.apply(&unmap(GIB, 5 * LARGE)).unwrap();
    assert_eq!(changes(&process), (1, 1), "three tables are left");
}
