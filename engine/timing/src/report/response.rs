//! The answer to a request: the runs, and what they were run over.

use schemars::JsonSchema;
use serde::Serialize;

use super::result::RunResult;
use crate::driver::sampling::Sampled;

/// The answer to a request for runs over one trace.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Response {
    /// Name and version of this format.
    pub schema: &'static str,
    /// The engine's version.
    pub version: &'static str,
    /// What was run over.
    pub trace: TraceSummary,
    /// What was measured of it.
    pub sampling: Sampled,
    /// The results, in the order of the request.
    pub runs: Vec<RunResult>,
}

impl Response {
    /// Name and version of the format.
    pub const SCHEMA: &'static str = "flatwalk-runs/2";
}

/// What runs were run over.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TraceSummary {
    /// The trace's or workload's name.
    pub name: String,
    /// Hash of what it holds.
    pub hash: String,
    /// Instructions simulated, warm-up included.
    pub instructions: u64,
    /// Instructions left out at the beginning.
    pub skip: u64,
    /// Instructions of the warm-up.
    pub warmup: u64,
}
