//! Threads on cores: time, coherence of translations, and sums that close.

use std::collections::BTreeMap;

use flatwalk_os::Random;
use flatwalk_paging::{AccessKind, Address, Gva};
use flatwalk_symbols::Symbols;
use flatwalk_trace::{Advice, Event, Protection};

use crate::config::machine::{Isolation, Memory, Multicore};
use crate::driver::cores::QUANTUM;
use crate::driver::piece::{Phase, Piece, Uses};
use crate::driver::run::{Mode, Run};
use crate::driver::sampling::Sampled;
use crate::mechanisms::page_table_priority::{Mode as Priority, Settings};
use crate::memory::reader::NoClock;
use crate::mmu::event::Request;
use crate::report::result::{CoreResult, RunResult};
use crate::system::System;
use crate::tests::testing::{DATA, Do, Scenario, go_on, scheme, shipped};

const PAGE: u64 = 4096;
const MAPPED: u64 = 1 << 30;

/// Data of a thread, disjoint from all others'.
fn own(thread: u32) -> u64 {
    DATA + u64::from(thread) * (64 << 20)
}

/// `n` loads of a thread, one after the other, of eight lines of its own.
fn chases(thread: u32, n: u64) -> Vec<Do> {
    (0..n).map(|i| Do::Chase(own(thread) + i % 8 * 64)).collect()
}

fn start(scenario: &Scenario) -> Run {
    scenario.start(&[(DATA, MAPPED)], true)
}

fn event(run: &mut Run, event: Event) {
    run.take(&Piece::Event(event)).unwrap();
}

fn phase(run: &mut Run, phase: Phase) {
    run.take(&Piece::Phase { phase, at: run.instructions() }).unwrap();
}

/// The result, which ends the run.
fn result(mut run: Run) -> RunResult {
    run.end().unwrap();
    RunResult::new(&run, "test", 1, &mut Symbols::default())
}

/// Several threads go through `lines` lines of their own, one load after the other, `rounds` times, in
/// stretches of 500 loads in turn.
fn sweep(scenario: &Scenario, threads: u32, lines: u64, rounds: u64) -> RunResult {
    let mut run = start(scenario);
    let total = lines * rounds;
    for first in (0..total).step_by(500) {
        for thread in 0..threads {
            let loads = (first..total.min(first + 500))
                .map(|i| Do::Chase(own(thread) + (i % lines) * 64))
                .collect::<Vec<_>>();
            go_on(&mut run, thread, &loads);
        }
    }
    result(run)
}

fn misses(run: &RunResult, name: &str) -> u64 {
    run.caches.iter().find(|cache| cache.name == name).unwrap().data_misses
}

#[test]
fn each_core_gets_the_page_table_lines_that_its_threads_used_in_a_gap() {
    const LINES: u64 = 64;
    let mut scheme = scheme(4, &[]);
    scheme.mechanisms.set("page_table_priority", Settings { mode: Priority::Always });
    let scenario = Scenario { cores: Some(2), ..Scenario::new(scheme) };
    let missed = |used_by: fn(u32) -> u32| {
        let mut run = start(&scenario);
        phase(&mut run, Phase::Warm);
        (0..2).for_each(|thread| go_on(&mut run, thread, &chases(thread, 8)));
        phase(&mut run, Phase::Pass);
        // Pages whose entries are in as many lines.
        let pages = |thread| (1..=LINES).map(move |n| own(thread) + 8 * n * PAGE);
        let uses = |thread| Uses {
            thread: used_by(thread),
            times: LINES,
            parts: vec![pages(thread).collect()],
        };
        let threads = [uses(0), uses(1)].into();
        run.take(&Piece::Used { threads, instructions: 1000 }).unwrap();
        phase(&mut run, Phase::Measured);
        for thread in 0..2 {
            // The next page, which no TLB knows, by an entry of the same line.
            let loads: Vec<_> = pages(thread).map(|at| Do::Chase(at + PAGE)).collect();
            go_on(&mut run, thread, &loads);
        }
        let result = result(run);
        result.caches.iter().find(|cache| cache.name == "L2").unwrap().table_misses
    };
    assert!(missed(|thread| thread) < LINES / 4);
    assert!(missed(|thread| 1 - thread) >= 2 * LINES, "lines of the other core's");
}

