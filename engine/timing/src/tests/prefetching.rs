//! Data prefetchers in runs: what they bring, what it takes, and where pages end.
//!
//! The test machine has lines of 64 bytes, and L1D takes 4 cycles, L2 12 and memory 142.

use flatwalk_os::Random;
use flatwalk_paging::{Address, Hpa};
use serde_json::{Value, json};

use crate::config::machine::{Machine, PrefetcherSettings};
use crate::driver::run::{Mode, Run};
use crate::memory::hierarchy::{Hierarchy, Prefetched, Prefetching, Requester, Served};
use crate::memory::prefetchers::Figures;
use crate::report::result::RunResult;
use crate::tests::testing::{DATA, Do, Scenario, go, go_on, host_table, machine, scheme};

const PAGE: u64 = 4096;

fn prefetcher(value: Value) -> PrefetcherSettings {
    serde_json::from_value(value).unwrap()
}

fn stride(page_crossing: &str, distance: u64) -> PrefetcherSettings {
    prefetcher(json!({
        "kind": "ip_stride", "page_crossing": page_crossing, "entries": 64, "confidence": 2,
        "max_stride_bytes": 2048, "distance": distance, "degree": 1, "stores": false,
    }))
}

fn stream(page_crossing: &str) -> PrefetcherSettings {
    prefetcher(json!({
        "kind": "stream", "page_crossing": page_crossing, "streams": 16, "confidence": 2,
        "distance": 8, "degree": 2,
    }))
}

fn next_line(page_crossing: &str) -> PrefetcherSettings {
    prefetcher(json!({ "kind": "next_line", "page_crossing": page_crossing, "degree": 1 }))
}

fn adjacent_line() -> PrefetcherSettings {
    prefetcher(json!({ "kind": "adjacent_line", "page_crossing": "never" }))
}

/// The test machine with more room, MSHRs and walkers than are ever needed, and with these prefetchers.
fn scenario(l1d: Vec<PrefetcherSettings>, l2: Vec<PrefetcherSettings>) -> Scenario {
    let mut scenario = Scenario::new(scheme(4, &[]));
    roomy(&mut scenario.machine, 128, l1d, l2);
    scenario
}

/// Makes `machine` so, its caches `times` as large.
pub(super) fn roomy(
    machine: &mut Machine,
    times: u64,
    l1d: Vec<PrefetcherSettings>,
    l2: Vec<PrefetcherSettings>,
) {
    machine.walker.concurrent = 64;
    let caches = [(&mut machine.l1d, l1d), (&mut machine.l2, l2), (&mut machine.llc, vec![])];
    for (cache, its) in caches {
        let cache = cache.as_mut().unwrap();
        (cache.mshrs, cache.prefetcher) = (254, its);
        cache.size_bytes *= times;
    }
}

/// Prefetchers of every kind, which walk for other pages.
pub(super) fn all() -> (Vec<PrefetcherSettings>, Vec<PrefetcherSettings>) {
    (vec![next_line("walk"), stride("tlb", 2)], vec![stream("walk"), adjacent_line()])
}

fn start(scenario: &Scenario) -> Run {
    scenario.start(&[(DATA, 64 << 20)], true)
}

fn figures(run: &Run) -> Vec<Figures> {
    let (_, caches) = run.timed.as_ref().unwrap();
    caches.prefetchers().map(|(_, one)| one.figures).collect()
}

/// L1D's misses for data, walks of the program, and cycles.
fn seen(run: &Run) -> (u64, u64, u64) {
    let (core, caches) = run.timed.as_ref().unwrap();
    (caches.caches()[1].1.data_misses, run.mmu.statistics.total().walks, core.cycle())
}

/// 256 loads that wait for each other, four lines apart: 16 to a page.
fn strided() -> Vec<Do> {
    (0..256).map(|step| Do::Chase(DATA + 256 * step)).collect()
}

