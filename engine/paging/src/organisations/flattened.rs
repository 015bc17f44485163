//! Flattened page tables.
//!
//! Source: Park, Vougioukas, Sandberg, Black-Schaffer, "Every Walk's a Hit", ASPLOS 2022,
//! sections 3.2 to 3.6 and 6.1; the Linux design is in the 2025 FPT paper.
//!
//! Two (three) adjacent levels become one node of 2 MiB (1 GiB) indexed by 18 (27) address bits.
//! The entry that points to it carries the width, so any node may be conventional instead:
//! ```text
//!   root register ─► L4+L3 node, 2 MiB, VA[47:30] ─► L2+L1 node, 2 MiB, VA[29:12] ─► page
//!                                                 └► L2 node, 4 KiB, VA[29:21] ─► L1 node ─► page
//! ```
//! A 2 MiB page under an L2+L1 node is replicated in 512 entries with PS set (section 3.4).
//!
//! Departs from the paper: where three levels that end at level 2 or above are flattened, a 1 GiB
//! page in such a node is stored as 512 leaves of 2 MiB (the paper does not say).

use super::{Layout, LayoutError, Organisation, Settings};
use crate::geometry::{Geometry, Level, Width};

pub(super) const ORGANISATION: Organisation = Organisation { name: "flattened", layout };

fn layout(geometry: Geometry, settings: &Settings<'_>) -> Result<Layout, LayoutError> {
    settings.merge_nothing("flattened")?;
    settings.hash_nothing("flattened")?;
    if settings.flatten.is_empty() {
        return Err(LayoutError::NoGroups);
    }
    let mut taken = [false; 16];
    let mut groups = Vec::new();
    for name in settings.flatten {
        let (top, width) = parse(name)?;
        if top > geometry.levels() {
            return Err(LayoutError::BeyondRoot { group: name.clone(), levels: geometry.levels() });
        }
        if width > 3 {
            return Err(LayoutError::TooWide(name.clone()));
        }
        for level in top + 1 - width..=top {
            if std::mem::replace(&mut taken[usize::from(level)], true) {
                return Err(LayoutError::Overlap(level));
            }
        }
        groups.push((top, width));
    }
    Ok(Layout::with_groups(geometry, &groups))
}

/// `"L4L3"` → `(4, 2)`.
fn parse(name: &str) -> Result<(Level, Width), LayoutError> {
    let bad = || LayoutError::Group(name.to_owned());
    let mut levels = name.strip_prefix('L').ok_or_else(bad)?.split('L').map(str::parse::<Level>);
    let top = levels.next().ok_or_else(bad)?.map_err(|_| bad())?;
    let mut lowest = top;
    for level in levels {
        let level = level.map_err(|_| bad())?;
        if level == 0 || lowest.checked_sub(1) != Some(level) {
            return Err(bad());
        }
        lowest = level;
    }
    if lowest == top || top > 6 {
        return Err(bad());
    }
    Ok((top, top - lowest + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_and_checked() {
        let make = |geometry, groups: &[&str]| {
            let flatten: Vec<_> = groups.iter().map(|&g| g.to_owned()).collect();
            layout(geometry, &Settings { flatten: &flatten, ..Settings::default() })
        };
        let widths = |geometry, groups: &[&str]| make(geometry, groups).unwrap().groups();
        assert_eq!(widths(Geometry::X86_4, &["L4L3", "L2L1"]), [(4, 2), (2, 2)]);
        assert_eq!(widths(Geometry::X86_4, &["L3L2"]), [(4, 1), (3, 2), (1, 1)]);
        assert_eq!(widths(Geometry::X86_5, &["L5L4", "L3L2"]), [(5, 2), (3, 2), (1, 1)]);
        assert_eq!(widths(Geometry::X86_4, &["L4L3L2"]), [(4, 3), (1, 1)]);
        for bad in ["", "L4", "4L3", "L4L2", "L3L4", "L1L0", "L4L3L", "Lx", "L255L254"] {
            assert!(matches!(make(Geometry::X86_4, &[bad]), Err(LayoutError::Group(_))), "{bad}");
        }
        assert_eq!(make(Geometry::X86_4, &["L3L2", "L2L1"]), Err(LayoutError::Overlap(2)));
        assert!(matches!(
            make(Geometry::X86_4, &["L5L4"]),
            Err(LayoutError::BeyondRoot { levels: 4, .. })
        ));
        assert!(matches!(make(Geometry::X86_4, &["L4L3L2L1"]), Err(LayoutError::TooWide(_))));
        assert_eq!(make(Geometry::X86_4, &[]), Err(LayoutError::NoGroups));
    }
}
