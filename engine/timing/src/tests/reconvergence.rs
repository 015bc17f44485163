//! Loads past mispredicted branches.
//!
//! The test machine's L1D takes 4 cycles and its memory 142; an operation takes one when its operands are
//! there.

use std::sync::Arc;

use flatwalk_os::Random;
use flatwalk_trace::{Access, Block, Branch, Instruction, Operands, Slice};

use crate::config::machine::BranchPredictor;
use crate::core::decode::BlockDecoder;
use crate::core::{Environment, ReconvergenceStatistics};
use crate::driver::piece::Piece;
use crate::driver::run::Run;
use crate::memory::prefetchers::Figures;
use crate::system::costs::Costs;
use crate::tests::prefetching;
use crate::tests::testing::{DATA, Scenario, scheme};

/// A block from `pc` on: of each instruction the register that makes its address, if it loads, and those
/// that it reads and writes. The last one is a conditional branch if `branches`.
fn block(pc: u64, instructions: &[(Option<u8>, u8, u8)], branches: bool) -> Piece {
    let count = instructions.len();
    let one = |(n, &(load, reads, writes)): (usize, &(Option<u8>, u8, u8))| Instruction {
        pc: pc + 4 * n as u64,
        length: 4,
        operands: Operands::Registers {
            reads: [load.unwrap_or(reads), 0, 0, 0],
            writes: [writes, 0, 0, 0],
            branch: if branches && n + 1 == count { Branch::Conditional } else { Branch::None },
        },
    };
    let loads = instructions.iter().enumerate().filter(|(_, (load, ..))| load.is_some());
    let loads = loads.map(|(n, _)| Access { instruction: n as u16, size: 8, store: false });
    let block = Block {
        accesses: loads.collect::<Vec<_>>().into(),
        instructions: instructions.iter().enumerate().map(one).collect::<Vec<_>>().into(),
    };
    Piece::Define(Arc::new(BlockDecoder::default().decode(&block)))
}

/// The blocks of [`run`], in the order of their numbers.
#[derive(Clone, Copy)]
enum At {
    /// Loads register 1, and branches on it to the join.
    Branch = 3,
    /// Is jumped over: writes register 2.
    Body,
    /// Where both ways join: loads register 3.
    Join,
    /// The same place; register 2 makes the load's address.
    Dependent,
}

/// A run of the blocks in [`At`] on the test machine.
fn start(reconvergence: Option<u32>, predictor: BranchPredictor) -> Run {
    let mut scenario = Scenario::new(scheme(4, &[]));
    let core = scenario.machine.core.as_mut().unwrap();
    (core.reconvergence_instructions, core.branch_predictor) = (reconvergence, predictor);
    (scenario.machine.l1d.as_mut().unwrap().mshrs, scenario.machine.walker.concurrent) = (16, 8);
    start_of(&scenario)
}

fn start_of(scenario: &Scenario) -> Run {
    let mut run = scenario.start(&[(DATA, 1 << 26)], true);
    let blocks = [
        block(0x1000, &[(Some(0), 0, 1), (None, 1, 0)], true),
        block(0x1008, &[(None, 0, 2)], false),
        block(0x100c, &[(Some(0), 0, 3)], false),
        block(0x100c, &[(Some(2), 0, 3)], false),
    ];
    for block in &blocks {
        run.take(block).unwrap();
    }
    run
}

/// Runs blocks, each with whether the branch before it was predicted, and loads the lines with these numbers.
fn go(run: &mut Run, blocks: &[(At, bool)], lines: &[u64]) {
    let os = run.configuration.machine.os.clone();
    let costs = Costs {
        os: &os,
        exit_cycles: 0,
        shadow: false,
        merge_cycles: 0,
        host_merge_cycles: 0,
        has_other_cores: false,
    };
    let mut lines = lines.iter();
    for &(at, predicted) in blocks {
        let block = run.block(at as u32).clone();
        let its = lines.by_ref().take(block.accesses.len());
        let addresses: Vec<u64> = its.map(|line| DATA + 64 * line).collect();
        let Run { system, mmu, timed, .. } = &mut *run;
        let (core, caches) = timed.as_mut().unwrap();
        let mut env = Environment { mmu, caches, system, costs };
        core.run(&block, Some(predicted), &addresses, &mut env).unwrap();
    }
    assert_eq!(lines.next(), None, "a line for each load");
}

/// Cycles that the last blocks take after the body is known, and what ran ahead in all.
fn last(reconvergence: Option<u32>, blocks: &[(At, bool)]) -> (u64, ReconvergenceStatistics) {
    let mut run = start(reconvergence, BranchPredictor::Perfect);
    let taken = [(At::Branch, true), (At::Join, true)];
    let not_taken = [(At::Branch, true), (At::Body, true), (At::Join, true)];
    go(&mut run, &taken, &[0, 1]);
    go(&mut run, &not_taken, &[2, 3]);
    let cycle = |run: &Run| run.timed.as_ref().unwrap().0.cycle();
    let before = cycle(&run);
    go(&mut run, blocks, &[10, 20]);
    let (core, _) = run.timed.as_ref().unwrap();
    (cycle(&run) - before, core.reconvergence().unwrap_or_default())
}

