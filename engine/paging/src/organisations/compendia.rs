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
//! Departs from the paper:
//! - O in the replicas of a large page (section 4.5) means the page's own level is one above the
//!   entry's, the same rule as for pointers; so a 1 GiB page, which the paper does not discuss, keeps
//!   its size in a PUD/PMD node as a 2 MiB page does in a PMD/PTE node.
//! - Without memory for a merged node (or for the small nodes of one to be taken apart), the table
//!   stays as it is until another entry of that node fills (or empties). The paper is silent.

use super::{Density, Fractions, Layout, LayoutError, Organisation, Settings};
use crate::geometry::Geometry;

pub(super) const ORGANISATION: Organisation = Organisation { name: "compendia", layout };

fn layout(geometry: Geometry, settings: &Settings<'_>) -> Result<Layout, LayoutError> {
    settings.flatten_nothing("compendia")?;
    settings.hash_nothing("compendia")?;
    let Fractions { merge, unmerge } = settings.density.ok_or(LayoutError::NoDensity)?;
    if !(0.0..=1.0).contains(&merge) || merge == 0.0 || !(0.0..=merge).contains(&unmerge) {
        let (merge, unmerge) = (merge.to_string(), unmerge.to_string());
        return Err(LayoutError::Density { merge, unmerge });
    }
    // At most 2^13 entries, so the product is exact enough and fits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let slots = |share: f64| ((share * geometry.node_entries(1) as f64).ceil() as u32).max(1);
    let density = Density { merge_slots: slots(merge), unmerge_slots: slots(unmerge) };
    Ok(Layout { density: Some(density), ..Layout::with_groups(geometry, &[]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn density(geometry: Geometry, merge: f64, unmerge: f64) -> Result<Density, LayoutError> {
        let settings = Settings {
            density: Some(Fractions { merge, unmerge }),
            flatten: &[],
            ..Settings::default()
        };
        layout(geometry, &settings).map(|layout| layout.density.expect("it merges"))
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
        for (merge, unmerge) in
            [(0.0, 0.0), (1.1, 0.5), (0.1, 0.2), (0.5, -0.1), (f64::NAN, 0.0), (0.5, f64::NAN)]
        {
            let error = density(Geometry::X86_4, merge, unmerge);
            assert!(matches!(error, Err(LayoutError::Density { .. })), "{merge} {unmerge}");
        }
        assert_eq!(layout(Geometry::X86_4, &Settings::default()), Err(LayoutError::NoDensity));
    }
}
