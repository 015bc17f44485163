//! Faults: what they cost, what they grant, what they leave in the entry.

use super::*;
use crate::metered_memory::Work;

#[test]
fn pages_lie_where_they_do_without_what_is_reserved() {
    let frames = |reserved_bytes| {
        let usual = configuration(fpt(), none());
        let own = Configuration { memory_bytes: 8 * GIB, reserved_bytes, ..usual };
        let mut process = process(&own, 0, 64 * LARGE);
        (0..64).for_each(|n| drop(touch(&mut process, n * LARGE)));
        let frames: Vec<_> = mappings(&process).iter().map(|page| page.frame).collect();
        (process.table().tree().unwrap().root(), frames)
    };
    let without = frames(0);
    assert!(!without.1.is_empty());
    for reserved_bytes in [16 << 20, GIB, 3 * GIB + PAGE] {
        assert_eq!(frames(reserved_bytes), without, "{reserved_bytes}");
    }
}

#[test]
fn a_fault_costs_what_it_took() {
    let mut process = process(&configuration(layout(Geometry::X86_4, &[]), none()), 0, GIB);
    let first = touch(&mut process, 0x1234);
    assert_eq!((first.kind, first.level, first.flushes.len()), (FaultKind::Mapped, 1, 0));
    // Three nodes below the root, each with the entry that leads to it, and the leaf.
    let Work { data_bytes, nodes, node_bytes, entries_written, pages_mapped, .. } = first.work;
    assert_eq!((data_bytes, nodes, node_bytes), (4096, 3, 3 * 4096));
    assert_eq!((entries_written, pages_mapped), (4, 1));
    let second = touch(&mut process, 0x2000);
    assert_eq!(
        (second.work.data_bytes, second.work.nodes, second.work.entries_written),
        (4096, 0, 1)
    );
    assert!(second.work.entries_read >= 4);
    assert_eq!(touch(&mut process, 0x2000).kind, FaultKind::Spurious);

    let mut large = self::process(&configuration(fpt(), all()), 0, GIB);
    let fault = touch(&mut large, 0x1234);
    assert_eq!((fault.level, fault.work.data_bytes, fault.work.node_bytes), (2, LARGE, LARGE));
    // The pointer to the flattened node, and 512 replicas.
    assert_eq!(fault.work.entries_written, 513);
    assert_eq!(large.statistics().large_page_faults, 1);
}

#[test]
fn accesses_outside_every_area_are_honoured_and_counted() {
    let mut process = <Process>::new(&configuration(fpt(), none())).unwrap();
    let _ = touch(&mut process, 0x7fff_ffff_f000);
    let _ = touch(&mut process, 0xffff_ffff_ffff_f000);
    let fetch = process.fault(Gva::new(0x40_1000), AccessKind::Fetch).unwrap();
    assert_eq!(fetch.kind, FaultKind::Mapped);
    let statistics = process.statistics();
    assert_eq!((statistics.implicit_mappings, statistics.protection_mismatches), (3, 0));
}

#[test]
fn an_access_beyond_the_areas_splits_a_large_page_that_does_not_allow_it() {
    let mut process = process(&configuration(fpt(), all()), 0, PAGE);
    assert_eq!(touch(&mut process, 0).level, 2);
    let outcome = process.fault(Gva::new(9 * PAGE), AccessKind::Fetch).unwrap();
    assert_eq!((outcome.kind, outcome.level), (FaultKind::Upgraded, 1));
    assert!(outcome.flushes[0].leaves);
    let statistics = process.statistics();
    assert_eq!((statistics.splits, statistics.protection_mismatches), (1, 0));
}