#[test]
fn threads_that_share_nothing_take_the_time_of_one() {
    let scenario = Scenario::new(scheme(4, &[]));
    // Eight lines fit L1D, and nothing but the first walk and the first misses leaves the core.
    let alone = sweep(&scenario, 1, 8, 3000);
    let both = sweep(&scenario, 2, 8, 3000);
    assert_eq!((both.threads, both.cores.len()), (2, 2));
    assert_eq!(both.instructions, 2 * alone.instructions);
    let (one, two) = (alone.cycles.unwrap(), both.cycles.unwrap());
    assert!(two.abs_diff(one) * 1000 < one, "{two} cycles, and {one} alone");
}

#[test]
fn threads_on_one_core_take_the_time_of_both() {
    let scenario = Scenario { cores: Some(1), ..Scenario::new(scheme(4, &[])) };
    let alone = sweep(&scenario, 1, 8, 3000).cycles.unwrap();
    let both = sweep(&scenario, 2, 8, 3000);
    assert_eq!((both.threads, both.cores.len()), (2, 1));
    let both = both.cycles.unwrap();
    // A switch drains the core, 96 times.
    assert!((2 * alone..2 * alone + alone / 10).contains(&both), "{both}, {alone} alone");
}

#[test]
fn programs_are_kept_apart_in_the_shared_cache_and_threads_are_not() {
    let mut scenario = Scenario::new(scheme(4, &[]));
    for isolation in [Isolation::Owners, Isolation::Ways] {
        scenario.machine.multicore = Some(Multicore { cores: 2, isolation });
        for threads in [1, 2] {
            let run = sweep(&scenario, threads, 8, 10);
            let warned = run.warnings.iter().any(|words| words.contains("multicore.isolation"));
            assert_eq!(warned, threads == 2 && isolation == Isolation::Ways);
        }
    }
}

#[test]
fn a_full_tlb_of_one_core_stresses_translation() {
    for busy in 0..3 {
        let mut run = start(&Scenario::new(scheme(4, &[])));
        for thread in 0..3 {
            let pages = if thread == busy { 64 } else { 1 };
            let loads: Vec<_> = (0..pages).map(|i| Do::Load(own(thread) + i * PAGE)).collect();
            go_on(&mut run, thread, &loads);
        }
        let run = result(run);
        assert!(!run.warnings.iter().any(|warning| warning.contains("half full")), "core {busy}");
    }
}

#[test]
fn together_they_need_more_than_the_shared_cache_holds() {
    // Each has 56 KiB, the last-level cache 64 KiB, L2 4 KiB. Even a thread that always hits, and so makes
    // 142 / 42 times the accesses of one that never does, needs 56 + 56 × 42 / 142 KiB to do so.
    let scenario = Scenario::new(scheme(4, &[]));
    let (lines, rounds) = (896, 20);
    let alone = sweep(&scenario, 1, lines, rounds);
    assert!(misses(&alone, "LLC") < lines * 5 / 4, "{} of {lines}", misses(&alone, "LLC"));
    let both = sweep(&scenario, 2, lines, rounds);
    let all = 2 * lines * rounds;
    assert!(misses(&both, "LLC") > all * 9 / 10, "{} of {all}", misses(&both, "LLC"));
    // 42 cycles of the last-level cache became 142 of memory.
    let (one, two) = (alone.cycles.unwrap() as f64, both.cycles.unwrap() as f64);
    assert!((2.5..3.6).contains(&(two / one)), "{two} and {one}");
}

#[test]
fn together_they_share_the_bus() {
    let mut scenario = Scenario::new(scheme(4, &[]));
    // A line in 256 cycles, more than the 142 + 256 that a load alone waits for, of two cores.
    scenario.machine.memory = Some(Memory::Fixed { latency_ns: 100.0, bandwidth_gbs: 0.25 });
    let (lines, rounds) = (4096, 1);
    let alone = sweep(&scenario, 1, lines, rounds).cycles.unwrap();
    let four = sweep(&scenario, 4, lines, rounds).cycles.unwrap();
    // By hand: the bus carries all lines one after the other, and 1 in 64 has an entry that misses.
    let by_hand = 4 * lines * 256;
    assert!(alone < by_hand / 2, "{alone}");
    assert!((by_hand..by_hand * 21 / 20).contains(&four), "{four} of {by_hand}");
}

