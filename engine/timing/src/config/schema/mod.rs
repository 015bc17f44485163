//! What files and results are made of, read off the structures that hold them.
//!
//! A schema is a JSON Schema (draft 2020-12) as `schemars` derives it: documentation comments are the
//! meanings, serde's attributes say what may be left out and what the choices are, schemars' give
//! ranges. Words of our own: `unit` where a key's ending does not say it, `powerOfTwo` for a number that
//! must be one, `refused` with what to write instead of a key. `unevaluatedProperties` means the same as
//! `additionalProperties`, as schemars writes out what is flattened.
//!
//! [`check`] checks a value by a schema and [`describe`] turns it into a reference; sections that a
//! registry owns come in through `add_sections`. [`crate::schemas`] has the schema of each kind.

mod check;
mod describe;
mod node;
#[cfg(test)]
mod tests;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, json_schema};
use serde::Serialize;
use serde_json::{Map, Value, json};

pub use self::check::{Problem, check};
pub use self::describe::{Choice, KeyDescription, describe};
use crate::ConfigError;

/// What a file of `T` may say.
pub(crate) fn read<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().for_deserialize().into_generator().into_root_schema_for::<T>()
}

/// Adds the keys `sections`, each with its schema, to a table that may leave them out. The table has
/// no other keys then.
///
/// # Panics
/// If `table` is not the schema of a table.
pub(crate) fn add_sections<'a>(
    table: &mut Value,
    sections: impl IntoIterator<Item = (&'a str, Schema)>,
) {
    for (name, mut section) in sections {
        section.remove("$schema");
        section.remove("title");
        table["properties"][name] = section.to_value();
    }
    table["additionalProperties"] = Value::Bool(false);
}

/// Turns a table into one whose keys follow from the value of `tag`: for each value those of the table
/// and those of its own schema.
///
/// # Panics
/// If `table` is not the schema of a table.
pub fn add_variants<'a>(
    table: &mut Value,
    tag: &str,
    variants: impl IntoIterator<Item = (&'a str, Schema)>,
) {
    let variants = variants.into_iter().map(|(name, own)| {
        let mut variant = table.clone();
        let keys = own.get("properties").and_then(Value::as_object);
        for (key, value) in keys.into_iter().flatten() {
            variant["properties"][key] = value.clone();
        }
        let required = own.get("required").and_then(Value::as_array).cloned();
        if let Some(names) = variant["required"].as_array_mut() {
            names.extend(required.unwrap_or_default());
        }
        variant["properties"][tag] = json!({ "type": "string", "const": name });
        variant["description"] = own.get("description").cloned().unwrap_or_default();
        variant["additionalProperties"] = Value::Bool(false);
        variant
    });
    let variants: Vec<_> = variants.collect();
    let description = table["description"].clone();
    *table = json!({ "description": description, "oneOf": variants });
}

/// The schema of a table with a whole number, up to `most`, for some of the levels.
pub(super) fn levels(levels: std::ops::RangeInclusive<u8>, meaning: &str, most: u32) -> Schema {
    let keys = levels.rev().map(|level| {
        let number = json!({
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
