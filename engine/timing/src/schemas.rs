//! The schema of each kind of file, of requests and of answers: what `flatwalk` checks its files by and
//! makes its reference from.

use std::sync::OnceLock;

use flatwalk_paging::organisations;
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
use crate::config::sweep::Sweep;
use crate::mechanisms::{REGISTRY, Registered, Section};
use crate::memory::prefetchers;
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
    /// A sweep file.
    Sweep,
    /// One configuration of a request.
    Run,
    /// The answer to a request.
    Results,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Machine,
        Self::Scheme,
        Self::Mix,
        Self::Experiment,
        Self::Sweep,
        Self::Run,
        Self::Results,
    ];

    /// The kind's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Scheme => "scheme",
            Self::Mix => "mix",
            Self::Experiment => "experiment",
            Self::Sweep => "sweep",
            Self::Run => "run",
            Self::Results => "results",
        }
    }

    /// The kind of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kind's JSON Schema, with what organisations and mechanisms add to it.
    pub fn schema(self) -> &'static Value {
        static SCHEMAS: [OnceLock<Value>; Kind::ALL.len()] =
            [const { OnceLock::new() }; Kind::ALL.len()];
        SCHEMAS[self as usize].get_or_init(|| match self {
            Self::Machine => with_registries(Machine::schema().clone()),
            Self::Scheme => with_registries(Scheme::schema().clone()),
            Self::Mix => schema::read::<Mix>().to_value(),
            Self::Experiment => schema::read::<Experiment>().to_value(),
            Self::Sweep => schema::read::<Sweep>().to_value(),
            Self::Run => with_registries(RunConfiguration::schema().clone()),
            Self::Results => {
                let settings = SchemaSettings::draft2020_12().for_serialize();
                let response = settings.into_generator().into_root_schema_for::<Response>();
                with_registries(response.to_value())
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
            Self::Mix | Self::Experiment | Self::Sweep | Self::Results => Ok(()),
        };
        together.err().into_iter().collect()
    }

    /// Every key, a table before what is in it.
    pub fn describe(self) -> Vec<KeyDescription> {
        schema::describe(self.schema(), &["Machine", "Scheme"])
    }
}

/// A schema with the parameters of page tables' organisations and of prefetchers, and the sections
/// and figures of mechanisms, wherever it has a table, a prefetcher, a machine, a scheme, a host or
/// a result.
fn with_registries(mut schema: Value) -> Value {
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
    if let Some(table) = structure(&mut schema, "TableSettings") {
        let organisations = organisations::all().map(|one| (one.name, (one.schema)()));
        schema::add_variants(table, "organisation", organisations);
    }
    if let Some(prefetcher) = structure(&mut schema, "PrefetcherSettings") {
        let kinds = prefetchers::REGISTRY.iter().map(|one| (one.name, (one.schema)()));
        schema::add_variants(prefetcher, "kind", kinds);
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
    validate(&value).map_err(Problem::from)
}

impl From<ConfigError> for Problem {
    fn from(error: ConfigError) -> Self {
        let (key, problem) = error.key_and_problem();
        Self::new(&key, problem)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::testing::{Scenario, machine, scheme};

    fn problems(kind: Kind, value: &Value) -> Vec<String> {
        kind.check(value).iter().map(|one| format!("{} {}", one.key, one.problem)).collect()
    }

    #[test]
    fn every_key_has_a_meaning() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
            let keys = kind.describe();
            assert!(!keys.is_empty());
            let bare = keys.iter().filter(|key| key.meaning.is_empty() && !key.key.ends_with('*'));
            let bare: Vec<_> = bare.map(|key| key.key.as_str()).collect();
            assert_eq!(bare, Vec::<&str>::new(), "{}", kind.name());
        }
    }

    #[test]
    fn sections_of_mechanisms_are_checked_with_the_file() {
        let [own, foreign] = [true, false].map(|of_schemes| {
            let has = |one: &&Registered| one.scheme.is_some() == of_schemes;
            REGISTRY.iter().find(has).unwrap().name
        });
        let mut value = serde_json::to_value(scheme(4, &[])).unwrap();
        value[own] = json!({ "no_such_key": 0 });
        value[foreign] = json!({});
        let problems = problems(Kind::Scheme, &value);
        assert!(
            problems.contains(&format!("{own}.no_such_key is not a known key")),
            "{problems:?}"
        );
        let missing = |problem: &&String| problem.ends_with(" is missing");
        assert!(problems.iter().find(missing).unwrap().starts_with(own), "{problems:?}");
        assert!(problems.contains(&format!("{foreign} is not a known key")), "{problems:?}");
    }

    #[test]
    fn what_depends_on_several_keys_is_looked_at_last() {
        let mut value = serde_json::to_value(machine()).unwrap();
        assert_eq!(problems(Kind::Machine, &value), Vec::<String>::new());
        value["l2"]["ways"] = json!(3);
        let uneven =
            "l2.size_bytes must make a power of two of 64-byte sets: 4096 in 3 ways do not";
        assert_eq!(problems(Kind::Machine, &value), [uneven]);
        value["frequency_mhz"] = json!(0);
        let slow = "frequency_mhz must be a whole number, 100 to 20000 (it is 0)";
        assert_eq!(problems(Kind::Machine, &value), [slow]);
    }

    #[test]
    fn a_configuration_is_refused_as_a_whole() {
        let configuration = Scenario::new(scheme(4, &[])).configuration();
        let mut value = serde_json::to_value(&configuration).unwrap();
        assert_eq!(problems(Kind::Run, &value), Vec::<String>::new());
        value["thp"] = json!("always");
        let both = "thp says which pages are large, and so does large_pages: give one of them";
        assert_eq!(problems(Kind::Run, &value), [both]);
        value["thp"] = Value::Null;
        value["scheme"]["shadow"] = json!(true);
        value["machine"].as_object_mut().unwrap().remove("virtualisation");
        assert_eq!(
            problems(Kind::Run, &value),
            ["machine.virtualisation is missing in `test`, so scheme `test` cannot run on it"]
        );
        for part in ["core", "l1i", "l1d", "l2", "llc", "memory"] {
            value["machine"].as_object_mut().unwrap().remove(part);
        }
        let untimed = "mode must be functional, as machine `test` has no core and caches: it can only \
                       count";
        assert_eq!(problems(Kind::Run, &value), [untimed]);
    }
}
