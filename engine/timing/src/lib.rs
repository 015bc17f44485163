//! The timing model: core, MMU, caches and memory, and the driver that runs one trace through many
//! configurations.
//!
//! Start at [`simulate`]. A [`machine::Machine`] and a [`machine::Scheme`] say what to model;
//! [`run`] joins them with a process; [`core`] computes cycles; [`mmu`] walks.

mod ahead;
pub mod asap;
pub mod branch;
pub mod cache;
pub mod core;
pub mod csalt;
pub mod cwc;
pub mod decode;
pub mod dram;
pub mod energy;
pub mod explain;
pub mod hierarchy;
pub mod machine;
#[cfg(test)]
mod mistakes;
pub mod mix;
pub mod mmu;
mod mshrs;
pub mod pom_tlb;
pub mod pwc;
pub mod recorded;
pub mod relocate;
pub mod result;
pub mod run;
pub mod segment;
pub mod simulate;
pub mod slots;
pub mod space;
#[cfg(test)]
mod testing;
pub mod tlb;
pub mod vhpt;
pub mod walker;
mod ways;

pub use machine::{Machine, Scheme};
pub use mix::simulate_mix;
pub use result::RunResult;
pub use run::{Mode, RunConfiguration};
pub use simulate::{Limits, SimulateError, Simulation, simulate};

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
