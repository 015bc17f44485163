//! The registry of page-table organisations: one file and one line each.

mod clustered;
mod compendia;
mod elastic_cuckoo;
mod flattened;
mod hashed;
mod inverted;
mod open;
mod radix;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::geometry::{Geometry, Level, Width};
use crate::hashed::Design;

/// Which levels the nodes of a new table should span. The table asks at each node that it makes;
/// when memory has no block that large it falls back to narrower nodes by itself.
pub trait Shape {
    /// Levels that a new node with topmost level `level`, on the path of `address`, should span.
    fn width(&self, level: Level, address: u64) -> Width;

    /// When the table merges nodes, and takes them apart again, by how full they are; `None`: it
    /// never does by itself. Asked once, for a new table.
    fn density(&self) -> Option<Density> {
        None
    }
}

/// When a node of one level is merged with its child nodes: by how many of its entries lead to a
/// child node of one level, which are those that merging makes a walk shorter for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Density {
    /// Merged when another entry comes to lead to a node, and there are this many or more.
    pub merge_slots: u32,
    /// Taken apart again when there are fewer than this many.
    pub unmerge_slots: u32,
}

/// What a table is, in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Nodes that form a tree.
    Tree,
    /// Entries found by hashing.
    Hashed(Design),
}

/// A geometry and the levels that are flattened in it, the same throughout the address space, or
/// the density at which they are merged region by region; or what a table without levels is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    geometry: Geometry,
    structure: Structure,
    /// `widths[level]`: width of a node whose topmost level is `level`.
    widths: [Width; 8],
    density: Option<Density>,
}

impl Layout {
    /// The geometry.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What the table is.
    pub fn structure(&self) -> Structure {
        self.structure
    }

    /// A layout in which the level groups in `groups`, each `(top, width)`, are flattened.
    fn with_groups(geometry: Geometry, groups: &[(Level, Width)]) -> Self {
        let mut widths = [1; 8];
        for &(top, width) in groups {
            widths[usize::from(top)] = width;
        }
        Self { geometry, structure: Structure::Tree, widths, density: None }
    }

    /// A layout without levels.
    fn hashed(geometry: Geometry, design: Design) -> Self {
        Self { structure: Structure::Hashed(design), ..Self::with_groups(geometry, &[]) }
    }

    /// Level groups, root first, as `(top level, width)`: what a tree without fall-backs has.
    pub fn groups(&self) -> Vec<(Level, Width)> {
        let mut groups = Vec::new();
        let mut level = match self.structure {
            Structure::Tree => self.geometry.levels(),
            Structure::Hashed(_) => 0,
        };
        while level > 0 {
            let width = self.widths[usize::from(level)];
            groups.push((level, width));
            level -= width;
        }
        groups
    }
}

impl Shape for Layout {
    #[inline]
    fn width(&self, level: Level, _address: u64) -> Width {
        self.widths[usize::from(level)]
    }

    fn density(&self) -> Option<Density> {
        self.density
    }
}

/// What a scheme says of its organisation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings<'a> {
    /// Level groups to flatten, such as `"L4L3"`.
    pub flatten: &'a [String],
    /// The densities at which nodes are merged and taken apart.
    pub density: Option<Fractions>,
    /// What elastic cuckoo tables are like.
    pub cuckoo: Option<Cuckoo>,
    /// Buckets of a new table with chains, or with open addressing.
    pub buckets: Option<u32>,
}

/// What elastic cuckoo tables are like.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cuckoo {
    /// Ways of each table.
    pub ways: u32,
    /// Lines of eight entries in each way of a new table.
    pub initial_entries: u32,
    /// Share of slots in use above which a table grows, 0 to 1.
    pub grow_occupancy: f64,
    /// To how many times its size.
    pub growth_factor: u32,
    /// Share of slots in use below which it shrinks by half.
    pub shrink_occupancy: f64,
    /// Lines in each way of the walk tables for levels 2 and 3, if there are any.
    #[serde(default)]
    pub walk_table_entries: Option<[u32; 2]>,
}

/// Densities as shares of a node's entries, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fractions {
    /// Share from which on a node is merged.
    pub merge: f64,
    /// Share below which it is taken apart again.
    pub unmerge: f64,
}

impl Settings<'_> {
    fn flatten_nothing(&self, organisation: &'static str) -> Result<(), LayoutError> {
        if self.flatten.is_empty() {
            Ok(())
        } else {
            Err(LayoutError::NothingToFlatten(organisation))
        }
    }

    fn merge_nothing(&self, organisation: &'static str) -> Result<(), LayoutError> {
        if self.density.is_none() { Ok(()) } else { Err(LayoutError::NothingToMerge(organisation)) }
    }

    fn hash_nothing(&self, organisation: &'static str) -> Result<(), LayoutError> {
        if self.cuckoo.is_some() {
            return Err(LayoutError::NothingToHash(organisation));
        }
        if self.buckets.is_some() { Err(LayoutError::NoChains(organisation)) } else { Ok(()) }
    }

    /// The layout of `organisation`: chains of nodes for 2^`block_shift` pages.
    fn chained(
        &self,
        organisation: &'static str,
        geometry: Geometry,
        block_shift: u8,
    ) -> Result<Layout, LayoutError> {
        self.flatten_nothing(organisation)?;
        self.merge_nothing(organisation)?;
        if self.cuckoo.is_some() {
            return Err(LayoutError::NothingToHash(organisation));
        }
        let first_shift = self.buckets_shift(organisation)?;
        Ok(Layout::hashed(geometry, Design::Chained { block_shift, first_shift }))
    }

    /// log2 of `buckets`, which `organisation` needs.
    fn buckets_shift(&self, organisation: &'static str) -> Result<u8, LayoutError> {
        let buckets = self.buckets.ok_or(LayoutError::NoBuckets(organisation))?;
        if !buckets.is_power_of_two() || !(32..=1 << 22).contains(&buckets) {
            return Err(LayoutError::Buckets(buckets));
        }
        Ok(buckets.ilog2() as u8)
    }
}

