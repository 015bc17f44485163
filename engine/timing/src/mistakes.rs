//! Twelve mistakes that other simulators make, each with the test that keeps it out of this one.
//! docs/model.md lists them; the numbers in the names are that list's.

use flatwalk_paging::{
    Address, Attributes, Entry, EntryMemory, EntryMemoryMut, Geometry, Gpa, Gva, Hpa, Layout,
    NodeAllocator, Physical, Rights, Step, Tree, Walk, organisations,
};
use flatwalk_trace::Event;
use rustc_hash::FxHashMap;

use crate::machine::{Pwc, WalkerEntry};
use crate::run::{Mode, Piece, Run};
use crate::testing::{DATA, Do, Scenario, go, scheme};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Walks and accesses of `run` since the last call, as `(walks, accesses)`.
fn walks(run: &mut Run) -> (u64, u64) {
    let total = run.mmu.statistics.total();
    run.mmu.reset_statistics();
    (total.walks, total.accesses)
}

/// The accesses of the one walk that a load of `address` makes, after all before it are done.
fn walk_length(run: &mut Run, address: u64) -> u64 {
    go(run, &[Do::Chase(address)]);
    let (walks, accesses) = walks(run);
    assert_eq!(walks, 1, "a load of {address:#x} makes one walk");
    accesses
}

#[test]
fn mistake_01_the_number_of_walkers_limits() {
    let time = |walkers: u32| {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.machine.walker.concurrent = walkers;
        // Misses must not be what limits.
        scenario.machine.l1d.as_mut().unwrap().mshrs = 64;
        scenario.machine.l2.as_mut().unwrap().mshrs = 64;
        scenario.machine.llc.as_mut().unwrap().mshrs = 64;
        let mut run = scenario.start(&[(DATA, GIB)], true);
        let loads: Vec<_> = (0..32).map(|i| Do::Load(DATA + i * 32 * MIB)).collect();
        go(&mut run, &loads);
        let statistics = &run.mmu.statistics;
        let total = statistics.total();
        assert_eq!(total.walks, 32);
        (run.cycles().unwrap(), total.latency_cycles - statistics.queue_cycles)
    };
    let (one, busy_one) = time(1);
    let (two, busy_two) = time(2);
    let (many, _) = time(32);
    assert!(one >= busy_one, "one walker cannot do {busy_one} cycles of walking in {one}");
    assert!(2 * two >= busy_two, "two walkers cannot do {busy_two} cycles of walking in {two}");
    assert!(one > two && two > many, "{one}, {two}, {many} cycles with 1, 2, 32 walkers");
}

#[test]
fn mistake_02_leaves_of_large_pages_stay_out_of_the_pwc() {
    for flatten in [&[][..], &["L4L3"], &["L3L2"], &["L4L3", "L2L1"]] {
        let mut scenario = Scenario::new(scheme(4, flatten));
        scenario.large_pages = 100;
        scenario.mode = Mode::Functional;
        let mut run = scenario.start(&[(DATA, GIB)], true);
        for round in 0..4 {
            // 512 large pages, 16 TLB entries: every access walks.
            let loads: Vec<_> = (0..512).map(|i| Do::Load(DATA + i * 2 * MIB)).collect();
            go(&mut run, &loads);
            let (walks, accesses) = walks(&mut run);
            assert_eq!(walks, 512, "{flatten:?}, round {round}");
            assert!(accesses >= walks, "{flatten:?}: {accesses} accesses in {walks} walks");
        }
    }
}

#[test]
fn mistake_03_without_a_pwc_walks_start_at_the_root() {
    for (levels, flatten, expected) in [
        (3, &[][..], 3),
        (4, &[][..], 4),
        (5, &[][..], 5),
        (4, &["L3L2"][..], 3),
        (4, &["L4L3", "L2L1"][..], 2),
    ] {
        let mut scenario = Scenario::new(scheme(levels, flatten));
        scenario.machine.pwc = Pwc::None;
        let at = if levels == 3 { 0 } else { DATA };
        let mut run = scenario.start(&[(at, GIB)], true);
        for i in 0..64 {
            assert_eq!(walk_length(&mut run, at + i * PAGE), expected, "{levels} {flatten:?}");
        }
    }
}