#[test]
fn what_was_recorded_one_after_the_other_stays_so() {
    let scenario = Scenario::new(scheme(4, &[]));
    let mut run = start(&scenario);
    let long = 1 << 20;
    go_on(&mut run, 0, &chases(0, 1));
    go_on(&mut run, 1, &chases(1, 1));
    for thread in [0, 1] {
        for _ in 0..64 {
            go_on(&mut run, thread, &chases(thread, long / 64));
        }
    }
    let run = result(run);
    // A load takes L1D's four cycles, and the next one asks when it has them. What overlaps is what
    // may have been at the same time: a quantum of two cores.
    let (cycles, one) = (run.cycles.unwrap(), 4 * long);
    let quantum = 4 * 2 * QUANTUM;
    assert!((2 * one - 2 * quantum..2 * one + quantum).contains(&cycles), "{cycles} of {one}");
    let idle = |core: usize| part(&run.cores[core].cycle_stack, "idle");
    assert!(idle(0) > one - 2 * quantum && idle(1) > one - 2 * quantum);
}

/// Two threads take turns: each loads for `loads`, wakes the other and sleeps, which the trace may
/// say. A third one loads half as much meanwhile.
fn ping_pong(turns: u64, loads: u64, say: bool) -> RunResult {
    let mut run = start(&Scenario::new(scheme(4, &[])));
    for thread in 0..3 {
        go_on(&mut run, thread, &chases(thread, 8));
    }
    for turn in 0..turns {
        let (thread, other) = ((turn % 2) as u32, (1 - turn % 2) as u32);
        go_on(&mut run, thread, &chases(thread, loads));
        go_on(&mut run, 2, &chases(2, loads / 2));
        if say {
            event(&mut run, Event::Wake { thread, number: turn });
            event(&mut run, Event::Woken { thread: other, number: turn });
        }
    }
    result(run)
}

#[test]
fn a_thread_that_slept_goes_on_when_it_was_woken() {
    let (turns, loads) = (60, 5000);
    let run = ping_pong(turns, loads, true);
    // By hand: a load takes four cycles; eight of each thread come before.
    let (cycles, by_hand) = (run.cycles.unwrap(), 4 * turns * loads);
    assert!(cycles.abs_diff(by_hand) * 50 < by_hand, "{cycles} of {by_hand}");
    for core in 0..3 {
        let idle = part(&run.cores[core].cycle_stack, "idle");
        assert!(idle.abs_diff(by_hand / 2) * 50 < by_hand, "core {core}: {idle} of {by_hand}");
    }
    // Of a trace that does not say so, all may have been at the same time.
    let (cycles, by_hand) = (ping_pong(turns, loads, false).cycles.unwrap(), by_hand / 2);
    assert!(cycles.abs_diff(by_hand) * 50 < by_hand, "{cycles} of {by_hand}");
}

#[test]
fn a_thread_is_not_held_up_by_one_that_did_not_wake_it() {
    let mut run = start(&Scenario::new(scheme(4, &[])));
    let n = 10_000;
    go_on(&mut run, 0, &chases(0, n));
    go_on(&mut run, 1, &chases(1, 8));
    go_on(&mut run, 2, &chases(2, 3 * n));
    // The first wakes, and does more before the second goes on. A third is farther ahead, and one
    // that has never run woke nobody.
    event(&mut run, Event::Wake { thread: 0, number: 1 });
    event(&mut run, Event::Wake { thread: 9, number: 2 });
    go_on(&mut run, 0, &chases(0, 4 * n));
    event(&mut run, Event::Wake { thread: 0, number: 3 });
    event(&mut run, Event::Woken { thread: 1, number: 2 });
    event(&mut run, Event::Woken { thread: 1, number: 1 });
    event(&mut run, Event::Woken { thread: 1, number: 4 });
    go_on(&mut run, 1, &chases(1, 4 * n));
    let run = result(run);
    let (cycles, by_hand) = (run.cycles.unwrap(), 4 * 5 * n);
    assert!(cycles.abs_diff(by_hand) * 50 < by_hand, "{cycles} of {by_hand}");
    let idle = part(&run.cores[1].cycle_stack, "idle");
    assert!(idle.abs_diff(by_hand / 5) * 50 < by_hand, "{idle}");
}

