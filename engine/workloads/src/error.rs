//! Errors of opening a workload.

/// Why a workload could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// No workload has that name.
    #[error("there is no workload `{name}`; there are {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The workload cannot have that size.
    #[error("{name} cannot have a size of {size_bytes} bytes: {requirement}")]
    Size {
        /// The workload.
        name: &'static str,
        /// The size.
        size_bytes: u64,
        /// What it must be, with the nearest size that would do.
        requirement: String,
    },
    /// A process's mapping contradicts itself.
    #[error("the mapping cannot be: {what}")]
    Mapping {
        /// What is wrong.
        what: String,
    },
}
