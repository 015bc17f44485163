//! The inverted page table: one entry for each frame of physical memory, found through anchors.
//!
//! Source: Huck and Hays, "Architectural Support for Translation Table Management in Large Address Space
//! Machines", ISCA 1993, which describes it as what the IBM System/38 and its followers have.
//! ```text
//!   anchor, by hash of the page's number ─► entry of a frame ─► entry of a frame ─► …
//!                                           page │ next         page │ next
//! ```
//! A walk reads the page's anchor, and then the entries of frames one after the other until one's page is
//! the one wanted: that is the frame. So the table is as large as memory asks, however much is mapped, and
//! a frame can have one page only.
//!
//! No parameters: there are as many anchors as frames, rounded up to a power of two.
//!
//! Departs from the paper:
//! - Frames of each page size have entries and anchors of their own, made when the first page of that size
//!   is mapped, and asked at once.
//! - An entry has 16 bytes: the page's number, and a word with rights, accessed and dirty bits as in other
//!   tables, in which the next frame has the place of the page's own. Anchors have 8 bytes.
//! - Entries have no number of an address space, since what is simulated is one program's memory.
//! - Where memory has no block for the whole table, it is in up to 1024 pieces, without further cost.
//! - Chains have at most 255 entries.

use super::{Layout, LayoutError, Organisation, Settings};
use crate::geometry::Geometry;
use crate::hashed::Design;

pub(super) const ORGANISATION: Organisation = Organisation { name: "inverted", layout };

fn layout(geometry: Geometry, settings: &Settings<'_>) -> Result<Layout, LayoutError> {
    settings.flatten_nothing("inverted")?;
    settings.merge_nothing("inverted")?;
    settings.hash_nothing("inverted")?;
    Ok(Layout::hashed(geometry, Design::Inverted))
}