#[test]
fn a_wake_where_no_time_passes_holds_nobody_up() {
    let cycles = |warmed: bool, clocked: bool| {
        let mut run = start(&Scenario::new(scheme(4, &[])));
        let say = |run: &mut Run, number: u64| {
            event(run, Event::Wake { thread: 0, number });
            event(run, Event::Woken { thread: 1, number });
        };
        phase(&mut run, Phase::Measured);
        for _ in 0..8 {
            go_on(&mut run, 0, &chases(0, 70_000));
            go_on(&mut run, 1, &chases(1, 50_000));
        }
        phase(&mut run, Phase::Warm);
        if warmed {
            say(&mut run, 1);
        }
        phase(&mut run, Phase::Measured);
        if clocked {
            say(&mut run, 2);
        }
        // The second is the last to end, for whom nobody waits.
        go_on(&mut run, 1, &chases(1, 200_000));
        let run = result(run);
        assert_eq!(run.windows.len(), 2);
        part(&run.cores[1].cycle_stack, "idle")
    };
    let without = cycles(false, false);
    assert_eq!(cycles(true, false), without);
    assert!(cycles(false, true) > without + 4 * 10_000);
}

#[test]
fn who_wakes_whom_may_be_anything() {
    let mut random = Random::new(11);
    let mut run = start(&Scenario::new(scheme(4, &[])));
    for _ in 0..3000 {
        let (thread, number) = (random.below(6) as u32, random.below(9));
        match random.below(4) {
            0 => event(&mut run, Event::Wake { thread, number }),
            1 => event(&mut run, Event::Woken { thread, number }),
            2 if thread > 3 => event(&mut run, Event::ThreadExit { thread }),
            _ => go_on(&mut run, thread, &chases(thread, 1 + number * 50)),
        }
    }
    let run = result(run);
    let cycles = run.cycles.unwrap();
    assert!(run.cores.iter().all(|core| all(core) == cycles), "all wait for the last");
}

#[test]
fn cuts_between_windows_make_no_core_wait() {
    let scenario = Scenario::new(scheme(4, &[]));
    let (threads, stretch) = (4, 10_000);
    let cycles = |cut: bool| {
        let mut run = start(&scenario);
        phase(&mut run, Phase::Measured);
        for _ in 0..60 {
            for thread in 0..threads {
                go_on(&mut run, thread, &chases(thread, stretch));
                if cut {
                    phase(&mut run, Phase::Measured);
                }
            }
        }
        let run = result(run);
        assert_eq!(run.windows.len(), if cut { 240 } else { 1 });
        let cycles = run.cycles.unwrap();
        let of_cores: Vec<u64> = run.cores.iter().map(all).collect();
        assert_eq!(of_cores.iter().sum::<u64>(), u64::from(threads) * cycles);
        // In one window all cores end at one time.
        assert!(cut || of_cores.iter().all(|&of_core| of_core == cycles), "{of_cores:?}");
        cycles
    };
    // In each of the 240 only one thread runs: if the others waited, they would take four times as long.
    let (whole, cut) = (cycles(false), cycles(true));
    assert!(cut.abs_diff(whole) * 20 < whole, "{cut} of {whole}");
}

/// What each part of the stacks of all windows adds up to.
fn of_windows(run: &RunResult) -> Vec<u64> {
    let parts = 0..run.cycle_stack.len();
    parts.map(|part| run.windows.iter().map(|window| window.cycle_stack[part]).sum()).collect()
}

#[test]
fn the_end_of_a_run_that_ends_where_a_window_does_is_in_that_window() {
    let mut run = start(&Scenario::new(scheme(4, &[])));
    phase(&mut run, Phase::Measured);
    for (thread, loads) in [(0, 50_000), (1, 1_000)] {
        go_on(&mut run, thread, &chases(thread, loads));
    }
    // The next window would begin here, but nothing follows.
    phase(&mut run, Phase::Measured);
    let run = result(run);
    assert_eq!(run.windows.len(), 1);
    let stack: Vec<_> = run.cycle_stack.iter().map(|part| part.cycles).collect();
    assert_eq!(of_windows(&run), stack);
    let cycles = run.cycles.unwrap();
    assert!(run.cores.iter().all(|core| all(core) == cycles), "all wait for the last");
    let idle = part(&run.cores[1].cycle_stack, "idle");
    assert!(idle > 4 * 48_000, "{idle}");
}

