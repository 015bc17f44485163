//! Schemes as data: a page table, and the mechanisms next to it.

use flatwalk_paging::Layout;
use serde::{Deserialize, Serialize};

use super::require;
use super::table::{Moved, TableSettings};
use crate::ConfigError;

/// What a user compares: an organisation and its helpers, as a scheme file says it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheme {
    /// Name, as in the file's name.
    pub name: String,
    /// One line for a person.
    pub title: String,
    /// A sentence or two.
    pub description: String,
    /// Where the design is from.
    pub source: String,
    /// The page table.
    pub table: TableSettings,
    /// Refused: it stands in `table`.
    #[serde(default, skip_serializing)]
    pub(crate) organisation: Moved,
    /// Index at which the root leads back to itself, for a kernel that accesses page-table entries by
    /// virtual addresses.
    #[serde(default)]
    pub recursive_index: Option<u16>,
    /// Page-table priority in L2 and LLC.
    #[serde(default)]
    pub page_table_priority: PriorityMode,
    /// Prefetching of the last entries of a walk.
    #[serde(default)]
    pub asap: Option<Asap>,
    /// A range that is translated without pages.
    #[serde(default)]
    pub direct_segment: Option<DirectSegment>,
    /// A TLB in memory, behind the L2 TLB.
    #[serde(default)]
    pub pom_tlb: Option<PomTlb>,
    /// Ways of L2 and LLC divided between translations and data.
    #[serde(default)]
    pub csalt: Option<Csalt>,
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
}

/// The page table of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostTable {
    /// As [`Scheme::table`], but that it cannot have a geometry of its own.
    pub table: TableSettings,
    /// Refused: it stands in `table`.
    #[serde(default, skip_serializing)]
    pub(crate) organisation: Moved,
    /// Registers translate all of the guest's memory, and the table is not needed; see
    /// [`crate::mechanisms::direct_segment`].
    #[serde(default)]
    pub direct_segment: bool,
}

/// Prefetching of the last entries of a walk; see [`crate::mechanisms::asap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asap {
    /// Ranges of adjacent entries that the processor can hold, for each of the two levels.
    pub range_registers: u32,
}

/// A range that is translated without pages; see [`crate::mechanisms::direct_segment`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectSegment {
    /// Share of physical memory that can be reserved for it, 0 to 1.
    pub memory_fraction: f64,
}

/// A TLB in memory; see [`crate::mechanisms::pom_tlb`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PomTlb {
    /// Memory that it takes, half for each page size.
    pub size_bytes: u64,
    /// Predictions of page size and bypass.
    pub predictor_entries: u32,
}

impl PomTlb {
    fn validate(&self) -> Result<(), ConfigError> {
        let size = self.size_bytes;
        let fits = size.is_power_of_two() && (4096..=1 << 32).contains(&size);
        require(fits, "pom_tlb.size_bytes", || {
            format!("{size} is no power of two between 4 KiB and 4 GiB")
        })?;
        let predictions = self.predictor_entries;
        let fits = predictions.is_power_of_two() && predictions <= 1 << 20;
        require(fits, "pom_tlb.predictor_entries", || {
            format!("{predictions} is no power of two up to 1048576")
        })
    }
}

/// Ways of L2 and LLC divided between translations and data; see [`crate::mechanisms::csalt`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Csalt {
    /// Look-ups of a cache between one division and the next.
    pub epoch_accesses: u64,
    /// What a hit of a translation is worth in hits of data: 1 in CSALT-D, more in CSALT-CD.
    pub translation_weight: f64,
}

impl Csalt {
    fn validate(&self) -> Result<(), ConfigError> {
        require(self.epoch_accesses > 0, "csalt.epoch_accesses", || "must be positive".into())?;
        let weight = self.translation_weight;
        require((0.0..=1e6).contains(&weight), "csalt.translation_weight", || {
            format!("{weight} (0 to 1000000)")
        })
    }
}

/// When page-table priority is active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriorityMode {
    /// Never.
    #[default]
    Off,
    /// In phases of high TLB and cache misses.
    Phases,
    /// Always.
    Always,
}

/// Whether translation costs anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TranslationMode {
    /// TLBs, PWC and walks.
    #[default]
    Walked,
    /// Free: every translation is known at once. The bound that no design can beat.
    Free,
}

impl Scheme {
    /// The layout of the process's own table.
    ///
    /// # Errors
    /// [`ConfigError`] when organisation and levels do not go together.
    pub fn layout(&self) -> Result<Layout, ConfigError> {
        self.table.layout("table")
    }

    /// Checks the mechanisms that the scheme switches on.
    ///
    /// # Errors
    /// [`ConfigError`] when a figure cannot be, or a mechanism does not go with the rest.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if let Some(asap) = &self.asap {
            require((1..=4096).contains(&asap.range_registers), "asap.range_registers", || {
                format!("{} (1 to 4096)", asap.range_registers)
            })?;
        }
        let layout = self.layout()?;
        require(layout.is_tree() || self.asap.is_none(), "asap", || {
            format!("prefetches entries of a tree, which `{}` is not", self.table.organisation)
        })?;
        self.pom_tlb.as_ref().map_or(Ok(()), PomTlb::validate)?;
        self.csalt.as_ref().map_or(Ok(()), Csalt::validate)?;
        let both = self.csalt.is_some() && self.page_table_priority != PriorityMode::Off;
        require(!both, "csalt", || {
            "divides the caches, which page_table_priority does in its own way: keep one".to_owned()
        })?;
        if let Some(DirectSegment { memory_fraction }) = self.direct_segment {
            require(
                (0.0..=0.9).contains(&memory_fraction),
                "direct_segment.memory_fraction",
                || format!("{memory_fraction} (0 to 0.9: pages and page tables need the rest)"),
            )?;
        }
        require(!self.shadow || self.host.is_none(), "shadow", || {
            "stands in the place of a `host`: its table is no second one to walk".to_owned()
        })?;
        let of_our_own = [
            ("table.geometry", self.table.geometry.is_some()),
            ("asap", self.asap.is_some()),
            ("pom_tlb", self.pom_tlb.is_some()),
            ("direct_segment", self.direct_segment.is_some()),
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
