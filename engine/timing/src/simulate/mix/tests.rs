use std::panic::{AssertUnwindSafe, catch_unwind};

use flatwalk_os::Placement;
use flatwalk_trace::{Event, Item, Slice};
use serde_json::json;

use super::*;
use crate::config::machine::{Isolation, Memory, Multicore};
use crate::driver::piece::{Phase, Piece};
use crate::driver::run::Mode;
use crate::driver::sampling::{Places, Sampling};
use crate::mechanisms::page_table_priority::{Mode as Priority, Settings};
use crate::simulate::simulate;
use crate::tests::testing::{Panicking, Pieces, branching_block, machine, scheme};

const SIZE: u64 = 16 << 20;

fn open(core: usize) -> Result<Box<dyn Source>, String> {
    flatwalk_workloads::open("gups", &flatwalk_workloads::Arguments::new(SIZE, core as u64))
        .map_err(|error| error.to_string())
}

fn configuration(priority: Option<Priority>, isolation: Isolation) -> RunConfiguration {
    let mut machine = machine();
    machine.multicore = Some(Multicore { cores: 2, isolation });
    let mut scheme = scheme(4, &[]);
    if let Some(mode) = priority {
        scheme.mechanisms.set("page_table_priority", Settings { mode });
    }
    RunConfiguration {
        scheme,
        machine,
        settings: serde_json::Map::new(),
        large_pages: Some(0),
        thp: None,
        fragmentation: 0.0,
        host_large_pages: 0,
        guest_frames: Placement::Compact,
        frames: Placement::Compact,
        mode: Mode::Timing,
        context_switch_ms: None,
        memory_bytes: None,
        cores: None,
    }
}

const LIMITS: Limits =
    Limits { skip: 0, warmup: 20_000, instructions: Some(40_000), sampling: None };

/// Twenty windows of 5,000 instructions over 2 M, 60,000 warmed before each.
fn windows() -> Limits {
    let sampling = Sampling {
        windows: 20,
        window: 5_000,
        warmup: 60_000,
        filling: 0,
        after: 0,
        places: Places::Spread,
    };
    Limits { skip: 0, warmup: 0, instructions: Some(2_000_000), sampling: Some(sampling) }
}

fn mix(cores: usize, configuration: &RunConfiguration, limits: &Limits) -> Vec<RunResult> {
    mix_from(0, cores, configuration, limits)
}

#[test]
fn how_long_a_program_is_shows_where_it_ends() {
    let configuration = configuration(None, Isolation::Owners);
    let one = std::slice::from_ref(&configuration);
    let go_on = &mut |_, _| ControlFlow::Continue(());
    // Instructions of which nothing is known beforehand.
    let open = |_| {
        let slice = Item::Slice(Slice { thread: 0, blocks: vec![0; 50_000], addresses: vec![] });
        let mut source = Pieces::new(vec![branching_block(0), slice], 0, None);
        source.info.instructions = None;
        Ok(Box::new(source) as Box<dyn Source>)
    };
    let mut total = |limits: Limits| {
        let mixed = simulate_mix(&open, one, &[limits], 0, 1, go_on).unwrap();
        mixed.sampled[0].instructions_total
    };
    let part = Limits { warmup: 10_000, ..LIMITS };
    assert_eq!(total(part.clone()), None);
    assert_eq!(total(Limits { instructions: Some(90_000), ..part.clone() }), None);
    assert_eq!(total(Limits { instructions: Some(200_000), ..part }), Some(100_000));
    assert_eq!(total(windows()), Some(100_000));
}

/// The programs of `cores` cores from `first` on.
fn mix_from(
    first: usize,
    cores: usize,
    configuration: &RunConfiguration,
    limits: &Limits,
) -> Vec<RunResult> {
    let one = std::slice::from_ref(configuration);
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let open = |core| open(first + core);
    let limits = vec![limits.clone(); cores];
    simulate_mix(&open, one, &limits, first as u64, 1, go_on).unwrap().runs.remove(0)
}

/// The first program by itself, on a machine with as much memory as it has in a mix.
fn own(configuration: &RunConfiguration, limits: &Limits) -> RunResult {
    let memory_bytes = Some(configuration.machine.os.memory_bytes / 2);
    let alone = RunConfiguration { memory_bytes, ..configuration.clone() };
    let go_on = &mut |_| ControlFlow::Continue(());
    simulate(open(0).unwrap(), vec![alone], limits, 0, 1, go_on).unwrap().runs.remove(0)
}

