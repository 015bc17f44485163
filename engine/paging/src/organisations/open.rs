//! The page table with open addressing: lines of eight entries, in the first free place.
//!
//! Source: Yaniv and Tsafrir, "Hash, Don't Cache (the Page Table)", SIGMETRICS 2016; growing as in the
//! public simulator Virtuoso.
//! ```text
//!   line:  the entries of eight neighbouring pages, with their number's tag in spare bits (64 bytes)
//! ```
//! A walk reads the line that the number's hash names, and those behind it one after the other until one has
//! the tag, or is vacant. There are no links, so that a line of the caches is all entries. A table for each
//! page size is asked at once. Lines are tagged as in [`super::elastic_cuckoo`].
//!
//! Parameter: `buckets`, lines of a new table.
//!
//! Departs from the paper:
//! - One table for each process, which doubles its lines, and enters all anew, when more than 0.6 of them
//!   are in use. Where there is no contiguous memory for that, more lines are behind others.
//! - Tags have 35 bits, so page tables of five levels do not fit.
//! - A line is at most 254 places behind its own.

use super::elastic_cuckoo::fits_tag;
use super::{Layout, LayoutError, Organisation, Settings};
use crate::geometry::Geometry;
use crate::hashed::Design;

pub(super) const ORGANISATION: Organisation = Organisation { name: "open", layout };

fn layout(geometry: Geometry, settings: &Settings<'_>) -> Result<Layout, LayoutError> {
    settings.flatten_nothing("open")?;
    settings.merge_nothing("open")?;
    if settings.cuckoo.is_some() {
        return Err(LayoutError::NothingToHash("open"));
    }
    let first_shift = settings.buckets_shift("open")?;
    fits_tag(geometry)?;
    Ok(Layout::hashed(geometry, Design::Open { first_shift }))
}
