//! What drives a simulation: a run, and what of a source is measured.

pub(crate) mod cores;
pub mod error;
mod look_ahead;
mod parts;
pub mod piece;
pub(crate) mod predictions;
pub mod run;
pub mod sampling;
pub(crate) mod stretches;
mod touched;

use flatwalk_trace::SourceInfo;

use crate::driver::error::SimulateError;
use crate::driver::run::{Run, RunConfiguration};

/// A run of `configuration` over a source described by `info`.
///
/// # Errors
/// When the configuration cannot be, which it names.
pub(crate) fn start(
    configuration: RunConfiguration,
    info: &SourceInfo,
    seed: u64,
) -> Result<Run, SimulateError> {
    let refused = SimulateError::refused(&configuration);
    Run::new(configuration, info, seed).map_err(refused)
}
