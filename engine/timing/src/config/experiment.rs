//! Experiments as data: what is run, what a paper claims of it, and what is compared.
//!
//! The engine knows only what the keys are. What metrics, averages and papers there are is known to
//! `flatwalk reproduce`, which also plans the runs.

use std::collections::BTreeMap;

use flatwalk_os::Placement;
use schemars::JsonSchema;
use serde_json::Value;

use super::run::apart;

/// One experiment: runs, and claims about them.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Experiment {
    /// One line for a person.
    #[schemars(length(min = 1))]
    pub title: String,
    /// Seed of all that is random.
    #[schemars(default = "one")]
    pub seed: u64,
    /// Conditions under which workloads are run.
    #[schemars(default)]
    pub series: Vec<Series>,
    /// How much of it is run: minutes or hours. With series, both are needed.
    #[schemars(default)]
    pub scale: Scales,
    /// What a paper says, and what would bear it out.
    #[schemars(default)]
    pub claim: Vec<Claim>,
    /// What a paper leaves open, for all of its claims.
    #[schemars(default)]
    pub open: Vec<Open>,
}

/// Something that a paper does not say of its machine, and what it might be.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Open {
    /// The paper, by its short name.
    #[schemars(length(min = 1))]
    pub paper: String,
    /// What is open, in words.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Key of a series (`guest_frames`, `frames`), of the workloads that have it
    /// (`workload.array_order`), the size of one (`size.hashjoin-mitosis`), or key of the machine
    /// (`machine.walker.concurrent`) or of the schemes that have its section
    /// (`scheme.SECTION.KEY`).
    #[schemars(length(min = 1))]
    pub key: String,
    /// What it might be; the first is what it is by default.
    #[schemars(length(min = 1))]
    pub values: Vec<Value>,
    /// Why it is what it is where nothing else is asked for.
    #[schemars(length(min = 1))]
    pub default: String,
}

/// A machine and conditions. Which schemes run follows from the points of the claims.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Series {
    /// Name, for points that mean another series than the first.
    #[schemars(default = "main")]
    pub name: String,
    /// Machine, by name or path; only reported in the modes `guest` and `printed`.
    #[schemars(length(min = 1))]
    pub machine: String,
    /// Keys of the machine that differ from its file, such as `set.llc.size_bytes`.
    #[schemars(default)]
    pub set: BTreeMap<String, Value>,
    /// What is computed.
    #[schemars(default)]
    pub mode: SeriesMode,
    /// Per cent of a guest's memory that the host backs with large pages, lowest addresses first.
    #[schemars(default, range(min = 0, max = 100), extend("unit" = "%"))]
    pub host_large_pages: u8,
    /// Where a guest's frames lie in its memory.
    #[schemars(default)]
    pub guest_frames: Placement,
    /// Where the machine's own frames lie in its memory: the process's, or the host's.
    #[schemars(default = "apart")]
    pub frames: Placement,
    /// Share of physical 2 MiB blocks that cannot be had whole.
    #[schemars(default, range(min = 0, max = 1))]
    pub fragmentation: f64,
}

/// What is computed of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SeriesMode {
    /// Cycles: core, caches, memory, walks.
    #[default]
    Timing,
    /// Counts only: TLBs and page-walk caches.
    Functional,
    /// Nothing is simulated: real programs run in a guest under `flatwalk vm`.
    Guest,
    /// Nothing is run: the figures are those that another command printed into a document of `docs/results`.
    Printed,
}

/// How much is run.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Scales {
    /// Minutes.
    pub small: Option<Scale>,
    /// The papers' own sizes: hours.
    pub paper: Option<Scale>,
}

/// What is run at one scale.
#[derive(Clone, Debug, PartialEq, serde::Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Scale {
    /// Workloads (`gups:8GiB`), mixes (`asplos-3`, `asplos-3:1GiB`), `dense:SIZE` for one mapped
    /// range, `crowd:PERCENT` for processes in a guest, `kernel:PROGRAM` and `levels:VARIANT` for
    /// rows of printed tables.
    pub workloads: Vec<String>,
    /// Instructions, from the first on, that windows are spread over, such as `"1G"`; without
    /// windows those to measure, behind the warm-up.
    #[schemars(length(min = 1))]
    pub instructions: String,
    /// The same of single workloads, where it is another number.
    #[schemars(default)]
    pub spans: BTreeMap<String, String>,
    /// How many windows; one part is measured if absent.
    #[schemars(range(min = 3))]
    pub windows: Option<u64>,
    /// Instructions of each window, such as `"50k"`.
    pub window: Option<String>,
    /// Instructions that are warmed before each window, or before the part, such as `"500k"`.
    #[schemars(length(min = 1))]
    pub warmup: String,
    /// What this scale cannot show, whatever its intervals say.
    #[schemars(default)]
    pub cannot_show: String,
}

