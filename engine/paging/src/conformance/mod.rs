//! What every page table must do, whoever wrote it: a table is changed at random and held against a map of
//! pages. Allocations fail at random, nodes are merged and taken apart and tables resized in between, and
//! hardware whose caches forget only what they are told to walks it.

mod hardware;
mod memory;
mod sizes;
mod steps;
mod world;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

pub use memory::{Counts, Memory};
pub use sizes::Sizes;

use crate::layout::Layout;
use steps::Step;
use world::World;

/// Lists of steps that are tried at most to find the shortest.
const SHRINKS: u32 = 2000;

/// A table that does not do what it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What is wrong.
    pub problem: String,
    /// The shortest list of steps that shows it.
    pub steps: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.problem)?;
        self.steps.iter().enumerate().try_for_each(|(i, step)| write!(f, "\n  {}. {step}", i + 1))
    }
}

/// Changes tables of `layout`, as many as `cases`, at random: from `seed` on, or differently each time.
/// Returns how many of them grew.
///
/// # Errors
/// [`Failure`] for a table that does anything but what it is told.
pub fn check(layout: &Layout, cases: u32, seed: Option<u64>) -> Result<u32, Failure> {
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: SHRINKS, ..Config::default() };
    let mut runner = match seed {
        None => TestRunner::new(config),
        Some(seed) => {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&seed.to_le_bytes());
            TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
        }
    };
    let (grown, done) = (Cell::new(0), RefCell::new(Vec::new()));
    let run = |steps: Vec<Step>| {
        done.borrow_mut().clear();
        let mut world = World::new(layout.clone(), &done)?;
        steps.iter().try_for_each(|step| world.step(step))?;
        grown.set(grown.get() + u32::from(world.end()?));
        Ok(())
    };
    match runner.run(&steps::steps(), run) {
        Ok(()) => Ok(grown.get()),
        Err(TestError::Abort(reason)) => {
            Err(Failure { problem: reason.to_string(), steps: Vec::new() })
        }
        Err(TestError::Fail(reason, shortest)) => {
            // Once more, for its words: the last run was not of the shortest list. That it fails is known.
            drop(catch_unwind(AssertUnwindSafe(|| run(shortest))));
            Err(Failure { problem: reason.to_string(), steps: done.take() })
        }
    }
}
