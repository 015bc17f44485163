//! Mechanisms that are registered while the program runs, as those of Python are.

use std::collections::BTreeMap;
use std::sync::Arc;

use flatwalk_paging::prototypes::{Prototype, Prototypes};
use schemars::JsonSchema;
use serde::Serialize;

use crate::ConfigError;
use crate::counts::Add;
use crate::mechanisms::{Built, Registered, Section, Setup};
use crate::mmu::mechanism::Mechanism;

/// The section of a scheme that names one.
pub const NAME: &str = "python";

/// Makes a mechanism that has seen nothing.
pub type Make = Arc<dyn Fn() -> Box<dyn Mechanism> + Send + Sync>;

/// Those that this process knows.
pub static MECHANISMS: Prototypes<Make> = Prototypes::new();

pub(crate) const MECHANISM: Registered = Registered {
    name: NAME,
    scheme: Some(Section::of::<Prototype>()),
    host: None,
    machine: None,
    figures: Section::of_figures::<Figures>(),
    build,
};

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

fn build(setup: &mut Setup<'_>) -> Built {
    let Some(prototype) = setup.scheme.mechanisms.get::<Prototype>(NAME)? else { return Ok(None) };
    setup.refuse_recorded(NAME)?;
    match MECHANISMS.find(&prototype) {
        Ok(make) => Ok(Some(make())),
        Err((key, problem)) => Err(ConfigError::Value { key: format!("{NAME}.{key}"), problem }),
    }
}
