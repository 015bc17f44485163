//! Branches that are predicted once for several runs are predicted as by each run itself.

use flatwalk_os::Random;
use flatwalk_trace::{Backing, Event, Item, Protection, Slice, Source};

use crate::config::machine::BranchPredictor;
use crate::core::branch::BranchStatistics;
use crate::driver::predictions::Predictors;
use crate::driver::run::Run;
use crate::driver::sampling::{Limits, Places, Sampling};
use crate::driver::stretches::StretchReader;
use crate::tests::testing::{DATA, Pieces, Scenario, branching_block, scheme};

const BLOCKS: u32 = 40;
const SLICES: usize = 300;
const SLICE: usize = 500;

/// A program that wanders among blocks that end in conditional branches; a second thread runs some of its
/// last slices if it `has_threads`.
fn wandering(has_threads: bool) -> Pieces {
    let mut random = Random::new(3);
    let mut items: Vec<Item> = (0..BLOCKS).map(branching_block).collect();
    let mut at = 0;
    for number in 0..SLICES {
        let mut step = |_| {
            let jumps = random.below(4) == 0;
            at = if jumps { random.below(u64::from(BLOCKS)) as u32 } else { at + 1 } % BLOCKS;
            at
        };
        let blocks = (0..SLICE).map(&mut step).collect();
        let thread = u32::from(has_threads && number > SLICES / 2 && number % 3 == 0);
        items.push(Item::Slice(Slice { thread, blocks, addresses: Vec::new() }));
        let (address, length) = (DATA + number as u64 * 4096, 4096);
        let protection = Protection { read: true, write: true, execute: false };
        let backing = Backing::Anonymous;
        items.extend(
            match number % 4 {
                0 => Some(Event::Map { address, length, protection, backing, shared: false }),
                1 => Some(Event::Populate { address: DATA, length, store: true }),
                2 => Some(Event::Name {
                    address: DATA,
                    length,
                    offset: 0,
                    name: "heap".to_owned(),
                    build_id: String::new(),
                }),
                _ => None,
            }
            .map(Item::Event),
        );
    }
    Pieces::new(items, (2 * SLICES * SLICE) as u64, None)
}

/// Branches and cycles of runs with different predictors, one of which loses the core at times: predicted
/// once for those that can share it, or by each.
fn figures(has_threads: bool, shared: bool) -> Vec<(BranchStatistics, Option<u64>)> {
    let mut source = wandering(has_threads);
    let mut predictors = Predictors::default();
    let run = |(kind, context_switch_ms): (BranchPredictor, Option<f64>)| {
        let mut scenario = Scenario { context_switch_ms, ..Scenario::new(scheme(4, &[])) };
        let core = scenario.machine.core.as_mut().unwrap();
        core.branch_predictor = kind;
        core.branch_history_bits = (kind == BranchPredictor::Gshare).then_some(10);
        let mut run = Run::new(scenario.configuration(), source.info(), 1).unwrap();
        if shared {
            run.share_predictions(&mut predictors);
        }
        run
    };
    let kinds = [
        (BranchPredictor::Gshare, None),
        (BranchPredictor::TageScL, None),
        (BranchPredictor::Gshare, Some(0.001)),
        (BranchPredictor::Gshare, None),
    ];
    let mut runs = kinds.map(run);
    let sampling = Sampling {
        windows: 3,
        window: 30_000,
        warmup: 60_000,
        filling: 0,
        after: 0,
        places: Places::Spread,
    };
    let limits = Limits { sampling: Some(sampling), ..Limits::default() };
    let mut reader = StretchReader::new(&mut source, &limits, 1, predictors);
    while let Some(stretch) = reader.next_stretch().unwrap() {
        for piece in &stretch {
            for run in &mut runs {
                run.take(piece).unwrap();
            }
        }
    }
    let figures = |mut run: Run| {
        run.end().unwrap();
        let (core, _) = run.timed.as_ref().unwrap();
        (core.predictor().statistics, run.cycles())
    };
    runs.into_iter().map(figures).collect()
}

#[test]
fn who_predicts_makes_no_difference() {
    for has_threads in [false, true] {
        let alone = figures(has_threads, false);
        assert_eq!(figures(has_threads, true), alone);
        let branches = alone.iter().map(|(branches, _)| branches);
        assert!(branches.clone().all(|b| b.branches > 5_000 && b.mispredictions > 500));
        assert_ne!(alone[0], alone[1]);
        assert_ne!(alone[0], alone[2]);
    }
}
