//! Mixes as data: programs that run together on the cores of one machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One mix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Name, as in the file's name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// One line for a person.
    #[schemars(length(min = 1))]
    pub title: String,
    /// Where the mix is from.
    #[schemars(length(min = 1))]
    pub source: String,
    /// For each core a built-in workload, with a size (`gups:8GiB`) or as large as it is by
    /// default, or a trace's path.
    #[schemars(length(min = 1), inner(length(min = 1)))]
    pub programs: Vec<String>,
}
