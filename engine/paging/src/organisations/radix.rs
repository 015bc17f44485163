//! The conventional radix page table.
//!
//! Source: Intel SDM volume 3, chapter 4 (4- and 5-level paging); designs with 3 levels drop the
//! topmost. Every node spans one level; a cold walk reads one entry per level.
//!
//! Departs from the hardware in nothing; permission keys, caching attributes and global pages are
//! not modelled.

use super::{Layout, LayoutError, Organisation, Settings};
use crate::geometry::Geometry;

pub(super) const ORGANISATION: Organisation = Organisation { name: "radix", layout };

fn layout(geometry: Geometry, settings: &Settings<'_>) -> Result<Layout, LayoutError> {
    settings.flatten_nothing("radix")?;
    settings.merge_nothing("radix")?;
    settings.hash_nothing("radix")?;
    Ok(Layout::with_groups(geometry, &[]))
}