#[test]
fn the_end_of_a_run_that_ends_where_a_first_window_would_begin_is_in_none() {
    let go = |run: &mut Run, loads: [u64; 2]| {
        for (thread, loads) in (0..).zip(loads) {
            go_on(run, thread, &chases(thread, loads));
        }
    };
    let windows = |next: Option<Phase>| {
        let mut run = start(&Scenario::new(scheme(4, &[])));
        phase(&mut run, Phase::Measured);
        go(&mut run, [1_000, 1_000]);
        phase(&mut run, Phase::Detailed);
        go(&mut run, [50_000, 1_000]);
        if let Some(next) = next {
            phase(&mut run, next);
        }
        let run = result(run);
        assert_eq!(run.windows.len(), 1);
        let stack: Vec<_> = run.cycle_stack.iter().map(|part| part.cycles).collect();
        assert_eq!(of_windows(&run), stack);
        stack
    };
    assert_eq!(windows(Some(Phase::Measured)), windows(None));
}

#[test]
fn a_core_that_only_ran_while_warming_was_idle_in_windows() {
    let mut run = start(&Scenario::new(scheme(4, &[])));
    let go = |run: &mut Run, threads: u32| {
        for thread in 0..threads {
            go_on(run, thread, &chases(thread, 9_000));
        }
    };
    for (next, threads) in [(Phase::Warm, 3), (Phase::Detailed, 2), (Phase::Measured, 2)] {
        phase(&mut run, next);
        go(&mut run, threads);
    }
    let run = result(run);
    let cycles = run.cycles.unwrap();
    assert_eq!((run.threads, run.cores.len()), (2, 3));
    assert_eq!(run.cores.iter().map(all).sum::<u64>(), 3 * cycles);
    assert_eq!(part(&run.cores[2].cycle_stack, "idle"), all(&run.cores[2]));
    let stack: Vec<_> = run.cycle_stack.iter().map(|part| part.cycles).collect();
    assert_eq!(of_windows(&run), stack);
    // What is advised is for as many cores as are named.
    let early = run.warnings.iter().find(|warning| warning.contains("ahead or behind")).unwrap();
    assert!(early.contains("of 3 cores") && early.contains(&(15 * QUANTUM).to_string()), "{early}");
}

#[test]
fn threads_that_share_a_core_are_told_of_beside_an_idle_core() {
    let mut run = start(&Scenario { cores: Some(2), ..Scenario::new(scheme(4, &[])) });
    phase(&mut run, Phase::Warm);
    for thread in 0..2 {
        go_on(&mut run, thread, &[Do::Chase(own(thread))]);
    }
    phase(&mut run, Phase::Measured);
    // The third has the first's core.
    for thread in [0, 2] {
        go_on(&mut run, thread, &[Do::Chase(own(thread))]);
    }
    let run = result(run);
    assert_eq!((run.threads, run.cores.len()), (2, 2));
    assert!(
        run.warnings.iter().any(|warning| warning.contains("2 threads shared 1 simulated core"))
    );
}

#[test]
fn a_core_that_comes_later_is_taken_by_other_processes_as_often() {
    // At 1 GHz 100,000 cycles, which are 25,000 loads.
    let scenario = Scenario { context_switch_ms: Some(0.1), ..Scenario::new(scheme(4, &[])) };
    let switches = |before: u64, thread: u32| {
        let mut run = start(&scenario);
        let go = |run: &mut Run, thread: u32, loads: u64| {
            go_on(run, thread, &chases(thread, loads));
        };
        phase(&mut run, Phase::Detailed);
        go(&mut run, 0, before);
        phase(&mut run, Phase::Measured);
        go(&mut run, thread, 100_000);
        result(run).os.context_switches.unwrap()
    };
    let alone = switches(1, 0);
    assert!((3..=5).contains(&alone), "{alone}");
    assert_eq!(switches(100_000, 1), alone);
}

/// Each of two threads has turns of three quanta. Windows of one and a quarter begin once at each
/// twelfth of two turns, `clock` quanta after the clock began to run.
fn windows_of_turns(clock: u64, mode: Mode) -> RunResult {
    let scenario = Scenario { mode, ..Scenario::new(scheme(4, &[])) };
    let mut run = start(&scenario);
    let slice = 4096;
    let quantum = 2 * QUANTUM / slice;
    let (turn, window, spacing) = (3 * quantum, quantum * 5 / 4, quantum * 13 / 2);
    for number in 0..24 * spacing {
        match number % spacing {
            0 => phase(&mut run, Phase::Detailed),
            at if at == clock * quantum => phase(&mut run, Phase::Measured),
            at if at == clock * quantum + window => phase(&mut run, Phase::Pass),
            _ => (),
        }
        let thread = (number / turn % 2) as u32;
        go_on(&mut run, thread, &chases(thread, slice));
    }
    let run = result(run);
    assert_eq!(run.windows.len(), 24);
    run
}

