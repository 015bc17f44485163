//! What cycles went to: stacks computed by hand, and sums that hold whatever is run.
//!
//! The test machine's latencies are in [`crate::tests::testing::machine`]; its window starts at
//! cycle 0, and its code's first line comes from memory: 142 cycles, of which the front end
//! hides 4. An operation is dispatched in one cycle, and takes one when its operands are there; a
//! load is done when its data is there.

use std::ops::{ControlFlow, Deref, DerefMut};
use std::sync::Arc;

use flatwalk_trace::{
    Access, Advice, Backing, Block, Branch, Event, Instruction, Operands, Protection, Slice,
};
use proptest::prelude::*;

use crate::config::machine::{Isolation, Multicore, Pwc};
use crate::config::scheme::{Scheme, TranslationMode};
use crate::core::CoreStatistics;
use crate::core::decode::BlockDecoder;
use crate::core::stack::Part;
use crate::counts::forget;
use crate::driver::piece::Piece;
use crate::driver::run::Run;
use crate::driver::sampling::{Limits, Places, Sampling};
use crate::mmu::blame::Count;
use crate::simulate::simulate;
use crate::simulate_mix;
use crate::tests::testing::{
    DATA, Do, Scenario, as_host, cuckoo_scheme, go, host_table, merging_scheme, scheme, shipped,
};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A run whose stack is looked at from a cycle on.
struct Watched {
    run: Run,
    began: u64,
}

impl Deref for Watched {
    type Target = Run;
    fn deref(&self) -> &Run {
        &self.run
    }
}

impl DerefMut for Watched {
    fn deref_mut(&mut self) -> &mut Run {
        &mut self.run
    }
}

/// A run that has mapped a gigabyte from [`DATA`] on; what that took is not counted.
fn start(scenario: &Scenario, populate: bool) -> Watched {
    watch(scenario.start(&[(DATA, GIB)], populate))
}

fn watch(mut run: Run) -> Watched {
    let (core, _) = run.timed.as_mut().unwrap();
    forget(|visit| core.counts(visit));
    let began = core.cycle();
    Watched { run, began }
}

/// The run's stack, without the parts that are empty. It adds up.
fn stack(run: &Watched) -> Vec<(Part, u64)> {
    let cycles = run.timed.as_ref().unwrap().0.cycle() - run.began;
    let all: Vec<_> = statistics(run).stack.parts(cycles).collect();
    assert_eq!(all.iter().map(|(_, cycles)| cycles).sum::<u64>(), cycles);
    all.into_iter().filter(|&(_, cycles)| cycles > 0).collect()
}

fn of(run: &Watched, part: Part) -> u64 {
    stack(run).iter().find(|(p, _)| *p == part).map_or(0, |&(_, cycles)| cycles)
}

fn statistics(run: &Run) -> CoreStatistics {
    run.timed.as_ref().unwrap().0.statistics
}

/// A scenario in which translating costs nothing.
fn untranslated() -> Scenario {
    let mut scenario = Scenario::new(scheme(4, &[]));
    scenario.scheme.translation = TranslationMode::Free;
    scenario
}

/// Another block for `run`: one instruction at `pc`, which makes `accesses`, as `(size, store)`,
/// and reads and writes register 1 if it is a `chain`.
fn define(run: &mut Run, pc: u64, chain: bool, branch: Branch, accesses: &[(u16, bool)]) {
    let register = [u8::from(chain), 0, 0, 0];
    let operands = Operands::Registers { reads: register, writes: register, branch };
    let block = Block {
        instructions: [Instruction { pc, length: 4, operands }].into(),
        accesses: accesses
            .iter()
            .map(|&(size, store)| Access { instruction: 0, size, store })
            .collect(),
    };
    run.take(&Piece::Define(Arc::new(BlockDecoder::default().decode(&block)))).unwrap();
}

fn blocks(run: &mut Run, blocks: &[u32], addresses: &[u64]) {
    let (blocks, addresses) = (blocks.to_vec(), addresses.to_vec());
    run.take(&Piece::Slice(Slice { thread: 0, blocks, addresses })).unwrap();
}

