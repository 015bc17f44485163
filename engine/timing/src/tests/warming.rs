//! What is warmed is what it would be if it had been run, and only windows are counted.

use std::ops::ControlFlow;

use flatwalk_os::Random;
use flatwalk_symbols::Symbols;
use flatwalk_trace::{Access, Block, Branch, Instruction, Item, Operands, Slice};

use crate::config::scheme::Scheme;
use crate::driver::piece::{Phase, Piece};
use crate::driver::run::{Mode, Run};
use crate::driver::sampling::{Limits, Places, Sampling};
use crate::mechanisms::page_table_priority::{Mode as Priority, Settings};
use crate::report::result::RunResult;
use crate::simulate::simulate;
use crate::tests::prefetching;
use crate::tests::testing::{DATA, Do, Pieces, Scenario, go, go_on, scheme, shipped};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;

/// Loads, chases and stores: half of them among a few pages, which many structures hold.
fn accesses(seed: u64, count: usize) -> Vec<Do> {
    let mut random = Random::new(seed);
    let one = |_| {
        let pages = if random.below(2) == 0 { 24 } else { SIZE / PAGE };
        let address = DATA + random.below(pages) * PAGE + random.below(PAGE / 8) * 8;
        match random.below(3) {
            0 => Do::Load(address),
            1 => Do::Chase(address),
            _ => Do::Store(address),
        }
    };
    (0..count).map(one).collect()
}

fn enter(run: &mut Run, phase: Phase) {
    run.take(&Piece::Phase { phase, at: run.instructions() }).unwrap();
}

fn scenario(scheme: &Scheme, mode: Mode) -> Scenario {
    let mut scenario = Scenario { mode, large_pages: 25, ..Scenario::new(scheme.clone()) };
    let memory = serde_json::json!({
        "kind": "ddr4", "channels": 2, "ranks": 1, "banks": 4, "row_bytes": 8192,
        "data_rate_mts": 3200, "cl_ns": 10.0, "rcd_ns": 20.0, "rp_ns": 40.0, "controller_ns": 6.0,
        "ras_ns": 32.0, "faw_ns": 21.0,
    });
    scenario.machine.memory = Some(serde_json::from_value(memory).unwrap());
    scenario
}

/// What hit and what missed in a window, by name, but for times and for what was on its way.
fn counted(run: &Run) -> Vec<(String, u64)> {
    let total = run.mmu.statistics.total();
    let mut all = vec![("walks".to_owned(), total.walks), ("entries".to_owned(), total.accesses)];
    for (name, tlb) in run.mmu.tlbs() {
        all.extend(
            tlb.statistics().iter().map(|(size, s)| (format!("{name} hits {size}"), s.hits)),
        );
    }
    let Some((_, caches)) = &run.timed else { return all };
    // But for L1I: the front end asks anew for the line of code that it is at.
    for (name, s) in &caches.caches()[1..] {
        all.push((format!("{name} data misses"), s.data_misses));
        all.push((format!("{name} table misses"), s.table_misses));
        all.push((format!("{name} written back"), s.writebacks));
    }
    let (dram, (tables, lines)) = (&caches.dram().statistics, caches.llc_table_lines());
    let more = [("row hits", dram.row_hits), ("tables", tables as u64), ("lines", lines as u64)];
    all.extend(more.map(|(name, count)| (name.to_owned(), count)));
    all
}

/// Counts of a window after `phase` ran the accesses before it, if it did.
fn after(scheme: &Scheme, phase: Option<Phase>) -> Vec<(String, u64)> {
    let mut run = scenario(scheme, Mode::Timing).start(&[(DATA, SIZE)], true);
    if let Some(phase) = phase {
        enter(&mut run, phase);
        go(&mut run, &accesses(1, 6_000));
    }
    enter(&mut run, Phase::Measured);
    go(&mut run, &accesses(2, 2_000));
    run.end().unwrap();
    counted(&run)
}

/// Schemes that run on the test machine, and whose contents do not depend on time: ASAP prefetches when
/// an MSHR is free, a sequential prefetcher when a walker is.
fn timeless() -> Vec<Scheme> {
    let mut all = shipped();
    all.retain(|scheme| {
        let timed = ["asap", "sequential_prefetcher"];
        !scheme.recorded
            && !timed.iter().any(|name| scheme.mechanisms.names().any(|own| own == *name))
            && scenario(scheme, Mode::Timing).configuration().validate().is_ok()
    });
    assert!(all.len() >= 20, "{}", all.len());
    all
}

#[test]
fn what_is_warmed_is_as_if_it_had_been_run() {
    for scheme in timeless() {
        let warmed = after(&scheme, Some(Phase::Warm));
        let run = after(&scheme, Some(Phase::Detailed));
        if scheme.host.is_none() {
            assert_eq!(warmed, run, "{}", scheme.name);
        }
        // In a guest a walk may find an entry of a cache that is on its way, and read it again: how
        // often, is chance.
        for ((name, warmed), (_, run)) in warmed.iter().zip(&run) {
            assert!(
                warmed.abs_diff(*run) <= 1 + run / 100,
                "{} {name}: {warmed} {run}",
                scheme.name
            );
        }
        assert_ne!(warmed, after(&scheme, None), "{}: it makes no difference", scheme.name);
    }
}

