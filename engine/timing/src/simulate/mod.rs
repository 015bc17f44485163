//! One trace through many runs: read and decoded once, simulated on all cores. And mixes, whose programs share
//! a cache.

mod followers;
pub mod mix;
pub mod workers;

use std::ops::ControlFlow;

use flatwalk_symbols::Symbols;
use flatwalk_trace::{Source, SourceInfo};

use crate::driver;
use crate::driver::error::SimulateError;
use crate::driver::piece::Piece;
use crate::driver::predictions::Predictors;
use crate::driver::run::{Run, RunConfiguration};
use crate::driver::sampling::{Limits, Sampled};
use crate::driver::stretches::StretchReader;
use crate::report::result::RunResult;
use crate::simulate::followers::{Follower, Progress, follow_all};
use crate::simulate::workers::Workers;

/// What came out.
#[derive(Debug)]
pub struct Simulation {
    /// The trace.
    pub info: SourceInfo,
    /// Instructions simulated per run, warm-up included.
    pub instructions: u64,
    /// What was measured of it.
    pub sampled: Sampled,
    /// In the order of the configurations.
    pub runs: Vec<RunResult>,
}

/// Stretches alive at most.
const ALIVE: usize = 4;

impl Follower for Run {
    type Stretch = Vec<Piece>;

    fn follow(&mut self, stretch: &Vec<Piece>, progress: &Progress) -> Result<(), SimulateError> {
        for piece in stretch {
            let before = self.instructions();
            self.take(piece).map_err(|error| SimulateError::os_failure(self, error))?;
            progress.advance(self.instructions() - before)?;
        }
        Ok(())
    }
}

/// Runs `source` through every configuration on the threads of `workers`, which may be their number.
/// `progress` is called about ten times a second with the instructions that an average run has done; when
/// it breaks, everything stops.
///
/// # Errors
/// See [`SimulateError`].
pub fn simulate(
    mut source: Box<dyn Source>,
    configurations: Vec<RunConfiguration>,
    limits: &Limits,
    seed: u64,
    workers: impl Into<Workers>,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Simulation, SimulateError> {
    let info = source.info().clone();
    let (mut runs, mut predictors) = (Vec::new(), Predictors::default());
    for configuration in configurations {
        let mut run = driver::start(configuration, &info, seed)?;
        run.share_predictions(&mut predictors);
        run.sample_from(limits.skip);
        runs.push(run);
    }
    let mut reader = StretchReader::new(&mut *source, limits, seed, predictors);
    reader.have_cores();
    if runs.iter().any(Run::wants_uses) {
        reader.follow_uses();
    }
    let next = || Ok(reader.next_stretch()?);
    let mut runs = follow_all(runs, next, ALIVE, workers.into(), progress)?;
    let sampled = reader.summary();
    for run in &mut runs {
        end(run, &sampled)?;
    }
    let mut symbols = Symbols::default();
    let result = |run: &Run| RunResult::new(run, &info.name, seed, &mut symbols);
    let results = runs.iter().map(result);
    let instructions = runs.first().map_or(0, Run::instructions);
    Ok(Simulation { runs: results.collect(), instructions, sampled, info })
}

/// The trace has ended, of which so much was measured by `run`.
fn end(run: &mut Run, sampled: &Sampled) -> Result<(), SimulateError> {
    run.end().map_err(|error| SimulateError::os_failure(run, error))?;
    if sampled.kernels_followed {
        run.know_kernels(sampled);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::tests::testing::{DATA, Panicking, Scenario, scheme};

    #[test]
    fn a_reader_that_panics_ends_the_simulation_with_what_it_left() {
        let run = Scenario::new(scheme(4, &[])).start(&[(DATA, 1 << 12)], true);
        let open =
            flatwalk_workloads::open("gups", &flatwalk_workloads::Arguments::new(16 << 20, 0))
                .unwrap();
        let source = Box::new(Panicking(open.info().clone()));
        let limits = Limits { skip: 0, warmup: 0, instructions: Some(1), sampling: None };
        let go_on = &mut |_| ControlFlow::Continue(());
        let simulated = catch_unwind(AssertUnwindSafe(|| {
            simulate(source, vec![run.configuration], &limits, 0, 1, go_on).map(drop)
        }));
        assert_eq!(simulated.unwrap_err().downcast_ref(), Some(&Panicking::LEFT));
    }
}
