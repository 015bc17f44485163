//! Which memory large pages back, and when they are split.

use super::*;

#[test]
fn large_pages_stop_at_the_boundary() {
    let touched = [(4 * LARGE, 12 * LARGE)];
    let half = LargePages::share(50, &touched, Geometry::X86_4).unwrap();
    let mut process = process(&configuration(fpt(), half), 4 * LARGE, 8 * LARGE);
    let levels: Vec<_> = (4..12).map(|i| touch(&mut process, i * LARGE + 5).level).collect();
    assert_eq!(levels, [2, 2, 2, 2, 1, 1, 1, 1]);
}

#[test]
fn a_region_is_large_in_the_scenario_if_its_areas_agree() {
    let mut process = Process::new(&configuration(fpt(), all())).unwrap();
    for event in [
        // Two areas of one kind with a hole between, and one without rights.
        map(0, 10 * PAGE, RW),
        map(20 * PAGE, PAGE, RW),
        map(30 * PAGE, PAGE, NONE),
        // Two of different kinds.
        map(LARGE, PAGE, RX),
        map(LARGE + PAGE, PAGE, RW),
    ] {
        let _ = process.apply(&event).unwrap();
    }
    assert_eq!(touch(&mut process, 5 * PAGE).level, 2);
    assert_eq!(touch(&mut process, LARGE + PAGE).level, 1);
    // The page covers the second area too, and a new one of the same kind, without a fault.
    let _ = process.apply(&map(40 * PAGE, PAGE, RW)).unwrap();
    let _ = process.apply(&Event::Unmap { address: 0, length: 10 * PAGE }).unwrap();
    assert_eq!(touch(&mut process, 20 * PAGE).kind, FaultKind::Spurious);
    assert_eq!(touch(&mut process, 40 * PAGE).kind, FaultKind::Spurious);
    assert_eq!(process.data_bytes(), LARGE + PAGE);
    // It is split when one of another kind comes, and only what lies in areas stays.
    let outcome = process.apply(&map(50 * PAGE, PAGE, RX)).unwrap();
    assert!(outcome.flushes[0].leaves);
    assert_eq!(process.statistics().splits, 1);
    assert_eq!(
        process.data_bytes(),
        4 * PAGE,
        "areas at 20, 30 and 40, and the page at LARGE + PAGE"
    );
}

#[test]
fn transparent_huge_pages_follow_setting_and_advice() {
    let advise = |advice| Event::Advise { address: 0, length: LARGE, advice };
    for (thp, plain, advised, refused) in
        [(Thp::Always, 2, 2, 1), (Thp::Madvise, 1, 2, 1), (Thp::Never, 1, 1, 1)]
    {
        let configuration = configuration(fpt(), LargePages::Transparent(thp));
        for (event, expected) in [
            (None, plain),
            (Some(advise(Advice::HugePage)), advised),
            (Some(advise(Advice::NoHugePage)), refused),
        ] {
            let mut process = process(&configuration, 0, 2 * LARGE);
            if let Some(event) = event {
                let _ = process.apply(&event).unwrap();
            }
            assert_eq!(touch(&mut process, 0x5000).level, expected, "{thp:?}");
        }
    }
}

#[test]
fn transparent_huge_pages_need_one_private_anonymous_area() {
    let configuration = configuration(fpt(), LargePages::Transparent(Thp::Always));
    let mut process = Process::new(&configuration).unwrap();
    let file = |address, backing, shared| Event::Map {
        address,
        length: LARGE,
        protection: RW,
        backing,
        shared,
    };
    for event in [
        map(0, LARGE - PAGE, RW),
        file(LARGE, Backing::File, false),
        file(2 * LARGE, Backing::Anonymous, true),
        file(3 * LARGE, Backing::Heap, false),
        file(4 * LARGE, Backing::Stack, false),
    ] {
        let _ = process.apply(&event).unwrap();
    }
    let levels: Vec<_> = (0..5).map(|i| touch(&mut process, i * LARGE).level).collect();
    assert_eq!(levels, [1, 1, 1, 2, 2]);
    // Once a base page is there, the region stays with base pages.
    let _ = process.apply(&map(LARGE - PAGE, PAGE, RW)).unwrap();
    assert_eq!(touch(&mut process, PAGE).level, 1);
}

#[test]
fn under_fragmentation_large_pages_fall_back_and_are_counted_once_a_region() {
    let whole = configuration(layout(Geometry::X86_4, &[]), LargePages::Transparent(Thp::Always));
    let mut process = process(&Configuration { fragmentation: 1.0, ..whole }, 0, 4 * LARGE);
    for i in 0..4 {
        assert_eq!(touch(&mut process, i * LARGE).level, 1);
        assert_eq!(touch(&mut process, i * LARGE + PAGE).level, 1);
    }
    assert_eq!(process.statistics().large_page_fallbacks, 4);
}

#[test]
fn giving_back_a_part_splits_a_transparent_huge_page_but_not_the_scenarios() {
    let advise = Event::Advise { address: PAGE, length: 2 * PAGE, advice: Advice::DontNeed };
    for (large_pages, left, splits) in
        [(LargePages::Transparent(Thp::Always), LARGE - 2 * PAGE, 1), (all(), LARGE, 0)]
    {
        let mut process = process(&configuration(fpt(), large_pages), 0, LARGE);
        let _ = touch(&mut process, 0);
        let outcome = process.apply(&advise).unwrap();
        assert_eq!((process.data_bytes(), process.statistics().splits), (left, splits));
        assert_eq!(outcome.flushes.len(), splits as usize);
        // Where the page stays, the discarded part is zeroed in place.
        assert_eq!(outcome.work.data_bytes, if splits == 0 { 2 * PAGE } else { 0 });
    }
}