#[test]
fn only_a_gap_is_presumed_to_have_filled_caches() {
    // Too few accesses to fill the last-level cache, and many of them stores.
    let written = |first: Phase, threads: u32| {
        let mut scenario = scenario(&scheme(4, &[]), Mode::Timing);
        scenario.machine.llc.as_mut().unwrap().size_bytes = 4 * MIB;
        scenario.cores = Some(threads);
        let mut run = scenario.start(&[(DATA, SIZE)], true);
        for (phase, seed) in [(first, 1), (Phase::Warm, 2), (Phase::Measured, 3)] {
            enter(&mut run, phase);
            for thread in 0..threads {
                go_on(&mut run, thread, &accesses(seed, 6_000 / threads as usize));
            }
        }
        run.end().unwrap();
        let all = counted(&run);
        let written = all.iter().find(|(name, _)| name == "LLC written back");
        written.unwrap().1
    };
    for threads in [1, 2] {
        assert_eq!(written(Phase::Warm, threads), 0);
        let behind_a_gap = written(Phase::Pass, threads);
        assert!(behind_a_gap > 100, "{threads} {behind_a_gap}");
    }
}

#[test]
fn page_table_lines_that_priority_spares_outlive_warm_ups() {
    // One load in 32 is in 16 MiB, whose 512 lines of entries a warm-up hardly uses; the others are in
    // one, and fill the last-level cache of 1024 lines twice in that time.
    const LOADS: usize = 1_000_000;
    let load = Instruction {
        pc: 0x40_0000,
        length: 4,
        operands: Operands::Registers { reads: [0; 4], writes: [2, 0, 0, 0], branch: Branch::None },
    };
    let access = Access { instruction: 0, size: 8, store: false };
    let block = Block { instructions: [load].into(), accesses: [access].into() };
    let mut random = Random::new(1);
    let mut address = |_| {
        let (size, first) = if random.below(32) == 0 { (16 * MIB, MIB) } else { (MIB, 0) };
        DATA + first + random.below(size / 8) * 8
    };
    let mut items = vec![Item::Define { id: 0, block: block.into() }];
    items.extend((0..LOADS / 1000).map(|_| {
        let addresses = (0..1000).map(&mut address).collect();
        Item::Slice(Slice { thread: 0, blocks: vec![0; 1000], addresses })
    }));
    let misses = |sampling: Option<Sampling>, priority| {
        let mut scheme = scheme(4, &[]);
        if priority {
            scheme.mechanisms.set("page_table_priority", Settings { mode: Priority::Always });
        }
        let configuration = Scenario::new(scheme).configuration();
        let mut source = Pieces::new(items.clone(), LOADS as u64, None);
        source.info.touched = vec![(DATA, DATA + 17 * MIB)];
        let limits = Limits { skip: 50_000, warmup: 0, instructions: None, sampling };
        let go_on = &mut |_| ControlFlow::Continue(());
        let found = simulate(Box::new(source), vec![configuration], &limits, 0, 1, go_on).unwrap();
        let run = &found.runs[0];
        let llc = run.caches.iter().find(|cache| cache.name == "LLC").unwrap();
        llc.table_misses as f64 / run.instructions as f64
    };
    for priority in [true, false] {
        let (windows, window, warmup) = (20, 2_000, 2_000);
        let (filling, after, places) = (0, 0, Places::Spread);
        let sampling = Sampling { windows, window, warmup, filling, after, places };
        let (sampled, whole) = (misses(Some(sampling), priority), misses(None, priority));
        let near = if priority { 0.8..1.2 } else { 0.95..1.05 };
        assert!(near.contains(&(sampled / whole)), "{priority} {sampled} {whole}");
    }
}

/// Sweeps of some lines or strides each, upwards or downwards.
fn sweeps(seed: u64, count: usize) -> Vec<Do> {
    let mut random = Random::new(seed);
    let sweep = |_| {
        let (start, step) = (SIZE / 4 + random.below(SIZE / 2), 8 << random.below(6));
        let (up, store) = (random.below(2) == 0, random.below(4) == 0);
        (0..24).map(move |n| {
            let address = DATA + if up { start + n * step } else { start - n * step };
            if store { Do::Store(address) } else { Do::Chase(address) }
        })
    };
    (0..count / 24).flat_map(sweep).collect()
}