/// Why a layout cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Unknown organisation.
    #[error("unknown organisation `{name}`; known are {known}")]
    UnknownOrganisation {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A group of levels that cannot be read.
    #[error(
        "`{0}` names no adjacent levels; write the levels from the root down, for example \"L2L1\" or \"L4L3L2\""
    )]
    Group(String),
    /// A group beyond the root.
    #[error("`{group}` needs more levels than the {levels} that the table has")]
    BeyondRoot {
        /// The group.
        group: String,
        /// Levels of the table.
        levels: u8,
    },
    /// Two groups share a level.
    #[error("level L{0} stands in two groups")]
    Overlap(Level),
    /// Levels to flatten were given for an organisation that has none.
    #[error("organisation `{0}` flattens nothing: leave `flatten` out, or use \"flattened\"")]
    NothingToFlatten(&'static str),
    /// Densities were given for an organisation that does not merge by them.
    #[error("organisation `{0}` merges nothing: leave `[density]` out, or use \"compendia\"")]
    NothingToMerge(&'static str),
    /// No densities were given.
    #[error(
        "organisation `compendia` needs a table `[density]` with `merge_fraction` and `unmerge_fraction`"
    )]
    NoDensity,
    /// Densities that make no sense.
    #[error(
        "merge_fraction = {merge}, unmerge_fraction = {unmerge}: need 0 ≤ unmerge ≤ merge ≤ 1 and merge > 0"
    )]
    Density {
        /// As given.
        merge: String,
        /// As given.
        unmerge: String,
    },
    /// Cuckoo tables were described for an organisation that has none.
    #[error(
        "organisation `{0}` has no cuckoo tables: leave `[cuckoo]` out, or use \"elastic_cuckoo\""
    )]
    NothingToHash(&'static str),
    /// Buckets were given for an organisation that has none.
    #[error(
        "organisation `{0}` takes no `buckets`: leave it out, or use \"hashed\", \"clustered\" or \"open\""
    )]
    NoChains(&'static str),
    /// No buckets were given.
    #[error("organisation `{0}` needs `buckets`, for example 4096")]
    NoBuckets(&'static str),
    /// A number of buckets that cannot be.
    #[error("`buckets`: {0} is no power of two from 32 to 4194304")]
    Buckets(u32),
    /// No cuckoo tables were described.
    #[error("organisation `elastic_cuckoo` needs a table `[cuckoo]`, as scheme ecpt has it")]
    NoCuckoo,
    /// A figure that a cuckoo table cannot have.
    #[error("`cuckoo.{key}` {problem}")]
    Cuckoo {
        /// Its key.
        key: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// Page numbers have more bits than a tag.
    #[error(
        "a line's tag has room for {most} bits of the page number, and {bits} are needed: use 3 or 4 levels"
    )]
    Tag {
        /// Bits needed.
        bits: u32,
        /// Bits that there are.
        most: u32,
    },
    /// No levels to flatten were given.
    #[error("organisation `flattened` needs `flatten`, for example [\"L4L3\", \"L2L1\"]")]
    NoGroups,
    /// The node would be larger than a block of memory can be.
    #[error("`{0}` spans more than three levels: nodes are at most 1 GiB")]
    TooWide(String),
}

/// An organisation: a name and how its layout is made from a scheme's settings.
pub struct Organisation {
    /// Name in scheme files.
    pub name: &'static str,
    /// Makes the layout for a geometry and the scheme's settings.
    pub layout: fn(Geometry, &Settings<'_>) -> Result<Layout, LayoutError>,
}

/// Every organisation.
pub const REGISTRY: &[Organisation] = &[
    radix::ORGANISATION,
    flattened::ORGANISATION,
    compendia::ORGANISATION,
    elastic_cuckoo::ORGANISATION,
    hashed::ORGANISATION,
    clustered::ORGANISATION,
    inverted::ORGANISATION,
    open::ORGANISATION,
];

/// The organisation called `name`.
///
/// # Errors
/// When there is none.
pub fn find(name: &str) -> Result<&'static Organisation, LayoutError> {
    REGISTRY.iter().find(|o| o.name == name).ok_or_else(|| LayoutError::UnknownOrganisation {
        name: name.to_owned(),
        known: REGISTRY.iter().map(|o| o.name).collect::<Vec<_>>().join(", "),
    })
}