#[test]
fn a_chain_of_misses_waits_for_data() {
    let mut run = start(&untranslated(), true);
    go(&mut run, &(0..10).map(|i| Do::Chase(DATA + i * 4096)).collect::<Vec<_>>());
    // Each asks when the one before has its data, so that only the first one's dispatch is no wait for data.
    let expected = [(Part::Base, 1), (Part::InstructionFetch, 138), (Part::DataDram, 10 * 142)];
    assert_eq!(stack(&run), expected);
    // Once more: from L2, whose ways they fit. L1 has two for each of its four sets.
    go(&mut run, &(0..3).map(|i| Do::Chase(DATA + i * 4096)).collect::<Vec<_>>());
    let from = |part| of(&run, part);
    assert_eq!((from(Part::DataLlc) + from(Part::DataL2), from(Part::Base)), (3 * 42, 1));
    go(&mut run, &[Do::Chase(DATA + 2 * 4096)]);
    assert_eq!(of(&run, Part::DataL1), 4);
}

#[test]
fn independent_misses_wait_once() {
    let mut run = start(&untranslated(), true);
    // The second line is there a cycle later than the first, and the first load retires when it has its own.
    go(&mut run, &[Do::Load(DATA), Do::Load(DATA + 4096)]);
    let expected = [(Part::Base, 1), (Part::InstructionFetch, 138), (Part::DataDram, 142 + 1)];
    assert_eq!(stack(&run), expected);
}

#[test]
fn a_walk_is_divided_by_who_had_its_entries() {
    let mut run = start(&Scenario::new(scheme(4, &[])), true);
    go(&mut run, &[Do::Chase(DATA)]);
    // The root's entry shares its line with the code, which L2 has; three more are in memory.
    let cold = [
        (Part::Base, 1),
        (Part::InstructionFetch, 138),
        (Part::DataDram, 142),
        (Part::Tlb, 9),
        (Part::WalkLookups, 1),
        (Part::WalkL2, 12),
        (Part::WalkDram, 3 * 142),
    ];
    assert_eq!(stack(&run), cold);
    // The next page's entry is in the same line, and the page-walk cache knows its node. Its data's set
    // in L1 is another. It asks when the first one's data is there.
    let before = statistics(&run).translation_cycles;
    go(&mut run, &[Do::Chase(DATA + PAGE + 64)]);
    let more: Vec<_> = stack(&run).into_iter().filter(|part| !cold.contains(part)).collect();
    let expected =
        [(Part::DataDram, 2 * 142), (Part::Tlb, 2 * 9), (Part::WalkLookups, 2), (Part::WalkL1, 4)];
    assert_eq!(more, expected);
    assert_eq!(statistics(&run).translation_cycles - before, 9 + 1 + 4);
}

#[test]
fn a_walk_that_waits_for_a_walker_says_so() {
    let mut scenario = Scenario::new(scheme(4, &[]));
    scenario.machine.walker.concurrent = 1;
    let mut run = start(&scenario, true);
    go(&mut run, &[Do::Load(DATA), Do::Load(DATA + 64 * MIB)]);
    // Both ask at 139, and miss the TLBs at 148. The first one's walk ends at 148 + 1 + 12 + 3 * 142 = 587,
    // its data is there at 729, and it retires then. The second one's walk, of two entries, begins at 587
    // instead of 148 and ends at 872, so that its data is there at 1014: all that it is waited for, from 729
    // on, is less than the 439 cycles that it is later.
    let expected = [
        (Part::Base, 1),
        (Part::InstructionFetch, 138),
        (Part::DataDram, 142),
        (Part::Tlb, 9),
        (Part::WalkQueue, 1014 - 729),
        (Part::WalkLookups, 1),
        (Part::WalkL2, 12),
        (Part::WalkDram, 3 * 142),
    ];
    assert_eq!(stack(&run), expected);
}