/// Whether the run says that its windows began too early.
fn is_early(run: &RunResult) -> bool {
    run.warnings.iter().any(|warning| warning.contains("ahead or behind"))
}

#[test]
fn windows_take_as_long_as_their_part_of_a_run_in_which_threads_take_turns() {
    let run = windows_of_turns(5, Mode::Timing);
    // By hand: a switch lets one quantum overlap, so that six take the time of four. A load takes
    // four cycles.
    let by_hand = 4 * run.instructions * 4 / 6;
    let cycles = run.cycles.unwrap();
    assert!(cycles.abs_diff(by_hand) * 50 < by_hand, "{cycles} of {by_hand}");
    assert!(!is_early(&run), "{:?}", run.warnings);
}

#[test]
fn windows_that_begin_too_early_say_so() {
    let run = windows_of_turns(1, Mode::Timing);
    assert!(is_early(&run), "{:?}", run.warnings);
    assert!(run.warnings.iter().any(|warning| warning.contains("655360")));
    // No clock is ahead of another where there is none.
    let run = windows_of_turns(1, Mode::Functional);
    assert!(!is_early(&run), "{:?}", run.warnings);
}

/// The cycles that passed for a core.
fn all(core: &CoreResult) -> u64 {
    core.cycle_stack.iter().map(|part| part.cycles).sum()
}

fn part(stack: &[crate::report::result::CyclePart], name: &str) -> u64 {
    let name = serde_json::Value::from(name);
    let mut found = stack.iter().filter(|part| serde_json::to_value(part.part).unwrap() == name);
    found.next().unwrap().cycles
}

/// Random accesses of threads, with events in between.
fn random(run: &mut Run, seed: u64, threads: u64, stretches: u64) {
    let mut random = Random::new(seed);
    for _ in 0..stretches {
        if random.below(10) == 0 {
            let (address, length) = (DATA + random.below(1 << 8) * PAGE, 8 * PAGE);
            let advice = Advice::DontNeed;
            event(run, Event::Advise { address, length, advice });
        }
        let thread = random.below(threads) as u32;
        let accesses: Vec<_> = (0..=random.below(400))
            .map(|_| {
                let address = DATA + random.below(1 << 8) * PAGE + random.below(512) * 8;
                match random.below(3) {
                    0 => Do::Load(address),
                    1 => Do::Chase(address),
                    _ => Do::Store(address),
                }
            })
            .collect();
        go_on(run, thread, &accesses);
    }
}

