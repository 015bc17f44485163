//! Of a sampled run, what kernels did is known of all of it: it is what the same run has that
//! measures everything.

use std::ops::ControlFlow;

use flatwalk_os::Random;
use flatwalk_trace::{
    Access, Advice, Backing, Block, Branch, Event, Instruction, Item, Operands, Protection, Slice,
};

use crate::config::scheme::{Scheme, TranslationMode};
use crate::core::stack::Part;
use crate::driver::sampling::{Limits, Places, Sampled, Sampling};
use crate::report::result::RunResult;
use crate::simulate::simulate;
use crate::tests::testing::{DATA, Pieces, Scenario, machine, merging_scheme, scheme, shipped};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Instructions between two events, and how many of these parts there are.
const PART: u64 = 400;
const PARTS: u64 = 200;

/// A program that touches more and more pages, gives some back and moves others.
fn program() -> Vec<Item> {
    let block = |id: u32, store| {
        let registers = Operands::Registers { reads: [0; 4], writes: [0; 4], branch: Branch::None };
        let instruction = Instruction { pc: 4 * u64::from(id), length: 4, operands: registers };
        let access = Access { instruction: 0, size: 8, store };
        let block = Block { instructions: [instruction].into(), accesses: [access].into() };
        Item::Define { id, block: block.into() }
    };
    let map = |address, length| {
        let protection = Protection { read: true, write: true, execute: address == 0 };
        let backing = Backing::Anonymous;
        Item::Event(Event::Map { address, length, protection, backing, shared: false })
    };
    let mut items = vec![block(0, false), block(1, true), map(0, PAGE), map(DATA, 512 * MIB)];
    let populated = Event::Populate { address: DATA, length: 2 * MIB, store: true };
    items.push(Item::Event(populated));
    let mut random = Random::new(5);
    for part in 0..PARTS {
        // Dense at first, then sparse.
        let reach = if part < PARTS / 2 { 4 * MIB + part * MIB / 8 } else { 512 * MIB };
        let blocks: Vec<u32> = (0..PART).map(|_| random.below(2) as u32).collect();
        let thread = 0;
        let addresses = blocks.iter().map(|_| DATA + random.below(reach / 8) * 8).collect();
        items.push(Item::Slice(Slice { thread, blocks, addresses }));
        let (address, length) = (DATA + random.below(128) * 4 * MIB, 3 * MIB);
        // Of what is accessed, all is mapped.
        items.extend(match part % 4 {
            0 => vec![Item::Event(Event::Unmap { address, length }), map(address, length)],
            1 => vec![Item::Event(Event::Advise { address, length, advice: Advice::DontNeed })],
            2 => {
                let (to, to_length) = (DATA + (600 + part) * MIB, 2 * PAGE);
                let moved = Event::Remap { from: address, from_length: PAGE, to, to_length };
                vec![map(address, length), Item::Event(moved), map(address, PAGE)]
            }
            _ => vec![map(address, length)],
        });
    }
    items
}

/// A recording of the program, of which every tenth part is a segment: what comes in a gap is in
/// the events, and pages that were touched in it stand behind the gap, or before they are given
/// back.
fn recorded() -> Pieces {
    let mut items = Vec::new();
    let (mut part, mut passed, mut in_gaps) = (0, 0, 0);
    let mut touched: Vec<(u64, bool)> = Vec::new();
    let populate = |touched: &mut Vec<(u64, bool)>, items: &mut Vec<Item>| {
        for (page, store) in touched.drain(..) {
            let address = page * PAGE;
            items.push(Item::Event(Event::Populate { address, length: PAGE, store }));
        }
    };
    let gap = |instructions| Item::Event(Event::Gap { instructions });
    for item in program() {
        match item {
            Item::Slice(slice) => {
                if part == 0 {
                    items.push(gap(0));
                }
                part += 1;
                if part % 10 == 5 {
                    items.push(gap(passed));
                    populate(&mut touched, &mut items);
                    (passed, in_gaps) = (0, in_gaps + passed);
                    items.push(Item::Slice(slice));
                    items.push(gap(0));
                    continue;
                }
                passed += slice.blocks.len() as u64;
                for (&block, address) in slice.blocks.iter().zip(slice.addresses) {
                    let page = address / PAGE;
                    if touched.iter().all(|&(known, _)| known != page) {
                        touched.push((page, block == 1));
                    }
                }
            }
            other => {
                populate(&mut touched, &mut items);
                items.push(other);
                // The program marks a place, or the recording pauses, in which pages are touched, too.
                let mark = |name: &str| Item::Event(Event::Marker { name: name.to_owned() });
                if part % 7 == 0 {
                    items.push(mark("iteration"));
                } else if part == 23 {
                    let (address, length) = (DATA + 1000 * MIB, 64 * PAGE);
                    let meanwhile = Event::Populate { address, length, store: true };
                    items.extend([mark("stop"), Item::Event(meanwhile), mark("start")]);
                }
            }
        }
    }
    items.push(gap(passed));
    in_gaps += passed;
    let mut source = Pieces::new(items, PART * PARTS - in_gaps, Some((in_gaps, PART)));
    source.info.gap_pages = true;
    source
}

