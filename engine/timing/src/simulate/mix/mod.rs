//! Several programs on the cores of one machine: private TLBs, page-walk caches, L1 and L2; a shared
//! last-level cache and memory (Park et al., ASPLOS 2022, section 7.1, "Multicore").
//!
//! Cores take turns. The one whose clock is furthest behind runs a few blocks, so that requests reach
//! the shared cache in the order of time but for what a turn and a core's window reach ahead; slots
//! are booked in time whatever the order ([`crate::memory::slots`]). What is shared is one object that each
//! core has during its turn; counts stay with the core. Ties go to the first core: the same mix, seed
//! and configuration give the same figures.
//!
//! Each program is measured as one part ([`whole`]), or windows of each ([`windows`]). Programs
//! share no memory: lines carry the number of their core as the owner, which also keeps their
//! addresses apart. Each has an equal part of the machine's memory.

mod members;
mod whole;
mod windows;

use std::ops::ControlFlow;

use flatwalk_trace::{Source, SourceInfo};

use crate::ConfigError;
use crate::driver::error::SimulateError;
use crate::driver::predictions::Predictors;
use crate::driver::run::RunConfiguration;
use crate::driver::sampling::{Limits, Sampled, Schedule};
use crate::driver::stretches::StretchReader;
use crate::report::result::RunResult;
use crate::simulate::followers::follow_all;
use crate::simulate::workers::Workers;
use members::Members;
use whole::Whole;
use windows::{RoundReader, Windows};

/// Opens the source of a core's program. The error is reported as it is.
pub type Open<'a> = dyn Fn(usize) -> Result<Box<dyn Source>, String> + Sync + 'a;

/// What came out.
#[derive(Debug)]
pub struct Mixed {
    /// By configuration: the cores' results.
    pub runs: Vec<Vec<RunResult>>,
    /// What was measured of each core's program.
    pub sampled: Vec<Sampled>,
}

/// Rounds of windows alive at most: each may be tens of megabytes.
const ALIVE: usize = 2;

/// Runs the programs that `open` gives for each core together, once under each configuration, on
/// the threads of `workers`, which may be their number. `limits` are each core's. `progress` is called with
/// the instructions that an average configuration has done, all cores together, and how many that will be,
/// if that is known; when it breaks, everything stops.
///
/// # Errors
/// See [`SimulateError`].
pub fn simulate_mix(
    open: &Open<'_>,
    configurations: &[RunConfiguration],
    limits: &[Limits],
    seed: u64,
    workers: impl Into<Workers>,
    progress: &mut dyn FnMut(u64, Option<u64>) -> ControlFlow<()>,
) -> Result<Mixed, SimulateError> {
    let workers = workers.into();
    if limits.iter().any(|limits| limits.sampling.is_some()) {
        let sources = open_all(open, limits.len())?;
        if let Some((rounds, limits)) = windows::rounds(&sources, limits, seed) {
            return by_windows(sources, configurations, &limits, rounds, seed, workers, progress);
        }
    }
    as_wholes(open, configurations, limits, seed, workers, progress)
}

/// The seeds of the cores' programs, of which the first has that of the mix.
fn seeds(seed: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |core| seed.wrapping_add(core))
}

/// Checks that so many programs, whatever they are, can run together under `configuration`.
///
/// # Errors
/// See [`ConfigError`].
pub fn check_mix(configuration: &RunConfiguration, programs: usize) -> Result<(), ConfigError> {
    Members::new(configuration, &vec![SourceInfo::default(); programs], 0).map(drop)
}

/// The sources of so many cores' programs.
fn open_all(open: &Open<'_>, cores: usize) -> Result<Vec<Box<dyn Source>>, SimulateError> {
    (0..cores).map(open).collect::<Result<_, _>>().map_err(SimulateError::Source)
}

/// Of each program `rounds` windows.
fn by_windows(
    mut sources: Vec<Box<dyn Source>>,
    configurations: &[RunConfiguration],
    limits: &[Limits],
    rounds: u64,
    seed: u64,
    workers: Workers,
    progress: &mut dyn FnMut(u64, Option<u64>) -> ControlFlow<()>,
) -> Result<Mixed, SimulateError> {
    let infos: Vec<_> = sources.iter().map(|source| source.info().clone()).collect();
    let mut predictors: Vec<_> = infos.iter().map(|_| Predictors::default()).collect();
    let (mut followers, mut wants_uses) = (Vec::new(), false);
    for configuration in configurations {
        let mut members = Members::new(configuration, &infos, seed)
            .map_err(SimulateError::refused(configuration))?;
        for ((member, predictors), limits) in
            members.all.iter_mut().zip(&mut predictors).zip(limits)
        {
            member.run.share_predictions(predictors);
            member.run.sample_from(limits.skip);
            wants_uses |= member.run.wants_uses();
        }
        followers.push(Windows::new(members));
    }
    let simulated = limits.iter().zip(&infos).zip(seeds(seed));
    let total = simulated.map(|((limits, info), seed)| limits.simulated(info, seed)).sum();
    let readers = sources.iter_mut().zip(limits).zip(predictors).zip(seeds(seed));
    let readers = readers.map(|(((source, limits), predictors), seed)| {
        let windows = Schedule::new(limits, source.info(), seed).expected_windows();
        let mut reader = StretchReader::new(&mut **source, limits, seed, predictors);
        if wants_uses {
            reader.follow_uses();
        }
        (reader, windows)
    });
    let mut reader = RoundReader::new(readers.collect(), rounds);
    let report = &mut |done| progress(done, total);
    let followers = follow_all(followers, || reader.next(), ALIVE, workers, report)?;
    let sampled = reader.summaries();
    let runs: Result<_, _> =
        followers.into_iter().map(|windows| windows.into_results(&sampled)).collect();
    Ok(Mixed { runs: runs?, sampled })
}

/// Each program as one part.
fn as_wholes(
    open: &Open<'_>,
    configurations: &[RunConfiguration],
    limits: &[Limits],
    seed: u64,
    workers: Workers,
    progress: &mut dyn FnMut(u64, Option<u64>) -> ControlFlow<()>,
) -> Result<Mixed, SimulateError> {
    let total = limits.iter().map(|l| l.instructions.map(|n| n.saturating_add(l.warmup))).sum();
    let followers = configurations.iter().map(|configuration| {
        let (runs, sampled) = (Vec::new(), Vec::new());
        Whole { configuration, open, limits, seed, runs, sampled }
    });
    let mut all_of_it = Some(());
    let next = || Ok(all_of_it.take());
    let report = &mut |done| progress(done, total);
    let mut followers = follow_all(followers.collect(), next, 1, workers, report)?;
    let sampled = followers.first_mut().map(|first| std::mem::take(&mut first.sampled));
    let runs = followers.into_iter().map(|follower| follower.runs).collect();
    Ok(Mixed { runs, sampled: sampled.unwrap_or_default() })
}

#[cfg(test)]
mod tests;
