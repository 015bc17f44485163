//! The timing model: core, MMU, caches and memory, and the driver that runs one trace through many
//! configurations.
//!
//! Start at [`simulate`]. A [`Machine`] and a [`Scheme`] say what to model;
//! [`driver`] joins them with a process; [`core`] computes cycles; [`mmu`] walks.

use flatwalk_paging::LayoutError;

pub mod config;
pub mod core;
pub mod counts;
pub mod driver;
pub mod mechanisms;
pub mod memory;
pub mod mmu;
pub mod prototypes;
pub mod report;
pub mod schemas;
pub mod simulate;
pub mod system;
#[cfg(test)]
mod tests;

pub use config::machine::Machine;
pub use config::run::{Mode, RunConfiguration};
pub use config::scheme::Scheme;
pub use driver::error::SimulateError;
pub use driver::sampling::{Limits, Places, Sampled, Sampling};
pub use report::response::Response;
pub use report::result::RunResult;
pub use schemas::Kind;
pub use simulate::mix::{check_mix, simulate_mix};
pub use simulate::workers::Workers;
pub use simulate::{Simulation, simulate};

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
    #[error("`[{section}]`: {error}")]
    Layout {
        /// The section of the table.
        section: &'static str,
        /// What is wrong there.
        error: Box<LayoutError>,
    },
    /// Timing asked of a machine that has no core.
    #[error(
        "`mode`: must be functional, as machine `{0}` has no core and caches: it can only count"
    )]
    NotTimed(String),
    /// A guest asked of a machine that cannot run one.
    #[error("`machine.virtualisation`: is missing in `{0}`, so scheme `{1}` cannot run on it")]
    NotVirtual(String, String),
    /// A table without a tree asked of a machine that cannot walk one.
    #[error(
        "`machine.hashed_walks`: is missing in `{0}`, so it cannot walk tables without a tree; machine \
         skylake-server has it"
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
    /// The key that the problem is with, and what is wrong with it: words that stand after the key.
    /// The key is empty if there are several.
    pub fn key_and_problem(&self) -> (String, String) {
        let key = match self {
            Self::Value { key, problem } => return (key.clone(), problem.clone()),
            Self::Layout { section, error } => {
                return match &**error {
                    LayoutError::Value { key, problem, .. } => {
                        (format!("{section}.{key}"), problem.clone())
                    }
                    other => ((*section).to_owned(), other.to_string()),
                };
            }
            Self::NotTimed(_) => "mode",
            Self::NotVirtual(..) => "machine.virtualisation",
            Self::NoHashedWalks(_) => "machine.hashed_walks",
            Self::DoesNotFit { .. } | Self::Os(_) => "",
        };
        let words = self.to_string();
        let problem = words.strip_prefix(&format!("`{key}`: ")).unwrap_or(&words);
        (key.to_owned(), problem.to_owned())
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