#[test]
fn a_strides_misses_vanish_and_crossing_pages_obeys_the_setting() {
    let run = |l1d| {
        let mut run = start(&scenario(l1d, vec![]));
        go(&mut run, &strided());
        run
    };
    assert_eq!(seen(&run(vec![])).0, 256);
    // The first four miss. Then each access brings the next one's line, but for that of another page.
    let never = run(vec![stride("never", 1)]);
    assert_eq!(&seen(&never).0, &(4 + 15));
    let expected =
        Figures { issued: 253 - 16, useful: 253 - 16, stopped: 16, ..Figures::default() };
    let late = figures(&never)[0].late;
    assert_eq!(figures(&never), [Figures { late, ..expected }]);
    assert!(late > 50, "{late}: the next load comes as soon as the prefetch has begun");
    assert_eq!(seen(&never).1, 16);
    // No TLB has a page that was not used yet.
    let tlb = run(vec![stride("tlb", 1)]);
    assert_eq!((seen(&tlb).0, seen(&tlb).1), (4 + 15, 16));
    assert_eq!((figures(&tlb)[0].dropped, figures(&tlb)[0].stopped), (16, 0));
    // With walks, the program's own are those of its first page.
    let walk = run(vec![stride("walk", 1)]);
    assert_eq!((seen(&walk).0, seen(&walk).1), (4, 1));
    let walked = figures(&walk)[0];
    assert_eq!((walked.issued, walked.useful, walked.useless), (253, 252, 0));
    // A leaf each: the page-walk cache has the rest.
    assert_eq!((walked.walks, walked.walk_accesses, walked.dropped), (16, 16, 0));
}

#[test]
fn what_a_segment_translates_for_prefetches_is_not_the_programs() {
    let mut scenario = scenario(vec![next_line("walk")], vec![]);
    let segment = json!({ "direct_segment": { "memory_fraction": 0.5 } });
    scenario.scheme.mechanisms = serde_json::from_value(segment).unwrap();
    let mut run = start(&scenario);
    go(&mut run, &(0..256).map(|line| Do::Chase(DATA + 64 * line)).collect::<Vec<_>>());
    let found: Value = crate::tests::testing::figures(&run, "direct_segment").unwrap();
    assert_eq!(found["own"]["translations"], 256);
    let of_prefetches = figures(&run)[0];
    assert!(of_prefetches.issued > 250, "{of_prefetches:?}");
    assert_eq!((of_prefetches.stopped, of_prefetches.dropped, of_prefetches.walks), (0, 0, 0));
}

#[test]
fn what_segments_within_the_walker_translate_for_prefetches_is_not_the_programs() {
    let segment =
        |settings: Value| serde_json::from_value(json!({ "direct_segment": settings })).unwrap();
    for of_guest in [true, false] {
        let mut scenario = scenario(vec![next_line("walk")], vec![]);
        let mut host = host_table(4, &[]);
        if of_guest {
            scenario.scheme.mechanisms = segment(json!({ "memory_fraction": 0.5 }));
        } else {
            host.mechanisms = segment(json!({}));
        }
        scenario.scheme.host = Some(host);
        let mut run = start(&scenario);
        // The last line of each of 64 pages, so that the next page is wanted: the program walks for
        // the first one, and the prefetcher for all others.
        go(&mut run, &(1..65).map(|page| Do::Chase(DATA + page * PAGE - 64)).collect::<Vec<_>>());
        let total = run.mmu.statistics.total();
        assert_eq!((total.walks, figures(&run)[0].walks), (1, 64));
        let found: Value = crate::tests::testing::figures(&run, "direct_segment").unwrap();
        // The guest's gives each walk its data; the host's gives each entry of the guest's a place, too.
        let (whose, expected) =
            if of_guest { ("own", total.walks) } else { ("host", total.accesses + total.walks) };
        assert_eq!(found[whose]["translations"], expected, "{whose}");
    }
}

#[test]
fn prefetches_far_enough_ahead_hide_memory() {
    let cycles = |l1d| {
        let mut run = start(&scenario(l1d, vec![]));
        go(&mut run, &strided());
        (seen(&run).2, figures(&run))
    };
    let (without, _) = cycles(vec![]);
    let (with, figures) = cycles(vec![stride("walk", 40)]);
    assert!(with * 3 < without, "{with} of {without}");
    assert!(figures[0].late * 4 < figures[0].useful, "{figures:?}");
}

#[test]
fn l2_is_filled_by_its_own_prefetchers_and_sees_those_of_l1d() {
    let mut run = start(&scenario(vec![], vec![stream("never")]));
    // Line by line through a page.
    go(&mut run, &(0..64).map(|line| Do::Chase(DATA + 64 * line)).collect::<Vec<_>>());
    let (_, caches) = run.timed.as_ref().unwrap();
    let [_, (_, l1d), (_, l2), _] = caches.caches();
    // Two steps, then it runs ahead; and the line of code.
    assert_eq!((l1d.data_misses, l2.data_misses), (64, 3 + 1));
    assert_eq!((l1d.prefetch_accesses, l2.prefetch_misses), (0, 61));
    let [figures] = figures(&run)[..] else { panic!("there is one") };
    assert_eq!((figures.issued, figures.useful, figures.redundant), (61, 61, 0));
    // A stride of four lines in L1D, from the fourth access on: what goes on to L2 is seen there, and each
    // brings the other line of its pair.
    let mut run = start(&scenario(vec![stride("never", 1)], vec![adjacent_line()]));
    go(&mut run, &strided()[..16]);
    let (_, caches) = run.timed.as_ref().unwrap();
    let [_, (_, l1d), (_, l2), (_, llc)] = caches.caches();
    assert_eq!((l1d.prefetch_misses, l2.data_misses), (12, 4 + 1));
    assert_eq!((l2.prefetch_accesses, llc.prefetch_accesses), (12 + 16, 12 + 16));
}

