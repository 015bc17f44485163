//! A page table as scheme files describe it.

use std::borrow::Cow;

use flatwalk_paging::{Geometry, Layout, organisations};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::ConfigError;

/// The section `[table]`, or `[host.table]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TableSettings {
    /// How it is organised.
    pub organisation: String,
    /// Levels of the table.
    #[schemars(range(min = 2, max = 6))]
    pub levels: u8,
    /// Page size and bits of each level; x86-64's unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub geometry: Option<Pages>,
    /// The organisation's own parameters.
    #[serde(flatten)]
    #[schemars(skip)]
    pub parameters: Map<String, Value>,
}

/// Page size and bits of each level of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pages {
    /// log2 of a base page's bytes.
    #[schemars(range(min = 12, max = 16))]
    pub page_shift: u8,
    /// Bits of an address that each level consumes.
    #[schemars(range(min = 1, max = 13))]
    pub index_bits: u8,
}

impl TableSettings {
    /// The layout of the table of section `section`.
    ///
    /// # Errors
    /// [`ConfigError`] when its settings do not go together.
    pub fn layout(&self, section: &'static str) -> Result<Layout, ConfigError> {
        let wrong = |key: &str, problem: String| ConfigError::Value {
            key: format!("{section}.{key}"),
            problem,
        };
        let geometry = match (self.geometry, self.levels) {
            (Some(Pages { page_shift, index_bits }), levels) => {
                Geometry::new(page_shift, index_bits, levels)
                    .map_err(|error| wrong("geometry", error.to_string()))?
            }
            (None, 3) => Geometry::X86_3,
            (None, 4) => Geometry::X86_4,
            (None, 5) => Geometry::X86_5,
            (None, other) => {
                let problem = format!("{other} levels: x86-64 tables have 3, 4 or 5");
                return Err(wrong("levels", problem));
            }
        };
        organisations::layout(&self.organisation, geometry, &self.parameters)
            .map_err(|error| ConfigError::Layout { section, error: Box::new(error) })
    }
}

/// What stood in the scheme itself before tables had a section of their own: reading it says what to
/// write instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved;

impl Moved {
    const WORDS: &str = "belongs in the section of the table, with all else that describes it: write \
         `[table]` (of a host `[host.table]`) above `organisation` and `levels`, the organisation's \
         parameters below as keys of the same section, without sections of their own, and page sizes as \
         `geometry = { page_shift = …, index_bits = … }`";
}

impl<'de> Deserialize<'de> for Moved {
    fn deserialize<D: Deserializer<'de>>(_deserializer: D) -> Result<Self, D::Error> {
        Err(D::Error::custom(Self::WORDS))
    }
}

impl JsonSchema for Moved {
    fn schema_name() -> Cow<'static, str> {
        "Moved".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "not": {}, "refused": Self::WORDS })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;
    use crate::Scheme;

    fn problem(table: Value) -> String {
        let table: TableSettings = from_value(table).unwrap();
        table.layout("table").unwrap_err().to_string()
    }

    #[test]
    fn a_mistake_in_a_table_names_section_key_and_what_is_known() {
        let unknown = problem(json!({ "organisation": "radics", "levels": 4 }));
        assert!(unknown.contains("`radics`") && unknown.contains("known are radix, "), "{unknown}");
        let levels = problem(json!({ "organisation": "radix", "levels": 6 }));
        assert!(levels.contains("`table.levels`: 6"), "{levels}");
        let extra = problem(json!({ "organisation": "radix", "levels": 4, "bucket": 1 }));
        assert!(extra.contains("radix") && extra.contains("`bucket`"), "{extra}");
        let pages = json!({ "page_shift": 1, "index_bits": 9 });
        let pages = problem(json!({ "organisation": "radix", "levels": 4, "geometry": pages }));
        assert!(pages.contains("`table.geometry`"), "{pages}");
    }

    #[test]
    fn schemes_of_the_old_form_are_told_the_new_one() {
        let read = |rest: &str| {
            let head =
                r#""name": "test", "title": "test", "description": "test", "source": "none""#;
            serde_json::from_str::<Scheme>(&format!("{{ {head}, {rest} }}"))
                .map(|scheme| scheme.table.organisation)
                .map_err(|error| error.to_string())
        };
        let table = r#""organisation": "radix", "levels": 4"#;
        assert_eq!(read(&format!(r#""table": {{ {table} }}"#)), Ok("radix".to_owned()));
        let host = format!(r#""table": {{ {table} }}, "host": {{ {table} }}"#);
        for old in [table, &host] {
            let error = read(old).unwrap_err();
            assert!(error.contains("write `[table]`"), "{error}");
        }
    }
}
