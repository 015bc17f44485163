//! Sweeps as data: lists of sources, schemes, machines and conditions, every combination of which is run.
//!
//! The engine knows only what the keys are; `flatwalk sweep` plans the runs.

use std::collections::BTreeMap;

use flatwalk_os::{Placement, Thp};
use schemars::JsonSchema;
use serde_json::Value;

use super::run::Mode;

/// One sweep.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Sweep {
    /// Name, which its results carry.
    #[schemars(length(min = 1))]
    pub name: String,
    /// One line for a person.
    #[schemars(default)]
    pub title: String,
    /// Built-in workloads, such as `gups:8GiB`.
    #[schemars(default, inner(length(min = 1)))]
    pub workloads: Vec<String>,
    /// Paths of traces, from the file's folder.
    #[schemars(default, inner(length(min = 1)))]
    pub traces: Vec<String>,
    /// Schemes by name or path, or GUEST/HOST pairs of them. Speed-ups are over the first.
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub schemes: Vec<String>,
    /// Machines by name or path.
    #[schemars(default = "machines", length(min = 1), inner(length(min = 1)))]
    pub machines: Vec<String>,
    /// Per cent of the touched memory that large pages back, lowest addresses first.
    #[schemars(
        default = "none_large",
        length(min = 1),
        inner(range(min = 0, max = 100)),
        extend("unit" = "%")
    )]
    pub large_pages: Vec<u8>,
    /// Linux's policies for large pages instead.
    #[schemars(default)]
    pub thp: Vec<Thp>,
    /// Shares of physical 2 MiB blocks that cannot be had whole.
    #[schemars(default = "whole", length(min = 1), inner(range(min = 0, max = 1)))]
    pub fragmentation: Vec<f64>,
    /// Per cent of a guest's memory that the host backs with large pages, lowest addresses first.
    #[schemars(
        default = "none_large",
        length(min = 1),
        inner(range(min = 0, max = 100)),
        extend("unit" = "%")
    )]
    pub host_large_pages: Vec<u8>,
    /// Where a guest's frames lie in its memory.
    #[schemars(default = "scattered", length(min = 1))]
    pub guest_frames: Vec<Placement>,
    /// Numbers of cores that a program's threads run on, at most; without them, those of the machine.
    #[schemars(default, inner(range(min = 1, max = 64)))]
    pub cores: Vec<u32>,
    /// Seeds of all that is random: where windows begin, accesses of workloads, frames.
    #[schemars(default = "first_seed", length(min = 1))]
    pub seeds: Vec<u64>,
    /// What is computed.
    #[schemars(default = "timing")]
    pub mode: Mode,
    /// Instructions that windows are spread over, such as `"100M"`; without it all of a trace, and 1 G of a
    /// workload.
    pub instructions: Option<Count>,
    /// Instructions that are warmed before each window.
    pub warmup: Option<Count>,
    /// Instructions left out at the beginning.
    pub skip: Option<Count>,
    /// Windows to measure.
    pub windows: Option<Count>,
    /// Instructions of each window.
    pub window: Option<Count>,
    /// Every instruction is measured, instead of windows.
    #[schemars(default)]
    pub exhaustive: bool,
    /// Keys of the machine, such as `llc.size_bytes`, with a list of values each: all are combined.
    #[schemars(default)]
    pub set: BTreeMap<String, Value>,
    /// Tables of keys of the machine with lists of equal length, whose values belong together.
    #[schemars(default)]
    pub zip: Vec<BTreeMap<String, Value>>,
    /// Keys of the machine that follow from others: expressions such as `"llc.size_bytes / 16"`.
    #[schemars(default)]
    pub derive: BTreeMap<String, Value>,
}

/// A count: a number, or text with a unit.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub enum Count {
    /// A whole number.
    Number(u64),
    /// As `"100M"`.
    Text(String),
}

fn machines() -> Vec<String> {
    vec!["skylake-server".to_owned()]
}

fn none_large() -> Vec<u8> {
    vec![0]
}

fn whole() -> Vec<f64> {
    vec![0.0]
}

fn scattered() -> Vec<Placement> {
    vec![Placement::Scattered]
}

fn first_seed() -> Vec<u64> {
    vec![1]
}

fn timing() -> Mode {
    Mode::Timing
}