fn look_ups(run: &RunResult, name: &str) -> (u64, u64) {
    let cache = run.caches.iter().find(|cache| cache.name == name).unwrap();
    (cache.data_misses, cache.table_misses)
}

#[test]
fn a_program_that_shares_with_nobody_runs_as_on_a_machine_of_its_own() {
    for priority in [None, Some(Priority::Always)] {
        let configuration = configuration(priority, Isolation::Owners);
        let shared = mix(1, &configuration, &LIMITS).remove(0);
        let own = own(&configuration, &LIMITS);
        // A turn may go on for some blocks after the last instruction that is wanted.
        let close = |a: u64, b: u64| a.abs_diff(b) * 100 < a;
        assert!(close(own.cycles.unwrap(), shared.cycles.unwrap()), "{priority:?}");
        assert!(close(own.walks, shared.walks), "{priority:?}");
        let misses = look_ups(&own, "LLC");
        assert!(close(misses.1, look_ups(&shared, "LLC").1), "{priority:?} {misses:?}");
    }
}

#[test]
fn windows_that_fill_a_part_have_their_warm_up_before_it() {
    let configuration = configuration(None, Isolation::Owners);
    let Limits { sampling, .. } = windows();
    let (skip, instructions) = (60_000, Some(100_000));
    let filled = Limits { skip, warmup: 0, instructions, sampling };
    let part = Limits { skip: 0, warmup: 60_000, instructions, sampling: None };
    let [filled, part] = [filled, part].map(|limits| mix(2, &configuration, &limits));
    for (filled, part) in filled.iter().zip(&part) {
        assert_eq!((filled.instructions, filled.cycles), (part.instructions, part.cycles));
        assert_eq!(look_ups(filled, "LLC"), look_ups(part, "LLC"));
    }
}

#[test]
fn windows_of_a_program_that_shares_with_nobody_are_those_on_a_machine_of_its_own() {
    for priority in [None, Some(Priority::Always)] {
        let configuration = configuration(priority, Isolation::Owners);
        let shared = mix(1, &configuration, &windows()).remove(0);
        let own = own(&configuration, &windows());
        assert_eq!(shared.windows.len(), 20);
        assert_eq!(
            serde_json::to_value(&shared.windows).unwrap(),
            serde_json::to_value(&own.windows).unwrap(),
            "{priority:?}"
        );
        assert_eq!(look_ups(&shared, "LLC"), look_ups(&own, "LLC"));
    }
}

/// A memory of which one program leaves some free, and two want more than there is.
fn narrow() -> RunConfiguration {
    let mut configuration = configuration(None, Isolation::Owners);
    // A line in 16 cycles.
    let memory = Memory::Fixed { latency_ns: 100.0, bandwidth_gbs: 4.0 };
    configuration.machine.memory = Some(memory);
    configuration
}

#[test]
fn programs_together_are_slower_and_always_the_same() {
    for limits in [LIMITS, windows()] {
        let configuration = narrow();
        let (together, again) = (mix(2, &configuration, &limits), mix(2, &configuration, &limits));
        assert_eq!(together.len(), 2);
        for (core, (run, other)) in together.iter().zip(&again).enumerate() {
            let alone = mix_from(core, 1, &configuration, &limits);
            assert_eq!(run.cycles, other.cycles);
            let wanted = if limits.sampling.is_some() { 100_000 } else { 40_000 };
            assert!(run.instructions.abs_diff(wanted) < 1_000, "{}", run.instructions);
            let (ipc, alone) = (run.ipc.unwrap(), alone[0].ipc.unwrap());
            assert!(ipc < 0.9 * alone, "{ipc} in company, {alone} alone");
        }
        assert_ne!(together[0].cycles, together[1].cycles, "programs have seeds of their own");
    }
}

#[test]
fn windows_of_a_mix_find_what_all_of_it_has() {
    let configuration = narrow();
    // Behind the page faults, which are few and take long.
    let sampled = Limits { skip: 400_000, ..windows() };
    let part = Limits { sampling: None, warmup: 60_000, ..sampled.clone() };
    let (all, sampled) = (mix(2, &configuration, &part), mix(2, &configuration, &sampled));
    for (all, sampled) in all.iter().zip(&sampled) {
        let (all, sampled) = (all.ipc.unwrap(), sampled.ipc.unwrap());
        assert!((sampled / all - 1.0).abs() < 0.01, "{sampled} {all}");
    }
}

