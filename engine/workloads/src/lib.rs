//! Built-in workloads: kernels that yield a trace as they compute, at native speed. They take a
//! fraction of the simulated program's memory: only what the computation needs.
//!
//! A workload is one file or folder with its [`Description`], and one line in [`REGISTRY`]. The simple ones
//! compute addresses only; the others are written as algorithms that also give the answer to their
//! problem (`simulated.rs`), which their tests check. `docs/workloads.md` says what each one is.

// Sizes and numbers of records are computed from positive floating-point numbers.
#![allow(clippy::cast_sign_loss)]

pub mod addresses;
mod chase;
mod dbx1000;
mod error;
mod genome;
mod graph;
mod graph500;
mod graphbig;
mod gups;
mod hashjoin;
mod hashjoin_mitosis;
mod kv;
pub mod mapping;
mod mcf;
mod mummer;
mod oltp;
mod omnetpp;
mod program;
mod random;
mod rng;
mod simulated;
mod spread;
mod stream;
mod svm;
mod tiger;
mod xsbench;
mod ycsb;

use flatwalk_trace::Source;
use serde::{Deserialize, Serialize};

pub use error::WorkloadError;
use program::{PAGE, size};

/// A parameter of a workload that a user can set.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it means, with its unit and its allowed values.
    pub description: &'static str,
}

/// A workload.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Description {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a sentence or two.
    pub description: &'static str,
    /// Size where none is given, in bytes.
    pub default_size_bytes: u64,
    /// The least size that it takes, in bytes.
    pub least_bytes: u64,
    /// The greatest size that it takes, in bytes.
    pub greatest_bytes: u64,
    /// Whether its size must be a power of two.
    pub power_of_two: bool,
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// Opens it.
    #[serde(skip)]
    make: Make,
}

type Make = fn(&Arguments) -> Box<dyn Source>;

/// What a workload is opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Memory that it works on, in bytes.
    pub size_bytes: u64,
    /// Seed of its random numbers.
    pub seed: u64,
    /// How its arrays follow each other.
    pub array_order: ArrayOrder,
    /// How often each of its records is asked for.
    pub keys: Keys,
    /// Instructions for each of its accesses.
    pub instructions_per_access: u64,
    /// How much of a benchmark is traced.
    pub traced: Traced,
}

impl Arguments {
    /// A size and a seed; arrays lie as Linux puts them.
    pub fn new(size_bytes: u64, seed: u64) -> Self {
        Self {
            size_bytes,
            seed,
            array_order: ArrayOrder::default(),
            keys: Keys::default(),
            instructions_per_access: INSTRUCTIONS_PER_ACCESS,
            traced: Traced::default(),
        }
    }

    /// What a workload's name has in addition.
    fn suffix(&self) -> String {
        let order = (self.array_order != ArrayOrder::default()).then_some(":upwards");
        let keys = (self.keys != Keys::default()).then_some(":uniform");
        let traced = (self.traced != Traced::default()).then_some(":searches");
        let instructions = (self.instructions_per_access != INSTRUCTIONS_PER_ACCESS)
            .then(|| format!(":{}", self.instructions_per_access));
        let named = order.into_iter().chain(keys).chain(traced).map(str::to_owned);
        named.chain(instructions).collect()
    }
}

/// How a program's large arrays follow each other in its address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrayOrder {
    /// Each right below the one allocated before it, as Linux gives out addresses.
    #[default]
    Downwards,
    /// Each right above the one allocated before it, as in Linux's legacy layout (`setarch -L`).
    Upwards,
}

/// How often each record of a store is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keys {
    /// Zipfian: of key-value stores with YCSB's default exponent, 0.99, of `ycsb` with `DBx1000`'s, 0.6.
    #[default]
    Zipfian,
    /// All alike, as YCSB's `requestdistribution=uniform` and redis-benchmark do.
    Uniform,
}

/// How much of a benchmark is traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traced {
    /// All that it does once its data have been made.
    #[default]
    Whole,
    /// Its searches alone, which it takes the time of; what only the rest needs is not there.
    Searches,
}

