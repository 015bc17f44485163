//! Schemes as data: a page table, and the mechanisms next to it.

use std::sync::LazyLock;

use flatwalk_paging::Layout;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::require;
use super::schema;
use super::sections::Sections;
use super::table::{Moved, TableSettings};
use crate::ConfigError;

/// What a user compares: an organisation and its helpers, as a scheme file says it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Scheme {
    /// Name, as in the file's name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// One line for a person.
    #[schemars(length(min = 1))]
    pub title: String,
    /// A sentence or two.
    #[schemars(length(min = 1))]
    pub description: String,
    /// Where the design is from.
    #[schemars(length(min = 1))]
    pub source: String,
    /// The page table.
    pub table: TableSettings,
    /// Refused: it stands in `table`.
    #[serde(default, skip_serializing)]
    pub(crate) organisation: Moved,
    /// Index at which the root leads back to itself, for a kernel that accesses page-table entries by
    /// virtual addresses.
    #[serde(default)]
    #[schemars(range(min = 256))]
    pub recursive_index: Option<u16>,
    /// Whether translation costs anything.
    #[serde(default)]
    pub translation: TranslationMode,
    /// The process runs in a guest, and the hypervisor keeps a table of what the guest's and its own
    /// make together: walks are those of one table, and what the guest's kernel writes into its table
    /// leaves the guest.
    #[serde(default)]
    pub shadow: bool,
    /// The table is that of the machine on which a whole system was recorded, as the trace has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recorded: bool,
    /// The host's table, where the process runs in a guest and all of the above is the guest's.
    #[serde(default)]
    pub host: Option<HostTable>,
    /// The mechanisms that it switches on: a section each.
    #[serde(flatten)]
    #[schemars(skip)]
    pub mechanisms: Sections,
}

/// The page table of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostTable {
    /// The host's page table; it cannot have a geometry of its own.
    pub table: TableSettings,
    /// Refused: it stands in `table`.
    #[serde(default, skip_serializing)]
    pub(crate) organisation: Moved,
    /// The mechanisms of the host's: a section each.
    #[serde(flatten)]
    #[schemars(skip)]
    pub mechanisms: Sections,
}

/// Whether translation costs anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TranslationMode {
    /// TLBs, PWC and walks.
    #[default]
    Walked,
    /// Free: every translation is known at once. No design translates faster; one whose data lies
    /// elsewhere in caches and memory can be a little faster for that.
    Free,
}

impl Scheme {
    /// The schema of a scheme file.
    pub fn schema() -> &'static Value {
        static SCHEMA: LazyLock<Value> = LazyLock::new(|| schema::read::<Scheme>().to_value());
        &SCHEMA
    }

    /// The layout of the process's own table.
    ///
    /// # Errors
    /// [`ConfigError`] when organisation and levels do not go together.
    pub fn layout(&self) -> Result<Layout, ConfigError> {
        self.table.layout("table")
    }

    /// Checks what goes together.
    ///
    /// # Errors
    /// [`ConfigError`] when a key does not go with the rest.
    pub fn validate(&self) -> Result<(), ConfigError> {
        schema::conforms(Self::schema(), self)?;
        self.validate_together()
    }

    /// Checks what no schema expresses: keys that depend on each other.
    pub(crate) fn validate_together(&self) -> Result<(), ConfigError> {
        let layout = self.layout()?;
        if let Some(host) = &self.host {
            host.layout()?;
        }
        // Levels of both tables are compared with each other, so each has to stand for the same size in both.
        require(self.host.is_none() || self.table.geometry.is_none(), "table.geometry", || {
            "is x86-64's in a guest: leave it out".to_owned()
        })?;
        require(!self.shadow || self.host.is_none(), "shadow", || {
            "stands in the place of a `host`: its table is no second one to walk".to_owned()
        })?;
        let of_our_own = [
            ("table.geometry", self.table.geometry.is_some()),
            ("recursive_index", self.recursive_index.is_some()),
            ("shadow", self.shadow),
            ("host", self.host.is_some()),
            ("table.organisation", !layout.is_conventional()),
        ];
        match of_our_own.into_iter().find(|&(_, on)| on && self.recorded) {
            Some((key, _)) => require(false, key, || {
                "has no meaning where the table is `recorded`: leave it out".to_owned()
            }),
            None => Ok(()),
        }
    }
}

impl HostTable {
    /// The layout of the host's table.
    ///
    /// # Errors
    /// [`ConfigError`] when organisation and levels do not go together, or it has a geometry.
    pub fn layout(&self) -> Result<Layout, ConfigError> {
        require(self.table.geometry.is_none(), "host.table.geometry", || {
            "is x86-64's: leave it out".to_owned()
        })?;
        self.table.layout("host.table")
    }
}
