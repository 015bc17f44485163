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
//! Parameters: `flatten`, the groups of levels; `no_flatten_threshold`, large pages in the region of a lowest
//! flattened node from which on it is not flattened down to level 1 (the NF rule of section 3.4, whose
//! threshold in the paper is 32).
//!
//! Departs from the paper: in a node that holds levels 3 and 2, and ends there, a 1 GiB page is stored as
//! 512 leaves of 2 MiB (the paper does not say).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::NewLayout;
use crate::error::LayoutError;
use crate::geometry::{Geometry, Level, Width};
use crate::layout::{Layout, TreeShape};

/// Parameters of flattened page tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Groups of adjacent levels to flatten, such as `"L4L3"`.
    pub flatten: Vec<String>,
    /// Large pages in the region of a lowest flattened node (1 GiB with L2L1) from which on it is not
    /// flattened down to level 1. 0: it always is.
    #[serde(default)]
    pub no_flatten_threshold: u32,
}

impl NewLayout for Parameters {
    const NAME: &str = "flattened";

    fn layout(self, geometry: Geometry) -> Result<Layout, LayoutError> {
        if self.flatten.is_empty() {
            return Err(wrong("is empty: name groups, for example [\"L4L3\", \"L2L1\"]"));
        }
        let levels = geometry.levels();
        let mut taken = [false; 16];
        let mut groups = Vec::new();
        for name in &self.flatten {
            let (top, width) = parse(name)?;
            if top > levels {
                return Err(wrong(format!(
                    "has `{name}`, which needs more levels than the {levels} that the table has"
                )));
            }
            if width > 3 {
                return Err(wrong(format!(
                    "has `{name}`, which spans more than three levels: nodes are at most 1 GiB"
                )));
            }
            for level in top + 1 - width..=top {
                if std::mem::replace(&mut taken[usize::from(level)], true) {
                    return Err(wrong(format!("has L{level} in two groups")));
                }
            }
            groups.push((top, width));
        }
        let no_flatten_threshold = self.no_flatten_threshold;
        let shape = TreeShape { no_flatten_threshold, ..TreeShape::with_groups(&groups) };
        Ok(Layout::tree(geometry, shape))
    }

    fn examples() -> Vec<Value> {
        vec![json!({ "flatten": ["L2L1"], "no_flatten_threshold": 32 })]
    }
}

/// `"L4L3"` → `(4, 2)`.
fn parse(name: &str) -> Result<(Level, Width), LayoutError> {
    let bad = || {
        wrong(format!(
            "has `{name}`, which is not adjacent levels; write the levels from the root down, for example \
             \"L2L1\" or \"L4L3L2\""
        ))
    };
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

/// What is wrong with `flatten`.
fn wrong(problem: impl Into<String>) -> LayoutError {
    LayoutError::value(Parameters::NAME, "flatten", problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_and_checked() {
        let make = |geometry, groups: &[&str]| {
            let flatten = groups.iter().map(|&g| g.to_owned()).collect();
            Parameters { flatten, no_flatten_threshold: 0 }.layout(geometry)
        };
        let widths = |geometry, groups: &[&str]| make(geometry, groups).unwrap().groups();
        assert_eq!(widths(Geometry::X86_4, &["L4L3", "L2L1"]), [(4, 2), (2, 2)]);
        assert_eq!(widths(Geometry::X86_4, &["L3L2"]), [(4, 1), (3, 2), (1, 1)]);
        assert_eq!(widths(Geometry::X86_5, &["L5L4", "L3L2"]), [(5, 2), (3, 2), (1, 1)]);
        assert_eq!(widths(Geometry::X86_4, &["L4L3L2"]), [(4, 3), (1, 1)]);
        let refused = |geometry, groups: &[&str], why: &str| {
            let error = make(geometry, groups).unwrap_err();
            assert_eq!(error.key(), Some("flatten"));
            assert!(error.to_string().contains(why), "{error}");
        };
        for bad in ["", "L4", "4L3", "L4L2", "L3L4", "L1L0", "L4L3L", "Lx", "L255L254"] {
            refused(Geometry::X86_4, &[bad], "not adjacent levels");
        }
        refused(Geometry::X86_4, &["L3L2", "L2L1"], "L2 in two groups");
        refused(Geometry::X86_4, &["L5L4"], "the 4 that the table has");
        refused(Geometry::X86_4, &["L4L3L2L1"], "more than three levels");
        refused(Geometry::X86_4, &[], "is empty");
    }
}