#[test]
fn a_wait_for_a_walker_counts_once() {
    let mut scenario = Scenario::new(scheme(4, &[]));
    scenario.machine.walker.concurrent = 1;
    let mut run = start(&scenario, true);
    let second = DATA + 64 * MIB;
    go(&mut run, &[DATA, second, second + 64, second + 128].map(Do::Load));
    // As above; and two more loads merge with the second one's walk, which ends at 872. The bus has
    // the first one's line at 1015. The other one has no MSHR before 1014, and its line at 1014 +
    // 142 = 1156. What comes behind 1014 is a wait for data: the second load has been charged with
    // all that its walk was later.
    let expected = [
        (Part::Base, 1),
        (Part::InstructionFetch, 138),
        (Part::DataDram, 142 + (1156 - 1014)),
        (Part::Tlb, 9),
        (Part::WalkQueue, 1014 - 729),
        (Part::WalkLookups, 1),
        (Part::WalkL2, 12),
        (Part::WalkDram, 3 * 142),
    ];
    assert_eq!(stack(&run), expected);
    assert_eq!(run.mmu.statistics.merged, 2);
}

#[test]
fn the_wait_for_walkers_is_about_what_more_of_them_gain() {
    let run = |walkers| {
        let mut scenario = Scenario::new(scheme(4, &[]));
        scenario.machine.walker.concurrent = walkers;
        for cache in
            [&mut scenario.machine.l1d, &mut scenario.machine.l2, &mut scenario.machine.llc]
        {
            cache.as_mut().unwrap().mshrs = 64;
        }
        let mut run = start(&scenario, true);
        // Another page each time, in no order.
        go(
            &mut run,
            &(0..2000).map(|i| Do::Load(DATA + i * 40_503 % 262_144 * PAGE)).collect::<Vec<_>>(),
        );
        run
    };
    let (few, many) = (run(1), run(64));
    let cycles = |run: &Watched| stack(run).iter().map(|(_, cycles)| cycles).sum::<u64>();
    let gain = cycles(&few) - cycles(&many);
    let share = of(&few, Part::WalkQueue) as f64 / gain as f64;
    assert!((0.8..1.25).contains(&share), "{share}");
    assert_eq!(of(&many, Part::WalkQueue), 0);
}

#[test]
fn a_misprediction_refills_the_front_end() {
    let mut run = start(&untranslated(), true);
    // Taken, which nobody expects. Both are in one line of code.
    define(&mut run, 16, false, Branch::Conditional, &[]);
    define(&mut run, 40, false, Branch::None, &[]);
    blocks(&mut run, &[3, 4], &[]);
    let expected =
        [(Part::Base, 2 + 2), (Part::BranchMispredictions, 5), (Part::InstructionFetch, 138)];
    assert_eq!(stack(&run), expected);
    // One that depends on a load that misses: the load's data is waited for, not its being resolved.
    let mut run = start(&untranslated(), true);
    define(&mut run, 16, true, Branch::Conditional, &[]);
    define(&mut run, 40, false, Branch::None, &[]);
    blocks(&mut run, &[1, 3, 4], &[DATA]);
    // The load is dispatched in one cycle, the branch takes one, and what follows two.
    let expected = [
        (Part::Base, 1 + 1 + 2),
        (Part::BranchMispredictions, 5),
        (Part::InstructionFetch, 138),
        (Part::DataDram, 142),
    ];
    assert_eq!(stack(&run), expected);
}

#[test]
fn a_fault_counts_its_handler_and_the_refill() {
    let mut run = start(&untranslated(), false);
    go(&mut run, &[Do::Load(DATA)]);
    let handler = statistics(&run).fault_cycles;
    assert!(handler > 1000 + 4 * PAGE / 16);
    // The line is asked for when the handler is done, and there long after the refill.
    let first = [
        (Part::Base, 1),
        (Part::InstructionFetch, 138),
        (Part::DataDram, 142),
        (Part::PageFaults, handler),
    ];
    assert_eq!(stack(&run), first);
    // A store retires at once; what follows it waits for the refill, in its block or in the next one.
    for alone in [false, true] {
        let mut run = start(&untranslated(), false);
        define(&mut run, 12, false, Branch::None, &[]);
        let store = Instruction {
            pc: 16,
            length: 4,
            operands: Operands::Registers { reads: [0; 4], writes: [0; 4], branch: Branch::None },
        };
        let block = Block {
            instructions: [store.clone(), Instruction { pc: 20, ..store }].into(),
            accesses: [Access { instruction: 0, size: 8, store: true }].into(),
        };
        run.take(&Piece::Define(Arc::new(BlockDecoder::default().decode(&block)))).unwrap();
        let ids: &[u32] = if alone { &[4] } else { &[2, 3] };
        blocks(&mut run, ids, &[DATA]);
        let handler = statistics(&run).fault_cycles;
        // Dispatched at 138, the store asks and traps at 139. It retires when the handler is done, the
        // other one two cycles after the refill.
        let expected =
            [(Part::Base, 1 + 2), (Part::InstructionFetch, 138), (Part::PageFaults, handler + 5)];
        assert_eq!(stack(&run), expected, "in one block: {alone}");
    }
    // The walk that finds nothing is a walk, and so is the one after the fault.
    let mut run = start(&Scenario::new(scheme(4, &[])), false);
    go(&mut run, &[Do::Load(DATA)]);
    let expected = [
        (Part::Base, 1),
        (Part::InstructionFetch, 138),
        (Part::DataDram, 142),
        (Part::Tlb, 2 * 9),
        (Part::WalkLookups, 2),
        // The root's entry, first from L2, then from L1D; the others were never read.
        (Part::WalkL1, 4),
        (Part::WalkL2, 12),
        (Part::WalkDram, 3 * 142),
        (Part::PageFaults, statistics(&run).fault_cycles),
    ];
    assert_eq!(stack(&run), expected);
}