#[test]
fn what_follows_from_a_prefetch_into_another_page_is_in_that_page() {
    let mut run = start(&scenario(vec![next_line("walk")], vec![adjacent_line()]));
    // Four pages, line by line.
    go(&mut run, &(0..256).map(|line| Do::Chase(DATA + 64 * line)).collect::<Vec<_>>());
    let [next, adjacent] = figures(&run)[..] else { panic!("there are two") };
    assert_eq!((next.issued, next.walks, next.stopped), (256, 4, 0));
    // The first access brings the second line by L1D's prefetcher, so that both wishes for the pair
    // are had. Of any other pair the first line is prefetched, also that of another page, and the
    // second is wanted because of that: 127 of the four pages, and one behind them.
    let expected = Figures { issued: 128, redundant: 2, useful: 127, ..Figures::default() };
    let late = adjacent.late;
    assert_eq!(adjacent, Figures { late, ..expected });
}

#[test]
fn random_accesses_gain_nothing() {
    let run = |l1d, l2| {
        let mut random = Random::new(7);
        let chase = |_| Do::Chase(DATA + random.below(64 << 20) / 8 * 8);
        let accesses: Vec<_> = (0..4000).map(chase).collect();
        let mut run = start(&scenario(l1d, l2));
        go(&mut run, &accesses);
        run
    };
    let (without, with) = (run(vec![], vec![]), run(all().0, all().1));
    let ((misses, walks, cycles), (with_misses, with_walks, with_cycles)) =
        (seen(&without), seen(&with));
    assert!(with_misses * 100 > misses * 97, "{with_misses} of {misses}");
    assert!(with_walks * 100 > walks * 97, "{with_walks} of {walks}");
    assert!(with_cycles * 100 > cycles * 97, "{with_cycles} of {cycles}");
    for one in figures(&with) {
        assert!(one.useful * 50 <= one.issued, "{one:?}");
    }
    assert!(figures(&with)[0].issued > 3000, "it tries");
}

#[test]
fn prefetchers_that_want_nothing_change_nothing() {
    let mut shy = stride("walk", 1);
    shy.parameters.insert("max_stride_bytes".to_owned(), json!(1));
    let mut random = Random::new(3);
    let accesses: Vec<_> = (0..3000)
        .map(|number| {
            let address = DATA + random.below(1 << 20);
            match number % 3 {
                0 => Do::Load(address),
                1 => Do::Chase(address),
                _ => Do::Store(address),
            }
        })
        .collect();
    let results = [(vec![], vec![]), (vec![shy.clone()], vec![shy])].map(|(l1d, l2)| {
        let mut run = start(&scenario(l1d, l2));
        go(&mut run, &accesses);
        run.end().unwrap();
        let result = RunResult::new(&run, "test", 1, &mut flatwalk_symbols::Symbols::default());
        let mut result = serde_json::to_value(&result).unwrap();
        let table = result.as_object_mut().unwrap();
        table.remove("configuration");
        let prefetchers = table.remove("prefetchers");
        for cache in table["caches"].as_array_mut().unwrap() {
            let cache = cache.as_object_mut().unwrap();
            assert_eq!(cache.remove("prefetch_accesses").is_some(), prefetchers.is_some());
            cache.remove("prefetch_misses");
        }
        (prefetchers.is_some(), result)
    });
    assert_eq!((results[0].0, results[1].0), (false, true));
    assert_eq!(results[0].1, results[1].1);
}