#[test]
fn a_load_behind_the_join_is_under_way_when_the_branch_is_resolved() {
    for blocks in [
        &[(At::Branch, true), (At::Join, false)][..],
        &[(At::Branch, true), (At::Body, false), (At::Join, true)][..],
    ] {
        let (without, none) = last(None, blocks);
        let (with, some) = last(Some(8), blocks);
        assert_eq!(none, ReconvergenceStatistics::default());
        assert_eq!(some, ReconvergenceStatistics { runs: 1, loads: 1 });
        // Its line is there by then: L1D's latency instead of memory's.
        assert_eq!(without - with, 142 - 4);
        // Where the branch was predicted, both loads overlap anyway.
        let predicted: Vec<_> = blocks.iter().map(|&(at, _)| (at, true)).collect();
        assert_eq!(last(None, &predicted).0, last(Some(8), &predicted).0);
    }
}

#[test]
fn loads_made_early_train_prefetchers_as_often_as_others() {
    let run = |reconvergence| {
        let mut scenario = Scenario::new(scheme(4, &[]));
        let (l1d, l2) = prefetching::all();
        prefetching::roomy(&mut scenario.machine, 128, l1d, l2);
        scenario.machine.core.as_mut().unwrap().reconvergence_instructions = reconvergence;
        let mut run = start_of(&scenario);
        let mut random = Random::new(5);
        let (mut blocks, mut lines) = (Vec::new(), Vec::new());
        for step in 0..2000 {
            let predicted = random.below(2) == 0;
            blocks.push((At::Branch, true));
            if random.below(2) == 0 {
                blocks.extend([(At::Body, predicted), (At::Join, true)]);
            } else {
                blocks.push((At::Join, predicted));
            }
            // One load is of any line, the other one of those behind the last.
            lines.extend([random.below(1 << 18), (1 << 18) + step]);
        }
        go(&mut run, &blocks, &lines);
        let (core, caches) = run.timed.as_ref().unwrap();
        let figures = |Figures { issued, useful, useless, redundant, .. }: Figures| {
            [issued, useful, useless, redundant]
        };
        let figures: Vec<_> = caches.prefetchers().map(|(_, one)| figures(one.figures)).collect();
        (figures, core.reconvergence().unwrap_or_default().loads)
    };
    let ((without, none), (with, early)) = (run(None), run(Some(8)));
    assert!(none == 0 && early > 500, "{early}");
    assert!(without.iter().all(|[issued, ..]| *issued > 1000), "{without:?}");
    assert_eq!(without, with);
}

#[test]
fn what_depends_on_the_body_waits_for_the_branch() {
    for blocks in [
        &[(At::Branch, true), (At::Dependent, false)][..],
        &[(At::Branch, true), (At::Body, false), (At::Dependent, true)][..],
    ] {
        let (without, _) = last(None, blocks);
        let (with, ahead) = last(Some(8), blocks);
        assert_eq!(with, without);
        assert_eq!(ahead, ReconvergenceStatistics { runs: 1, loads: 0 });
    }
}

#[test]
fn a_body_that_is_too_long_or_unknown_does_not_join() {
    let mut run = start(Some(8), BranchPredictor::Perfect);
    // The target is known, but not what is before it.
    go(&mut run, &[(At::Branch, true), (At::Join, true)], &[0, 1]);
    go(&mut run, &[(At::Branch, true), (At::Join, false)], &[10, 20]);
    let (core, _) = run.timed.as_ref().unwrap();
    assert_eq!(core.reconvergence(), Some(ReconvergenceStatistics::default()));
    // Nine instructions before the join, of which eight may be.
    let mut run = start(Some(8), BranchPredictor::Perfect);
    let long =
        [[(At::Branch, true)].as_slice(), &[(At::Body, true); 9], &[(At::Join, true)]].concat();
    go(&mut run, &[(At::Branch, true), (At::Join, true)], &[0, 1]);
    go(&mut run, &long, &[2, 3]);
    go(&mut run, &[(At::Branch, true), (At::Join, false)], &[10, 20]);
    let (core, _) = run.timed.as_ref().unwrap();
    assert_eq!(core.reconvergence(), Some(ReconvergenceStatistics::default()));
}

#[test]
fn random_branches_on_random_loads_lie_between_without_and_a_perfect_predictor() {
    let cycles = |reconvergence, predictor| {
        let mut run = start(reconvergence, predictor);
        let mut random = Random::new(5);
        let (mut blocks, mut addresses) = (Vec::new(), Vec::new());
        for _ in 0..2000 {
            blocks.push(At::Branch as u32);
            if random.below(2) == 0 {
                blocks.push(At::Body as u32);
            }
            blocks.push(At::Join as u32);
            addresses.extend([(); 2].map(|()| DATA + random.below(1 << 26) / 8 * 8));
        }
        run.take(&Piece::Slice(Slice { thread: 0, blocks, addresses })).unwrap();
        let (core, _) = run.timed.as_ref().unwrap();
        let s = core.predictor().statistics;
        (core.cycle(), s.mispredictions, core.reconvergence().unwrap_or_default())
    };
    let (without, wrong, _) = cycles(None, BranchPredictor::Gshare);
    let (with, as_wrong, ahead) = cycles(Some(8), BranchPredictor::Gshare);
    let (perfect, ..) = cycles(None, BranchPredictor::Perfect);
    assert_eq!(wrong, as_wrong);
    assert!(wrong > 500 && ahead.runs > wrong / 2 && ahead.loads > ahead.runs, "{ahead:?}");
    assert!(with * 10 < without * 9, "{with} of {without}");
    assert!(perfect < with, "{perfect} of {with}");
}