#[test]
fn a_store_against_the_rights_is_granted_and_counted() {
    let mut process = process(&configuration(fpt(), none()), 0, LARGE);
    let protect = Event::Protect { address: 0, length: LARGE, protection: RO };
    let _ = touch(&mut process, 0);
    let outcome = process.apply(&protect).unwrap();
    assert!(outcome.flushes[0].leaves);
    assert_eq!(process.fault(Gva::new(0), AccessKind::Load).unwrap().kind, FaultKind::Spurious);
    let upgrade = touch(&mut process, 0);
    assert_eq!(upgrade.kind, FaultKind::Upgraded);
    assert!(upgrade.flushes[0].leaves, "the old rights are cached");
    assert_eq!(touch(&mut process, 0).kind, FaultKind::Spurious);
    assert_eq!(touch(&mut process, PAGE).kind, FaultKind::Mapped);
    assert_eq!(touch(&mut process, PAGE).kind, FaultKind::Spurious);
    assert_eq!(process.statistics().protection_mismatches, 2);
}

#[test]
fn accessed_and_dirty_start_as_linux_sets_them() {
    let mut process = <Process>::new(&configuration(fpt(), none())).unwrap();
    let file = Event::Map {
        address: LARGE,
        length: LARGE,
        protection: RW,
        backing: Backing::File,
        shared: false,
    };
    let _ = process.apply(&map(0, PAGE, RW)).unwrap();
    let _ = process.apply(&file).unwrap();
    for (address, access, dirty) in [
        (0, AccessKind::Load, true),
        (LARGE, AccessKind::Load, false),
        (LARGE + PAGE, AccessKind::Store, true),
    ] {
        let _ = process.fault(Gva::new(address), access).unwrap();
        let entry = process.table().translate(process.memory(), Gva::new(address)).unwrap().entry;
        assert_eq!((entry.is_accessed(), entry.is_dirty()), (true, dirty), "{address:#x}");
    }
}

/// Where a file is mapped: 40 pages that do not begin at a multiple of 64 KiB, and reach across a region of 2 MiB.
const FILE: std::ops::Range<u64> = LARGE / PAGE - 35..LARGE / PAGE + 5;

fn file(protection: Protection, shared: bool) -> Event {
    let (address, length) = (FILE.start * PAGE, (FILE.end - FILE.start) * PAGE);
    Event::Map { address, length, protection, backing: Backing::File, shared }
}

fn mapped_pages(process: &Process) -> Vec<u64> {
    mappings(process).iter().map(|page| page.input.raw() / PAGE).collect()
}

#[test]
fn a_fault_of_a_files_page_maps_those_around_it() {
    let region = LARGE / PAGE;
    // As do_fault_around() has it: 16 pages from a multiple of 16 or the area's start, but no more than
    // the area and the node have.
    for (page, around) in [
        (region - 35, region - 35..region - 19),
        (region - 33, region - 35..region - 19),
        (region - 32, region - 32..region - 16),
        (region - 20, region - 32..region - 16),
        (region - 1, region - 16..region),
        (region, region..region + 5),
        (region + 4, region..region + 5),
    ] {
        let mut process = <Process>::new(&configuration(fpt(), none())).unwrap();
        let _ = process.apply(&file(RX, false)).unwrap();
        let fault = process.fault(Gva::new(page * PAGE), AccessKind::Fetch).unwrap();
        assert_eq!((fault.kind, fault.level), (FaultKind::Mapped, 1));
        assert_eq!(mapped_pages(&process), around.clone().collect::<Vec<_>>(), "{page}");
        let pages = around.end - around.start;
        // Files are in memory: nothing is filled.
        assert_eq!((fault.work.data_bytes, fault.work.pages_mapped), (0, pages));
        let bytes: u64 = fault.filled.iter().map(|range| range.end - range.start).sum();
        assert_eq!(bytes - fault.work.node_bytes, pages * PAGE);
        let statistics = process.statistics();
        assert_eq!((statistics.faults, statistics.around_pages), (1, pages - 1));
        assert_eq!(statistics.protection_mismatches, 0);
    }
}