#[test]
fn mistake_04_a_walk_goes_on_where_the_longest_known_prefix_leads() {
    let far = DATA + 512 * GIB;
    let mut run = Scenario::new(scheme(4, &[]))
        .start(&[(DATA, 4 * MIB), (DATA + 5 * GIB, 2 * MIB), (far, 2 * MIB)], true);
    assert_eq!(walk_length(&mut run, DATA), 4, "cold");
    assert_eq!(walk_length(&mut run, DATA + PAGE), 1, "the same L1 node");
    assert_eq!(walk_length(&mut run, DATA + 2 * MIB), 2, "the same L2 node");
    assert_eq!(walk_length(&mut run, DATA + 5 * GIB), 3, "the same L3 node");
    assert_eq!(walk_length(&mut run, far), 4, "nothing but the root in common");
    assert_eq!(walk_length(&mut run, far + PAGE), 1, "all levels of it were filled");
    // Four L3 prefixes were used since; the structure has four entries, so the first is there still.
    assert_eq!(walk_length(&mut run, DATA + 3 * PAGE), 1);
}

#[test]
fn mistake_05_walks_to_one_page_are_merged_and_counted_once() {
    let mut run = Scenario::new(scheme(4, &[])).start(&[(DATA, MIB)], true);
    go(&mut run, &(0..16).map(|i| Do::Load(DATA + 64 * i)).collect::<Vec<_>>());
    assert_eq!(run.mmu.statistics.merged, 15);
    assert_eq!(walks(&mut run), (1, 4));
    // And all are done soon after the walk: nobody waits for a walk that nobody makes.
    assert!(run.cycles().unwrap() < 4 * 142 + 3 * 142 * 16, "{:?}", run.cycles());
}

#[test]
fn mistake_06_walking_takes_no_memory() {
    for flatten in [&[][..], &["L4L3", "L2L1"]] {
        let mut run = Scenario::new(scheme(4, flatten)).start(&[(DATA, 64 * MIB)], true);
        let (free, bytes) = (run.process.frames().free_frames(), run.process.page_table_bytes());
        for _ in 0..3 {
            go(&mut run, &(0..16_384).map(|i| Do::Load(DATA + i * PAGE)).collect::<Vec<_>>());
        }
        assert_eq!(run.process.frames().free_frames(), free);
        assert_eq!(run.process.page_table_bytes(), bytes);
    }
}

/// Physical memory of some kind in a map, whose nodes lie wherever the next block is free.
struct Words<A> {
    words: FxHashMap<A, u64>,
    next: u64,
}

impl<A: Physical> EntryMemory<A> for Words<A> {
    fn read(&self, at: A) -> u64 {
        self.words.get(&at).copied().unwrap_or(0)
    }
}

impl<A: Physical> EntryMemoryMut<A> for Words<A> {
    fn write(&mut self, at: A, value: u64) {
        self.words.insert(at, value);
    }
}

impl<A: Physical> NodeAllocator<A> for Words<A> {
    fn allocate(&mut self, size_shift: u8) -> Option<A> {
        let size = 1 << size_shift;
        let at = self.next.next_multiple_of(size);
        self.next = at + size;
        Some(A::new(at))
    }

    fn free(&mut self, _at: A, _size_shift: u8) {}
}

fn layout(levels: u8, flatten: &[&str]) -> Layout {
    let geometry = if levels == 5 { Geometry::X86_5 } else { Geometry::X86_4 };
    let name = if flatten.is_empty() { "radix" } else { "flattened" };
    let flatten: Vec<_> = flatten.iter().map(|&f| f.to_owned()).collect();
    let settings = organisations::Settings { flatten: &flatten, density: None };
    (organisations::find(name).unwrap().layout)(geometry, &settings).unwrap()
}

/// Host accesses of a cold two-dimensional walk: each guest entry's own address is translated
/// before the entry is read, and so is the data's.
fn nested_accesses(guest: &Layout, host: &Layout) -> u32 {
    let attributes = Attributes::new(Rights::ALL);
    let mut guest_memory = Words::<Gpa> { words: FxHashMap::default(), next: 0x4000_0000 };
    let mut host_memory = Words::<Hpa> { words: FxHashMap::default(), next: 0x10_0000_0000 };
    let mut guest_table: Tree<Gva, Gpa> =
        Tree::new(guest.geometry(), guest, &mut guest_memory).unwrap();
    let mut host_table: Tree<Gpa, Hpa> =
        Tree::new(host.geometry(), host, &mut host_memory).unwrap();
    let (address, data) = (Gva::new(DATA + 0x1234_5000), Gpa::new(0x1_2345_6000));
    guest_table.map(&mut guest_memory, guest, address, data, 1, attributes).unwrap();
    let mut accesses = 0;
    let mut to_host = |host_memory: &mut Words<Hpa>, at: Gpa| {
        let page = Gpa::new(at.raw() & !(PAGE - 1));
        if host_table.translate(&*host_memory, page).is_err() {
            let frame = Hpa::new(0x20_0000_0000 + page.raw());
            host_table.map(host_memory, host, page, frame, 1, attributes).unwrap();
        }
        let mut walk = host_table.walk(page);
        loop {
            accesses += 1;
            match walk.feed(Entry(host_memory.read(walk.entry_address()))) {
                Step::Table(_) => {}
                Step::Leaf(leaf) => break leaf.frame,
                Step::Fault(fault) => panic!("{fault:?}"),
            }
        }
    };
    let mut walk: Walk<Gva, Gpa> = guest_table.walk(address);
    let mut guest_reads = 0;
    let frame = loop {
        to_host(&mut host_memory, walk.entry_address());
        guest_reads += 1;
        match walk.feed(Entry(guest_memory.read(walk.entry_address()))) {
            Step::Table(_) => {}
            Step::Leaf(leaf) => break leaf.frame,
            Step::Fault(fault) => panic!("{fault:?}"),
        }
    };
    assert_eq!(frame, data);
    to_host(&mut host_memory, frame);
    accesses + guest_reads
}

