use flatwalk_os::Random;
use flatwalk_paging::Rights;
use flatwalk_symbols::Symbols;
use flatwalk_trace::{Backing, Event, Protection};
use serde_json::json;

use super::*;
use crate::config::machine::{Pwc, WalkEnd};
use crate::config::scheme::{Scheme, TranslationMode};
use crate::config::table::Pages;
use crate::counts::forget;
use crate::driver::piece::Piece;
use crate::driver::run::{Mode, Run};
use crate::memory::reader::NoClock;
use crate::mmu::event::Request;
use crate::mmu::tlb::{TlbStatistics, Translation};
use crate::report::result::RunResult;
use crate::tests::testing::{
    DATA, Do, Scenario, as_host, chained_scheme, cuckoo_scheme, go, host_table, inverted_scheme,
    scheme, scheme_with,
};

const PAGE: u64 = 4096;

/// Whatever was mapped, unmapped and cached, the unit says what the two tables say.
#[test]
fn agrees_with_the_tables_of_every_combination() {
    let schemes = || {
        let trees = [&[][..], &["L4L3", "L2L1"], &["L3L2"], &["L4L3L2"]];
        // Ones that grow all the time, and one whose reads nothing narrows down.
        let hashed = [
            cuckoo_scheme(64, true),
            cuckoo_scheme(4096, false),
            chained_scheme("hashed", 32),
            chained_scheme("clustered", 64),
            chained_scheme("open", 32),
            inverted_scheme(),
        ];
        trees.into_iter().map(|flatten| scheme(4, flatten)).chain(hashed)
    };
    for (guest, host) in schemes().flat_map(|g| schemes().map(move |h| (g.clone(), h))) {
        for (large_pages, host_large_pages) in [(0, 0), (50, 0), (50, 50), (0, 100)] {
            let mut scenario = Scenario::new(guest.clone());
            scenario.scheme.host = Some(as_host(host.clone()));
            scenario.mode = Mode::Functional;
            (scenario.large_pages, scenario.host_large_pages) = (large_pages, host_large_pages);
            let pages = 8 << 9;
            let mut run = scenario.start(&[(DATA, pages * PAGE)], false);
            let mut random = Random::new(u64::from(large_pages) + 7);
            for round in 0..300 {
                let at = DATA + random.below(pages) * PAGE;
                if round % 20 == 19 {
                    let event = Event::Unmap { address: at, length: 4 * PAGE };
                    run.take(&Piece::Event(event)).unwrap();
                }
                let access = if round % 3 == 0 { Do::Store(at) } else { Do::Load(at) };
                go(&mut run, &[access]);
                let System::Virtual(vm) = &run.system else { panic!("there is no guest") };
                let expected = vm.translate(Gva::new(at)).unwrap();
                let kind = AccessKind::Load;
                let found = run.mmu.translate(
                    Request { address: Gva::new(at), kind, at: 0 },
                    || 0,
                    &mut run.system,
                    &mut NoClock,
                );
                assert_eq!(found.unwrap().physical, expected, "{guest:?} over {host:?}, {at:#x}");
            }
        }
    }
}

#[test]
fn a_guests_levels_are_its_hosts() {
    let mut scheme = scheme(4, &[]);
    scheme.table.geometry = Some(Pages { page_shift: 14, index_bits: 11 });
    assert!(scheme.validate().is_ok());
    scheme.host = Some(host_table(4, &[]));
    let refused = scheme.validate().unwrap_err().to_string();
    assert!(refused.contains("`table.geometry`: is x86-64's in a guest"), "{refused}");
}

#[test]
fn who_asks_earlier_has_a_translation_earlier() {
    let (frame, rights) = (Hpa::new(PAGE), Rights::ALL);
    let (level, dirty) = (1, true);
    let at_once = Translation { frame, level, rights, dirty, requested: 50, ready: 80, waited: 0 };
    let times = [0, 40, 50, 60, 90];
    assert_eq!(times.map(|at| at_once.ready_for(at, |_| unreachable!())), [30, 70, 80, 80, 80]);
    // The walk waited from 50 to 70 for a walker. One is free up to 10, and then from 45 on.
    let waited = Translation { ready: 100, waited: 20, ..at_once };
    let free = |at| if at < 10 { at } else { 45.max(at) };
    assert_eq!(times.map(|at| waited.ready_for(at, free)), [50, 90, 100, 100, 100]);
    assert_eq!([46, 47, 49].map(|at| waited.ready_for(at, |at| at.max(69))), [99; 3]);
    assert_eq!([46, 47, 49].map(|at| waited.ready_for(at, |_| 70)), [100; 3]);
}

