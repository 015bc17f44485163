use flatwalk_symbols::Symbols;
use flatwalk_trace::{Access, Block, Branch, Instruction, Operands};
use serde_json::json;

use super::*;
use crate::core::decode::BlockDecoder;
use crate::memory::prefetchers::Found;
use crate::report::result::RunResult;
use crate::tests::testing::{
    self, DATA, Do, Scenario, as_host, figures, go, merging_scheme, scheme,
};

const LARGE: u64 = 2 << 20;
const MAPPED: [(u64, u64); 1] = [(DATA, 1 << 30)];

/// What each of 66 first touches, one in each 2 MiB, takes.
fn fault_cycles(merge_us: f64) -> Vec<u64> {
    let mut run = Scenario::new(merging_scheme(64, 32, merge_us)).start(&MAPPED, false);
    let mut before = 0;
    let cycles = (0..66).map(|i| {
        go(&mut run, &[Do::Load(DATA + i * LARGE)]);
        let (core, _) = run.timed.as_ref().expect("it is timed");
        let all = core.statistics.fault_cycles;
        all - std::mem::replace(&mut before, all)
    });
    cycles.collect()
}

#[test]
fn merging_takes_the_kernel_as_long_as_the_scheme_says() {
    let (free, costly) = (fault_cycles(0.0), fault_cycles(20.0));
    // At 1 GHz, 20 µs are 20,000 cycles, in the fault that fills the 64th slot.
    let extra: Vec<u64> = costly.iter().zip(&free).map(|(with, without)| with - without).collect();
    assert_eq!((extra[63], extra.iter().sum::<u64>()), (20_000, 20_000));
    assert_eq!(free[63], free[62], "what it reads and writes is not charged in addition");
}

#[test]
fn what_a_guest_writes_into_a_shadowed_table_leaves_the_guest() {
    let cycles = |shadow: bool| {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.scheme.shadow = shadow;
        let mut run = scenario.start(&MAPPED, false);
        let mut before = 0;
        let mut fault = |run: &mut Run, page: u64| {
            go(run, &[Do::Load(DATA + page * 4096)]);
            let (core, _) = run.timed.as_ref().expect("it is timed");
            let all = core.statistics.fault_cycles;
            all - std::mem::replace(&mut before, all)
        };
        let faults = [fault(&mut run, 0), fault(&mut run, 1)];
        let walks = walked(&run);
        let (core, _) = run.timed.as_ref().expect("it is timed");
        let started = core.cycle();
        run.take(&Piece::Event(Event::Unmap { address: DATA, length: 4096 })).unwrap();
        let (core, _) = run.timed.as_ref().expect("it is timed");
        (faults, core.cycle() - started, walks)
    };
    let (plain, shadowed) = (cycles(false), cycles(true));
    // The test machine takes 1500 cycles to leave a guest. The first fault writes a leaf and links
    // three nodes, the second a leaf; the fault itself leaves the guest too. Unmapping clears one.
    assert_eq!(shadowed.0[0] - plain.0[0], (1 + 4) * 1500);
    assert_eq!(shadowed.0[1] - plain.0[1], (1 + 1) * 1500);
    assert_eq!(shadowed.1 - plain.1, 1500);
    assert_eq!(shadowed.2, plain.2, "walks are those of one table");
}

#[test]
fn a_page_of_a_shadowed_table_is_no_larger_than_the_hosts() {
    let mapped = |host_large_pages: u8| {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.scheme.shadow = true;
        (scenario.large_pages, scenario.host_large_pages) = (100, host_large_pages);
        let mut run = scenario.start(&[(DATA, 2 << 20)], false);
        go(&mut run, &[Do::Load(DATA), Do::Load(DATA + 4096)]);
        run.system.statistics().faults
    };
    assert_eq!([0, 100].map(mapped), [2, 1], "a fault for each page");
    let mut between = Scenario::new(scheme(4, &[]));
    between.scheme.shadow = true;
    let between = RunConfiguration { host_large_pages: 50, ..between.configuration() };
    let refused = between.validate().unwrap_err();
    assert!(refused.to_string().contains("no larger than the host's"), "{refused}");
}