#[test]
fn system_calls_merges_and_exits_are_apart() {
    // Merges, in the fault that fills the 64th entry, and when they are given back.
    let mut run = start(&Scenario::new(merging_scheme(64, 32, 20.0)), false);
    go(&mut run, &(0..66).map(|i| Do::Load(DATA + i * 2 * MIB)).collect::<Vec<_>>());
    assert_eq!((of(&run, Part::Merges), statistics(&run).merge_cycles), (20_000, 20_000));
    let unmap = Event::Unmap { address: DATA, length: 40 * 2 * MIB };
    run.take(&Piece::Event(unmap)).unwrap();
    let s = statistics(&run);
    assert_eq!((of(&run, Part::Merges), s.merge_cycles), (40_000, 40_000));
    assert_eq!(of(&run, Part::SystemCalls) + 20_000, s.call_cycles);
    // A handler runs when all that is older has retired.
    let refills = of(&run, Part::PageFaults) + 20_000 - s.fault_cycles;
    assert!(refills <= 66 * 5, "{refills} cycles of refilling for 66 faults");

    // Shadow paging: the fault leaves the guest once, and for each of the four entries written.
    let mut scenario = Scenario::new(scheme(4, &[]));
    scenario.scheme.shadow = true;
    let mut run = start(&scenario, false);
    go(&mut run, &[Do::Load(DATA)]);
    assert_eq!(of(&run, Part::GuestExits), (1 + 4) * 1500);
    assert_eq!(
        of(&run, Part::GuestExits) + of(&run, Part::PageFaults),
        statistics(&run).fault_cycles
    );

    // A guest over a host that has backed nothing.
    let mut scenario = Scenario::new(scheme(4, &[]));
    scenario.scheme.host = Some(host_table(4, &[]));
    let mut run = start(&scenario, false);
    go(&mut run, &[Do::Load(DATA)]);
    let (own, host) = (of(&run, Part::PageFaults), of(&run, Part::HostFaults));
    let faults = run.host_faults().unwrap();
    assert!(own > 1000 && faults > 0 && host >= faults * 2500, "{own}, {host} in {faults}");
    assert_eq!(own + host, statistics(&run).fault_cycles);
}

/// A run over `scheme` of a program that touches two pages of a gigabyte, and takes the right to write to
/// all of it and gives it back, as a collector of garbage does.
fn protecting(scheme: Scheme) -> Watched {
    let mut run = start(&Scenario::new(scheme), false);
    for write in [false, true].repeat(8) {
        go(&mut run, &[Do::Chase(DATA), Do::Chase(DATA + 32 * MIB)]);
        let protection = Protection { read: true, write, execute: false };
        let event = Event::Protect { address: DATA, length: GIB, protection };
        run.take(&Piece::Event(event)).unwrap();
    }
    run
}

