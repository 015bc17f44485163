//! Twelve mistakes that other simulators make, each with the test that keeps it out of this one.
//! docs/model.md lists them; the numbers in the names are that list's.

use flatwalk_os::Process;
use flatwalk_paging::{
    Address, Attributes, Entry, EntryMemory, EntryMemoryMut, Flush, Gva, Rights, Tree,
};
use flatwalk_trace::Event;

use crate::config::machine::{GuestPwc, Pwc, WalkerEntry};
use crate::counts::forget;
use crate::driver::piece::Piece;
use crate::driver::run::{Mode, Run};
use crate::system::System;
use crate::tests::testing::{DATA, Do, Scenario, go, host_table, scheme};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn process(run: &Run) -> &Process {
    match &run.system {
        System::Native(process) => process,
        System::Virtual(_) | System::Recorded(_) => panic!("it has no process of ours"),
    }
}

/// Walks and accesses of `run` since the last call, as `(walks, accesses)`.
fn walks(run: &mut Run) -> (u64, u64) {
    let total = run.mmu.statistics.total();
    forget(|visit| run.mmu.counts(visit));
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
        (5, &["L5L4", "L3L2"][..], 3),
        (5, &["L4L3", "L2L1"][..], 3),
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
        let (free, bytes) =
            (process(&run).frames().free_frames(), process(&run).page_table_bytes());
        for _ in 0..3 {
            go(&mut run, &(0..16_384).map(|i| Do::Load(DATA + i * PAGE)).collect::<Vec<_>>());
        }
        assert_eq!(process(&run).frames().free_frames(), free);
        assert_eq!(process(&run).page_table_bytes(), bytes);
    }
}

/// A guest whose table flattens `guest` over a host whose flattens `host`, without any cache that
/// spares an access: the first of a walk's own host walks would fill it for the next.
fn uncached_guest(levels: u8, guest: &[&str], host: &[&str]) -> Scenario {
    let mut scenario = Scenario::new(scheme(levels, guest));
    scenario.scheme.host = Some(host_table(levels, host));
    scenario.machine.pwc = Pwc::None;
    let virtualisation = scenario.machine.virtualisation.as_mut().unwrap();
    virtualisation.pwc = Pwc::None;
    virtualisation.nested_tlb.clear();
    scenario
}

/// Accesses of a whole walk.
fn cold_nested(levels: u8, guest: &[&str], host: &[&str]) -> u64 {
    cold(&uncached_guest(levels, guest, host))
}

fn cold(scenario: &Scenario) -> u64 {
    let mut run = scenario.start(&[(DATA, MIB)], true);
    // The host backs what a walk reads when it is first read: only then is a walk undisturbed.
    go(&mut run, &[Do::Chase(DATA)]);
    walks(&mut run);
    walk_length(&mut run, DATA + PAGE)
}

#[test]
fn mistake_07_reading_a_guest_entry_takes_a_host_walk() {
    let flat = &["L4L3", "L2L1"][..];
    assert_eq!(cold_nested(4, &[], &[]), 24);
    assert_eq!(cold_nested(5, &[], &[]), 35);
    assert_eq!(cold_nested(4, &[], flat), 14);
    assert_eq!(cold_nested(4, flat, &[]), 14);
    assert_eq!(cold_nested(4, &["L3L2"], &["L3L2"]), 15);
    assert_eq!(cold_nested(4, flat, flat), 8);
    // A host whose whole table is one array (Ahn et al., ISCA 2012): (4 + 1) (1 + 1) − 1.
    let mut scenario = uncached_guest(4, &[], &[]);
    scenario.scheme.host = Some(host_table(3, &["L3L2L1"]));
    assert_eq!(cold(&scenario), 9);
}

#[test]
fn mistake_07_what_each_cache_spares_a_two_dimensional_walk() {
    let flat = &["L4L3", "L2L1"][..];
    let warm = |guest_pwc| {
        let mut scenario = Scenario::new(scheme(4, flat));
        scenario.scheme.host = Some(host_table(4, flat));
        scenario.machine.virtualisation.as_mut().unwrap().guest_pwc = guest_pwc;
        // Without the nested TLB, which would spare the host's walk for the guest's entry.
        scenario.machine.virtualisation.as_mut().unwrap().nested_tlb.clear();
        let mut run = scenario.start(&[(DATA, MIB)], true);
        go(&mut run, &[Do::Chase(DATA), Do::Chase(DATA + PAGE)]);
        walks(&mut run);
        walk_length(&mut run, DATA + 2 * PAGE)
    };
    assert_eq!(warm(GuestPwc::GuestPhysical), 3, "host for the entry, entry, host for the data");
    assert_eq!(warm(GuestPwc::HostPhysical), 2, "entry, host for the data");
    // The nested TLB: the page with the guest's leaf node is known, the data's page never is.
    let mut scenario = Scenario::new(scheme(4, &[]));
    scenario.scheme.host = Some(host_table(4, &[]));
    let mut run = scenario.start(&[(DATA, MIB)], true);
    go(&mut run, &[Do::Chase(DATA), Do::Chase(DATA + PAGE)]);
    walks(&mut run);
    assert_eq!(walk_length(&mut run, DATA + 2 * PAGE), 2, "guest L1, host L1 for the data");
}