#[test]
fn a_prefetch_takes_mshrs_and_is_given_up_where_none_is_free() {
    let mut machine = machine();
    machine.l1d.as_mut().unwrap().prefetcher = vec![next_line("never"), stride("never", 1)];
    machine.l2.as_mut().unwrap().prefetcher = vec![adjacent_line()];
    let mut h = Hierarchy::new(&machine, 1).unwrap();
    h.set_prefetchers(&machine).unwrap();
    let read = |h: &mut Hierarchy, address: u64, at: u64| {
        let response = h.access(Hpa::new(address), at, false, Requester::Data);
        (response.ready - at, response.served())
    };
    // L1D has two MSHRs.
    assert_eq!(read(&mut h, 1 << 20, 0), (142, Served::Dram));
    let line = Hpa::new(2 << 20);
    assert_eq!(h.prefetch_data(Prefetching::L1d, line, 1, 1), Prefetched::Issued);
    assert_eq!(h.prefetch_data(Prefetching::L1d, Hpa::new(3 << 20), 2, 0), Prefetched::Dropped);
    assert_eq!(h.prefetch_data(Prefetching::L1d, line, 2, 0), Prefetched::Redundant);
    assert_eq!(read(&mut h, 2 << 20, 43), (100, Served::L1), "it is on its way");
    assert_eq!(read(&mut h, 2 << 20, 500), (4, Served::L1));
    let all: Vec<Figures> = h.prefetchers().map(|(_, one)| one.figures).collect();
    let used = Figures { useful: 1, late: 1, ..Figures::default() };
    assert_eq!(all, [Figures::default(), used, Figures::default()]);
    // A demand that comes while both are taken by prefetches waits for one.
    assert_eq!(h.prefetch_data(Prefetching::L1d, Hpa::new(4 << 20), 1000, 0), Prefetched::Issued);
    assert_eq!(h.prefetch_data(Prefetching::L1d, Hpa::new(5 << 20), 1000, 0), Prefetched::Issued);
    assert_eq!(read(&mut h, 6 << 20, 1001).0, 141 + 142);
    // Into L2 alone.
    assert_eq!(h.prefetch_data(Prefetching::L2, Hpa::new(7 << 20), 2000, 0), Prefetched::Issued);
    assert_eq!(read(&mut h, 7 << 20, 3000), (12, Served::L2));
    // All are of one set of two ways: lines 4 and 5 are gone, and nobody has used them.
    let all: Vec<Figures> = h.prefetchers().map(|(_, one)| one.figures).collect();
    assert_eq!((all[0].useless, all[0].useful), (2, 0));
    assert_eq!((all[2].useless, all[2].useful, all[2].late), (0, 1, 0));
}

#[test]
fn guests_and_several_cores_have_them_too() {
    let mut guest = scheme(4, &[]);
    guest.host = Some(host_table(4, &[]));
    for scheme in [scheme(4, &[]), guest] {
        let (l1d, l2) = all();
        let mut scenario = Scenario { scheme, cores: Some(2), ..scenario(l1d, l2) };
        scenario.machine.multicore = None;
        let mut run = start(&scenario);
        // Both threads sweep over the same memory, the second by stores 64 KiB behind.
        for round in 0..64 {
            let lines =
                |from: u64| (0..128).map(move |line| DATA + (from + round) * 8192 + 64 * line);
            go_on(&mut run, 0, &lines(64).map(Do::Chase).collect::<Vec<_>>());
            go_on(&mut run, 1, &lines(56).map(Do::Store).collect::<Vec<_>>());
        }
        run.end().unwrap();
        for one in figures(&run) {
            let Figures { issued, useful, useless, .. } = one;
            assert!(useful + useless <= issued, "{one:?}");
        }
        let [next, _, stream, _] = figures(&run)[..] else { panic!("there are four") };
        assert!(next.useful * 10 > next.issued * 9 && next.issued > 8000, "{next:?}");
        assert!(next.walks + stream.walks >= 120, "{next:?} {stream:?}");
        assert!(next.walk_accesses >= next.walks, "{next:?}");
    }
}

#[test]
fn functional_mode_says_that_it_has_none() {
    let (l1d, l2) = all();
    let scenario = Scenario { mode: Mode::Functional, ..scenario(l1d, l2) };
    let mut run = start(&scenario);
    go(&mut run, &[Do::Load(DATA + 5 * PAGE)]);
    let result = RunResult::new(&run, "test", 1, &mut flatwalk_symbols::Symbols::default());
    assert!(result.warnings.iter().any(|words| words.contains("prefetchers, which walk")));
}

#[test]
fn what_l2_prefetches_for_a_load_that_waits_for_an_mshr_of_l1d_waits_with_it() {
    let cycles = |l2| {
        let mut scenario = scenario(vec![], l2);
        scenario.machine.l1d.as_mut().unwrap().mshrs = 2;
        let mut run = start(&scenario);
        // Both lines of a pair are asked for at once, so that nothing is gained by bringing the second.
        let pairs: Vec<_> = (0..2000)
            .flat_map(|pair| [0, 64].map(|line| Do::Load(DATA + (pair * 5 % 2000) * 256 + line)))
            .collect();
        go(&mut run, &pairs);
        seen(&run).2 as f64
    };
    let (without, with) = (cycles(vec![]), cycles(vec![adjacent_line()]));
    assert!(with > 0.97 * without, "{with} cycles with the prefetcher, {without} without");
}
