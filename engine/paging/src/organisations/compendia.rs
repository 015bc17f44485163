//! Compendia: a conventional table whose dense regions are merged.
//!
//! Source: Ainsworth, Jones, "Compendia: Reducing Virtual-Memory Costs via Selective Densification",
//! ISMM 2021, sections 4.1 to 4.6.
//!
//! A dense node and its (up to) 512 child nodes become one node of 2 MiB, indexed by 18 bits. H, the
//! W1 bit of the entry that points there, says so. Nodes may overlap: where a level is merged both
//! with the level above and with the level below, the upper node's 512 entries for it all hold the
//! base of the lower node and the O bit, which has the walk use their index bits again. A page-walk
//! cache therefore keeps the pointer under the shorter prefix, and later walks start at the lower
//! node:
//! ```text
//!   PGD, 4 KiB ─► PUD/PMD, VA[38:21] ─┬─ 512 × H+O ─► PMD/PTE, VA[29:12] ─► page   (dense below)
//!                                     ├─► PTE, VA[20:12] ─► page                    (sparse below)
//!                                     └─► 2 MiB page
//! ```
//! The rule is one number, how many of a node's entries lead to a child node that is not merged
//! itself: the entries that merging makes walks shorter for. `tree/density.rs` counts it whenever an
//! entry of the node comes to lead to a new child (never for changes of level 1 alone), lowest level
//! first. All of the paper's preferences follow:
//! - Large pages count as zero (section 4.5), so a PMD of large pages stays, and its PUD is merged.
//! - With 4 KiB pages PMDs merge, which leaves a PUD nothing to gain but where other PMDs are sparse
//!   ("nearer the leaf", 4.4.1; overlap, 4.4.2). A merged PUD that comes to point mostly to merged
//!   PMDs is taken apart (4.4.3), and its entries in a PGD/PUD node lead to the PMDs directly.
//! - With five levels and 4 KiB pages, P4D/PUD and PMD/PTE merge and the PGD stays sparse; with large
//!   pages, PGD/P4D and PUD/PMD merge (4.6).
//!
//! Parameters, as shares of a node's entries:
//! - `merge_fraction`: merged from this share on. The paper: 1/8, 64 of 512 entries.
//! - `unmerge_fraction`: taken apart below this share, the paper's "lower threshold", whose value
//!   cannot be read in our copy: 1/16 is our choice. A node without any gain is always taken apart.
//!
//! And `merge_us`, the kernel time that merging a node takes, or taking one apart.
//!
//! Departs from the paper:
//! - O in the replicas of a large page (section 4.5) means the page's own level is one above the
//!   entry's, the same rule as for pointers; so a 1 GiB page, which the paper does not discuss, keeps
//!   its size in a PUD/PMD node as a 2 MiB page does in a PMD/PTE node.
//! - Without memory for a merged node (or for the small nodes of one to be taken apart), the table
//!   stays as it is until another entry of that node fills (or empties). The paper is silent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NewLayout;
use crate::error::LayoutError;
use crate::geometry::Geometry;
use crate::layout::{Density, Layout, TreeShape};

/// Parameters of Compendia.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Share of a node's entries from which on it is merged with its children, more than 0.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub merge_fraction: f64,
    /// Share below which it is taken apart again, at most `merge_fraction`.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub unmerge_fraction: f64,
    /// Kernel time that merging a node takes, or taking one apart, in microseconds.
    #[schemars(range(min = 0.0, max = 1_000_000.0))]
    pub merge_us: f64,
}

impl NewLayout for Parameters {
    const NAME: &str = "compendia";

    fn layout(self, geometry: Geometry) -> Result<Layout, LayoutError> {
        let Self { merge_fraction, unmerge_fraction, merge_us } = self;
        let wrong = |key, problem| Err(LayoutError::value(Self::NAME, key, problem));
        if !(0.0..=1.0).contains(&merge_fraction) || merge_fraction == 0.0 {
            let problem = format!("must be more than 0 and at most 1, not {merge_fraction}");
            return wrong("merge_fraction", problem);
        }
        if !(0.0..=merge_fraction).contains(&unmerge_fraction) {
            let problem = format!("must be 0 to merge_fraction, not {unmerge_fraction}");
            return wrong("unmerge_fraction", problem);
        }
        if !(0.0..=1e6).contains(&merge_us) {
            return wrong("merge_us", format!("must be 0 to 1000000 µs, not {merge_us}"));
        }
        // At most 2^13 entries, so the product is exact enough and fits.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let slots = |share: f64| ((share * geometry.node_entries(1) as f64).ceil() as u32).max(1);
        let density =
            Density { merge_slots: slots(merge_fraction), unmerge_slots: slots(unmerge_fraction) };
        let shape = TreeShape { density: Some(density), merge_us, ..TreeShape::CONVENTIONAL };
        Ok(Layout::tree(geometry, shape))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Shape;

    fn density(geometry: Geometry, merge: f64, unmerge: f64) -> Result<Density, LayoutError> {
        let parameters =
            Parameters { merge_fraction: merge, unmerge_fraction: unmerge, merge_us: 1.0 };
        parameters.layout(geometry).map(|layout| layout.density().expect("it merges"))
    }

    #[test]
    fn shares_are_checked_and_become_entries() {
        let paper = Density { merge_slots: 64, unmerge_slots: 32 };
        assert_eq!(density(Geometry::X86_4, 0.125, 0.0625), Ok(paper));
        let ia64 = Geometry::new(14, 11, 3).expect("IA-64's");
        let all = Density { merge_slots: 2048, unmerge_slots: 1 };
        assert_eq!(density(ia64, 1.0, 0.0), Ok(all));
        let least = Density { merge_slots: 1, unmerge_slots: 1 };
        assert_eq!(density(Geometry::X86_5, 1e-9, 1e-9), Ok(least));
        for (merge, unmerge, key) in [
            (0.0, 0.0, "merge_fraction"),
            (1.1, 0.5, "merge_fraction"),
            (0.1, 0.2, "unmerge_fraction"),
            (0.5, -0.1, "unmerge_fraction"),
            (f64::NAN, 0.0, "merge_fraction"),
            (0.5, f64::NAN, "unmerge_fraction"),
        ] {
            let error = density(Geometry::X86_4, merge, unmerge).unwrap_err();
            assert_eq!(error.key(), Some(key), "{merge} {unmerge}");
        }
        let slow = Parameters { merge_fraction: 0.5, unmerge_fraction: 0.1, merge_us: f64::NAN };
        assert_eq!(slow.layout(Geometry::X86_4).unwrap_err().key(), Some("merge_us"));
    }
}