#[test]
fn a_core_that_has_measured_its_window_goes_on_for_the_others() {
    // The second program is done with each window in a fraction of the first one's time.
    let fast = || {
        let slice = |n| Item::Slice(Slice { thread: 0, blocks: vec![0; n], addresses: Vec::new() });
        let items = [branching_block(0)].into_iter().chain((0..1_000).map(|_| slice(1_000)));
        Box::new(Pieces::new(items.collect(), 2_000_000, None))
    };
    let configuration = narrow();
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let one = std::slice::from_ref(&configuration);
    let mut with = |other: &Open<'_>| {
        let open = |core: usize| if core == 0 { open(0) } else { other(core) };
        let limits = [windows(), windows()];
        let mixed = simulate_mix(&open, one, &limits, 0, 1, go_on).unwrap();
        assert!(mixed.sampled.iter().all(|sampled| sampled.windows == 20));
        mixed.runs[0].iter().map(|run| run.cycles.unwrap()).collect::<Vec<_>>()
    };
    let with_fast = with(&|_| Ok(fast()));
    assert!(with_fast[0] > 10 * with_fast[1], "{with_fast:?}");
    let alone = mix(1, &configuration, &windows())[0].cycles.unwrap();
    assert!(with_fast[0].abs_diff(alone) < alone / 50, "it needs no memory: {alone} {with_fast:?}");
    // Of two that are alike but for their windows' lengths, the one with the longer windows has company up to
    // their end.
    let mut long = windows();
    long.sampling.as_mut().unwrap().window = 40_000;
    let limits = [long.clone(), windows()];
    let mut mixed = |limits: &[Limits]| {
        let runs = simulate_mix(&open, one, limits, 0, 1, go_on).unwrap().runs.remove(0);
        runs[0].cycles.unwrap()
    };
    let (equal, longer) = (mixed(&[long.clone(), long]), mixed(&limits));
    assert!(equal.abs_diff(longer) < equal / 50, "{equal} {longer}");
    // With what follows, some of it, or more than it has time for.
    for after in [3_000, 30_000] {
        let mut limits = limits.clone();
        limits[1].sampling.as_mut().unwrap().after = after;
        let followed = mixed(&limits);
        assert!(equal.abs_diff(followed) < equal / 50 && followed != longer, "{equal} {followed}");
    }
}

#[test]
fn what_is_left_of_what_follows_is_warm_up_of_the_next_window() {
    let configuration = narrow();
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let one = std::slice::from_ref(&configuration);
    let mut mixed = |after: u64| -> Vec<u64> {
        let mut limits = [windows(), windows()];
        limits[0].sampling.as_mut().unwrap().window = 10_000;
        limits[1].sampling.as_mut().unwrap().after = after;
        let runs = simulate_mix(&open, one, &limits, 0, 1, go_on).unwrap().runs.remove(0);
        runs.iter().map(|run| run.cycles.unwrap()).collect()
    };
    // The second core has time for 5,000 instructions more than its window.
    let (fits, much) = (mixed(5_000), mixed(40_000));
    // As far apart as with other lengths that fit, 4,000 or 6,000.
    for (fits, much) in fits.iter().zip(&much) {
        assert!(fits.abs_diff(*much) * 100 < *fits, "{fits} {much}");
    }
}

#[test]
fn a_program_whose_company_ends_says_so() {
    let configuration = configuration(None, Isolation::Owners);
    let one = std::slice::from_ref(&configuration);
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let mut warned = |instructions: usize| {
        let open = |core: usize| -> Result<Box<dyn Source>, String> {
            if core == 0 {
                return open(0);
            }
            let blocks = vec![0; instructions];
            let slice = Item::Slice(Slice { thread: 0, blocks, addresses: Vec::new() });
            Ok(Box::new(Pieces::new(vec![branching_block(0), slice], instructions as u64, None)))
        };
        let runs = simulate_mix(&open, one, &[LIMITS, LIMITS], 0, 1, go_on).unwrap().runs.remove(0);
        runs[0].warnings.iter().any(|warning| warning.contains("less company"))
    };
    assert_eq!([1_000, 4_000_000].map(&mut warned), [true, false]);
}

/// A recording of so many segments of 100,000 instructions, with gaps of as many before each but the first.
fn recording(segments: u64) -> Box<dyn Source> {
    let slice = || Item::Slice(Slice { thread: 0, blocks: vec![0; 500], addresses: Vec::new() });
    let segment = |number| {
        let gap = Item::Event(Event::Gap { instructions: 100_000 });
        (number > 0).then_some(gap).into_iter().chain((0..100).map(move |_| slice()))
    };
    let items = [branching_block(0)].into_iter().chain((0..segments).flat_map(segment));
    let (recorded, gaps) = (segments * 100_000, (segments - 1) * 100_000);
    Box::new(Pieces::new(items.collect(), recorded, Some((gaps, 100_000))))
}