#[test]
fn mistake_07_reading_a_guest_entry_takes_a_host_walk() {
    let (radix4, radix5) = (layout(4, &[]), layout(5, &[]));
    let flat = layout(4, &["L4L3", "L2L1"]);
    let three = layout(4, &["L3L2"]);
    assert_eq!(nested_accesses(&radix4, &radix4), 24);
    assert_eq!(nested_accesses(&radix5, &radix5), 35);
    assert_eq!(nested_accesses(&radix4, &flat), 14);
    assert_eq!(nested_accesses(&flat, &radix4), 14);
    assert_eq!(nested_accesses(&three, &three), 15);
    assert_eq!(nested_accesses(&flat, &flat), 8);
}

#[test]
fn mistake_08_a_fifth_level_leaves_the_other_indices_alone() {
    let entries = |levels: u8| {
        let mut run = Scenario::new(scheme(levels, &[])).start(&[(DATA, 4 * MIB)], true);
        let length = walk_length(&mut run, DATA + 2 * MIB);
        let table = run.process.table();
        let leaf = |address| table.translate(run.process.memory(), Gva::new(address)).unwrap();
        let (first, next) = (leaf(DATA + 5 * PAGE), leaf(DATA + 6 * PAGE));
        let within = first.entry_address.raw() % PAGE;
        (length, within, next.entry_address.raw() - first.entry_address.raw())
    };
    assert_eq!(entries(4), (4, 5 * 8, 8));
    assert_eq!(entries(5), (5, 5 * 8, 8));
}

#[test]
fn mistake_09_large_pages_and_middle_flattening_fill_the_pwc_of_their_own_level() {
    let l3l2 = || Scenario::new(scheme(4, &["L3L2"]));
    let mut run = l3l2().start(&[(DATA, 3 * GIB)], true);
    assert_eq!(walk_length(&mut run, DATA), 3, "L4, L3+L2, L1");
    assert_eq!(walk_length(&mut run, DATA + PAGE), 1, "the same L1 node");
    assert_eq!(walk_length(&mut run, DATA + 2 * GIB), 2, "the same L3+L2 node");
    let mut scenario = l3l2();
    scenario.large_pages = 100;
    let mut run = scenario.start(&[(DATA, 3 * GIB)], true);
    assert_eq!(walk_length(&mut run, DATA), 2, "L4, L3+L2");
    assert_eq!(walk_length(&mut run, DATA + 2 * MIB), 1, "the same L3+L2 node");
    assert_eq!(walk_length(&mut run, DATA + 2 * GIB), 1, "the same L3+L2 node");
    // The radix table: a large page's walk ends at L2, so it knows an L2 node but no L1 node.
    let mut scenario = Scenario::new(scheme(4, &[]));
    scenario.large_pages = 50;
    let mut run = scenario.start(&[(DATA, 4 * MIB)], true);
    assert_eq!(walk_length(&mut run, DATA), 3, "a large page");
    assert_eq!(walk_length(&mut run, DATA + 2 * MIB), 2, "base pages: L2, L1");
}

#[test]
fn mistake_10_dirty_bits_shootdowns_and_unmapping() {
    for mode in [Mode::Timing, Mode::Functional] {
        let mut scenario = Scenario::new(scheme(4, &["L4L3", "L2L1"]));
        scenario.mode = mode;
        let mut run = scenario.start(&[(DATA, MIB)], false);
        go(&mut run, &[Do::Load(DATA)]);
        let leaf = |run: &Run| {
            let table = run.process.table();
            table.translate(run.process.memory(), Gva::new(DATA)).map(|leaf| leaf.entry)
        };
        assert!(leaf(&run).unwrap().is_accessed());
        go(&mut run, &[Do::Store(DATA)]);
        assert!(leaf(&run).unwrap().is_dirty());

        let bytes = run.process.data_bytes();
        let unmap = Event::Unmap { address: DATA, length: PAGE };
        run.take(&Piece::Event(unmap)).unwrap();
        assert!(leaf(&run).is_err());
        assert_eq!(run.process.data_bytes(), bytes - PAGE);
        let faults = run.process.statistics().faults;
        go(&mut run, &[Do::Load(DATA)]);
        assert_eq!(run.process.statistics().faults, faults + 1, "a stale TLB entry was used");
    }
}

