//! The timing model: core, MMU, caches and memory, and the driver that runs one trace through many
//! configurations.
//!
//! Start at [`simulate`]. A [`Machine`] and a [`Scheme`] say what to model;
//! [`driver`] joins them with a process; [`core`] computes cycles; [`mmu`] walks.

pub mod config;
pub mod core;
pub mod driver;
pub mod mechanisms;
pub mod memory;
pub mod mmu;
pub mod report;
pub mod schemas;
pub mod system;
#[cfg(test)]
mod tests;

pub use config::machine::Machine;
pub use config::run::{Mode, RunConfiguration};
pub use config::scheme::Scheme;
pub use driver::mix::simulate_mix;
pub use driver::simulate::{Limits, SimulateError, Simulation, simulate};
pub use report::response::Response;
pub use report::result::RunResult;
pub use schemas::Kind;

/// Why a configuration cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A figure that cannot be.
    #[error("`{key}`: {problem}")]
    Value {
        /// The key, with its section.
        key: String,
        /// What is wrong with its value.
        problem: String,
    },
    /// Organisation and levels do not go together.
    #[error("`organisation`, `levels`, `flatten`: {0}")]
    Layout(#[from] flatwalk_paging::LayoutError),
    /// Timing asked of a machine that has no core.
    #[error("machine `{0}` has no core and caches, so it can only count; use `--mode functional`")]
    NotTimed(String),
    /// A guest asked of a machine that cannot run one.
    #[error("machine `{0}` has no `[virtualisation]` section, so scheme `{1}` cannot run on it")]
    NotVirtual(String, String),
    /// A hashed table asked of a machine that cannot walk one.
    #[error(
        "machine `{0}` does not say how it walks hashed tables: add a table `[hashed_walks]`, as \
         machine skylake-server has it, or leave schemes with such tables out"
    )]
    NoHashedWalks(String),
    /// The trace does not fit.
    #[error(
        "the trace touches {bytes} bytes of address space, more than a table of {levels} levels \
         translates; leave out scheme `{scheme}`"
    )]
    DoesNotFit {
        /// Bytes of address space, in whole gigabytes.
        bytes: u64,
        /// Levels of the scheme's table.
        levels: u8,
        /// The scheme.
        scheme: String,
    },
    /// The operating-system model refuses.
    #[error(transparent)]
    Os(#[from] flatwalk_os::OsError),
}

impl ConfigError {
    /// The key that the problem is with, as a request has it; empty if there are several.
    pub fn key(&self) -> &str {
        match self {
            Self::Value { key, .. } => key,
            Self::Layout(_) => "",
            Self::NotTimed(_) => "mode",
            Self::NotVirtual(..) => "machine.virtualisation",
            Self::NoHashedWalks(_) => "machine.hashed_walks",
            Self::DoesNotFit { .. } => "scheme",
            Self::Os(_) => "machine.os",
        }
    }

    /// The same problem where its key stands in the table `table`.
    #[must_use]
    fn within(self, table: &str) -> Self {
        match self {
            Self::Value { key, problem } if key.is_empty() => {
                Self::Value { key: table.to_owned(), problem }
            }
            Self::Value { key, problem } => Self::Value { key: format!("{table}.{key}"), problem },
            other => other,
        }
    }
}