#[test]
fn what_a_guest_is_advised_to_populate_costs_faults_of_the_host() {
    let ways = [
        (Mode::Timing, Phase::Measured),
        (Mode::Timing, Phase::Warm),
        (Mode::Functional, Phase::Measured),
    ];
    for (mode, phase) in ways {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.scheme.host = Some(testing::host_table(4, &[]));
        scenario.mode = mode;
        let mut run = scenario.start(&[(DATA, 64 << 12)], false);
        run.take(&Piece::Phase { phase, at: 0 }).unwrap();
        let faults = |run: &Run| run.system.host_statistics().map(|host| host.faults);
        assert_eq!(faults(&run), Some(0));
        let advice = flatwalk_trace::Advice::Populate;
        let event = Event::Advise { address: DATA, length: 64 << 12, advice };
        run.take(&Piece::Event(event)).unwrap();
        // Its pages, and the three nodes below the root.
        assert_eq!(faults(&run), Some(64 + 3));
        let (walks, own) = (run.mmu.statistics.faulting, run.system.statistics().faults);
        go(&mut run, &[Do::Store(DATA), Do::Store(DATA + (63 << 12))]);
        assert_eq!((run.mmu.statistics.faulting, run.system.statistics().faults), (walks, own));
        if let Some((core, _)) = &run.timed {
            // The test machine takes 1500 cycles to leave a guest, and 1000 for a fault.
            let cycles = core.kernel.faults;
            assert!((67 * 2500..67 * 2500 + 67 * 600).contains(&cycles), "{cycles}");
            assert_eq!(core.kernel.access_faults, 0, "all are in the call");
            let passed = if phase == Phase::Warm { 0 } else { cycles };
            assert_eq!(core.statistics.fault_cycles, passed);
        }
    }
}

#[test]
fn the_last_address_is_one_that_was_accessed() {
    let mut run = Scenario::new(scheme(4, &[])).start(&MAPPED, true);
    assert_eq!(run.last_address(), None);
    let addresses: Vec<_> = (0..10).map(|i| DATA + (i << 12)).collect();
    let slice = flatwalk_trace::Slice { thread: 0, blocks: vec![0; 10], addresses };
    run.take_part(&slice, 0..4, 0..4).unwrap();
    assert_eq!(run.last_address(), Some(DATA + (3 << 12)));
    run.take_part(&slice, 4..10, 4..10).unwrap();
    assert_eq!(run.last_address(), Some(DATA + (9 << 12)));
}

#[test]
fn a_context_switch_empties_tlbs_and_page_walk_caches() {
    let mut scenario = Scenario::new(scheme(4, &[]));
    // At 1 GHz, 5 µs are 5000 cycles; the clock is looked at every 10,000 instructions.
    scenario.context_switch_ms = Some(0.005);
    let mut run = scenario.start(&MAPPED, true);
    let pages: Vec<Do> = (0..4).map(|i| Do::Chase(DATA + i * 4096)).collect();
    go(&mut run, &pages.repeat(2_500));
    assert_eq!(walked(&run), (4, 4 + 3), "one whole walk; its node for the others");
    assert_eq!(run.context_switches(), Some(1));
    go(&mut run, &pages);
    assert_eq!(walked(&run), (8, 2 * (4 + 3)), "and once more");
    scenario.context_switch_ms = None;
    let mut run = scenario.start(&MAPPED, true);
    go(&mut run, &pages.repeat(2_501));
    assert_eq!((walked(&run), run.context_switches()), ((4, 7), None));
}

/// Walks and accesses since the start.
fn walked(run: &Run) -> (u64, u64) {
    let total = run.mmu.statistics.total();
    (total.walks, total.accesses)
}

#[test]
fn each_page_of_an_access_is_translated_however_it_is_run() {
    let ways = [
        (Mode::Functional, Phase::Measured),
        (Mode::Timing, Phase::Warm),
        (Mode::Timing, Phase::Measured),
    ];
    for (mode, phase) in ways {
        let scenario = Scenario { mode, ..Scenario::new(scheme(4, &[])) };
        let mut run = scenario.start(&MAPPED, false);
        run.take(&Piece::Phase { phase, at: 0 }).unwrap();
        let operands = Operands::Registers { reads: [0; 4], writes: [0; 4], branch: Branch::None };
        let block = Block {
            instructions: [Instruction { pc: 64, length: 4, operands }].into(),
            accesses: [Access { instruction: 0, size: 3 * 4096, store: false }].into(),
        };
        run.take(&Piece::Define(Arc::new(BlockDecoder::default().decode(&block)))).unwrap();
        let slice = Slice { thread: 0, blocks: vec![3], addresses: vec![DATA + 8] };
        run.take(&Piece::Slice(slice)).unwrap();
        assert_eq!(run.system.statistics().faults, 4, "{mode:?} {phase:?}");
    }
}

#[test]
fn what_is_measured_ends_with_the_run() {
    let mut scenario = Scenario::new(scheme(4, &[]));
    let mode = serde_json::json!({ "page_table_priority": { "mode": "phases" } });
    scenario.scheme.mechanisms = serde_json::from_value(mode).unwrap();
    let mut run = scenario.start(&MAPPED, true);
    run.take(&Piece::Phase { phase: Phase::Measured, at: 0 }).unwrap();
    // It is decided every 10,000 instructions.
    let loads: Vec<_> =
        (0..16_000).map(|i| Do::Load(DATA + i * 7_919 % (1 << 17) * 4096)).collect();
    go(&mut run, &loads);
    run.end().unwrap();
    let figures: serde_json::Value = figures(&run, "page_table_priority").unwrap();
    assert_eq!(figures["active_fraction"], 6_000.0 / 16_000.0);
}

