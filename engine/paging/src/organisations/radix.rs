//! The conventional radix page table.
//!
//! Source: Intel SDM volume 3, chapter 4 (4- and 5-level paging); designs with 3 levels drop the
//! topmost. Every node spans one level; a cold walk reads one entry per level.
//!
//! Departs from the hardware in nothing; permission keys, caching attributes and global pages are
//! not modelled.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NewLayout;
use crate::error::LayoutError;
use crate::geometry::Geometry;
use crate::layout::{Layout, TreeShape};

/// Radix page tables have no parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {}

impl NewLayout for Parameters {
    const NAME: &str = "radix";

    fn layout(self, geometry: Geometry) -> Result<Layout, LayoutError> {
        Ok(Layout::tree(geometry, TreeShape::CONVENTIONAL))
    }
}