#[test]
fn stores_to_files_and_other_memory_map_one_page() {
    let page = Gva::new((LARGE / PAGE - 20) * PAGE);
    let anonymous = map(FILE.start * PAGE, (FILE.end - FILE.start) * PAGE, RO);
    for (event, access, filled) in [
        (file(RW, false), AccessKind::Store, PAGE),
        (file(RW, true), AccessKind::Store, 0),
        (file(RW, false), AccessKind::Load, 0),
        (file(NONE, false), AccessKind::Load, 0),
        (anonymous, AccessKind::Load, PAGE),
    ] {
        let mut process = <Process>::new(&configuration(fpt(), none())).unwrap();
        let _ = process.apply(&event).unwrap();
        let fault = process.fault(page, access).unwrap();
        assert_eq!((fault.work.data_bytes, fault.work.pages_mapped), (filled, 1), "{event:?}");
        assert_eq!(process.statistics().around_pages, 0);
    }
    let mut process = <Process>::new(&configuration(fpt(), none())).unwrap();
    let _ = process.apply(&file(RW, true)).unwrap();
    let _ = process.fault(page, AccessKind::Load).unwrap();
    assert_eq!(process.statistics().around_pages, 15, "what is shared is not copied");
}

#[test]
fn pages_around_that_are_there_or_have_no_memory_are_left_out() {
    let around = |memory_bytes, there: &[u64]| {
        let usual = configuration(fpt(), none());
        let mut process = <Process>::new(&Configuration { memory_bytes, ..usual }).unwrap();
        let _ = process.apply(&file(RO, false)).unwrap();
        for page in there {
            let (address, length, store) = (page * PAGE, PAGE, false);
            let _ = process.apply(&Event::Populate { address, length, store }).unwrap();
        }
        process
    };
    let region = LARGE / PAGE;
    let mut process = around(GIB, &[region - 30, region - 18]);
    let before = mappings(&process);
    assert_eq!(before.len(), 2, "populating maps what it names");
    let _ = process.fault(Gva::new((region - 20) * PAGE), AccessKind::Load).unwrap();
    let after = mappings(&process);
    assert!(before.iter().all(|page| after.contains(page)));
    assert_eq!((after.len(), process.statistics().around_pages), (16, 13));

    // Fill memory but for four frames.
    let mut process = around(16 << 20, &[]);
    let _ = process.fault(Gva::new((region - 35) * PAGE), AccessKind::Load).unwrap();
    let mut page = 100 * GIB / PAGE;
    let length = 1 << 14;
    let _ = process.apply(&map(page * PAGE, length * PAGE, RW)).unwrap();
    while process.memory.free_blocks(12) > 4 {
        let _ = process.fault(Gva::new(page * PAGE), AccessKind::Store).unwrap();
        page += 1;
    }
    let fault = process.fault(Gva::new((region - 10) * PAGE), AccessKind::Load).unwrap();
    assert_eq!(fault.work.pages_mapped, 4);
}

#[test]
fn it_does_not_matter_who_touches_what_is_around() {
    // A recorded sample names what Linux mapped, and so the pages around those that were touched.
    let touched = [FILE.end - 1, FILE.start + 9, FILE.start + 10, FILE.start];
    let mut process = <Process>::new(&configuration(fpt(), none())).unwrap();
    let _ = process.apply(&file(RX, false)).unwrap();
    for page in touched {
        process.access_pages(Gva::new(page * PAGE), PAGE, AccessKind::Load, &mut drop).unwrap();
    }
    let mut named = <Process>::new(&configuration(fpt(), none())).unwrap();
    let _ = named.apply(&file(RX, false)).unwrap();
    for page in mapped_pages(&process) {
        named.access_pages(Gva::new(page * PAGE), PAGE, AccessKind::Load, &mut drop).unwrap();
    }
    assert_eq!(mapped_pages(&named), mapped_pages(&process));
    assert_eq!(named.statistics().faults, process.statistics().faults);
    assert_eq!(named.statistics().faults, 3);
}