fn run(scenario: &Scenario, limits: &Limits) -> (RunResult, Sampled) {
    run_of(Pieces::new(program(), PART * PARTS, None), scenario, limits)
}

fn run_of(mut source: Pieces, scenario: &Scenario, limits: &Limits) -> (RunResult, Sampled) {
    source.info.touched = vec![(0, PAGE), (DATA, DATA + 1024 * MIB)];
    let configuration = scenario.configuration();
    let mut progress = |_| ControlFlow::Continue(());
    let mut done =
        simulate(Box::new(source), vec![configuration], limits, 3, 1, &mut progress).unwrap();
    (done.runs.remove(0), done.sampled)
}

fn sampling(windows: u64, warmup: u64, places: Places) -> Limits {
    let sampling = Sampling { windows, window: 500, warmup, filling: 0, after: 0, places };
    Limits { sampling: Some(sampling), ..Limits::default() }
}

/// Schemes with no state that decides by time what their kernels do.
fn schemes() -> impl Iterator<Item = Scheme> {
    let own = [merging_scheme(64, 32, 20.0), scheme(4, &["L2L1"]), scheme(5, &["L4L3", "L2L1"])];
    let all = shipped().into_iter().chain(own);
    all.filter(|scheme| Scenario::new(scheme.clone()).configuration().validate().is_ok())
}

fn part(run: &RunResult, named: Part) -> u64 {
    run.cycle_stack.iter().find(|one| one.part == named).unwrap().cycles
}

fn of_kernels(run: &RunResult) -> [u64; 5] {
    let os = &run.os;
    let clocked = |cycles: Option<u64>| cycles.unwrap();
    [
        os.faults,
        os.host_faults.unwrap_or(0),
        clocked(os.fault_cycles),
        clocked(os.call_cycles),
        clocked(os.merge_cycles),
    ]
}

#[test]
fn a_sample_has_the_work_of_kernels_of_the_whole_run() {
    let mut merged = 0;
    for scheme in schemes() {
        for (large_pages, host_large_pages) in [(0, 0), (50, 50)] {
            // With a TLB for code, whose pages are touched as they are where no code runs.
            let machine = machine();
            let scenario = Scenario {
                machine,
                large_pages,
                host_large_pages,
                ..Scenario::new(scheme.clone())
            };
            let (whole, _) = run(&scenario, &Limits::default());
            let all = of_kernels(&whole);
            let has_faults = all[0] > 200 || scheme.name.contains("direct");
            assert!(has_faults && all[3] > 1000, "{}: {all:?}", scheme.name);
            merged += all[4];
            for (windows, warmup) in [(20, 1_000), (5, 0)] {
                let (sample, sampled) = run(&scenario, &sampling(windows, warmup, Places::Spread));
                assert!(sampled.kernels_followed && sampled.windows == windows);
                let measured = u128::from(sampled.instructions_measured);
                let represented = u128::from(sampled.instructions_represented);
                assert_eq!(represented, u128::from(PART * PARTS));
                let due_of = |one| {
                    let rounded = u128::from(one) * measured + represented / 2;
                    u64::try_from(rounded / represented).unwrap()
                };
                let due = all.map(due_of);
                let found = of_kernels(&sample);
                if scheme.host.is_none() {
                    assert_eq!(found, due, "{} {large_pages} {windows}", scheme.name);
                }
                // In a guest, the order in which the host backs pages may move other entries of a
                // hashed table.
                let is_near = |(found, due): (u64, u64)| found.abs_diff(due) <= due / 100_000;
                assert!(found.into_iter().zip(due).all(is_near), "{}: {found:?}", scheme.name);
                assert_eq!(part(&sample, Part::Merges), due[4], "{}", scheme.name);
                // Free translation takes nothing but the faults of accesses.
                if scheme.translation == TranslationMode::Free {
                    let due = due_of(whole.translation_cycles.unwrap());
                    let found = sample.translation_cycles.unwrap();
                    assert!(due > 1000 && is_near((found, due)), "{}: {found} {due}", scheme.name);
                }
                let faults = part(&sample, Part::PageFaults) + part(&sample, Part::HostFaults);
                // Each part is rounded.
                let in_stack = faults + part(&sample, Part::GuestExits) + due[4];
                assert!(in_stack + 3 >= found[2], "{}: {in_stack}", scheme.name);
                closes(&sample);
            }
        }
    }
    assert!(merged > 0);
}

