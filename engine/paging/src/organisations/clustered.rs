//! The clustered page table: the entries of sixteen neighbouring pages in a node, nodes in chains.
//!
//! Source: Talluri, Hill, Khalidi, "A New Page Table for 64-bit Address Spaces", SOSP 1995.
//! ```text
//!   bucket:  tag │ next ─► node:  tag │ next ─► …
//!            16 entries            16 entries         144 bytes each
//! ```
//! A walk reads the head of the bucket for the number of the page's block, and of further nodes one after
//! the other until the tag is the block's; then the entry, where that is not in the same line. A table for
//! each page size is asked at once.
//!
//! Parameter: `buckets` of a new table.
//!
//! Departs from the paper:
//! - One table for each process, which doubles its buckets when there are more nodes than that; see
//!   [`crate::keyed::chained`].
//! - Partial-subblock and superpage entries within a node are not modelled: large pages have a table of
//!   their own.
//! - Chains have at most 255 nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NewLayout;
use crate::error::LayoutError;
use crate::geometry::Geometry;
use crate::keyed::chained::{Chains, buckets_shift};
use crate::layout::Layout;

/// log2 of the pages that a node has entries for.
const BLOCK_SHIFT: u8 = 4;

/// Parameters of clustered page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Buckets of a new table; a power of two.
    #[schemars(range(min = 32, max = 4_194_304))]
    pub buckets: u32,
}

impl NewLayout for Parameters {
    const NAME: &str = "clustered";

    fn layout(self, geometry: Geometry) -> Result<Layout, LayoutError> {
        let first_shift = buckets_shift(Self::NAME, self.buckets)?;
        Ok(Layout::keyed(geometry, Chains { block_shift: BLOCK_SHIFT, first_shift }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_checked() {
        let make = |buckets| Parameters { buckets }.layout(Geometry::X86_4);
        for wrong in [0, 16, 100, 1 << 23] {
            assert_eq!(make(wrong).unwrap_err().key(), Some("buckets"));
        }
        assert!(make(4096).is_ok_and(|layout| layout.groups().is_empty()));
    }
}
