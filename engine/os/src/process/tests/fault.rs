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
