//! Mechanisms that are registered while the program runs, as those of Python are.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use flatwalk_paging::prototypes::{Prototype, Prototypes};
use flatwalk_paging::{Geometry, Hpa};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::counts::Add;
use crate::mmu::mechanism::Mechanism;

/// The section of a scheme that names some.
pub const NAME: &str = "python";

/// Where a mechanism is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The geometry of the process's own table.
    pub geometry: Geometry,
    /// Where physical memory of its own begins.
    pub memory: Hpa,
}

/// A mechanism that is known.
#[derive(Clone)]
pub struct Known {
    /// Bytes of physical memory that it has, of whole pages.
    pub memory_bytes: u64,
    /// Makes one that has seen nothing.
    pub make: Arc<dyn Fn(Place) -> Box<dyn Mechanism> + Send + Sync>,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").field("memory_bytes", &self.memory_bytes).finish_non_exhaustive()
    }
}

/// Those that this process knows.
pub static MECHANISMS: Prototypes<Known> = Prototypes::new();

/// What a class of Python counted, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Figures(pub BTreeMap<String, u64>);

/// Classes of Python, as `Scheme.of` writes them down: they run in a process that did, or that read
/// their file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Named(pub Vec<Prototype>);

/// What a scheme's classes of Python counted: by class, and by name.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct FiguresByClass(BTreeMap<String, BTreeMap<String, u64>>);

impl Add for Figures {
    fn add(&mut self, more: &Self) {
        for (name, count) in &more.0 {
            *self.0.entry(name.clone()).or_default() += count;
        }
    }
}
