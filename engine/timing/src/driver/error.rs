//! Why a simulation ends without results.

use flatwalk_os::OsError;
use flatwalk_trace::TraceError;

use crate::driver::run::Run;
use crate::{ConfigError, RunConfiguration};

/// Why a simulation ended without results.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The trace could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A program of a mix could not be opened.
    #[error("{0}")]
    Source(String),
    /// A configuration that cannot be.
    #[error("scheme `{scheme}` on machine `{machine}`: {error}")]
    Configuration {
        /// The run's scheme.
        scheme: String,
        /// The run's machine.
        machine: String,
        /// What is wrong.
        error: ConfigError,
    },
    /// The operating-system model could not go on.
    #[error("scheme `{scheme}`, after {instructions} instructions: {error}")]
    Os {
        /// The run's scheme.
        scheme: String,
        /// How far it had come.
        instructions: u64,
        /// Why.
        error: OsError,
    },
    /// The last address used was asked for, and none had been.
    #[error(
        "no data was accessed in the first {instructions} instructions, so that there is no last address; give an \
         ADDRESS"
    )]
    NoAddress {
        /// Instructions that were run.
        instructions: u64,
    },
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}

impl SimulateError {
    /// Says of an error that it is this configuration's.
    pub(crate) fn refused(
        configuration: &RunConfiguration,
    ) -> impl FnOnce(ConfigError) -> Self + use<> {
        let scheme = configuration.scheme.name.clone();
        let machine = configuration.machine.name.clone();
        |error| Self::Configuration { scheme, machine, error }
    }

    /// The operating system of a run could not go on.
    pub(crate) fn os_failure(run: &Run, error: OsError) -> Self {
        let scheme = run.configuration.scheme.name.clone();
        Self::Os { scheme, instructions: run.instructions(), error }
    }
}