/// A walk in a unified cache starts from a pointer that an entry of the level above the node gave.
#[test]
fn hits_of_a_unified_cache_are_by_the_level_of_the_entry() {
    for (flatten, level) in [(&[][..], "L2"), (&["L2L1"][..], "L3"), (&["L4L3", "L2L1"], "L3")] {
        let mut scenario = Scenario::new(scheme(4, flatten));
        scenario.machine.pwc = Pwc::Unified { latency_cycles: 1, entries: 32, ways: 8 };
        let mut run = scenario.start(&[(DATA, 4 * PAGE)], true);
        walk(&mut run, DATA);
        walk(&mut run, DATA + PAGE);
        let hits: Vec<_> = RunResult::new(&run, "test", 1, &mut Symbols::default())
            .pwc
            .into_iter()
            .filter(|pwc| pwc.hits > 0)
            .collect();
        let [hit] = &hits[..] else { panic!("{flatten:?}: {hits:?}") };
        assert_eq!((&*hit.level, hit.hits), (level, 1), "{flatten:?}");
    }
}

/// Accesses of the next walk, and its latency.
fn walk(run: &mut Run, address: u64) -> (u64, u64) {
    forget(|visit| run.mmu.counts(visit));
    go(run, &[Do::Chase(address)]);
    let total = run.mmu.statistics.total();
    assert_eq!(total.walks, 1, "{address:#x}");
    (total.accesses, total.latency_cycles)
}

const LARGE: u64 = 2 << 20;

#[test]
fn a_hashed_walk_reads_what_the_walk_tables_leave_open() {
    let mut scenario = Scenario::new(cuckoo_scheme(64, true));
    scenario.large_pages = 50;
    // Large pages below, base pages above, in regions of 16 MiB of their own but one.
    let mut run = scenario.start(&[(DATA, 100 * LARGE)], true);
    let [large, small, mixed] = [0, 99, 51].map(|i| DATA + i * LARGE);
    // Nothing is known: both sizes in three ways; then the lines of both walk tables, in two ways.
    assert_eq!(walk(&mut run, large).0, 6 + 4);
    assert_eq!(walk(&mut run, large + LARGE).0, 1, "the way of a large page is known");
    assert_eq!(walk(&mut run, small).0, 3, "there are no large pages there");
    assert_eq!(walk(&mut run, mixed).0, 3 + 1, "there may be both");
    // One line of the smaller walk table has 1 GiB; of the larger 512 GiB.
    let far = DATA + (64 << 30);
    let mapped = [(DATA, LARGE), (far, LARGE)];
    let mut run = Scenario::new(cuckoo_scheme(64, true)).start(&mapped, true);
    assert_eq!(walk(&mut run, DATA).0, 3 + 4, "no large page was ever mapped");
    assert_eq!(walk(&mut run, far).0, 3 + 2, "only one of the lines is missing");
    let mut run = Scenario::new(cuckoo_scheme(64, false)).start(&[(DATA, LARGE)], true);
    assert_eq!(walk(&mut run, DATA).0, 3, "without walk tables");
}

#[test]
fn a_hashed_walk_takes_as_long_as_the_read_that_finds_the_entry_or_as_all() {
    // Hashing takes 2 cycles, memory 142, and a line is on the bus for one cycle.
    let mut scenario = Scenario::new(cuckoo_scheme(64, false));
    scenario.machine.l1d.as_mut().expect("it is timed").mshrs = 16;
    let mut latencies = Vec::new();
    for end in [WalkEnd::MatchingProbe, WalkEnd::LastProbe] {
        scenario.machine.hashed_walks.as_mut().expect("it can").end = end;
        let mut run = scenario.start(&[(DATA, 64 * PAGE)], true);
        // Lines of eight entries, each read for the first time.
        let walks = (0..8).map(|i| walk(&mut run, DATA + 8 * i * PAGE).1);
        latencies.push(walks.collect::<Vec<_>>());
    }
    let [first, last] = [&latencies[0], &latencies[1]];
    assert!((144..=146).contains(&first[0]) && last[0] == 146, "{latencies:?}");
    assert!(first.iter().zip(last).all(|(first, last)| first <= last), "{latencies:?}");
    assert!(first.contains(&144), "the first read finds it at times: {latencies:?}");
}

#[test]
fn a_nested_hashed_walk_has_three_rounds() {
    let mut scenario = Scenario::new(cuckoo_scheme(64, false));
    scenario.scheme.host = Some(as_host(cuckoo_scheme(4096, false)));
    let virtualisation = scenario.machine.virtualisation.as_mut().expect("it has guests");
    virtualisation.nested_tlb.clear();
    let l1d = scenario.machine.l1d.as_mut().expect("it is timed");
    (l1d.mshrs, l1d.size_bytes, l1d.ways) = (64, 1 << 15, 8);
    scenario.machine.l2.as_mut().expect("it is timed").mshrs = 64;
    scenario.machine.llc.as_mut().expect("it is timed").mshrs = 64;
    let mut run = scenario.start(&[(DATA, LARGE)], true);
    // Faults of the host for the guest's table come first.
    go(&mut run, &[Do::Load(DATA)]);
    let all = Flush::everything(true, true);
    run.mmu.flush(&all);
    let (accesses, latency) = walk(&mut run, DATA + 256 * PAGE);
    assert_eq!(accesses, 9 + 3 + 3);
    // Three rounds one after the other; within a round, reads are under way together.
    assert!((3 * 2..=3 * (144 + 9) + 2).contains(&latency), "{latency}");
}

