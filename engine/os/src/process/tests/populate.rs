//! Pages that are mapped ahead of any access.

use super::*;
use crate::placement::Placement;

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
    // But for what these are.
    let counts = |process: &Process| Statistics {
        faults: 0,
        large_page_faults: 0,
        populated_pages: 0,
        ..process.statistics()
    };
    for layout in layouts() {
        for (large_pages, placement) in [
            (none(), Placement::Compact),
            (none(), Placement::Scattered),
            (none(), Placement::Permuted),
            (none(), Placement::Scattered4k),
            (LargePages::Below { boundary: 2 * LARGE }, Placement::Compact),
        ] {
            let memory_bytes = 4 * GIB;
            let configuration = Configuration {
                memory_bytes,
                placement,
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
            let Statistics { faults, large_page_faults, .. } = at_once.statistics();
            let before = (faults, large_page_faults);
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
            assert_eq!(counts(&singly), counts(&at_once), "{layout:?}");
            let [one, other] = [&singly, &at_once].map(Process::statistics);
            assert_eq!((other.faults, other.large_page_faults), before, "none is a fault");
            assert_eq!(other.faults + other.populated_pages, one.faults);
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
