//! The process against independent models: what is mapped where (page by page), what each page
//! holds, which frames are in use, and hardware that caches every translation until told to flush.

use std::collections::BTreeMap;

use flatwalk_paging::keyed::{Answer, SideLines};
use flatwalk_paging::{
    AccessKind, EntryMemoryMut, Line, NodeRef, Shape, Tree, TreeShape, Walk, organisations,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::policy::Thp;

const RW: Protection = Protection { read: true, write: true, execute: false };
const RX: Protection = Protection { read: true, write: false, execute: true };
const RO: Protection = Protection { read: true, write: false, execute: false };
const NONE: Protection = Protection { read: false, write: false, execute: false };

const PAGE: u64 = 4096;
const LARGE: u64 = 2 << 20;
const GIB: u64 = 1 << 30;

fn layout_of(organisation: &str, geometry: Geometry, parameters: &Value) -> Layout {
    let parameters = parameters.as_object().unwrap();
    organisations::layout(organisation, geometry, parameters).unwrap()
}

fn layout(geometry: Geometry, flatten: &[&str]) -> Layout {
    guarded(geometry, flatten, 0)
}

/// With the NF rule.
fn guarded(geometry: Geometry, flatten: &[&str], no_flatten_threshold: u32) -> Layout {
    if flatten.is_empty() {
        return layout_of("radix", geometry, &json!({}));
    }
    let parameters = json!({ "flatten": flatten, "no_flatten_threshold": no_flatten_threshold });
    layout_of("flattened", geometry, &parameters)
}

/// A table whose nodes are merged from `merge` of their entries on.
fn merging(geometry: Geometry, merge: u32, unmerge: u32) -> Layout {
    let share = |slots: u32| f64::from(slots) / geometry.node_entries(1) as f64;
    let parameters = json!({
        "merge_fraction": share(merge), "unmerge_fraction": share(unmerge), "merge_us": 0,
    });
    layout_of("compendia", geometry, &parameters)
}

/// Every layout worth testing.
fn layouts() -> Vec<Layout> {
    vec![
        layout(Geometry::X86_4, &[]),
        layout(Geometry::X86_3, &[]),
        layout(Geometry::X86_4, &["L4L3", "L2L1"]),
        layout(Geometry::X86_4, &["L2L1"]),
        layout(Geometry::X86_4, &["L3L2"]),
        layout(Geometry::X86_5, &["L5L4", "L3L2"]),
        layout(Geometry::X86_4, &["L4L3L2"]),
        merging(Geometry::X86_4, 2, 1),
        merging(Geometry::X86_4, 3, 3),
        merging(Geometry::X86_5, 2, 2),
        cuckoo(64, 0.1, Some([64, 64])),
        cuckoo(128, 0.6, None),
        chained("hashed"),
        chained("clustered"),
        chained("open"),
        inverted(),
    ]
}

/// One entry for each frame.
fn inverted() -> Layout {
    layout_of("inverted", Geometry::X86_4, &json!({}))
}

/// Tables with chains, or with lines behind each other.
fn chained(organisation: &str) -> Layout {
    layout_of(organisation, Geometry::X86_4, &json!({ "buckets": 32 }))
}

/// Elastic cuckoo tables with such ways at first.
fn cuckoo(initial_entries: u32, grow_occupancy: f64, walk_tables: Option<[u32; 2]>) -> Layout {
    let parameters = json!({
        "ways": 3, "initial_entries": initial_entries, "grow_occupancy": grow_occupancy,
        "growth_factor": 4, "shrink_occupancy": grow_occupancy / 3.0,
        "walk_table_entries": walk_tables,
    });
    layout_of("elastic_cuckoo", Geometry::X86_4, &parameters)
}

fn configuration(layout: Layout, large_pages: LargePages) -> Configuration {
    Configuration {
        layout,
        large_pages,
        memory_bytes: GIB,
        fragmentation: 0.0,
        large_failure_probability: 0.0,
        reserved_bytes: 0,
        segment: None,
        ordered_levels: Vec::new(),
        recursive_index: None,
        scattered: false,
        seed: 1,
    }
}

fn none() -> LargePages {
    LargePages::Below { boundary: 0 }
}

fn all() -> LargePages {
    LargePages::Below { boundary: u64::MAX }
}

fn fpt() -> Layout {
    layout(Geometry::X86_4, &["L4L3", "L2L1"])
}

fn map(address: u64, length: u64, protection: Protection) -> Event {
    Event::Map { address, length, protection, backing: Backing::Anonymous, shared: false }
}

/// A process with one anonymous read-write area.
fn process(configuration: &Configuration, address: u64, length: u64) -> Process {
    let mut process = Process::new(configuration).unwrap();
    let _ = process.apply(&map(address, length, RW)).unwrap();
    process
}

fn touch(process: &mut Process, address: u64) -> FaultOutcome {
    process.fault(Gva::new(address), AccessKind::Store).unwrap()
}

fn widths(process: &Process) -> Vec<(Level, Width, u64)> {
    process.nodes().iter().map(|n| (n.level, n.width, n.nodes)).collect()
}

#[test]
fn eight_gib_take_the_papers_page_tables() {
    let event = Event::Populate { address: 64 * GIB, length: 8 * GIB, store: true };
    for (layout, expected) in [
        (layout(Geometry::X86_4, &[]), 4106 * 4096),
        (fpt(), 9 * LARGE),
        (layout(Geometry::X86_5, &[]), 4107 * 4096),
    ] {
        let configuration =
            Configuration { memory_bytes: 16 * GIB, ..configuration(layout, none()) };
        let mut process = process(&configuration, 64 * GIB, 8 * GIB);
        let work = process.apply(&event).unwrap().work;
        assert_eq!(process.page_table_bytes(), expected);
        assert_eq!(process.data_bytes(), 8 * GIB);
        assert_eq!((work.pages_mapped, work.data_bytes), (2 << 20, 8 * GIB));
        assert_eq!(process.statistics().populated_pages, 2 << 20);
    }
}

#[test]
fn a_range_that_is_backed_at_once_is_what_its_faults_make_it() {
    // Pages that are there, another area, which allows no stores, and some without any.
    let (read_only, end) = (5 * LARGE - 20 * PAGE, 7 * LARGE + 9 * PAGE);
    let there = [3, 4, 700, 3 * 512 + 511].map(|page| page * PAGE);
    for layout in layouts() {
        for (large_pages, scattered) in
            [(none(), false), (none(), true), (LargePages::Below { boundary: 2 * LARGE }, false)]
        {
            let memory_bytes = 4 * GIB;
            let configuration = Configuration {
                memory_bytes,
                scattered,
                ..configuration(layout.clone(), large_pages)
            };
            let [mut singly, mut at_once] = [(); 2].map(|()| {
                let mut process = process(&configuration, 0, 6 * LARGE);
                let _ = process.apply(&map(read_only, LARGE / 2, RO)).unwrap();
                for address in there {
                    let _ = touch(&mut process, address);
                }
                process
            });
            let mut flushes = Vec::new();
            for page in 1..end / PAGE {
                let address = Gva::new(page * PAGE);
                if singly.table().translate(singly.memory(), address).is_err() {
                    flushes.extend(singly.fault(address, AccessKind::Store).unwrap().flushes);
                }
            }
            assert_eq!(at_once.back(Gva::new(PAGE), end - PAGE).unwrap(), flushes);
            let mappings = [&singly, &at_once].map(|p| p.table().mappings(p.memory()));
            assert_eq!(mappings[0], mappings[1], "{layout:?}");
            assert_eq!(singly.statistics(), at_once.statistics(), "{layout:?}");
            assert_eq!(singly.nodes(), at_once.nodes());
            assert_eq!(singly.data_bytes(), at_once.data_bytes());
            assert_eq!(singly.frames().free_frames(), at_once.frames().free_frames());
            // What comes after finds the same, also where all but one page of a region goes.
            for process in [&mut singly, &mut at_once] {
                let length = 4 * LARGE - PAGE;
                let _ = process.apply(&Event::Unmap { address: 0, length }).unwrap();
                let _ = touch(process, 9 * LARGE);
            }
            let mappings = [&singly, &at_once].map(|p| p.table().mappings(p.memory()));
            assert_eq!(mappings[0], mappings[1], "{layout:?}");
        }
    }
}

#[test]
fn no_page_is_lost_when_a_chain_has_nodes_in_the_first_frame() {
    // The first array of buckets is at address 0, which further nodes get once the table has grown.
    for organisation in ["hashed", "clustered"] {
        let configuration = configuration(chained(organisation), none());
        let mut process = process(&configuration, 0, 4 << 30);
        for page in 0..1500 {
            let _ = touch(&mut process, page * 64 * PAGE);
        }
        assert_eq!(process.table().mappings(process.memory()).len(), 1500, "{organisation}");
    }
}

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
        let configuration = Configuration { recursive_index, ..configuration(layout, none()) };
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
fn what_can_be_no_recursion_is_refused() {
    for (layout, index) in [
        (layout(Geometry::X86_4, &[]), 255),
        (layout(Geometry::X86_4, &[]), 512),
        (merging(Geometry::X86_4, 2, 1), 300),
        (chained("hashed"), 300),
    ] {
        let recursive_index = Some(index);
        let configuration = Configuration { recursive_index, ..configuration(layout, none()) };
        let error = Process::<Gva, Hpa>::new(&configuration).err().unwrap();
        assert!(error.to_string().contains("recursive_index"), "{error}");
    }
    let recursive_index = Some(300);
    let layout = layout(Geometry::X86_4, &[]);
    let configuration = Configuration { recursive_index, ..configuration(layout, none()) };
    let mut process = process(&configuration, 0, GIB);
    let window = 0xffff_0000_0000_0000 | 300 << 39;
    let fault = process.fault(Gva::new(window), AccessKind::Load).map(|outcome| outcome.kind);
    assert!(matches!(fault, Err(OsError::InWindow { .. })), "{fault:?}");
    let map = process.apply(&map(window, PAGE, RW)).map(|outcome| outcome.work);
    assert!(matches!(map, Err(OsError::InWindow { .. })), "{map:?}");
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
fn a_larger_page_that_is_given_up_in_part_stays() {
    let ia64 = Geometry::new(14, 11, 3).unwrap();
    let page = ia64.span(1);
    let start = 16 * page;
    let mut process = process(&configuration(layout(ia64, &[]), none()), start, 4 * page);
    let there = |process: &Process| -> Vec<bool> {
        (0..4)
            .map(|n| process.table().lookup(process.memory(), Gva::new(start + n * page)).is_ok())
            .collect()
    };
    for n in 0..4 {
        let _ = touch(&mut process, start + n * page);
    }
    let unmap = |address, length| Event::Unmap { address, length };
    // The second half of page 0, all of page 1, a quarter of page 2.
    let _ = process.apply(&unmap(start + page / 2, page / 2 + page + page / 4)).unwrap();
    assert_eq!(there(&process), [true, false, true, true]);
    // A new mapping in page 3 leaves the rest of it; one that ends in a part of a small page of the
    // program's takes all of that.
    let _ = process.apply(&map(start + 3 * page + PAGE, PAGE, RO)).unwrap();
    assert_eq!(there(&process), [true, false, true, true]);
    let _ = process.apply(&unmap(start + 2 * page, page - PAGE + 1)).unwrap();
    assert_eq!(there(&process), [true, false, false, true]);
}

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
    assert_eq!(process.data_bytes(), 4 * PAGE, "areas at 20, 30 and 40, and the page beside");
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
fn dense_nodes_are_merged_as_faults_fill_them_and_taken_apart_as_pages_go() {
    let configuration = configuration(merging(Geometry::X86_4, 64, 32), none());
    let mut process = process(&configuration, GIB, GIB);
    let faults: Vec<_> = (0..65).map(|i| touch(&mut process, GIB + i * LARGE)).collect();
    let changes: Vec<_> = faults.iter().map(|fault| fault.work.density_changes).collect();
    assert_eq!((changes[63], changes.iter().sum::<u64>()), (1, 1));
    assert_eq!(widths(&process), [(4, 1, 1), (3, 1, 1), (2, 2, 1)]);
    // All of the region's nodes moved, and no page.
    let moved = Flush { start: Gva::new(GIB), length_bytes: GIB, leaves: false, tables: true };
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
    assert!(gone.flushes.iter().any(|f| f.leaves && f.length_bytes == PAGE), "{gone:?}");
    assert!(gone.flushes.iter().any(|f| !f.leaves && f.tables && f.length_bytes == GIB));
    assert_eq!(process.statistics().unmerges, 1);
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
        // Where the page stays, what was given back is zeroed in place.
        assert_eq!(outcome.work.data_bytes, if splits == 0 { 2 * PAGE } else { 0 });
    }
}

#[test]
fn only_what_lies_in_areas_moves_on_from_a_large_page_that_reaches_beyond_them() {
    let mut process = process(&configuration(fpt(), all()), GIB + PAGE, LARGE - PAGE);
    assert_eq!(touch(&mut process, GIB + PAGE).level, 2);
    let event = Event::Remap { from: GIB, from_length: LARGE, to: 9 * GIB, to_length: 3 * PAGE };
    let outcome = process.apply(&event).unwrap();
    assert_eq!(process.data_bytes(), 2 * PAGE, "the first page of the three is in no area");
    assert_eq!(process.frames().free_frames(), (GIB - 2 * LARGE) / PAGE - 2);
    assert!(outcome.flushes.iter().any(|flush| flush.leaves && flush.start == Gva::new(GIB)));
    // Each piece has the rights of its own area, even one that had no say in the large page's.
    let _ = process.apply(&map(20 * GIB, PAGE, NONE)).unwrap();
    let _ = process.apply(&map(20 * GIB + PAGE, LARGE - PAGE, RW)).unwrap();
    assert_eq!(touch(&mut process, 20 * GIB + PAGE).level, 2);
    let (from, to) = (20 * GIB, 30 * GIB + PAGE);
    let _ =
        process.apply(&Event::Remap { from, from_length: LARGE, to, to_length: LARGE }).unwrap();
    let user = |address| {
        process.table().translate(process.memory(), Gva::new(address)).unwrap().rights.user
    };
    assert_eq!((user(to), user(to + PAGE)), (false, true));
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

#[test]
fn impossible_requests_are_errors_with_a_remedy() {
    let base = configuration(layout(Geometry::X86_3, &[]), none());
    let mut process = <Process>::new(&base).unwrap();
    let error = process.fault(Gva::new(1 << 40), AccessKind::Load).unwrap_err().to_string();
    assert!(error.contains("39 bits") && error.contains("more levels"), "{error}");
    for event in [
        map(1 << 40, PAGE, RW),
        map(u64::MAX - 5, 100, RW),
        Event::Unmap { address: 0, length: u64::MAX },
        Event::Break { from: 0, to: 1 << 50 },
        Event::Remap { from: 0, from_length: PAGE, to: 1 << 60, to_length: PAGE },
    ] {
        assert!(
            matches!(process.apply(&event), Err(OsError::BeyondAddressSpace { .. })),
            "{event:?}"
        );
    }
    for (fragmentation, failure) in [(1.5, 0.0), (f64::NAN, 0.0), (0.0, -0.1)] {
        let configuration =
            Configuration { fragmentation, large_failure_probability: failure, ..base.clone() };
        assert!(matches!(<Process>::new(&configuration), Err(OsError::Setting { .. })));
    }
    let tiny = Configuration { memory_bytes: 64 * PAGE, ..base };
    let mut process = self::process(&tiny, 0, GIB);
    let populate = Event::Populate { address: 0, length: GIB, store: true };
    let error = process.apply(&populate).unwrap_err().to_string();
    assert!(error.contains("memory_bytes") && error.contains("used up"), "{error}");
    assert_eq!(process.frames().free_frames(), 0, "all of it was used");
}

#[test]
fn sixteen_kib_pages_with_eleven_index_bits_work_too() {
    let geometry = Geometry::new(14, 11, 3).unwrap();
    let mut process = process(&configuration(layout(geometry, &[]), all()), 0, 1 << 26);
    let _ = process
        .apply(&Event::Advise { address: 0, length: 4096, advice: Advice::Populate })
        .unwrap();
    assert_eq!(process.data_bytes(), 1 << 25, "one large page of 32 MiB");
    let mut small = self::process(&configuration(layout(geometry, &[]), none()), 0, 1 << 26);
    let _ = touch(&mut small, 20_000);
    assert_eq!((small.data_bytes(), small.page_table_bytes()), (1 << 14, 3 << 14));
}

/// Every page that is mapped in the places that the operations below reach.
fn mappings(process: &Process) -> Vec<Mapping<Gva, Hpa>> {
    let mut found = Vec::new();
    for start in [0, GIB - 2 * LARGE, 100 * GIB, 200 * GIB] {
        process.visit(start / PAGE..start / PAGE + 12 * 512, &mut found).unwrap();
    }
    found
}

// ---- against models ---------------------------------------------------------------------------

/// Hardware that caches everything it sees, for ever, unless it is told otherwise.
#[derive(Default)]
struct Hardware {
    /// By page: frame of the page itself, rights, level.
    tlb: BTreeMap<u64, (u64, Rights, Level)>,
    /// By level of the node and address of what it covers.
    walk_cache: BTreeMap<(Level, u64), NodeRef<Hpa>>,
    /// Side lines by structure and key.
    lines: BTreeMap<(usize, u64), Line>,
}

impl Hardware {
    fn fill(&mut self, process: &Process) {
        for mapping in mappings(process) {
            match &process.table {
                PageTable::Tree(tree) => {
                    let mut walk = tree.walk(mapping.input);
                    while let Step::Table(partial) =
                        walk.feed(Entry(process.memory().read(walk.entry_address())))
                    {
                        let span = process.geometry.span(partial.level + 1);
                        let covered = mapping.input.raw() & !(span - 1);
                        self.walk_cache.insert((partial.level, covered), partial);
                    }
                }
                PageTable::Keyed(table) => {
                    let mut known = SideLines::default();
                    for structure in 0..table.side_needed().len() {
                        let Some(key) = table.side_key(structure, mapping.input, &known) else {
                            continue;
                        };
                        for probe in table.side_probes(structure, key).as_slice() {
                            let line = process.memory().read_line(probe.at);
                            if table.is_side_line(structure, key, &line) {
                                self.lines.insert((structure, key), line);
                                known.set(structure, line);
                            }
                        }
                    }
                }
            }
            for (page, frame) in process.pages_of(&mapping).enumerate_frames(mapping.frame) {
                self.tlb.insert(page, (frame, mapping.attributes.rights, mapping.level));
            }
        }
    }

    fn flush(&mut self, geometry: Geometry, flushes: &[Flush<Gva>]) {
        for flush in flushes {
            let first = flush.start.raw();
            let last = first.wrapping_add(flush.length_bytes.wrapping_sub(1));
            if flush.leaves {
                self.tlb.retain(|page, _| !(first / PAGE..=last / PAGE).contains(page));
            }
            if flush.tables {
                self.lines.clear();
                self.walk_cache.retain(|&(level, covered), _| {
                    covered > last || covered + (geometry.span(level + 1) - 1) < first
                });
            }
        }
    }

    /// Panics if anything cached is no longer so.
    fn check(&self, process: &Process) {
        let mut pages = BTreeMap::new();
        for mapping in mappings(process) {
            for (page, frame) in process.pages_of(&mapping).enumerate_frames(mapping.frame) {
                pages.insert(page, (frame, mapping.attributes.rights, mapping.level));
            }
        }
        for (page, cached) in &self.tlb {
            // A large page split in place translates as before: its old entry does no harm.
            let now = pages.get(page).map(|&(frame, rights, _)| (frame, rights));
            assert_eq!(now, Some((cached.0, cached.1)), "stale TLB entry for page {page:#x}");
        }
        if let PageTable::Keyed(table) = &process.table {
            for mapping in mappings(process) {
                let mut known = SideLines::default();
                for structure in 0..table.side_needed().len() {
                    let key = table.side_key(structure, mapping.input, &known);
                    if let Some(line) = key.and_then(|key| self.lines.get(&(structure, key))) {
                        known.set(structure, *line);
                    }
                }
                // Without a line that it needs, a walk reads that.
                let needed = |(structure, &needed): (usize, &bool)| {
                    !needed || known.get(structure).is_some()
                };
                if !table.side_needed().iter().enumerate().all(needed) {
                    continue;
                }
                let probes = table.probes(mapping.input, &known);
                let found = probes.as_slice().iter().any(|first| {
                    let mut probe = *first;
                    loop {
                        let line = process.memory().read_line(probe.at);
                        match table.answer(mapping.input, &probe, &line) {
                            Answer::Follow(next) => probe = next,
                            answer => break matches!(answer, Answer::Leaf(_)),
                        }
                    }
                });
                assert!(found, "stale side line for {:?}", mapping.input);
            }
        }
        for (&(level, covered), cached) in &self.walk_cache {
            if process.policy.layout.density().is_some() {
                // Walks may go past a merged node that is used all the same.
                let last = covered + (process.geometry.span(level + 1) - 1);
                for (&page, &(frame, ..)) in pages.range(covered / PAGE..=last / PAGE) {
                    let walk = Walk::from(process.geometry, *cached, Gva::new(page * PAGE));
                    let Ok(leaf) = walk.finish(|at| process.memory().read(at)) else {
                        panic!("stale walk-cache entry for {covered:#x}");
                    };
                    let within = process.geometry.within(page * PAGE, leaf.level);
                    assert_eq!(leaf.frame.raw() + within, frame, "stale walk-cache entry");
                }
                continue;
            }
            let tree = process.table.tree().expect("it has nodes");
            let mut walk = tree.walk(Gva::new(covered));
            while walk.at().level > level {
                let step = walk.feed(Entry(process.memory().read(walk.entry_address())));
                assert!(matches!(step, Step::Table(_)), "stale walk-cache entry for {covered:#x}");
            }
            assert_eq!(walk.at(), *cached, "stale walk-cache entry for {covered:#x}");
        }
    }
}

/// The base pages of a page, with the address of each one's frame.
trait EnumerateFrames {
    fn enumerate_frames(self, frame: Hpa) -> impl Iterator<Item = (u64, u64)>;
}

impl EnumerateFrames for Pages {
    fn enumerate_frames(self, frame: Hpa) -> impl Iterator<Item = (u64, u64)> {
        self.enumerate().map(move |(i, page)| (page, frame.raw() + i as u64 * PAGE))
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Event(Event),
    Touch(u64, AccessKind),
    Reshape(u64, Level, Width),
}

/// A few places that share regions, cross 1 GiB boundaries, and lie far apart.
fn address() -> impl Strategy<Value = u64> {
    let near =
        prop_oneof![Just(0), Just(GIB - 2 * LARGE), Just(GIB), Just(100 * GIB), Just(200 * GIB)];
    let page = prop_oneof![3 => 0_u64..40, 3 => 490_u64..540, 1 => 1000_u64..1600];
    (near, page).prop_map(|(base, page)| base + page * PAGE)
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (1_u64..30).prop_map(|pages| pages * PAGE),
        2 => (500_u64..530).prop_map(|pages| pages * PAGE),
        2 => (1_u64..4).prop_map(|regions| regions * LARGE),
        1 => Just(0),
    ]
}

/// Addresses and lengths that often fall on whole regions.
fn span() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        (address(), length()),
        (address(), 1_u64..4)
            .prop_map(|(address, regions)| (address & !(LARGE - 1), regions * LARGE)),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let protection = prop_oneof![4 => Just(RW), 1 => Just(RO), 1 => Just(RX), 1 => Just(NONE)];
    let backing = prop_oneof![4 => Just(Backing::Anonymous), 1 => Just(Backing::File)];
    let advice = prop_oneof![
        Just(Advice::HugePage),
        Just(Advice::NoHugePage),
        Just(Advice::DontNeed),
        Just(Advice::Populate)
    ];
    let access =
        prop_oneof![Just(AccessKind::Load), Just(AccessKind::Store), Just(AccessKind::Fetch)];
    let event = prop_oneof![
        4 => (span(), protection.clone(), backing, prop::bool::weighted(0.1)).prop_map(
            |((address, length), protection, backing, shared)| {
                Event::Map { address, length, protection, backing, shared }
            }
        ),
        2 => span().prop_map(|(address, length)| Event::Unmap { address, length }),
        2 => (span(), span()).prop_map(|((from, from_length), (to, to_length))| {
            Event::Remap { from, from_length, to, to_length }
        }),
        1 => (span(), length()).prop_map(|((from, from_length), to_length)| {
            Event::Remap { from, from_length, to: from, to_length }
        }),
        2 => (span(), protection)
            .prop_map(|((address, length), protection)| Event::Protect { address, length, protection }),
        3 => (span(), advice)
            .prop_map(|((address, length), advice)| Event::Advise { address, length, advice }),
        1 => (address(), address()).prop_filter("a heap is not that large", |(a, b)| a.abs_diff(*b) < 4 * LARGE)
            .prop_map(|(from, to)| Event::Break { from: from + 5, to: to + 9 }),
        2 => (span(), any::<bool>())
            .prop_map(|((address, length), store)| Event::Populate { address, length, store }),
    ];
    prop_oneof![
        5 => event.prop_map(Operation::Event),
        6 => (address(), access).prop_map(|(address, access)| Operation::Touch(address + 8, access)),
        1 => (address(), 1_u8..5, 1_u8..3).prop_map(|(a, level, width)| Operation::Reshape(a, level, width)),
    ]
}

/// What each page is and holds, page by page.
#[derive(Default)]
struct Model {
    areas: BTreeMap<u64, Attributes>,
    /// A word written to each page that was touched since it last became new.
    contents: BTreeMap<u64, u64>,
}

fn pages_in(address: u64, length: u64) -> Pages {
    address / PAGE..(address + length).div_ceil(PAGE).max(address / PAGE)
}

impl Model {
    fn discard(&mut self, pages: &Pages) {
        self.contents.retain(|page, _| !pages.contains(page));
    }

    fn unmap(&mut self, pages: &Pages) {
        self.areas.retain(|page, _| !pages.contains(page));
        self.discard(pages);
    }

    fn cover(&mut self, pages: Pages) {
        for page in pages {
            if !self.areas.contains_key(&page) {
                let region = page & !511..(page & !511) + 512;
                region.for_each(|page| {
                    self.areas.entry(page).or_insert(Attributes::IMPLICIT);
                });
            }
        }
    }

    /// True if a trace could contain the access: other rights than the areas' have their own test.
    fn allows(&self, pages: &Pages, access: AccessKind) -> bool {
        self.areas.range(pages.clone()).all(|(_, area)| permits(rights(area.protection), access))
    }

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Map { address, length, protection, backing, shared } => {
                let pages = pages_in(address, length);
                self.unmap(&pages);
                let attributes =
                    Attributes { protection, backing, shared, huge: None, implicit: false };
                self.areas.extend(pages.map(|page| (page, attributes)));
            }
            Event::Unmap { address, length } => self.unmap(&pages_in(address, length)),
            Event::Protect { address, length, protection } => self
                .areas
                .range_mut(pages_in(address, length))
                .for_each(|(_, area)| area.protection = protection),
            Event::Advise { address, length, advice } => {
                let pages = pages_in(address, length);
                match advice {
                    Advice::HugePage | Advice::NoHugePage => self
                        .areas
                        .range_mut(pages)
                        .for_each(|(_, area)| area.huge = Some(advice == Advice::HugePage)),
                    Advice::DontNeed => self.discard(&pages),
                    Advice::Populate => {}
                }
            }
            Event::Break { from, to } => {
                if to >= from {
                    for page in from.div_ceil(PAGE)..to.div_ceil(PAGE) {
                        self.areas.entry(page).or_insert(HEAP);
                    }
                } else {
                    self.unmap(&(to.div_ceil(PAGE)..from.div_ceil(PAGE)));
                }
            }
            Event::Remap { from, from_length, to, to_length } => {
                let (from, to) = (pages_in(from, from_length), pages_in(to, to_length));
                let last = from.end.max(from.start + 1) - 1;
                let tail = self.areas.get(&last).copied().unwrap_or(Attributes::IMPLICIT);
                let old: Vec<_> = from
                    .map(|page| (self.areas.remove(&page), self.contents.remove(&page)))
                    .collect();
                self.unmap(&to);
                for (i, page) in to.enumerate() {
                    let (area, content) = old.get(i).copied().unwrap_or((Some(tail), None));
                    self.areas.extend(area.map(|area| (page, area)));
                    self.contents.extend(content.map(|content| (page, content)));
                }
            }
            // What it maps outside every area depends on large pages: see the test.
            Event::Populate { .. }
            | Event::ThreadStart { .. }
            | Event::ThreadExit { .. }
            | Event::Marker { .. }
            | Event::Root { .. }
            | Event::Entry { .. } => {}
        }
    }

    /// Panics if the process differs.
    fn check(&self, process: &Process, total_frames: u64) {
        let mut mapped = BTreeMap::new();
        let mut data_frames = 0;
        for mapping in mappings(process) {
            let pages = process.pages_of(&mapping);
            data_frames += pages.end - pages.start;
            for (page, frame) in pages.clone().enumerate_frames(mapping.frame) {
                assert!(mapped.insert(page, frame).is_none());
                let leaf =
                    process.table.translate(process.memory(), Gva::new(page * PAGE)).unwrap();
                assert_eq!(leaf.level, mapping.level);
                assert_eq!(leaf.rights, mapping.attributes.rights);
                let content = process.memory().read(Hpa::new(frame + 8));
                assert_eq!(
                    content,
                    self.contents.get(&page).copied().unwrap_or(0),
                    "page {page:#x}"
                );
            }
            let areas: Vec<_> = pages.clone().filter_map(|page| self.areas.get(&page)).collect();
            assert!(!areas.is_empty(), "page {:#x} is in no area", pages.start);
            let mut expected = rights(areas[0].protection);
            if mapping.level > 1 {
                let allowed: Vec<_> = areas.iter().map(|area| rights(area.protection)).collect();
                expected = allowed.iter().copied().find(|rights| rights.user).unwrap_or(expected);
                assert!(allowed.iter().all(|rights| !rights.user || *rights == expected));
                if let LargePages::Transparent(_) = process.policy.large_pages {
                    assert_eq!(areas.len(), 512, "a large page reaches beyond its areas");
                }
            }
            assert_eq!(mapping.attributes.rights, expected, "page {:#x}", pages.start);
        }
        let mut frames: Vec<_> = mapped.values().collect();
        frames.sort_unstable();
        assert!(frames.windows(2).all(|pair| pair[0] != pair[1]), "a frame is mapped twice");
        for page in self.contents.keys() {
            assert!(mapped.contains_key(page), "page {page:#x} is lost");
        }
        assert_eq!(process.data_bytes(), data_frames * PAGE);
        let tables = process.page_table_bytes() / PAGE;
        assert_eq!(
            process.frames().free_frames() + data_frames + tables,
            total_frames,
            "frames leak"
        );
        // The areas agree too.
        for (page, area) in &self.areas {
            assert_eq!(process.areas().find(*page).map(|vma| vma.attributes), Some(*area));
        }
        for hole in process.areas().intersecting(0..1 << 52).map(|vma| vma.pages) {
            assert!(hole.clone().all(|page| self.areas.contains_key(&page)), "{hole:?}");
        }
    }
}