#[test]
fn an_inverted_walk_reads_an_anchor_and_then_frame_by_frame() {
    let mut run = Scenario::new(inverted_scheme()).start(&[(DATA, 4096 * PAGE)], true);
    let accesses = |i| walk(&mut run, DATA + i * PAGE).0;
    let all: Vec<u64> = (0..4096).map(accesses).collect();
    // 8 Mi anchors for 4 Ki pages: few share one.
    assert!(all.iter().all(|accesses| (2..=4).contains(accesses)), "{all:?}");
    assert!(all.iter().filter(|&&accesses| accesses == 2).count() > 4000, "{all:?}");
    // Half as many pages as there are anchors, in a machine whose memory is full to the half.
    let mut scenario = Scenario::new(inverted_scheme());
    scenario.mode = Mode::Functional;
    scenario.machine.os.memory_bytes = 1 << 30;
    let pages = 1 << 17;
    let mut run = scenario.start(&[(DATA, pages * PAGE)], true);
    go(&mut run, &(0..pages).map(|i| Do::Load(DATA + i * PAGE)).collect::<Vec<_>>());
    let total = run.mmu.statistics.total();
    assert_eq!(total.walks, pages);
    // An anchor, and the half of the others of a chain at the load a half: 1 + 1 + a / 2.
    let mean = total.accesses as f64 / total.walks as f64;
    assert!((mean - 2.25).abs() < 0.01, "{mean}");
}

#[test]
fn open_addressing_reads_one_line_and_few_behind_it() {
    // 1024 lines of eight pages each, up to 0.6 of which are in use.
    let mut scenario = Scenario::new(chained_scheme("open", 1024));
    scenario.mode = Mode::Functional;
    let lines = 600;
    let mut run = scenario.start(&[(DATA, 8 * lines * PAGE)], true);
    let apart = (0..lines).map(|i| Do::Load(DATA + 8 * i * PAGE));
    go(&mut run, &apart.collect::<Vec<_>>());
    let total = run.mmu.statistics.total();
    assert_eq!((total.walks, run.system.statistics().resizes), (lines, 0));
    // Knuth, volume 3, section 6.4: (1 + 1 / (1 − a)) / 2 lines for one that is there.
    let mean = total.accesses as f64 / total.walks as f64;
    let load = lines as f64 / 1024.0;
    assert!((mean - 0.5 * (1.0 + 1.0 / (1.0 - load))).abs() < 0.2, "{mean}");
}

#[test]
fn a_chain_is_read_node_by_node() {
    // As many pages as buckets, so that some share one; a walk ends with its first or a later read.
    for (name, pages_in_a_node, least) in [("hashed", 1, 1), ("clustered", 16, 1)] {
        let pages = 32 * pages_in_a_node;
        let scenario = Scenario::new(chained_scheme(name, 32));
        let mut run = scenario.start(&[(DATA, pages * PAGE)], true);
        let walks: Vec<_> = (0..pages)
            .step_by(pages_in_a_node as usize)
            .map(|i| walk(&mut run, DATA + (i + pages_in_a_node / 2) * PAGE))
            .collect();
        let (accesses, _): (Vec<u64>, Vec<u64>) = walks.iter().copied().unzip();
        assert!(accesses.iter().all(|n| (least..=8).contains(n)), "{name}: {accesses:?}");
        assert!(accesses.iter().any(|&n| n > least + 1), "{name}: no two share a bucket");
        // Hashing takes 2 cycles, and each read 4 at least, one after the other.
        for (accesses, latency) in walks {
            assert!(latency >= 2 + 4 * accesses, "{name}: {accesses} in {latency} cycles");
        }
    }
}