/// Something that a paper says.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Claim {
    /// Name, such as `F1`; there is one of it in all experiments.
    #[schemars(length(min = 1))]
    pub id: String,
    /// What the paper says.
    #[schemars(length(min = 1))]
    pub claim: String,
    /// The paper, by its short name.
    #[schemars(length(min = 1))]
    pub paper: String,
    /// Section and figure.
    pub place: String,
    /// How the figures are compared.
    #[schemars(default = "values")]
    pub check: Vec<Check>,
    /// Largest relative difference of ratios, for the check `ratio`.
    #[schemars(default = "tenth", range(min = 0))]
    pub ratio_tolerance: f64,
    /// Programs that the paper's averages are over, of which the workloads are some; those
    /// themselves if absent.
    #[schemars(range(min = 1))]
    pub programs: Option<u64>,
    /// Instead of `programs`, where the paper says of which kinds its programs are: each kind
    /// weighs as many as it has.
    #[schemars(default)]
    pub strata: Vec<Stratum>,
    /// Why our figures differ, written by someone who looked. It has no part in the verdict.
    #[schemars(default)]
    pub why: Option<Why>,
    /// The command, or the figures of this document, that show `why`.
    #[schemars(default)]
    pub shown_by: String,
    /// Why what is run here is not what the paper ran, so that figures cannot be held against it.
    #[schemars(default)]
    pub not_comparable: String,
    /// Title of the figure that is drawn of it; none where absent.
    #[schemars(default)]
    pub figure: String,
    /// The figures.
    #[schemars(default)]
    pub points: Vec<Point>,
    /// What stands for all of its points.
    #[schemars(flatten)]
    pub shared: Shared,
}

/// The programs of one kind.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Stratum {
    /// How many the paper's averages are over.
    #[schemars(range(min = 1))]
    pub programs: u64,
    /// Those of the workloads that are of them: names for any size, or `!name` for all others. Each
    /// workload is in one stratum.
    #[schemars(length(min = 1))]
    pub workloads: Vec<String>,
}

/// How figures are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// Each figure is the paper's, within the tolerance.
    Value,
    /// The figures rank as the paper's do.
    Order,
    /// Each figure has the sign of the paper's.
    Sign,
    /// The figures relate to each other as the paper's do.
    Ratio,
    /// The figures grow from point to point: the paper shows an order or groups, whatever it gives
    /// of figures.
    Ranked,
}

/// Why our figures differ: for all scales, or by scale.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub enum Why {
    /// For all scales.
    All(String),
    /// By scale.
    ByScale(WhyByScale),
}

/// Why our figures differ, by scale.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct WhyByScale {
    /// At the small scale.
    #[schemars(default)]
    pub small: String,
    /// At the papers' scale.
    #[schemars(default)]
    pub paper: String,
}

/// One figure of ours and one of the paper's.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Point {
    /// What it is called in the table.
    #[schemars(length(min = 1))]
    pub label: String,
    /// The paper's figure; absent where it gives none.
    pub published: Option<f64>,
    /// Lowest and highest of the paper's figures, instead of `published`.
    pub range: Option<[f64; 2]>,
    /// Ratios of other runs that each workload's ratio is multiplied by.
    #[schemars(default)]
    pub times: Vec<Factor>,
    /// What it has of its own, or as the claim.
    #[schemars(flatten)]
    pub shared: Shared,
}

/// A ratio of other runs.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Factor {
    /// What is read from a run.
    #[schemars(length(min = 1))]
    pub metric: String,
    /// The runs that the metric compares with, where they differ from the factor's own.
    pub against: Option<Selectors>,
    /// The runs that have free translation.
    pub bound: Option<Selectors>,
    /// Which runs, where they differ from the point's.
    #[schemars(flatten)]
    pub of: Selectors,
}

/// What a claim says for all of its points, or a point for itself.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
pub struct Shared {
    /// What is read from a run; `flatwalk.reproduce.metrics` has them all.
    pub metric: Option<String>,
    /// How the figures of several workloads become one: `mean`, `geomean`, `min` or `max`.
    pub average: Option<String>,
    /// The runs that the metric compares with, where they differ from the point's own.
    pub against: Option<Selectors>,
    /// The runs whose figure is subtracted, in percentage points.
    pub minus: Option<Selectors>,
    /// The runs that have free translation.
    pub bound: Option<Selectors>,
    /// How far a figure may be from the paper's, in the metric's unit.
    #[schemars(range(min = 0))]
    pub tolerance: Option<f64>,
    /// Which runs.
    #[schemars(flatten)]
    pub of: Selectors,
}

/// Which runs are meant.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Selectors {
    /// Series by name; the first if not said.
    pub series: Option<String>,
    /// Scheme by name.
    pub scheme: Option<String>,
    /// Per cent of memory on large pages; 0 if not said.
    #[schemars(range(min = 0, max = 100), extend("unit" = "%"))]
    pub large_pages: Option<u8>,
    /// Workloads: a name for any size, several, or `!name` for all others; all if not said.
    pub workload: Option<OneOrSeveral>,
}

/// One name or several.
#[derive(Clone, Debug, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub enum OneOrSeveral {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

fn one() -> u64 {
    1
}

fn main() -> String {
    "main".to_owned()
}

fn values() -> Vec<Check> {
    vec![Check::Value]
}

fn tenth() -> f64 {
    0.1
}