/// How many large and base pages are mapped in `regions` regions from `address` on.
fn sizes(process: &Process, address: u64, regions: u64) -> (usize, usize) {
    let mut found = Vec::new();
    process.visit(address / PAGE..(address + regions * LARGE) / PAGE, &mut found).unwrap();
    let large = found.iter().filter(|mapping| mapping.level > 1).count();
    (large, found.len() - large)
}

#[test]
fn in_the_scenario_pages_that_moved_are_large_again_at_no_cost() {
    let mut process = process(&configuration(fpt(), all()), 4 * GIB, 16 * LARGE);
    (0..16).for_each(|i| drop(touch(&mut process, 4 * GIB + i * LARGE)));
    let (from, to) = (4 * GIB, 8 * GIB + 3 * PAGE);
    let (from_length, to_length) = (16 * LARGE, 16 * LARGE + PAGE);
    let outcome = process.apply(&Event::Remap { from, from_length, to, to_length }).unwrap();
    assert_eq!(sizes(&process, 8 * GIB, 17), (17, 0));
    assert_eq!(process.data_bytes(), 17 * LARGE);
    assert_eq!((outcome.work.data_bytes, outcome.work.pages_freed), (0, 0));
    assert_eq!(outcome.moved.len(), 16 * 512);
    assert_eq!(process.frames().free_frames(), GIB / PAGE - 17 * 512 - 2 * 512);
    // A part that goes leaves the rest as it was, and what comes above the boundary is small.
    let below = LargePages::Below { boundary: 5 * GIB };
    let mut process = super::process(&configuration(fpt(), below), 4 * GIB, 2 * LARGE);
    (0..2).for_each(|i| drop(touch(&mut process, 4 * GIB + i * LARGE)));
    let (from, from_length) = (4 * GIB + LARGE / 2, LARGE + LARGE / 2);
    let (to, to_length) = (8 * GIB + LARGE / 2, from_length);
    let _ = process.apply(&Event::Remap { from, from_length, to, to_length }).unwrap();
    assert_eq!(sizes(&process, 4 * GIB, 2), (1, 0));
    assert_eq!(sizes(&process, 8 * GIB, 2), (0, 256 + 512));
    let back = Event::Remap { from: to, from_length, to: from, to_length };
    let _ = process.apply(&back).unwrap();
    assert_eq!(sizes(&process, 4 * GIB, 2), (2, 0));
}

#[test]
fn in_the_scenario_rights_that_come_back_bring_large_pages_back() {
    let mut process = process(&configuration(fpt(), all()), 0, 4 * LARGE);
    (0..4).for_each(|i| drop(touch(&mut process, i * LARGE)));
    let frames = |process: &Process| {
        mappings(process).iter().map(|mapping| (mapping.input, mapping.frame)).collect::<Vec<_>>()
    };
    let before = frames(&process);
    for i in 0..4 {
        let protect = |protection| Event::Protect { address: i * LARGE, length: PAGE, protection };
        let _ = process.apply(&protect(RO)).unwrap();
        assert_eq!(sizes(&process, i * LARGE, 1), (0, 512));
        let outcome = process.apply(&protect(RW)).unwrap();
        assert_eq!(sizes(&process, i * LARGE, 1), (1, 0));
        assert!(outcome.moved.is_empty() && outcome.flushes[0].leaves);
    }
    assert_eq!(frames(&process), before, "none of them had to move");
    assert_eq!((process.statistics().splits, process.statistics().large_pages_mapped), (4, 8));
    // Base pages that begin to agree become large, too: those of a program's own file after RELRO.
    for (at, protection) in [(0, RW), (PAGE, RO)] {
        let _ = process.apply(&map(GIB + at, LARGE / 2 - at, protection)).unwrap();
    }
    let _ = touch(&mut process, GIB);
    let protect = Event::Protect { address: GIB, length: PAGE, protection: RO };
    let _ = process.apply(&protect).unwrap();
    assert_eq!(sizes(&process, GIB, 1), (1, 0));
}

#[test]
fn only_what_lies_in_areas_moves_on_from_a_large_page_that_reaches_beyond_them() {
    // No large page comes about where they move to.
    let below = LargePages::Below { boundary: 5 * GIB };
    let mut process = process(&configuration(fpt(), below), GIB + PAGE, LARGE - PAGE);
    assert_eq!(touch(&mut process, GIB + PAGE).level, 2);
    let event = Event::Remap { from: GIB, from_length: LARGE, to: 9 * GIB, to_length: 3 * PAGE };
    let outcome = process.apply(&event).unwrap();
    assert_eq!(process.data_bytes(), 2 * PAGE, "the first page of the three is in no area");
    assert_eq!(process.frames().free_frames(), (GIB - 2 * LARGE) / PAGE - 2);
    assert!(outcome.flushes.iter().any(|flush| flush.leaves && flush.start == Gva::new(GIB)));
    // Each piece has the rights of its own area, even one that had no say in the large page's.
    let _ = process.apply(&map(2 * GIB, PAGE, NONE)).unwrap();
    let _ = process.apply(&map(2 * GIB + PAGE, LARGE - PAGE, RW)).unwrap();
    assert_eq!(touch(&mut process, 2 * GIB + PAGE).level, 2);
    let (from, to) = (2 * GIB, 30 * GIB + PAGE);
    let _ =
        process.apply(&Event::Remap { from, from_length: LARGE, to, to_length: LARGE }).unwrap();
    let user = |address| {
        process.table().translate(process.memory(), Gva::new(address)).unwrap().rights.user
    };
    assert_eq!((user(to), user(to + PAGE)), (false, true));
}