#[test]
fn programs_have_as_many_windows_as_that_with_the_fewest() {
    let configuration = configuration(None, Isolation::Owners);
    let one = std::slice::from_ref(&configuration);
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let mut places = |of: [Option<u64>; 2]| {
        let open = |core: usize| of[core].map_or_else(|| open(core), |n| Ok(recording(n)));
        let all = Limits { instructions: None, ..windows() };
        let limits = of.map(|of| if of.is_some() { all.clone() } else { windows() });
        let mut mixed = simulate_mix(&open, one, &limits, 0, 1, go_on).unwrap();
        let windows: Vec<Vec<u64>> = (mixed.runs.remove(0).iter())
            .map(|run| run.windows.iter().map(|window| window.at).collect())
            .collect();
        (windows, mixed.sampled)
    };
    // Of seven segments, five: of which each part of the recording has some.
    let (found, sampled) = places([Some(7), Some(5)]);
    let at = |segments: &[u64]| segments.iter().map(|n| n * 200_000 + 95_000).collect::<Vec<_>>();
    assert_eq!(found, [at(&[1, 2, 4, 5, 6]), at(&[0, 1, 2, 3, 4])]);
    let of =
        sampled.iter().map(|s| (s.windows, s.instructions_measured, s.instructions_represented));
    assert_eq!(of.collect::<Vec<_>>(), [(5, 25_000, 1_300_000), (5, 25_000, 900_000)]);
    // And no more than are asked for.
    let (found, _) = places([Some(30), Some(40)]);
    assert_eq!((found[0].len(), found[1].len()), (20, 20));
    assert_eq!(found[1], (0..20).map(|n| (2 * n + 1) * 200_000 + 95_000).collect::<Vec<_>>());
    // A workload has as many as the recording.
    let (found, sampled) = places([Some(7), None]);
    assert_eq!((found[0].len(), found[1].len()), (7, 7));
    assert!((0..).zip(&found[1]).all(|(n, &at)| at / 285_714 == n), "{found:?}");
    assert!((2_000_000..2_000_100).contains(&sampled[1].instructions_represented));
}

#[test]
fn what_follows_windows_is_read_once() {
    let mut limits = windows();
    limits.sampling.as_mut().unwrap().after = 30_000;
    let mut source = open(0).unwrap();
    let mut reader = StretchReader::new(&mut *source, &limits, 0, Predictors::default());
    let mut blocks = Vec::new();
    // Phases, where they begin, and the instructions that are in them.
    let mut phases: Vec<(Phase, u64, u64)> = Vec::new();
    while let Some(pieces) = reader.next_window(false).unwrap() {
        for piece in pieces {
            match piece {
                Piece::Define(block) => blocks.push(block.ops.len() as u64),
                Piece::Slice(slice) => {
                    let instructions = slice.blocks.iter().map(|&id| blocks[id as usize]);
                    phases.last_mut().unwrap().2 += instructions.sum::<u64>();
                }
                Piece::Phase { phase, at } => phases.push((phase, at, 0)),
                _ => {}
            }
        }
    }
    for pair in phases.windows(2) {
        let [(phase, at, instructions), (_, next, _)] = [pair[0], pair[1]];
        let all = if phase == Phase::Pass { 0 } else { next - at };
        assert_eq!(instructions, all, "{phase:?} at {at}");
    }
    let lengths = |of| phases.iter().filter(move |phase| phase.0 == of).map(|phase| phase.2);
    assert!(lengths(Phase::Measured).all(|length| length.abs_diff(5_000) < 10));
    let behind = phases.windows(2).filter(|pair| pair[0].0 == Phase::Measured);
    let behind: Vec<u64> = behind.map(|pair| pair[1].2).collect();
    assert!(behind.len() == 20 && behind.iter().all(|&length| length < 50_010), "{behind:?}");
    assert!(behind.iter().filter(|length| length.abs_diff(30_000) < 10).count() > 10, "{behind:?}");
}

#[test]
fn a_window_that_is_left_out_is_warmed_and_its_gap_is_not() {
    let mut source = recording(3);
    let all = Limits { instructions: None, ..windows() };
    let mut reader = StretchReader::new(&mut *source, &all, 0, Predictors::default());
    let mut warmed = |leaves_out| {
        reader.next_window(leaves_out).unwrap().unwrap();
        reader.take_warmed()
    };
    // 60,000 before each window of 5,000, of which the last 50,000 run with the clock where it is measured.
    assert_eq!([true, false].map(&mut warmed), [65_000, 10_000]);
}