#[test]
fn what_protecting_costs_explains_the_difference_between_tables() {
    let (radix, flat) = (protecting(scheme(4, &[])), protecting(scheme(4, &["L4L3", "L2L1"])));
    let more =
        |what: &dyn Fn(&Watched) -> u64| what(&flat).cast_signed() - what(&radix).cast_signed();
    let difference = more(&|run| stack(run).iter().map(|(_, cycles)| cycles).sum());
    let parts = Part::ALL.map(|part| (part, more(&|run| of(run, part))));
    assert_eq!(parts.iter().map(|(_, cycles)| cycles).sum::<i64>(), difference, "part by part");
    let calls = more(&|run| statistics(run).call_cycles);
    let faults = more(&|run| statistics(run).fault_cycles);
    for (part, cycles) in parts {
        match part {
            Part::SystemCalls => assert_eq!(cycles, calls),
            Part::PageFaults => assert_eq!(cycles, faults),
            // Walks are shorter.
            _ => assert!(cycles <= 0, "{part:?}: {cycles}"),
        }
    }
    // Each call looks through the 262,144 entries of a node of 2 MiB, 4 cycles each, where the
    // radix table has two nodes of 512 entries, one above them, and a few more on the way: so much
    // more that the faults, which once zeroed the node, hardly matter.
    let entries = 16 * (262_144 - 3 * 512);
    assert!((0..16 * 8).contains(&(entries - calls / 4)), "{} entries", calls / 4);
    assert!(faults * 100 < calls, "{faults}, {calls}");
}

#[test]
fn a_full_store_queue_is_waited_for() {
    let mut scenario = untranslated();
    scenario.machine.core.as_mut().unwrap().store_queue = 1;
    let mut run = start(&scenario, true);
    go(&mut run, &[Do::Store(DATA), Do::Store(DATA + 4096)]);
    // Both retire two cycles after they are dispatched; the second has to wait for the first's line,
    // asked for at 139.
    let expected =
        [(Part::Base, 2 + 2), (Part::InstructionFetch, 138), (Part::StoreQueue, 142 - 1)];
    assert_eq!(stack(&run), expected);
}

#[test]
fn a_line_on_its_way_counts_for_where_it_comes_from() {
    let mut run = start(&untranslated(), true);
    // The store retires a cycle after it asked for its line, which the load is in as well.
    go(&mut run, &[Do::Store(DATA), Do::Load(DATA + 8)]);
    let expected = [(Part::Base, 2), (Part::InstructionFetch, 138), (Part::DataDram, 141)];
    assert_eq!(stack(&run), expected);
}

#[test]
fn code_is_translated_in_a_part_of_its_own() {
    let mut scenario = Scenario::new(scheme(4, &[]));
    scenario.machine = crate::tests::testing::machine();
    let mut run = scenario.start(&[(DATA, GIB)], true);
    let protection = Protection { read: true, write: false, execute: true };
    let (address, length, backing) = (0, MIB, Backing::Anonymous);
    let map = Event::Map { address, length, protection, backing, shared: false };
    for event in [map, Event::Populate { address, length, store: false }] {
        run.take(&Piece::Event(event)).unwrap();
    }
    let mut run = watch(run);
    define(&mut run, 64 * PAGE, false, Branch::None, &[]);
    blocks(&mut run, &[3], &[]);
    let translated = 9 + 1 + 4 * 142;
    let expected = [
        (Part::Base, 2),
        (Part::InstructionFetch, 138),
        (Part::InstructionTranslation, translated),
    ];
    assert_eq!(stack(&run), expected);
    assert_eq!(statistics(&run).translation_cycles, translated);
}

/// A step of a random program, as a number that says which and one that says where.
type Chosen = (u8, u64);

/// Below 2^39, where tables of three levels reach too.
const LOW: u64 = 64 << 30;
const BYTES: u64 = 16 << 20;

/// Blocks 3 and up of random programs, and how many accesses each makes.
fn define_all(run: &mut Run) -> Vec<(u32, usize)> {
    let kinds: [(Branch, &[(u16, bool)]); 9] = [
        (Branch::Conditional, &[]),
        (Branch::Indirect, &[]),
        (Branch::Conditional, &[(8, false)]),
        (Branch::Return, &[(8, false)]),
        (Branch::None, &[(8, false), (8, true)]),
        (Branch::None, &[(8, true), (64, true)]),
        (Branch::None, &[(64, false), (32, false), (8, false)]),
        (Branch::None, &[(16, true)]),
        (Branch::None, &[]),
    ];
    for (i, (branch, accesses)) in kinds.into_iter().enumerate() {
        let i = i as u64;
        define(run, LOW + i % 3 * 9 * PAGE + i * 100, i.is_multiple_of(2), branch, accesses);
    }
    let few = [(0, 1), (1, 1), (2, 1)];
    few.into_iter().chain((3..).zip(kinds.map(|(_, accesses)| accesses.len()))).collect()
}