/// Parts add up to cycles, of each window and of all, and windows to the run.
fn closes(run: &RunResult) {
    let cycles = run.cycles.unwrap();
    assert_eq!(run.cycle_stack.iter().map(|part| part.cycles).sum::<u64>(), cycles);
    assert_eq!(run.windows.iter().map(|window| window.cycles.unwrap()).sum::<u64>(), cycles);
    for (number, part) in run.cycle_stack.iter().enumerate() {
        let windows: u64 = run.windows.iter().map(|window| window.cycle_stack[number]).sum();
        assert_eq!(windows, part.cycles, "{:?}", part.part);
    }
    for window in &run.windows {
        assert_eq!(Some(window.cycle_stack.iter().sum()), window.cycles);
    }
    let core: u64 = run.cores[0].cycle_stack.iter().map(|part| part.cycles).sum();
    assert_eq!(core, cycles);
}

#[test]
fn a_recorded_sample_has_it_if_its_gaps_name_all_pages() {
    let (whole, _) =
        run(&Scenario { machine: machine(), ..Scenario::new(scheme(4, &[])) }, &Limits::default());
    let all = of_kernels(&whole);
    // Of a segment all is measured, or its end.
    for (names_pages, window) in [(true, PART), (true, 300), (false, 300)] {
        let scenario = Scenario { machine: machine(), ..Scenario::new(scheme(4, &[])) };
        let mut source = recorded();
        source.info.gap_pages = names_pages;
        let mut limits = sampling(20, 1_000, Places::Spread);
        limits.sampling.as_mut().unwrap().window = window;
        let (sample, sampled) = run_of(source, &scenario, &limits);
        assert_eq!((sampled.windows, sampled.kernels_followed), (PARTS / 10, names_pages));
        assert_eq!(sampled.instructions_represented, PART * PARTS);
        let share = sampled.instructions_measured as f64 / sampled.instructions_represented as f64;
        let due = all.map(|one| one as f64 * share);
        let found = of_kernels(&sample);
        let is_near = |n: usize| (found[n] as f64 - due[n]).abs() < 1.0;
        assert_eq!([is_near(0), is_near(2), is_near(3)], [names_pages; 3], "{found:?} {due:?}");
        closes(&sample);
    }
}

#[test]
fn what_comes_before_the_sampled_part_or_at_chosen_places_is_not_in_it() {
    let scenario = Scenario::new(scheme(4, &[]));
    let (all, _) = run(&scenario, &Limits::default());
    let skip = PART * PARTS / 2;
    let (second, _) = run(&scenario, &Limits { skip, ..Limits::default() });
    let (sample, sampled) = run(&scenario, &Limits { skip, ..sampling(20, 1_000, Places::Spread) });
    assert_eq!(sampled.instructions_represented, PART * PARTS / 2);
    let share = sampled.instructions_represented as f64 / sampled.instructions_measured as f64;
    let scaled = sample.os.fault_cycles.unwrap() as f64 * share;
    let (all, second) =
        (all.os.fault_cycles.unwrap() as f64, second.os.fault_cycles.unwrap() as f64);
    // Of what came before, pages are in memory in either.
    assert!((scaled / second - 1.0).abs() < 1e-4, "{scaled} {second}");
    assert!(second < 0.99 * all, "{second} {all}");
    let at = (1..20).map(|number| number * 4_000).collect();
    let (chosen, sampled) = run(&scenario, &sampling(0, 1_000, Places::At(at)));
    assert!(!sampled.kernels_followed);
    let windows: u64 = chosen.windows.iter().map(|window| window.cycles.unwrap()).sum();
    assert_eq!(Some(windows), chosen.cycles);
}

#[test]
fn each_window_has_its_part_of_what_came_since_the_one_before() {
    // One thread fills memory for a tenth of its time, and then does nothing of the kind.
    let scenario = Scenario::new(scheme(4, &[]));
    let mut items = program();
    items.retain(|item| {
        !matches!(
            item,
            Item::Event(Event::Unmap { .. } | Event::Advise { .. } | Event::Remap { .. })
        )
    });
    let limits = sampling(20, 1_000, Places::Spread);
    let (sample, _) = run_of(Pieces::new(items, PART * PARTS, None), &scenario, &limits);
    let place = Part::ALL.iter().position(|&part| part == Part::PageFaults).unwrap();
    let faults: Vec<u64> = sample.windows.iter().map(|window| window.cycle_stack[place]).collect();
    // It goes through 4 to 16 MiB, and then through 512 MiB.
    let (dense, sparse) = (faults[5], faults[12]);
    assert!(sparse > 5 * dense && dense > 0, "{faults:?}");
}

#[test]
fn a_longer_warmup_is_advised_where_it_leaves_faults_out() {
    let scenario = Scenario { machine: machine(), ..Scenario::new(scheme(4, &[])) };
    let told = |limits: &Limits| {
        let (run, _) = run(&scenario, limits);
        run.warnings.into_iter().find(|warning| warning.contains("page faults")).unwrap()
    };
    let (whole, sample) = (told(&Limits::default()), told(&sampling(20, 1_000, Places::Spread)));
    assert!(whole.contains("longer --warmup"), "{whole}");
    assert!(sample.ends_with("all those of the program count"), "{sample}");
}
