//! Schemes as data: a page table, and the mechanisms next to it.

use std::sync::LazyLock;

use flatwalk_paging::organisations::{self, Cuckoo};
use flatwalk_paging::{Geometry, Layout};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::require;
use super::schema;
use super::sections::Sections;
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
    /// How the table is organised.
    #[schemars(schema_with = "organisation")]
    pub organisation: String,
    /// Levels of the table.
    #[schemars(range(min = 2, max = 6))]
    pub levels: u8,
    /// Page size and bits of each level; x86-64's unless given.
    #[serde(default)]
    pub geometry: Option<Pages>,
    /// Level groups to flatten, such as `"L4L3"`.
    #[serde(default)]
    pub flatten: Vec<String>,
    /// Regions that level-3 entries span keep L2 and L1 apart from this many large pages on; 0: never.
    #[serde(default)]
    pub no_flatten_threshold: u32,
    /// When nodes are merged by how full they are, and what that costs.
    #[serde(default)]
    pub density: Option<Density>,
    /// What elastic cuckoo tables are like.
    #[serde(default)]
    pub cuckoo: Option<Cuckoo>,
    /// Buckets of a new table, of organisations with chains.
    #[serde(default)]
    pub buckets: Option<u32>,
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
    /// The table is that of the machine on which a whole system was recorded, as the trace tells it.
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

/// Page size and bits of each level of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pages {
    /// log2 of a base page's bytes.
    pub page_shift: u8,
    /// Bits of an address that each level consumes.
    pub index_bits: u8,
}

/// The page table of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostTable {
    /// How the table is organised.
    #[schemars(schema_with = "organisation")]
    pub organisation: String,
    /// Levels of the table.
    #[schemars(range(min = 2, max = 6))]
    pub levels: u8,
    /// As [`Scheme::flatten`].
    #[serde(default)]
    pub flatten: Vec<String>,
    /// As [`Scheme::no_flatten_threshold`].
    #[serde(default)]
    pub no_flatten_threshold: u32,
    /// As [`Scheme::density`].
    #[serde(default)]
    pub density: Option<Density>,
    /// As [`Scheme::cuckoo`].
    #[serde(default)]
    pub cuckoo: Option<Cuckoo>,
    /// Buckets of a new table, of organisations with chains.
    #[serde(default)]
    pub buckets: Option<u32>,
    /// The mechanisms of the host's: a section each.
    #[serde(flatten)]
    #[schemars(skip)]
    pub mechanisms: Sections,
}

/// When an organisation merges nodes by how full they are, and what that costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Density {
    /// A node is merged with its children from this share of its entries on, 0 to 1.
    pub merge_fraction: f64,
    /// It is taken apart again below this share.
    pub unmerge_fraction: f64,
    /// Kernel time that merging a node takes, or taking one apart, in microseconds.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub merge_us: f64,
}

/// Whether translation costs anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TranslationMode {
    /// TLBs, PWC and walks.
    #[default]
    Walked,
    /// Free: every translation is known at once. The bound that no design can beat.
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
        let geometry = geometry(self.levels, self.geometry)?;
        layout(&self.organisation, geometry, &self.flatten, self.density, self.cuckoo, self.buckets)
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
        self.layout()?;
        if let Some(host) = &self.host {
            host.layout()?;
        }
        require(!self.shadow || self.host.is_none(), "shadow", || {
            "stands in the place of a `host`: its table is no second one to walk".to_owned()
        })?;
        let of_our_own = [
            ("geometry", self.geometry.is_some()),
            ("flatten", !self.flatten.is_empty()),
            ("density", self.density.is_some()),
            ("recursive_index", self.recursive_index.is_some()),
            ("shadow", self.shadow),
            ("host", self.host.is_some()),
            ("organisation", self.organisation != "radix"),
        ];
        match of_our_own.into_iter().find(|&(_, on)| on && self.recorded) {
            Some((key, _)) => require(false, key, || {
                "has no meaning where the table is `recorded`: leave it out".to_owned()
            }),
            None => Ok(()),
        }
    }
}

/// The names of the organisations.
fn organisation(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<_> = organisations::REGISTRY.iter().map(|one| one.name).collect();
    json_schema!({ "enum": names })
}

impl HostTable {
    /// The layout of the host's table.
    ///
    /// # Errors
    /// [`ConfigError`] when organisation and levels do not go together.
    pub fn layout(&self) -> Result<Layout, ConfigError> {
        layout(
            &self.organisation,
            geometry(self.levels, None)?,
            &self.flatten,
            self.density,
            self.cuckoo,
            self.buckets,
        )
    }
}

fn geometry(levels: u8, pages: Option<Pages>) -> Result<Geometry, ConfigError> {
    match (pages, levels) {
        (Some(Pages { page_shift, index_bits }), _) => {
            Geometry::new(page_shift, index_bits, levels).map_err(|error| ConfigError::Value {
                key: "geometry".to_owned(),
                problem: error.to_string(),
            })
        }
        (None, 3) => Ok(Geometry::X86_3),
        (None, 4) => Ok(Geometry::X86_4),
        (None, 5) => Ok(Geometry::X86_5),
        (None, other) => Err(ConfigError::Value {
            key: "levels".to_owned(),
            problem: format!("{other} levels: x86-64 tables have 3, 4 or 5"),
        }),
    }
}

fn layout(
    organisation: &str,
    geometry: Geometry,
    flatten: &[String],
    density: Option<Density>,
    cuckoo: Option<Cuckoo>,
    buckets: Option<u32>,
) -> Result<Layout, ConfigError> {
    let density = density.map(|density| organisations::Fractions {
        merge: density.merge_fraction,
        unmerge: density.unmerge_fraction,
    });
    let organisation = organisations::find(organisation)?;
    Ok((organisation.layout)(
        geometry,
        &organisations::Settings { flatten, density, cuckoo, buckets },
    )?)
}
