//! The registry of page-table organisations: one file and one line each.

mod flattened;
mod radix;

use crate::geometry::{Geometry, Level, Width};

/// Which levels the nodes of a new table should span. The table asks at each node that it makes;
/// when memory has no block that large it falls back to narrower nodes by itself.
pub trait Shape {
    /// Levels that a new node with topmost level `level`, on the path of `address`, should span.
    fn width(&self, level: Level, address: u64) -> Width;
}

/// A geometry and the levels that are flattened in it, the same throughout the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    geometry: Geometry,
    /// `widths[level]`: width of a node whose topmost level is `level`.
    widths: [Width; 8],
}

impl Layout {
    /// The geometry.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// A layout in which the level groups in `groups`, each `(top, width)`, are flattened.
    fn with_groups(geometry: Geometry, groups: &[(Level, Width)]) -> Self {
        let mut widths = [1; 8];
        for &(top, width) in groups {
            widths[usize::from(top)] = width;
        }
        Self { geometry, widths }
    }

    /// Level groups, root first, as `(top level, width)`: what a table without fall-backs has.
    pub fn groups(&self) -> Vec<(Level, Width)> {
        let mut groups = Vec::new();
        let mut level = self.geometry.levels();
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
    /// Makes the layout for a geometry and the scheme's `flatten` list.
    pub layout: fn(Geometry, &[String]) -> Result<Layout, LayoutError>,
}

/// Every organisation.
pub const REGISTRY: &[Organisation] = &[radix::ORGANISATION, flattened::ORGANISATION];

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