fn policy() -> impl Strategy<Value = LargePages> {
    prop_oneof![
        Just(none()),
        Just(all()),
        Just(LargePages::Below { boundary: GIB + LARGE }),
        Just(LargePages::Transparent(Thp::Always)),
        Just(LargePages::Transparent(Thp::Madvise)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn agrees_with_a_map_of_pages_whatever_happens(
        layout in prop::sample::select(layouts()),
        large_pages in policy(),
        no_flatten_threshold in 0_u32..4,
        fragmentation in prop_oneof![Just(0.0), Just(0.9), 0.0..1.0],
        large_failure_probability in prop_oneof![Just(0.0), 0.0..1.0],
        seed in any::<u64>(),
        operations in prop::collection::vec(operation(), 1..40),
    ) {
        let layout = match layout.shape() {
            Some(&shape) => {
                Layout::tree(layout.geometry(), TreeShape { no_flatten_threshold, ..shape })
            }
            None => layout,
        };
        let configuration = Configuration {
            layout: layout.clone(), large_pages, memory_bytes: 8 * GIB, fragmentation,
            recursive_index: (seed % 3 == 0 && !layout.groups().is_empty() && layout.density().is_none()).then_some(300),
            scattered: seed % 2 == 1,
            large_failure_probability, ordered_levels: Vec::new(), reserved_bytes: 0, segment: None, seed,
        };
        let mut process = Process::new(&configuration).unwrap();
        let root = process.table().tree().map(Tree::root);
        let total_frames = process.frames().free_frames() + process.page_table_bytes() / PAGE;
        let blocks = process.frames().allocatable_blocks(9);
        let mut model = Model::default();
        let mut hardware = Hardware::default();
        for (step, operation) in operations.into_iter().enumerate() {
            hardware.fill(&process);
            let flushes = match operation {
                Operation::Event(event) => {
                    if let Event::Populate { address, length, store } = event {
                        let access = if store { AccessKind::Store } else { AccessKind::Load };
                        if !model.allows(&pages_in(address, length), access) {
                            continue;
                        }
                    }
                    let outcome = process.apply(&event).unwrap();
                    model.apply(&event);
                    if let Event::Populate { address, length, .. } = event {
                        for page in pages_in(address, length) {
                            let input = Gva::new(page * PAGE);
                            prop_assert!(process.table.translate(process.memory(), input).is_ok());
                            if process.areas.find(page).is_some_and(|vma| vma.attributes.implicit) {
                                model.cover(page..page + 1);
                            }
                        }
                    }
                    outcome.flushes
                }
                Operation::Touch(address, access) => {
                    let page = address / PAGE;
                    if !model.allows(&(page..page + 1), access) {
                        continue;
                    }
                    let outcome = process.fault(Gva::new(address), access).unwrap();
                    let upgraded = outcome.kind == FaultKind::Upgraded;
                    prop_assert!(!upgraded || !model.areas.contains_key(&page));
                    if process.areas.find(page).is_some_and(|vma| vma.attributes.implicit) {
                        model.cover(page..page + 1);
                    }
                    let leaf =
                        process.table.translate(process.memory(), Gva::new(address)).unwrap();
                    prop_assert!(permits(leaf.rights, access));
                    prop_assert_eq!(leaf.level, outcome.level);
                    // Every access writes a word that tells when, through the translation; but
                    // where a large page reaches beyond its areas nothing is promised to stay.
                    if model.areas.contains_key(&page) {
                        let within = address & (process.geometry.span(leaf.level) - 1);
                        process.memory_mut().write(leaf.frame.offset(within), step as u64 + 1);
                        model.contents.insert(page, step as u64 + 1);
                    }
                    outcome.flushes
                }
                // Merging and splitting 1 GiB nodes takes too long here.
                Operation::Reshape(..) if root.is_none_or(|root| root.width == 3) => continue,
                // A recursive root stays as it is.
                Operation::Reshape(_, level, _)
                    if process.kernel.windows.is_some() && root.is_some_and(|r| r.level == level) =>
                {
                    continue;
                }
                Operation::Reshape(address, level, width) => {
                    let Process { table, kernel, .. } = &mut process;
                    let tree = table.tree_mut().expect("it has a root");
                    match tree.reshape(kernel, Gva::new(address), level, width) {
                        Ok(Some(flush)) => vec![flush],
                        _ => continue,
                    }
                }
            };
            hardware.flush(process.geometry, &flushes);
            hardware.check(&process);
            model.check(&process, total_frames);
        }
        // Unmapping everything leaves the root alone, and memory as it was.
        let _ = process.apply(&Event::Unmap { address: 0, length: 256 * GIB }).unwrap();
        prop_assert!(process.large_pages.is_empty());
        prop_assert_eq!(process.data_bytes(), 0);
        if root.is_some() {
            prop_assert_eq!(process.nodes().iter().map(|nodes| nodes.nodes).sum::<u64>(), 1);
        }
        prop_assert_eq!(process.nodes().iter().map(|nodes| nodes.entries_used).sum::<u64>(), 0);
        if root.is_some_and(|root| process.table().tree().map(|t| t.root().width) == Some(root.width)) {
            prop_assert_eq!(process.frames().allocatable_blocks(9), blocks);
        }
    }
}