#[test]
fn only_a_table_with_side_lines_waits_for_their_caches() {
    let latency = |scheme: &Scheme, cwc_latency_cycles| {
        let mut scenario = Scenario::new(scheme.clone());
        let hashed = scenario.machine.hashed_walks.as_mut().expect("it can");
        hashed.cwc_latency_cycles = cwc_latency_cycles;
        let mut run = scenario.start(&[(DATA, 64 * PAGE)], true);
        walk(&mut run, DATA).1
    };
    let dmt = json!({ "organisation": "dmt", "levels": 4, "registers": 1 });
    let keyed = [
        chained_scheme("hashed", 32),
        chained_scheme("clustered", 64),
        chained_scheme("open", 32),
        inverted_scheme(),
        cuckoo_scheme(64, false),
        scheme_with(&dmt),
    ];
    for scheme in keyed {
        assert_eq!(latency(&scheme, 9), latency(&scheme, 0), "{scheme:?}");
    }
    // Hashing takes 2 cycles: they are not waited for in addition.
    let cuckoo = cuckoo_scheme(64, true);
    let [short, as_long, long] = [0, 2, 9].map(|cycles| latency(&cuckoo, cycles));
    assert_eq!((short, long), (as_long, as_long + 9 - 2));
}

/// Lines of a result's TLBs and page-walk caches that were looked up.
fn looked_up(run: &Run) -> usize {
    let result = RunResult::new(run, "test", 1, &mut Symbols::default());
    let tlbs = result.tlb.iter().filter(|tlb| tlb.lookups > 0).count();
    tlbs + result.pwc.iter().filter(|pwc| pwc.lookups > 0).count()
}

#[test]
fn free_translation_looks_nothing_up() {
    for host in [None, Some(as_host(scheme(4, &[])))] {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.scheme.host = host;
        let pages: Vec<_> = (0..64).map(|i| Do::Load(DATA + i * PAGE)).collect();
        let mut run = scenario.start(&[(DATA, LARGE)], true);
        go(&mut run, &pages);
        assert!(looked_up(&run) > 0);
        scenario.scheme.translation = TranslationMode::Free;
        let mut run = scenario.start(&[(DATA, LARGE)], true);
        go(&mut run, &pages);
        assert_eq!(looked_up(&run), 0);
    }
}

/// 2 MiB are mapped at `address`.
fn map(address: u64, shared: bool) -> Event {
    let protection = Protection { read: true, write: true, execute: false };
    Event::Map { address, length: LARGE, protection, backing: Backing::Anonymous, shared }
}

#[test]
fn misses_of_each_tlb_are_walks_where_dirty_bits_are_set_too() {
    for has_l2 in [true, false] {
        let mut scenario = Scenario::new(scheme(4, &[]));
        if !has_l2 {
            scenario.machine.tlb.l2.clear();
        }
        let mut run = scenario.start(&[(DATA, LARGE)], false);
        run.take(&Piece::Event(map(DATA, true))).unwrap();
        // The load faults. So its page, which is shared, is clean when it is stored to, and dirty afterwards.
        go(&mut run, &[Do::Load(DATA), Do::Store(DATA), Do::Store(DATA)]);
        let statistics = &run.mmu.statistics;
        assert_eq!((statistics.total().walks, statistics.faulting), (2, 1));
        assert_eq!(statistics.dirty_updates, 1, "L2 TLB: {has_l2}");
        // Of the four look-ups in L1, as the load makes two, the last is a hit, and L2 sees the others.
        let [l1d, _, l2] = run.mmu.tlbs().map(|(_, tlb)| tlb.statistics());
        let counts = |all: Vec<(Level, TlbStatistics)>| {
            let hits: u64 = all.iter().map(|(_, one)| one.hits).sum();
            all.first().map(|(_, one)| (one.lookups, hits))
        };
        assert_eq!(counts(l1d), Some((4, 1)));
        assert_eq!(counts(l2), has_l2.then_some((3, 0)));
    }
}

#[test]
fn a_guest_that_is_populated_meets_no_fault_and_each_fault_ends_a_walk() {
    let guests = [
        scheme(4, &[]),
        scheme(4, &["L4L3", "L2L1"]),
        cuckoo_scheme(64, true),
        chained_scheme("hashed", 32),
        inverted_scheme(),
    ];
    for guest in guests {
        let mut scenario = Scenario::new(guest.clone());
        scenario.scheme.host = Some(as_host(scheme(4, &[])));
        let mut run = scenario.start(&[(DATA, 4 * LARGE)], true);
        let host_faults = |run: &Run| run.system.host_statistics().expect("it has one").faults;
        go(&mut run, &(0..4 << 9).map(|i| Do::Store(DATA + i * PAGE)).collect::<Vec<_>>());
        assert_eq!((run.mmu.statistics.faulting, host_faults(&run)), (0, 0), "{guest:?}");
        let address = DATA + (1 << 30);
        run.take(&Piece::Event(map(address, false))).unwrap();
        go(&mut run, &(0..1 << 9).map(|i| Do::Store(address + i * PAGE)).collect::<Vec<_>>());
        let (own, hosts) = (run.system.statistics().faults, host_faults(&run));
        assert!(own == 512 && hosts >= 512, "{guest:?}: {own}, {hosts}");
        // The host's are of what the guest's kernel fills, before a walk comes there.
        assert_eq!(run.mmu.statistics.faulting, own, "{guest:?}");
    }
}