#[test]
fn merging_flushes_page_walk_caches_and_no_tlb() {
    let scenario = Scenario { mode: Mode::Functional, ..Scenario::new(merging_scheme(8, 4, 0.0)) };
    let mut run = scenario.start(&MAPPED, false);
    for i in 0..8 {
        go(&mut run, &[Do::Load(DATA + i * LARGE)]);
    }
    assert_eq!(run.system.statistics().merges, 1);
    let before = walked(&run);
    go(&mut run, &[Do::Load(DATA + 6 * LARGE)]);
    assert_eq!(walked(&run), before, "the page is where it was");
    // Pages of 2 MiB that were never used yet: their faults map them without a node.
    let far = [100, 101].map(|i| DATA + i * LARGE);
    go(&mut run, &far.map(Do::Load));
    let (walks, accesses) = walked(&run);
    assert_eq!((walks - before.0, accesses - before.1), (2, 2), "one access a walk");
}

#[test]
fn a_host_that_merges_keeps_the_guests_translations() {
    let mut scenario = Scenario::new(scheme(4, &[]));
    scenario.scheme.host = Some(as_host(merging_scheme(8, 4, 20.0)));
    for populate in [false, true] {
        let mut run = scenario.start(&[(DATA, 32 * LARGE)], populate);
        let pages: Vec<Do> = (0..32 * 512).map(|i| Do::Load(DATA + i * 4096)).collect();
        go(&mut run, &pages);
        let host = run.system.host_statistics().expect("there is a host");
        assert!(host.merges > 0 && run.system.statistics().merges == 0);
    }
}

#[test]
fn code_is_warmed_where_it_lies_also_behind_a_part_that_is_passed_over() {
    let mut scenario = Scenario::new(scheme(4, &[]));
    scenario.machine.tlb.l1i = testing::machine().tlb.l1i;
    let mut run = scenario.start(&MAPPED, true);
    // Three blocks, of an instruction each, in lines of one page.
    let page = 0x40_0000;
    for at in [0xf00, 0x40, 0x80] {
        let operands = Operands::Registers { reads: [0; 4], writes: [0; 4], branch: Branch::None };
        let block = Block {
            instructions: [Instruction { pc: page + at, length: 4, operands }].into(),
            accesses: [].into(),
        };
        run.take(&Piece::Define(Arc::new(BlockDecoder::default().decode(&block)))).unwrap();
    }
    for (phase, block) in [(Phase::Pass, 3), (Phase::Warm, 4), (Phase::Warm, 5)] {
        run.take(&Piece::Phase { phase, at: run.instructions() }).unwrap();
        let slice = Slice { thread: 0, blocks: vec![block], addresses: vec![] };
        run.take(&Piece::Slice(slice)).unwrap();
    }
    let process = run.system.native().expect("there is no guest");
    let frame = process.table().translate(process.memory(), Gva::new(page)).unwrap().frame;
    let (_, caches) = run.timed.as_ref().expect("it is timed");
    let has = |at| caches.find(frame.offset(at)).l2 != Found::Nothing;
    assert_eq!([0xf00, 0x40, 0x80].map(has), [false, true, true]);
}

#[test]
fn what_divides_caches_says_that_there_are_none() {
    let csalt = json!({ "csalt": { "epoch_accesses": 500, "translation_weight": 1.0 } });
    let phases = json!({ "page_table_priority": { "mode": "phases" } });
    let always = json!({ "page_table_priority": { "mode": "always" } });
    for section in [csalt, phases, always] {
        for mode in [Mode::Timing, Mode::Functional] {
            let mut scenario = Scenario { mode, ..Scenario::new(scheme(4, &[])) };
            scenario.scheme.mechanisms = serde_json::from_value(section.clone()).unwrap();
            let mut run = scenario.start(&MAPPED, true);
            go(&mut run, &(0..2_000).map(|i| Do::Load(DATA + i * 4096)).collect::<Vec<_>>());
            let result = RunResult::new(&run, "test", 1, &mut Symbols::default());
            let timed = mode == Mode::Timing;
            let warned =
                result.warnings.iter().any(|words| words.contains("had nothing to work on"));
            assert_eq!(warned, !timed, "{section}");
            assert_eq!(
                (result.mechanisms.len(), result.mechanism_words.is_empty()),
                if timed { (1, false) } else { (0, true) },
                "{section}"
            );
        }
    }
}

#[test]
fn the_share_of_tables_is_one_of_all_the_last_level_cache() {
    let mut run = Scenario::new(scheme(4, &[])).start(&MAPPED, true);
    go(&mut run, &[Do::Chase(DATA), Do::Chase(DATA + LARGE)]);
    let (_, caches) = run.timed.as_ref().expect("it is timed");
    // The test machine's has 1024 lines. Of four entries for the first page, the root's shares its line with
    // the code; the second page has a leaf of its own.
    let (tables, lines) = caches.llc_table_lines();
    assert!((4..=5).contains(&tables) && lines < 10, "{tables} of {lines}");
    assert!((1024.0 * caches.llc_table_fraction() - tables as f64).abs() < 1e-9);
}
