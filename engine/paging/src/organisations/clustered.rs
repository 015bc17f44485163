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
//!   [`super::hashed`].
//! - Partial-subblock and superpage entries within a node are not modelled: large pages have a table of
//!   their own.
//! - Chains have at most 255 nodes.

use super::{Layout, LayoutError, Organisation, Settings};
use crate::geometry::Geometry;

pub(super) const ORGANISATION: Organisation = Organisation { name: "clustered", layout };

fn layout(geometry: Geometry, settings: &Settings<'_>) -> Result<Layout, LayoutError> {
    settings.chained("clustered", geometry, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_checked() {
        let make = |buckets| layout(Geometry::X86_4, &Settings { buckets, ..Settings::default() });
        assert_eq!(make(None), Err(LayoutError::NoBuckets("clustered")));
        for wrong in [0, 16, 100, 1 << 23] {
            assert_eq!(make(Some(wrong)), Err(LayoutError::Buckets(wrong)));
        }
        assert!(make(Some(4096)).is_ok_and(|layout| layout.groups().is_empty()));
    }
}