/// Takes a step of a random program.
fn take(run: &mut Run, known: &[(u32, usize)], (what, at): Chosen) {
    let address = LOW + at % (BYTES / PAGE) * PAGE;
    let length = (at % 700 + 1) * PAGE;
    let length = length.min(LOW + BYTES - address);
    let event = match what {
        0 => Event::Unmap { address, length },
        1 => {
            let write = at.is_multiple_of(2);
            let protection = Protection { read: true, write, execute: true };
            Event::Protect { address, length, protection }
        }
        2 => {
            let protection = Protection { read: true, write: true, execute: true };
            Event::Map { address, length, protection, backing: Backing::Anonymous, shared: false }
        }
        3 => Event::Advise { address, length, advice: Advice::DontNeed },
        4 => Event::Populate { address, length, store: true },
        _ => {
            let (id, accesses) = known[usize::from(what) % known.len()];
            let addresses =
                (0..accesses as u64).map(|n| LOW + (at * (2 * n + 1)) % (BYTES - 64)).collect();
            let slice = Slice { thread: (at % 41 / 40) as u32, blocks: vec![id], addresses };
            run.take(&Piece::Slice(slice)).unwrap();
            return;
        }
    };
    run.take(&Piece::Event(event)).unwrap();
}

fn schemes() -> Vec<Scheme> {
    let mut schemes = shipped();
    schemes.push(merging_scheme(8, 4, 20.0));
    let mut both = cuckoo_scheme(64, true);
    both.host = Some(as_host(merging_scheme(8, 4, 20.0)));
    schemes.push(both);
    schemes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn the_parts_add_up_whatever_is_run(
        which in any::<prop::sample::Index>(),
        large_pages in prop::sample::select(vec![0, 50, 100]),
        (walkers, store_queue) in (1u32..3, 1u32..8),
        (code, vhpt, populated) in (any::<bool>(), any::<bool>(), any::<bool>()),
        program in prop::collection::vec((0u8..80, any::<u64>().prop_map(|at| at >> 8)), 1..400),
        windows in 1usize..50,
    ) {
        let mut scenario = Scenario::new(which.get(&schemes()).clone());
        if code {
            scenario.machine = crate::tests::testing::machine();
        }
        if vhpt && scenario.scheme.host.is_none() && !scenario.scheme.shadow {
            scenario.machine.pwc = Pwc::None;
        }
        scenario.machine.walker.concurrent = walkers;
        scenario.machine.core.as_mut().unwrap().store_queue = store_queue;
        scenario.large_pages = large_pages;
        scenario.host_large_pages = large_pages;
        // What is looked at between two steps is one core's, which all threads share.
        scenario.cores = Some(1);
        let mut run = scenario.start(&[(LOW, BYTES)], populated);
        let known = define_all(&mut run);
        let mut whole = [0; Part::ALL.len()];
        let mut began = 0;
        // Counts can be taken and forgotten between any two steps.
        for window in program.chunks(program.len().div_ceil(windows)) {
            for &step in window {
                take(&mut run, &known, step);
            }
            let (core, _) = run.timed.as_mut().unwrap();
            let cycles = core.cycle() - began;
            let parts: Vec<_> = core.statistics.stack.parts(cycles).collect();
            prop_assert_eq!(parts.iter().map(|(_, n)| n).sum::<u64>(), cycles);
            let CoreStatistics { translation_cycles, translation_fault_cycles, .. } = core.statistics;
            prop_assert!(translation_fault_cycles <= translation_cycles);
            for (all, (_, n)) in whole.iter_mut().zip(&parts) {
                *all += n;
            }
            began = core.cycle();
            forget(|visit| core.counts(visit));
        }
        prop_assert_eq!(whole.iter().sum::<u64>(), began);
        // Nothing was forgotten of where walks and waits for translations come from.
        let translation: u64 =
            Part::ALL.iter().zip(whole).filter(|(part, _)| part.is_translation()).map(|(_, n)| n).sum();
        let expected = (run.mmu.statistics.total().walks, translation);
        let sum = |sum: (u64, u64), count: Count| (sum.0 + count.walks, sum.1 + count.cycles);
        let regions = run.mmu.blame.regions().map(|(_, count)| count).fold((0, 0), sum);
        let instructions = run.mmu.blame.instructions().map(|(_, count)| count).fold((0, 0), sum);
        prop_assert_eq!((regions, instructions), (expected, expected));
    }
}