#[test]
fn priority_keeps_tables_in_the_shared_cache() {
    for (isolation, limits) in
        [(Isolation::Owners, LIMITS), (Isolation::Ways, LIMITS), (Isolation::Owners, windows())]
    {
        let misses = |priority| -> u64 {
            let runs = mix(2, &configuration(priority, isolation), &limits);
            runs.iter().map(|run| look_ups(run, "LLC").1).sum()
        };
        let (without, with) = (misses(None), misses(Some(Priority::Always)));
        assert!(with < without / 2, "{isolation:?}: {with} of {without} misses");
    }
}

#[test]
fn a_cores_results_say_what_the_shared_cache_has() {
    let mut configuration = configuration(None, Isolation::Owners);
    let csalt =
        serde_json::json!({ "csalt": { "epoch_accesses": 500, "translation_weight": 1.0 } });
    configuration.scheme.mechanisms = serde_json::from_value(csalt).unwrap();
    for limits in [LIMITS, windows()] {
        for run in mix(2, &configuration, &limits) {
            assert!(run.llc_table_fraction.is_some_and(|fraction| fraction > 0.0));
            assert!(run.mechanisms["csalt"]["llc_data_ways"].is_number());
        }
    }
}

#[test]
fn what_is_measured_of_a_program_ends_with_its_part() {
    let configuration = configuration(Some(Priority::Phases), Isolation::Owners);
    // Half of the 10,000 instructions between two looks, after it has been switched on.
    let limits = Limits { warmup: 35_000, instructions: Some(5_000), ..LIMITS };
    for run in mix(2, &configuration, &limits) {
        assert_eq!(run.mechanisms["page_table_priority"]["active_fraction"], 1.0);
    }
}

#[test]
fn a_worker_that_panics_ends_the_mix_with_what_it_left() {
    let configurations = vec![configuration(None, Isolation::Owners); 2];
    let open = |core| open_panicking(core, 1);
    let go_on = &mut |_, _| ControlFlow::Continue(());
    for limits in [LIMITS, windows()] {
        let limits = [limits.clone(), limits];
        let mixed = catch_unwind(AssertUnwindSafe(|| {
            simulate_mix(&open, &configurations, &limits, 0, 2, go_on).map(drop)
        }));
        assert_eq!(mixed.unwrap_err().downcast_ref(), Some(&Panicking::LEFT));
    }
}

/// As [`open`]; the program of core `bad` panics where its first piece is read.
fn open_panicking(core: usize, bad: usize) -> Result<Box<dyn Source>, String> {
    let source = open(core)?;
    if core == bad { Ok(Box::new(Panicking(source.info().clone()))) } else { Ok(source) }
}

#[test]
fn what_does_not_fit_is_refused() {
    let configuration = configuration(None, Isolation::Owners);
    for limits in [LIMITS, windows()] {
        let refusal = |cores, configuration: &RunConfiguration| {
            let one = std::slice::from_ref(configuration);
            let go_on = &mut |_, _| ControlFlow::Continue(());
            let limits = vec![limits.clone(); cores];
            let error = simulate_mix(&open, one, &limits, 1, 1, go_on).unwrap_err().to_string();
            assert!(error.ends_with(&check_mix(configuration, cores).unwrap_err().to_string()));
            error
        };
        check_mix(&configuration, 2).unwrap();
        assert_eq!(seeds(u64::MAX).take(3).collect::<Vec<_>>(), [u64::MAX, 0, 1]);
        assert!(refusal(3, &configuration).contains("multicore.cores"));
        let functional = RunConfiguration { mode: Mode::Functional, ..configuration.clone() };
        assert!(refusal(2, &functional).contains("mode"));
        let mut divided = self::configuration(None, Isolation::Ways);
        let csalt = json!({ "csalt": { "epoch_accesses": 500, "translation_weight": 1.0 } });
        divided.scheme.mechanisms = serde_json::from_value(csalt).unwrap();
        assert!(refusal(2, &divided).contains("multicore.isolation"));
        let mut single = configuration.clone();
        single.machine.multicore = None;
        assert!(refusal(2, &single).contains("multicore"));
        let stop = &mut |_, _| ControlFlow::Break(());
        single.machine.multicore = Some(Multicore { cores: 2, isolation: Isolation::Owners });
        let endless = Limits { instructions: Some(1 << 60), ..limits.clone() };
        let limits = [endless.clone(), endless];
        let stopped = simulate_mix(&open, &[single], &limits, 1, 1, stop);
        assert!(matches!(stopped, Err(SimulateError::Stopped)));
    }
}
