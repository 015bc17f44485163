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
//! - Entries are as in other tables here, next to a tag and a link of 64 bits each: 32 bytes a node.
//! - Chains have at most 255 nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::NewLayout;
use crate::error::LayoutError;
use crate::geometry::Geometry;
use crate::keyed::chained::{Chains, buckets_shift};
use crate::layout::Layout;

/// log2 of the pages that a node has entries for.
const BLOCK_SHIFT: u8 = 0;

/// Parameters of hashed page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Buckets of a new table; a power of two.
    #[schemars(range(min = 32, max = 4_194_304))]
    pub buckets: u32,
}

impl NewLayout for Parameters {
    const NAME: &str = "hashed";

    fn layout(self, geometry: Geometry) -> Result<Layout, LayoutError> {
        let first_shift = buckets_shift(Self::NAME, self.buckets)?;
        Ok(Layout::keyed(geometry, Chains { block_shift: BLOCK_SHIFT, first_shift }))
    }

    fn examples() -> Vec<Value> {
        vec![json!({ "buckets": 32 })]
    }
}
