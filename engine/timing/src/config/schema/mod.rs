//! What files and results are made of, read off the structures that hold them.
//!
//! A schema is a JSON Schema (draft 2020-12) as `schemars` derives it: documentation comments are the
//! meanings, serde's attributes say what may be left out and what the choices are, schemars' give
//! ranges. Three words of our own: `unit` where a key's ending does not say it, `powerOfTwo` for a
//! number that must be one, and `unevaluatedProperties`, which means the same as
//! `additionalProperties`, as schemars writes out what is flattened.
//!
//! [`check`] checks a value by a schema and [`describe`] turns it into a reference; a section that a
//! registry owns comes in through [`add_section`]. [`crate::schemas`] has the schema of each kind.

mod check;
mod describe;
mod node;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, json_schema};
use serde::Serialize;
use serde_json::{Map, Value};

pub use self::check::{Problem, check};
pub use self::describe::{Choice, KeyDescription, describe};
use crate::ConfigError;

/// What a file of `T` may say.
pub(crate) fn read<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().for_deserialize().into_generator().into_root_schema_for::<T>()
}

/// Adds the section `name`, which holds `T`, to the schema of a file.
pub fn add_section<T: JsonSchema>(file: &mut Schema, name: &str, required: bool) {
    let mut section = read::<T>();
    section.remove("$schema");
    let own = file.ensure_object();
    if let Some(Value::Object(definitions)) = section.remove("$defs") {
        entry(own, "$defs", Value::Object(Map::new())).extend(definitions);
    }
    entry(own, "properties", Value::Object(Map::new())).insert(name.to_owned(), section.to_value());
    if required {
        let names = own.entry("required").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(names) = names {
            names.push(name.into());
        }
    }
}

fn entry<'a>(
    object: &'a mut Map<String, Value>,
    key: &str,
    new: Value,
) -> &'a mut Map<String, Value> {
    let Value::Object(found) = object.entry(key).or_insert(new) else {
        unreachable!("`{key}` of a schema is an object")
    };
    found
}

/// The schema of a table with a whole number, up to `most`, for some of the levels.
pub(super) fn levels(levels: std::ops::RangeInclusive<u8>, meaning: &str, most: u32) -> Schema {
    let keys = levels.rev().map(|level| {
        let number = serde_json::json!({
            "type": "integer", "format": "uint32", "minimum": 0, "maximum": most,
            "description": meaning,
        });
        (format!("L{level}"), number)
    });
    let properties: Map<_, _> = keys.collect();
    json_schema!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// Refuses a value that was built in code if a file with that schema could not say it.
///
/// # Errors
/// [`ConfigError::Value`] with the first problem.
pub(crate) fn conforms(schema: &Value, value: &impl Serialize) -> Result<(), ConfigError> {
    let value = serde_json::to_value(value)
        .map_err(|error| ConfigError::Value { key: String::new(), problem: error.to_string() })?;
    match check(schema, &value).into_iter().next() {
        Some(problem) => {
            Err(ConfigError::Value { problem: problem.with_known(), key: problem.key })
        }
        None => Ok(()),
    }
}