/// Every workload.
pub const REGISTRY: &[Description] = &[
    gups::DESCRIPTION,
    random::DESCRIPTION,
    chase::DESCRIPTION,
    stream::DESCRIPTION,
    spread::DESCRIPTION,
    graph500::DESCRIPTION,
    graphbig::search::BFS,
    graphbig::components::DESCRIPTION,
    graphbig::degree::DESCRIPTION,
    graphbig::search::DFS,
    graphbig::coloring::DESCRIPTION,
    graphbig::kcore::DESCRIPTION,
    graphbig::pagerank::DESCRIPTION,
    graphbig::shortest_paths::DESCRIPTION,
    graphbig::triangles::DESCRIPTION,
    hashjoin::DESCRIPTION,
    hashjoin_mitosis::DESCRIPTION,
    xsbench::DESCRIPTION,
    kv::A,
    kv::B,
    kv::C,
    kv::REDIS,
    kv::MEMCACHED,
    oltp::DESCRIPTION,
    ycsb::DESCRIPTION,
    svm::URL,
    svm::HIGGS,
    mcf::DESCRIPTION,
    mummer::DESCRIPTION,
    omnetpp::DESCRIPTION,
    tiger::DESCRIPTION,
];

/// The workload `name`. The same arguments give the same trace.
///
/// # Errors
/// [`WorkloadError::Unknown`], [`WorkloadError::Parameter`] and [`WorkloadError::Size`].
pub fn open(name: &str, arguments: &Arguments) -> Result<Box<dyn Source>, WorkloadError> {
    let size_bytes = arguments.size_bytes;
    let Some(workload) = REGISTRY.iter().find(|workload| workload.name == name) else {
        return Err(WorkloadError::Unknown {
            name: name.to_owned(),
            known: REGISTRY.iter().map(|workload| workload.name).collect::<Vec<_>>().join(", "),
        });
    };
    let named = [
        (ARRAY_ORDER.name, arguments.array_order != ArrayOrder::default()),
        (KEYS.name, arguments.keys != Keys::default()),
        (TRACED.name, arguments.traced != Traced::default()),
        (INSTRUCTIONS.name, arguments.instructions_per_access != INSTRUCTIONS_PER_ACCESS),
    ];
    for (parameter, is_set) in named {
        if is_set && !workload.parameters.iter().any(|known| known.name == parameter) {
            return Err(WorkloadError::Parameter { name: workload.name, parameter });
        }
    }
    let value = arguments.instructions_per_access;
    if !(INSTRUCTIONS_PER_ACCESS..=MOST_INSTRUCTIONS).contains(&value) {
        return Err(WorkloadError::Value {
            name: workload.name,
            parameter: INSTRUCTIONS.name,
            value,
            least: INSTRUCTIONS_PER_ACCESS,
            most: MOST_INSTRUCTIONS,
        });
    }
    let requirement = if size_bytes < workload.least_bytes {
        format!("the least is {}", size(workload.least_bytes))
    } else if size_bytes > workload.greatest_bytes {
        format!("the most is {}", size(workload.greatest_bytes))
    } else if workload.power_of_two && !size_bytes.is_power_of_two() {
        let (below, above) = (1 << size_bytes.ilog2(), size_bytes.next_power_of_two());
        format!("its table is a power of two; use {} or {}", size(below), size(above))
    } else {
        return Ok((workload.make)(arguments));
    };
    Err(WorkloadError::Size { name: workload.name, size_bytes, requirement })
}

/// Least and greatest size, in bytes, of workloads that take any size.
const LEAST: u64 = PAGE;
const GREATEST: u64 = 64 << 40;

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

/// The order of its arrays.
const ARRAY_ORDER: Parameter = Parameter {
    name: "array_order",
    description: "whether each large array lies below (downwards, the default) or above (upwards) the one \
                  allocated before it",
};

/// How often each record is asked for.
const KEYS: Parameter = Parameter {
    name: "keys",
    description: "how often each record is asked for: zipfian (the default) or uniform",
};

/// Instructions that an access takes at least, which is the default, and at most.
pub const INSTRUCTIONS_PER_ACCESS: u64 = 7;
const MOST_INSTRUCTIONS: u64 = 1000;

/// How many instructions each access has.
const INSTRUCTIONS: Parameter = Parameter {
    name: "instructions_per_access",
    description: "instructions for each access: 7 (the default) to 1000; those beyond 7 work on registers and \
                  depend on nothing",
};

/// How much is traced.
const TRACED: Parameter = Parameter {
    name: "traced",
    description: "whole (the default): searches and their validation; searches: these alone, without the edge \
                  list, which only the validation reads, in memory",
};

/// A workload of any size from 64 KiB to `greatest_bytes`.
const fn describe(
    name: &'static str,
    description: &'static str,
    greatest_bytes: u64,
    parameters: &'static [Parameter],
    make: Make,
) -> Description {
    Description {
        name,
        description,
        default_size_bytes: 1 << 30,
        least_bytes: 64 << 10,
        greatest_bytes,
        power_of_two: false,
        parameters,
        make,
    }
}