#[test]
fn what_prefetchers_bring_is_warmed_too() {
    // With as many MSHRs and walkers as there can be, no prefetch is given up: contents do not depend on
    // time.
    let after = |l1d, l2, phase: Option<Phase>| {
        let mut scenario = scenario(&scheme(4, &["L4L3"]), Mode::Timing);
        prefetching::roomy(&mut scenario.machine, 4, l1d, l2);
        let mut run = scenario.start(&[(DATA, SIZE)], true);
        if let Some(phase) = phase {
            enter(&mut run, phase);
            go(&mut run, &sweeps(1, 9_000));
        }
        enter(&mut run, Phase::Measured);
        go(&mut run, &sweeps(2, 3_000));
        run.end().unwrap();
        let mut all = counted(&run);
        let (_, caches) = run.timed.as_ref().unwrap();
        for (_, one) in caches.prefetchers() {
            let f = one.figures;
            assert!(f.dropped == 0 || one.kind == "ip_stride", "{f:?}");
            let of =
                [f.issued, f.useful, f.useless, f.redundant, f.stopped, f.walks, f.walk_accesses];
            all.extend(of.iter().map(|&count| (one.kind.to_owned(), count)));
        }
        all
    };
    let (l1d, l2) = prefetching::all();
    let after_all = |phase| after(l1d.clone(), l2.clone(), phase);
    let warmed = after_all(Some(Phase::Warm));
    assert_eq!(warmed, after_all(Some(Phase::Detailed)));
    assert_ne!(warmed, after_all(None));
    let without = after(vec![], vec![], Some(Phase::Warm));
    let misses = |all: &[(String, u64)]| {
        all.iter().find(|(name, _)| name == "L1D data misses").map(|&(_, count)| count).unwrap()
    };
    assert!(misses(&warmed) * 2 < misses(&without), "{} {}", misses(&warmed), misses(&without));
}

#[test]
fn only_windows_are_counted() {
    for mode in [Mode::Timing, Mode::Functional] {
        for scheme in timeless().iter().step_by(5) {
            let mut run = scenario(scheme, mode).start(&[(DATA, SIZE)], false);
            let mut windows = Vec::new();
            for (i, phase) in [Phase::Warm, Phase::Detailed, Phase::Measured, Phase::Pass]
                .iter()
                .cycle()
                .take(16)
                .enumerate()
            {
                enter(&mut run, *phase);
                let before = run.timed.as_ref().map_or(0, |(core, _)| core.cycle());
                go(&mut run, &accesses(i as u64, 500));
                let after = run.timed.as_ref().map_or(0, |(core, _)| core.cycle());
                if *phase == Phase::Measured {
                    windows.push((500 * i as u64, 500, after - before));
                }
            }
            run.end().unwrap();
            let seen: Vec<_> = run.windows().map(|w| (w.at, w.instructions, w.cycles)).collect();
            assert_eq!(seen, windows, "{}", scheme.name);
            let (instructions, loads, stores) = run.measured();
            assert_eq!((instructions, loads + stores), (2_000, 2_000));
            let total = run.mmu.statistics.total();
            let walks: u64 = run.windows().map(|w| w.walks).sum();
            assert_eq!(walks, total.walks);
            if let Some(cycles) = run.cycles() {
                assert_eq!(cycles, windows.iter().map(|w| w.2).sum::<u64>());
                assert_eq!(run.cycle_stack().map(|(_, n)| n).sum::<u64>(), cycles);
            }
            let faults = run.os_measured().faults;
            assert_eq!(faults, run.windows().map(|w| w.os.faults).sum::<u64>());
            let all = run.system.statistics().faults;
            let is_segment = scheme.mechanisms.contains("direct_segment");
            assert!(
                faults < all || is_segment && all == 0,
                "{}: pages were touched outside of windows",
                scheme.name
            );
        }
    }
}

#[test]
fn large_pages_that_could_not_be_had_outside_of_windows_are_told_of() {
    let mut scenario = scenario(&scheme(4, &[]), Mode::Functional);
    (scenario.large_pages, scenario.fragmentation) = (100, 1.0);
    let mut run = scenario.start(&[(DATA, SIZE)], true);
    enter(&mut run, Phase::Measured);
    go(&mut run, &accesses(1, 1_000));
    run.end().unwrap();
    let result = RunResult::new(&run, "test", 1, &mut Symbols::default());
    assert_eq!(result.os.large_page_fallbacks, 0, "in the window all was there");
    let told = |words| result.warnings.iter().any(|warning| warning.contains(words));
    assert!(told("large pages could not be had"), "{:?}", result.warnings);
    assert!(told("only 1000 instructions were measured: figures are uncertain"));
}

#[test]
fn a_tlb_that_other_processes_emptied_was_full_before() {
    let mut scenario = scenario(&scheme(4, &[]), Mode::Timing);
    scenario.large_pages = 0;
    let mut run = scenario.start(&[(DATA, SIZE)], true);
    let is_empty = |run: &Run| run.mmu.tlbs()[2].1.peek(DATA).is_none();
    for page in 0..16 {
        go(&mut run, &[Do::Load(DATA + page * 4096)]);
    }
    run.mmu.switch_context();
    assert!(is_empty(&run));
    let result = RunResult::new(&run, "test", 1, &mut Symbols::default());
    assert!(!result.warnings.iter().any(|warning| warning.contains("half full")));
}
