//! Built-in workloads: kernels that yield a trace as they compute, at native speed, without ever
//! storing the memory that they access.
//!
//! A workload is one file with its [`Description`], and one line in [`REGISTRY`].

mod chase;
mod error;
mod gups;
pub mod mapping;
mod program;
mod random;
mod stream;

use flatwalk_trace::Source;
use serde::Serialize;

pub use error::WorkloadError;

/// What a user can say about a workload.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it means, with its unit and what it may be.
    pub description: &'static str,
}

/// A workload.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Description {
    /// What a user calls it.
    pub name: &'static str,
    /// What it does, in a sentence or two.
    pub description: &'static str,
    /// Size where none is given, in bytes.
    pub default_size_bytes: u64,
    /// What can be set.
    pub parameters: &'static [Parameter],
    /// Makes it, of a size in bytes and with a seed.
    #[serde(skip)]
    make: fn(u64, u64) -> Result<Box<dyn Source>, WorkloadError>,
}

/// Every workload.
pub const REGISTRY: &[Description] =
    &[gups::DESCRIPTION, random::DESCRIPTION, chase::DESCRIPTION, stream::DESCRIPTION];

/// The workload `name` with `size_bytes` of memory. The same arguments give the same trace.
///
/// # Errors
/// [`WorkloadError::Unknown`] and [`WorkloadError::Size`].
pub fn open(name: &str, size_bytes: u64, seed: u64) -> Result<Box<dyn Source>, WorkloadError> {
    match REGISTRY.iter().find(|workload| workload.name == name) {
        Some(workload) => (workload.make)(size_bytes, seed),
        None => Err(WorkloadError::Unknown {
            name: name.to_owned(),
            known: REGISTRY.iter().map(|workload| workload.name).collect::<Vec<_>>().join(", "),
        }),
    }
}

/// The memory that the workload works on; most take any size.
const SIZE: Parameter = Parameter {
    name: "size_bytes",
    description: "memory that it works on, in bytes: 4 KiB to 64 TiB",
};

/// The seed.
const SEED: Parameter = Parameter {
    name: "seed",
    description: "seed of its random numbers: the same seed gives the same accesses",
};
