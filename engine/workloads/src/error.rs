//! Errors of opening a workload.

/// Why a workload could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// No workload has that name.
    #[error("there is no workload `{name}`; there are {known}")]
    Unknown {
        /// The name requested.
        name: String,
        /// The names of all workloads.
        known: String,
    },
    /// The workload cannot have that size.
    #[error("{name} cannot have a size of {}: {requirement}", crate::program::size(*size_bytes))]
    Size {
        /// The workload.
        name: &'static str,
        /// The size.
        size_bytes: u64,
        /// The requirement, with the nearest size that meets it.
        requirement: String,
    },
    /// The workload does not have the parameter: several large arrays, keys that are drawn,
    /// instructions that can be added, or a part that can be left out.
    #[error("{name} has no parameter {parameter}; leave {parameter} out")]
    Parameter {
        /// The workload.
        name: &'static str,
        /// The parameter.
        parameter: &'static str,
    },
    /// A parameter's value is out of its range.
    #[error("{name} cannot have {parameter} of {value}: give {least} to {most}")]
    Value {
        /// The workload.
        name: &'static str,
        /// The parameter.
        parameter: &'static str,
        /// The value.
        value: u64,
        /// The least that it takes.
        least: u64,
        /// The most that it takes.
        most: u64,
    },
    /// Addresses cannot be a trace.
    #[error("the addresses are impossible: {what}")]
    Addresses {
        /// What is wrong.
        what: String,
    },
    /// A process's mapping contradicts itself.
    #[error("the mapping is impossible: {what}")]
    Mapping {
        /// What is wrong.
        what: String,
    },
}