#[test]
fn sums_close() {
    for (seed, known) in (0..shipped().len()).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut scenario = Scenario::new(shipped().swap_remove(seed));
        scenario.machine.os.shootdown_cycles = 700;
        let mut run = start(&scenario);
        let seed = seed as u64;
        for (number, next) in [Phase::Warm, Phase::Detailed, Phase::Measured, Phase::Measured]
            .into_iter()
            .cycle()
            .take(12)
            .enumerate()
        {
            phase(&mut run, next);
            random(&mut run, seed * 100 + number as u64, 1 + number as u64 / 2, 12);
        }
        let mmu_walks = |run: &mut Run| {
            let mut walks = 0;
            run.on_each_core(|run| walks += run.mmu.statistics.total().walks);
            walks
        };
        phase(&mut run, Phase::Pass);
        assert_eq!(mmu_walks(&mut run), 0, "counts are put aside");
        run.end().unwrap();
        if known {
            let measured: u64 = run.windows().map(|window| window.instructions).sum();
            let sampled = Sampled {
                sampled: true,
                kernels_followed: true,
                windows: 6,
                window_instructions: measured / 6,
                warmup_instructions: 0,
                filling_instructions: None,
                first_instruction: 0,
                instructions_total: None,
                instructions_measured: measured,
                instructions_represented: run.instructions(),
                coverage: None,
            };
            run.know_kernels(&sampled);
        }
        let run = RunResult::new(&run, "test", 1, &mut Symbols::default());
        let name = &scenario.scheme.name;
        let cycles = run.cycles.unwrap();
        // Not every thread is drawn.
        let cores = run.cores.len() as u64;
        assert!((4..=6).contains(&cores) && run.windows.len() == 6, "{name}: {cores}");
        assert_eq!(run.cycle_stack.iter().map(|part| part.cycles).sum::<u64>(), cycles, "{name}");
        let sum = run.cores.iter().map(all).sum::<u64>();
        assert_eq!(sum, cores * cycles, "{name}");
        for (of_windows, part) in of_windows(&run).into_iter().zip(&run.cycle_stack) {
            // Of each window it is rounded.
            let (named, cycles) = (part.part, part.cycles);
            assert!(of_windows.abs_diff(cycles) <= 6, "{name}: {named:?} {of_windows} {cycles}");
        }
        for named in ["idle", "shootdowns", "page_faults", "system_calls"] {
            let all: u64 = run.cores.iter().map(|core| part(&core.cycle_stack, named)).sum();
            let average = part(&run.cycle_stack, named);
            assert!(average.abs_diff(all / cores) <= 1, "{name}: {named} {average} of {all}");
            // A segment has no pages that could be missing or flushed.
            let needs_pages = ["shootdowns", "page_faults"].contains(&named);
            assert!(all > 0 || needs_pages && name.contains("direct"), "{name}: {named}");
        }
        for window in &run.windows {
            let sum = window.cycle_stack.iter().sum::<u64>();
            assert_eq!(Some(sum), window.cycles, "{name}");
        }
        // At most two threads had run in the first window.
        let idle = part(&run.cores.last().unwrap().cycle_stack, "idle");
        assert!(idle >= run.windows[0].cycles.unwrap(), "{name}: {idle}");
        let blamed: u64 = run.blame.mappings.iter().map(|mapping| mapping.walks).sum();
        assert_eq!(blamed, run.walks, "{name}");
        let of_cores = |of: fn(&CoreResult) -> u64| -> u64 { run.cores.iter().map(of).sum() };
        assert_eq!(of_cores(|core| core.instructions), run.instructions, "{name}");
        assert_eq!(of_cores(|core| core.walks), run.walks, "{name}");
        let of_translation = of_cores(|core| core.translation_cycles.unwrap());
        assert_eq!(Some(of_translation), run.translation_cycles, "{name}");
        let windows = |of: fn(&crate::report::result::WindowResult) -> u64| -> u64 {
            run.windows.iter().map(of).sum()
        };
        assert_eq!(windows(|window| window.instructions), run.instructions, "{name}");
        assert_eq!(windows(|window| window.cycles.unwrap()), cycles, "{name}");
        assert_eq!(windows(|window| window.walks), run.walks, "{name}");
    }
}

#[test]
fn one_thread_has_the_same_figures_however_many_cores_there_are() {
    for scheme in shipped() {
        for mode in [Mode::Timing, Mode::Functional] {
            let of = |cores: u32| {
                let scenario =
                    Scenario { mode, cores: Some(cores), ..Scenario::new(scheme.clone()) };
                let mut run = start(&scenario);
                random(&mut run, 1, 1, 30);
                let mut result = serde_json::to_value(result(run)).unwrap();
                result["configuration"]["cores"].take();
                result
            };
            assert_eq!(of(1), of(8), "{} {mode:?}", scheme.name);
        }
    }
}

#[test]
fn the_same_threads_always_take_the_same_time() {
    let of = || {
        let mut run = start(&Scenario::new(scheme(4, &[])));
        random(&mut run, 7, 5, 200);
        serde_json::to_value(result(run)).unwrap()
    };
    assert_eq!(of(), of());
}

#[test]
fn a_shootdown_costs_each_core_what_the_machine_says() {
    let unmapped = |shootdown_cycles: u64| {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.machine.os.shootdown_cycles = shootdown_cycles;
        let mut run = start(&scenario);
        for thread in 0..3 {
            go_on(&mut run, thread, &[Do::Chase(own(thread))]);
        }
        event(&mut run, Event::Unmap { address: DATA, length: PAGE });
        // Nothing was mapped there, so nothing is to be flushed.
        event(&mut run, Event::Unmap { address: DATA, length: PAGE });
        let run = result(run);
        let of = |core: usize| part(&run.cores[core].cycle_stack, "shootdowns");
        assert_eq!([of(0), of(1), of(2)], [shootdown_cycles; 3]);
        run.os.call_cycles.unwrap()
    };
    // One core asks, and its call takes as much longer.
    assert_eq!(unmapped(900) - unmapped(0), 900);
}

