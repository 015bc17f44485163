//! What the tests of several files need.

use flatwalk_paging::{Geometry, Layout, Level, TreeShape, Width};

/// A tree whose levels are flattened as `flatten` says, such as `L4L3`.
pub(crate) fn layout(geometry: Geometry, flatten: &[&str]) -> Layout {
    let group = |group: &&str| -> (Level, Width) {
        let top = group[1..2].parse().unwrap();
        (top, group.matches('L').count() as Width)
    };
    let groups: Vec<_> = flatten.iter().map(group).collect();
    Layout::tree(geometry, TreeShape::with_groups(&groups))
}
