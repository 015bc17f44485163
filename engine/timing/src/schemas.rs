//! The schema of each kind of file, of requests and of answers: what `flatwalk` checks its files by and
//! makes its reference from.

use std::sync::OnceLock;

use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::ConfigError;
use crate::config::experiment::Experiment;
use crate::config::machine::Machine;
use crate::config::mix::Mix;
use crate::config::run::RunConfiguration;
use crate::config::schema::{self, KeyDescription, Problem};
use crate::config::scheme::Scheme;
use crate::mechanisms::{REGISTRY, Registered, Section};
use crate::report::response::Response;

/// What has a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A machine file.
    Machine,
    /// A scheme file.
    Scheme,
    /// A mix file.
    Mix,
    /// An experiment file.
    Experiment,
    /// One configuration of a request.
    Run,
    /// The answer to a request.
    Results,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Machine, Self::Scheme, Self::Mix, Self::Experiment, Self::Run, Self::Results];

    /// The kind's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Scheme => "scheme",
            Self::Mix => "mix",
            Self::Experiment => "experiment",
            Self::Run => "run",
            Self::Results => "results",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kind's JSON Schema, with what the mechanisms add to it.
    pub fn schema(self) -> &'static Value {
        static SCHEMAS: [OnceLock<Value>; Kind::ALL.len()] =
            [const { OnceLock::new() }; Kind::ALL.len()];
        SCHEMAS[self as usize].get_or_init(|| match self {
            Self::Machine => with_mechanisms(Machine::schema().clone()),
            Self::Scheme => with_mechanisms(Scheme::schema().clone()),
            Self::Mix => schema::read::<Mix>().to_value(),
            Self::Experiment => schema::read::<Experiment>().to_value(),
            Self::Run => with_mechanisms(RunConfiguration::schema().clone()),
            Self::Results => {
                let settings = SchemaSettings::draft2020_12().for_serialize();
                let response = settings.into_generator().into_root_schema_for::<Response>();
                with_mechanisms(response.to_value())
            }
        })
    }

    /// Every problem of `value` as such a file. What depends on several keys is looked at once each
    /// key by itself is right.
    pub fn check(self, value: &Value) -> Vec<Problem> {
        let problems = schema::check(self.schema(), value);
        if !problems.is_empty() {
            return problems;
        }
        let together = match self {
            Self::Machine => together(value, Machine::validate_together),
            Self::Scheme => together(value, Scheme::validate_together),
            Self::Run => together(value, RunConfiguration::validate_together),
            Self::Mix | Self::Experiment | Self::Results => Ok(()),
        };
        together.err().into_iter().collect()
    }

    /// Every key, a table before what is in it.
    pub fn describe(self) -> Vec<KeyDescription> {
        schema::describe(self.schema(), &["Machine", "Scheme"])
    }
}

/// A schema with the sections and figures of [`REGISTRY`], wherever it has a machine, a scheme, a host's
/// table or a result.
fn with_mechanisms(mut schema: Value) -> Value {
    let sections = |of: fn(&Registered) -> Option<Section>| {
        REGISTRY.iter().filter_map(move |one| Some((one.name, of(one)?.schema())))
    };
    if let Some(machine) = structure(&mut schema, "Machine") {
        schema::add_sections(machine, sections(|one| one.machine));
    }
    if let Some(scheme) = structure(&mut schema, "Scheme") {
        schema::add_sections(scheme, sections(|one| one.scheme));
    }
    if let Some(host) = structure(&mut schema, "HostTable") {
        schema::add_sections(host, sections(|one| one.host));
    }
    if let Some(result) = structure(&mut schema, "RunResult") {
        let mechanisms = &mut result["properties"]["mechanisms"];
        mechanisms["properties"] = Value::Object(Map::new());
        schema::add_sections(mechanisms, sections(|one| Some(one.figures)));
    }
    schema
}

/// Where `schema` writes out a structure.
fn structure<'a>(schema: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    if schema["title"] == name { Some(schema) } else { schema.get_mut("$defs")?.get_mut(name) }
}

/// The first problem of what `value` says in several places.
fn together<T: DeserializeOwned>(
    value: &Value,
    validate: impl Fn(&T) -> Result<(), ConfigError>,
) -> Result<(), Problem> {
    let value = T::deserialize(value).map_err(|error| Problem::new("", error.to_string()))?;
    validate(&value).map_err(|error| match error {
        ConfigError::Value { key, problem } => Problem::new(&key, problem),
        other => Problem::new(other.key(), other.to_string()),
    })
}