#[test]
fn mistake_10_a_store_through_a_clean_tlb_entry_walks_to_set_the_dirty_bit() {
    let mut run = Scenario::new(scheme(4, &[])).start(&[(DATA, MIB)], true);
    let root = run.process.table().root();
    let leaf = run.process.table().translate(run.process.memory(), Gva::new(DATA)).unwrap();
    // As after the kernel cleaned the page for write-back.
    let clean = Entry::leaf(leaf.frame, false, Attributes::new(Rights::ALL));
    run.process.memory_mut().write(leaf.entry_address, clean.0);
    go(&mut run, &[Do::Load(DATA)]);
    let entry = |run: &Run| Entry(run.process.memory().read(leaf.entry_address));
    assert!(entry(&run).is_accessed() && !entry(&run).is_dirty());
    go(&mut run, &[Do::Load(DATA), Do::Store(DATA), Do::Store(DATA)]);
    assert!(entry(&run).is_dirty());
    assert_eq!(run.mmu.statistics.dirty_updates, 1);
    assert_eq!(run.mmu.statistics.total().walks, 2);
    assert_eq!(run.process.table().root(), root);
}

#[test]
fn mistake_11_faults_cost_what_they_did() {
    let mut run = Scenario::new(scheme(4, &[])).start(&[(DATA, 4 * GIB)], false);
    let mut cost = |address| {
        let before = run.timed.as_ref().unwrap().0.statistics.fault_cycles;
        go(&mut run, &[Do::Store(address)]);
        run.timed.as_ref().unwrap().0.statistics.fault_cycles - before
    };
    let first = cost(DATA);
    let again = cost(DATA);
    let neighbour = cost(DATA + PAGE);
    let other_node = cost(DATA + 2 * MIB);
    let other_gigabyte = cost(DATA + GIB);
    assert_eq!(again, 0, "no fault");
    // 1000 cycles fixed, and a page of 4 KiB zeroed at 16 bytes a cycle, at least.
    assert!(neighbour >= 1000 + 256);
    assert!(other_node >= neighbour + 256, "an L1 node was zeroed: {other_node}, {neighbour}");
    assert!(other_gigabyte >= other_node + 256, "and an L2 node");
    assert!(first >= other_gigabyte + 256, "and an L3 node");
}

#[test]
fn mistake_11_a_flattened_node_costs_its_two_megabytes_to_zero() {
    let cost = |flatten: &[&str]| {
        let mut run = Scenario::new(scheme(4, flatten)).start(&[(DATA, GIB)], false);
        go(&mut run, &[Do::Store(DATA)]);
        run.timed.as_ref().unwrap().0.statistics.fault_cycles
    };
    let (flat, radix) = (cost(&["L2L1"]), cost(&[]));
    // The kernel's own walk is shorter by an entry or two: a few cycles.
    assert!(flat + 50 >= radix + (2 * MIB - 2 * PAGE) / 16, "{flat}, {radix}");
}

#[test]
fn mistake_12_walks_overlap_as_far_as_their_addresses_are_known() {
    let time = |chase: bool, ideal: bool| {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.machine.l1d.as_mut().unwrap().mshrs = 64;
        scenario.machine.walker.concurrent = 16;
        scenario.machine.walker.entry = WalkerEntry::L1d;
        if ideal {
            scenario.scheme.translation = crate::machine::TranslationMode::Free;
        }
        let mut run = scenario.start(&[(DATA, GIB)], true);
        // Each in another page and another cache line of the leaf node.
        let at = |i: u64| DATA + i * 31 * PAGE * 8;
        let accesses: Vec<_> =
            (0..200).map(|i| if chase { Do::Chase(at(i)) } else { Do::Load(at(i)) }).collect();
        go(&mut run, &accesses);
        let latency = run.mmu.statistics.total().latency_cycles;
        (run.cycles().unwrap(), latency)
    };
    let (dependent, walking) = time(true, false);
    let (dependent_ideal, _) = time(true, true);
    // Nothing overlaps in a pointer chase: every cycle of walking is lost.
    let lost = dependent - dependent_ideal;
    assert!(lost >= walking * 95 / 100, "{lost} of {walking} cycles of walking were lost");
    let (independent, walking) = time(false, false);
    let (independent_ideal, _) = time(false, true);
    // Independent walks overlap with each other and with data misses.
    let lost = independent - independent_ideal;
    assert!(lost * 3 < walking, "{lost} of {walking} cycles of walking were lost");
}
