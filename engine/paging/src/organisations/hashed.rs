//! The hashed page table: one entry in a node, nodes in chains.
//!
//! Source: Huck and Hays, "Architectural Support for Translation Table Management in Large Address Space
//! Machines", ISCA 1993: the hashed page table that replaced the inverted one's anchor table and
//! frame-ordered entries by buckets that hold entries themselves.
//! ```text
//!   bucket:  tag │ next ─► node:  tag │ next ─► …
//!            entry                entry
//! ```
//! A walk reads the bucket of the page's number, and further nodes one after the other until the tag is
//! the page's. A table for each page size is asked at once.
//!
//! Parameter: `buckets` of a new table.
//!
//! Departs from the paper:
//! - One table for each process, not one for the machine. Where a table of the machine has as many buckets
//!   as memory has frames, this one has twice as many, and all nodes are entered anew, as soon as there
//!   are more nodes than buckets. Where there is no contiguous memory for that, chains grow longer.
//! - Entries are as in other tables here, beside a tag and a link of 64 bits each: 32 bytes a node.
//! - Chains have at most 255 nodes.

use super::{Layout, LayoutError, Organisation, Settings};
use crate::geometry::Geometry;

pub(super) const ORGANISATION: Organisation = Organisation { name: "hashed", layout };

fn layout(geometry: Geometry, settings: &Settings<'_>) -> Result<Layout, LayoutError> {
    settings.chained("hashed", geometry, 0)
}
