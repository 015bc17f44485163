//! Mechanisms that are registered while the program runs, as those of Python are.

use std::collections::BTreeMap;
use std::sync::Arc;

use flatwalk_paging::prototypes::Prototypes;
use schemars::JsonSchema;
use serde::Serialize;

use crate::counts::Add;
use crate::mmu::mechanism::Mechanism;

/// The section of a scheme that names one.
pub const NAME: &str = "python";

/// Makes a mechanism that has seen nothing.
pub type Make = Arc<dyn Fn() -> Box<dyn Mechanism> + Send + Sync>;

/// Those that this process knows.
pub static MECHANISMS: Prototypes<Make> = Prototypes::new();

/// What a class of Python counted, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Figures(pub BTreeMap<String, u64>);

impl Add for Figures {
    fn add(&mut self, more: &Self) {
        for (name, count) in &more.0 {
            *self.0.entry(name.clone()).or_default() += count;
        }
    }
}