/// A process as the kernel sees it: its pages, whether they may be written, and where they lie.
type Model = BTreeMap<u64, (bool, Option<u64>)>;

/// Every core translates every page as the model says: or not at all.
fn check(run: &mut Run, model: &Model, pages: u64, what: &str) {
    // Flushes reach a core before it has its turn; each touches a page that is nothing to the test.
    for thread in 0..4 {
        go_on(run, thread, &[Do::Load(own(9))]);
    }
    run.take(&Piece::Event(Event::Marker { name: String::new() })).unwrap();
    run.on_each_core(|run| {
        for page in 0..pages {
            let mut translate = |kind| {
                let address = Gva::new(run.relocated_address(DATA + page * PAGE));
                let request = Request { address, kind, at: 0 };
                let translated = run.mmu.translate(request, || 0, &mut run.system, &mut NoClock);
                translated.ok().map(|translated| translated.physical.raw())
            };
            let known = model.get(&page).copied();
            let frame = known.and_then(|(_, frame)| frame);
            assert_eq!(translate(AccessKind::Load), frame, "page {page} after {what}");
            let stored = frame.filter(|_| known.is_some_and(|(write, _)| write));
            assert_eq!(translate(AccessKind::Store), stored, "a store to {page} after {what}");
        }
    });
}

#[test]
fn no_core_translates_by_what_is_no_longer_so() {
    for mode in [Mode::Timing, Mode::Functional] {
        let mut schemes = shipped();
        // Segments translate what is not mapped; free translation has no TLB of its own.
        schemes.retain(|scheme| {
            let is_native = scheme.host.is_none() && !scheme.name.contains("direct");
            is_native && scheme.layout().unwrap().geometry().page_shift() == 12
        });
        for scheme in schemes {
            let name = scheme.name.clone();
            let scenario = Scenario { mode, ..Scenario::new(scheme) };
            let mut run = scenario.start(&[(DATA, 64 * PAGE), (own(9), PAGE)], false);
            let pages = 96;
            let mut model: Model = (0..64).map(|page| (page, (true, None))).collect();
            let mut random = Random::new(3);
            for step in 0..60 {
                for _ in 0..8 {
                    let page = random.below(pages);
                    let Some(&(_, None)) = model.get(&page) else { continue };
                    let thread = random.below(4) as u32;
                    go_on(&mut run, thread, &[Do::Load(DATA + page * PAGE)]);
                    run.take(&Piece::Event(Event::Marker { name: String::new() })).unwrap();
                    let System::Native(process) = &run.system else { panic!("it is native") };
                    let at = Gva::new(run.relocated_address(DATA + page * PAGE));
                    let found =
                        process.table().lookup(process.memory(), at).expect("it was touched");
                    model.get_mut(&page).unwrap().1 = Some(found.frame.raw());
                }
                let (first, n) = (random.below(pages - 8), 1 + random.below(8));
                let (address, length) = (DATA + first * PAGE, n * PAGE);
                let range = first..first + n;
                let what = match random.below(4) {
                    0 => {
                        event(&mut run, Event::Unmap { address, length });
                        model.retain(|page, _| !range.contains(page));
                        "munmap"
                    }
                    1 => {
                        let write = random.below(2) == 0;
                        let protection = Protection { read: true, write, execute: false };
                        event(&mut run, Event::Protect { address, length, protection });
                        range.for_each(|page| {
                            model.entry(page).and_modify(|known| known.0 = write);
                        });
                        "mprotect"
                    }
                    2 => {
                        let to = random.below(pages - 8);
                        let away = to + n <= first || first + n <= to;
                        if away && range.clone().all(|page| model.contains_key(&page)) {
                            let (from, to_length) = (address, length);
                            let place = DATA + to * PAGE;
                            event(
                                &mut run,
                                Event::Remap { from, from_length: length, to: place, to_length },
                            );
                            for page in range {
                                let known = model.remove(&page).unwrap();
                                model.insert(page - first + to, known);
                            }
                        }
                        "mremap"
                    }
                    _ => {
                        let advice = Advice::DontNeed;
                        event(&mut run, Event::Advise { address, length, advice });
                        range.for_each(|page| {
                            model.entry(page).and_modify(|known| known.1 = None);
                        });
                        "MADV_DONTNEED"
                    }
                };
                check(&mut run, &model, pages, &format!("step {step}, {what}, of {name}"));
            }
        }
    }
}
