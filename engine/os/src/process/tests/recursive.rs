//! A kernel that accesses its page table by virtual addresses.

use flatwalk_paging::{EntryMemory, EntryMemoryMut};

use super::*;

/// A process whose kernel uses a recursive table with the index `index`, and one that does not, after the
/// same life; and the pages that they have.
fn recursive_pair(layout: &Layout, index: u16) -> [Process; 2] {
    [Some(index), None].map(|recursive_index| {
        let configuration =
            Configuration { recursive_index, ..configuration(layout.clone(), none()) };
        let mut process = process(&configuration, 0, 64 * GIB);
        for i in 0..400_u64 {
            // Pages near and far, some of them given up again, with their nodes.
            let address = (i * 7 % 5) * GIB + i * 37 % 600 * LARGE + i * PAGE % LARGE;
            let _ = touch(&mut process, address);
            if i % 9 == 8 {
                let (address, length) = ((i % 5) * GIB, 40 * LARGE);
                let _ = process.apply(&Event::Unmap { address, length }).unwrap();
            }
            if i % 31 == 30 {
                let (address, length) = ((i % 4) * GIB, GIB);
                let protection = if i % 2 == 0 { RO } else { RW };
                let _ = process.apply(&Event::Protect { address, length, protection }).unwrap();
            }
        }
        process
    })
}

#[test]
fn a_kernel_can_do_everything_through_a_recursive_table() {
    for (layout, index) in [
        (layout(Geometry::X86_4, &[]), 256),
        (layout(Geometry::X86_5, &[]), 493),
        (layout(Geometry::X86_4, &["L4L3"]), 510),
        (layout(Geometry::X86_4, &["L3L2"]), 300),
        (fpt(), 493),
        (layout(Geometry::X86_5, &["L5L4", "L3L2"]), 400),
    ] {
        let [recursive, plain] = recursive_pair(&layout, index);
        let mappings = |process: &Process| process.table().mappings(process.memory());
        assert_eq!(mappings(&recursive), mappings(&plain));
        assert!(mappings(&plain).len() > 100);
        let statistics = recursive.statistics();
        assert!(statistics.window_accesses > 1000);
        assert_eq!(statistics.unlinked_accesses, 0, "every node is linked before it is used");
        // A window takes a read for each node on its way, which may lead through the root more than once.
        let (accesses, reads) = (statistics.window_accesses, statistics.window_reads);
        let (least, most) = (layout.groups().len() as u64, u64::from(layout.geometry().levels()));
        assert!((accesses * least..=accesses * most).contains(&reads), "{layout:?}");
        assert_eq!(plain.statistics().window_accesses, 0);
    }
}

#[test]
fn accesses_by_windows_go_where_the_table_says() {
    let [mut process, _] = recursive_pair(&layout(Geometry::X86_4, &[]), 300);
    let before = process.statistics();
    let root = process.table().tree().unwrap().root().base;
    // Without the entry that leads back, no window shows anything.
    process.memory_mut().write(root.offset(300 * 8), 0);
    let _ = touch(&mut process, 60 * GIB);
    let after = process.statistics();
    assert_eq!(after.window_accesses, before.window_accesses);
    assert!(after.unlinked_accesses > before.unlinked_accesses);
}

#[test]
fn what_windows_cost_is_charged() {
    let read = |recursive_index| {
        let layout = layout(Geometry::X86_4, &[]);
        let configuration =
            Configuration { recursive_index, ..configuration(layout.clone(), none()) };
        let mut process = process(&configuration, 0, GIB);
        let _ = touch(&mut process, 0);
        let before = process.statistics();
        let work = touch(&mut process, PAGE).work;
        let after = process.statistics();
        (work.entries_read, after.window_reads - before.window_reads, work.entries_written)
    };
    let (plain, none, written) = read(None);
    let (windowed, walked, written_too) = read(Some(300));
    assert_eq!((none, written), (0, written_too));
    assert_eq!(windowed, plain + walked);
    assert_eq!(walked, 4 * (plain + written), "four levels for each entry read or written");
}

#[test]
fn a_walker_that_knows_no_flattening_translates_from_the_glue_sub_table() {
    let index = 493;
    let [process, _] = recursive_pair(&layout(Geometry::X86_4, &["L4L3"]), index);
    let root = process.table().tree().unwrap().root();
    assert_eq!(root.width, 2);
    // The hardware manual's walk, from sub-table 493 of the root.
    let legacy = |address: u64| {
        let mut table = root.base.raw() + u64::from(index) * 4096;
        for shift in [39, 30, 21] {
            let entry = process.memory().read(Hpa::new(table + (address >> shift & 511) * 8));
            assert_eq!(entry & 1, 1, "{address:#x}");
            table = entry & 0x000f_ffff_ffff_f000;
        }
        process.memory().read(Hpa::new(table + (address >> 12 & 511) * 8)) & 0x000f_ffff_ffff_f000
    };
    let mappings = process.table().mappings(process.memory());
    assert!(mappings.len() > 100);
    for mapping in mappings {
        assert_eq!(legacy(mapping.input.raw()), mapping.frame.raw());
    }
}

#[test]
fn what_cannot_be_a_recursion_is_refused() {
    for (layout, index) in [
        (layout(Geometry::X86_4, &[]), 255),
        (layout(Geometry::X86_4, &[]), 512),
        (merging(Geometry::X86_4, 2, 1), 300),
        (chained("hashed"), 300),
    ] {
        let recursive_index = Some(index);
        let configuration =
            Configuration { recursive_index, ..configuration(layout.clone(), none()) };
        let error = Process::<Gva, Hpa>::new(&configuration).err().unwrap();
        assert!(error.to_string().contains("recursive_index"), "{error}");
    }
    let recursive_index = Some(300);
    let layout = layout(Geometry::X86_4, &[]);
    let configuration = Configuration { recursive_index, ..configuration(layout.clone(), none()) };
    let mut process = process(&configuration, 0, GIB);
    let window = 0xffff_0000_0000_0000 | 300 << 39;
    let fault = process.fault(Gva::new(window), AccessKind::Load).map(|outcome| outcome.kind);
    assert!(matches!(fault, Err(OsError::InWindow { .. })), "{fault:?}");
    let map = process.apply(&map(window, PAGE, RW)).map(|outcome| outcome.work);
    assert!(matches!(map, Err(OsError::InWindow { .. })), "{map:?}");
}