#[test]
fn the_parts_add_up_with_context_switches_and_in_mixes() {
    let mut scenario = Scenario::new(scheme(4, &["L4L3", "L2L1"]));
    scenario.context_switch_ms = Some(0.005);
    let mut run = start(&scenario, false);
    let pages: Vec<Do> = (0..40).map(|i| Do::Chase(DATA + i * PAGE)).collect();
    go(&mut run, &pages.repeat(1_500));
    assert!(run.context_switches().unwrap() > 3);
    assert!(of(&run, Part::WalkL1) > 0);

    let mut configuration = Scenario::new(scheme(4, &[])).configuration();
    configuration.machine = crate::tests::testing::machine();
    configuration.machine.multicore = Some(Multicore { cores: 2, isolation: Isolation::Owners });
    let open = |core| {
        let name = ["gups", "graphbig-bfs"][core];
        flatwalk_workloads::open(name, &flatwalk_workloads::Arguments::new(16 << 20, 1))
            .map_err(|error| error.to_string())
    };
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let part = Limits { warmup: 20_000, instructions: Some(40_000), ..Limits::default() };
    let places = Places::Spread;
    let sampling =
        Some(Sampling { windows: 7, window: 6_000, warmup: 70_000, filling: 0, after: 0, places });
    let windows = Limits { instructions: Some(1_000_000), sampling, ..Limits::default() };
    for limits in [part, windows] {
        let limits = [limits.clone(), limits];
        let one = std::slice::from_ref(&configuration);
        let mixed = simulate_mix(&open, one, &limits, 1, 1, go_on).unwrap();
        for core in &mixed.runs[0] {
            let sum: u64 = core.cycle_stack.iter().map(|part| part.cycles).sum();
            assert_eq!(Some(sum), core.cycles);
            let of = |part| core.cycle_stack.iter().find(|p| p.part == part).map(|p| p.cycles);
            assert!(of(Part::DataDram) > Some(0) && of(Part::Base) > Some(0));
            assert_eq!(of(Part::Idle), Some(0));
        }
    }
}

#[test]
fn the_parts_add_up_over_windows() {
    let places = Places::Spread;
    let sampling =
        Some(Sampling { windows: 7, window: 3_000, warmup: 70_000, filling: 0, after: 0, places });
    for scheme in [scheme(4, &["L4L3", "L2L1"]), merging_scheme(8, 4, 20.0)] {
        let configurations = vec![Scenario::new(scheme).configuration()];
        let source = flatwalk_workloads::open(
            "graphbig-bfs",
            &flatwalk_workloads::Arguments::new(16 << 20, 1),
        )
        .unwrap();
        let limits = Limits {
            instructions: Some(2_000_000),
            sampling: sampling.clone(),
            ..Limits::default()
        };
        let go_on = &mut |_| ControlFlow::Continue(());
        let run = simulate(source, configurations, &limits, 1, 1, go_on).unwrap().runs.remove(0);
        assert_eq!(run.windows.len(), 7);
        let windows: u64 = run.windows.iter().filter_map(|window| window.cycles).sum();
        for (at, part) in run.cycle_stack.iter().enumerate() {
            let sum: u64 = run.windows.iter().map(|window| window.cycle_stack[at]).sum();
            assert_eq!(sum, part.cycles, "{:?}", part.part);
        }
        let sum: u64 = run.cycle_stack.iter().map(|part| part.cycles).sum();
        assert_eq!((Some(sum), windows), (run.cycles, sum));
        let base = run.cycle_stack[0];
        assert!(base.part == Part::Base && base.cycles > run.instructions / 8, "{base:?}");
    }
}
