//! The sections of a scheme or a machine that mechanisms own.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::schema;
use crate::ConfigError;

/// Sections by the name of their mechanism, as the file has them: each mechanism reads its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sections(BTreeMap<String, Value>);

impl Sections {
    /// The section called `name`, if it is there, checked by the schema of `T`.
    ///
    /// # Errors
    /// [`ConfigError::Value`] with the key that cannot be, or is unknown or missing.
    pub fn get<T: DeserializeOwned + JsonSchema>(
        &self,
        name: &str,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        schema::conforms(&schema::read::<T>().to_value(), value)
            .map_err(|error| error.within(name))?;
        let section = T::deserialize(value).map_err(|error| ConfigError::Value {
            key: name.to_owned(),
            problem: error.to_string(),
        })?;
        Ok(Some(section))
    }

    /// True if there is a section called `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Adds a section, or replaces it.
    ///
    /// # Panics
    /// If `section` cannot be written as JSON, which settings always can.
    pub fn set(&mut self, name: &str, section: impl Serialize) {
        let value = serde_json::to_value(section).expect("settings are JSON");
        self.0.insert(name.to_owned(), value);
    }

    /// Takes a section away.
    pub fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The names of all sections.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}