#[test]
fn mistake_07_a_large_page_of_either_stage_spares_its_level_and_no_more() {
    let pages = |guest: u8, host: u8| {
        let mut scenario = uncached_guest(4, &[], &[]);
        (scenario.large_pages, scenario.host_large_pages) = (guest, host);
        let mut run = scenario.start(&[(DATA, 4 * MIB)], true);
        go(&mut run, &[Do::Chase(DATA)]);
        walks(&mut run);
        let length = walk_length(&mut run, DATA + 2 * MIB);
        // In the TLB a page has the smaller of both sizes.
        go(&mut run, &[Do::Chase(DATA + 2 * MIB + 64 * PAGE)]);
        (length, walks(&mut run).0 == 0)
    };
    assert_eq!(pages(0, 0), (24, false));
    assert_eq!(pages(100, 0), (19, false));
    assert_eq!(pages(0, 100), (19, false));
    assert_eq!(pages(100, 100), (15, true));
}

#[test]
fn mistake_07_both_stages_note_what_was_written() {
    let mut scenario = Scenario::new(scheme(4, &["L4L3", "L2L1"]));
    scenario.scheme.host = Some(host_table(4, &[]));
    for mode in [Mode::Timing, Mode::Functional] {
        scenario.mode = mode;
        let mut run = scenario.start(&[(DATA, MIB)], false);
        let dirty = |run: &Run| {
            let System::Virtual(vm) = &run.system else { panic!("there is no guest") };
            let guest = vm.guest.table().translate(vm.guest.memory(), Gva::new(DATA)).unwrap();
            let host = vm.host.table().translate(vm.host.memory(), guest.frame).unwrap();
            (guest.entry.is_dirty(), host.entry.is_dirty())
        };
        go(&mut run, &[Do::Load(DATA)]);
        assert!(run.host_faults().unwrap() > 0);
        // As after both kernels cleaned the page for write-back.
        let System::Virtual(vm) = &mut run.system else { panic!("there is no guest") };
        let clean = Attributes::new(Rights::ALL);
        let guest = vm.guest.table().translate(vm.guest.memory(), Gva::new(DATA)).unwrap();
        let entry = Entry::leaf(guest.frame, false, clean);
        vm.guest.memory_mut().write(guest.entry_address, entry.0);
        let host = vm.host.table().translate(vm.host.memory(), guest.frame).unwrap();
        let entry = Entry::leaf(host.frame, false, clean);
        vm.host.memory_mut().write(host.entry_address, entry.0);
        run.mmu.flush_host(&Flush::everything(true, false));
        go(&mut run, &[Do::Load(DATA)]);
        assert_eq!(dirty(&run), (false, false));
        go(&mut run, &[Do::Store(DATA)]);
        assert_eq!(dirty(&run), (true, true));
    }
}

#[test]
fn mistake_08_a_fifth_level_leaves_the_other_indices_alone() {
    let entries = |levels: u8| {
        let mut run = Scenario::new(scheme(levels, &[])).start(&[(DATA, 4 * MIB)], true);
        let length = walk_length(&mut run, DATA + 2 * MIB);
        let table = process(&run).table();
        let leaf = |address| table.translate(process(&run).memory(), Gva::new(address)).unwrap();
        let (first, next) = (leaf(DATA + 5 * PAGE), leaf(DATA + 6 * PAGE));
        let within = first.entry_address.raw() % PAGE;
        (length, within, next.entry_address.raw() - first.entry_address.raw())
    };
    assert_eq!(entries(4), (4, 5 * 8, 8));
    assert_eq!(entries(5), (5, 5 * 8, 8));
    // Over a two-level table it costs one access when cold, and none once the PWC knows the way.
    let mut run = Scenario::new(scheme(5, &["L4L3", "L2L1"])).start(&[(DATA, 2 * GIB)], true);
    let walks = [DATA, DATA + MIB, DATA + GIB].map(|address| walk_length(&mut run, address));
    assert_eq!(walks, [3, 1, 2], "cold; the same L2+L1 node; the same L4+L3 node");
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
            let table = process(run).table();
            table.translate(process(run).memory(), Gva::new(DATA)).map(|leaf| leaf.entry)
        };
        assert!(leaf(&run).unwrap().is_accessed());
        go(&mut run, &[Do::Store(DATA)]);
        assert!(leaf(&run).unwrap().is_dirty());

        let bytes = process(&run).data_bytes();
        let unmap = Event::Unmap { address: DATA, length: PAGE };
        run.take(&Piece::Event(unmap)).unwrap();
        assert!(leaf(&run).is_err());
        assert_eq!(process(&run).data_bytes(), bytes - PAGE);
        let faults = process(&run).statistics().faults;
        go(&mut run, &[Do::Load(DATA)]);
        assert_eq!(process(&run).statistics().faults, faults + 1, "a stale TLB entry was used");
    }
}

#[test]
fn mistake_10_a_store_through_a_clean_tlb_entry_walks_to_set_the_dirty_bit() {
    let mut run = Scenario::new(scheme(4, &[])).start(&[(DATA, MIB)], true);
    let root = process(&run).table().tree().map(Tree::root);
    let leaf = process(&run).table().translate(process(&run).memory(), Gva::new(DATA)).unwrap();
    // As after the kernel cleaned the page for write-back.
    let clean = Entry::leaf(leaf.frame, false, Attributes::new(Rights::ALL));
    let System::Native(own) = &mut run.system else { panic!("there is a guest") };
    own.memory_mut().write(leaf.entry_address, clean.0);
    go(&mut run, &[Do::Load(DATA)]);
    let entry = |run: &Run| Entry(process(run).memory().read(leaf.entry_address));
    assert!(entry(&run).is_accessed() && !entry(&run).is_dirty());
    go(&mut run, &[Do::Load(DATA), Do::Store(DATA), Do::Store(DATA)]);
    assert!(entry(&run).is_dirty());
    assert_eq!(run.mmu.statistics.dirty_updates, 1);
    assert_eq!(run.mmu.statistics.total().walks, 2);
    assert_eq!(process(&run).table().tree().map(Tree::root), root);
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
            scenario.scheme.translation = crate::config::scheme::TranslationMode::Free;
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
