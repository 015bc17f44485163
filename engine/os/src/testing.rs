//! What the tests of several files need.

use flatwalk_paging::{Geometry, Layout, organisations};

/// A radix table, flattened as `flatten` says.
pub(crate) fn layout(geometry: Geometry, flatten: &[&str]) -> Layout {
    let organisation = if flatten.is_empty() { "radix" } else { "flattened" };
    let flatten: Vec<_> = flatten.iter().map(|&group| group.to_owned()).collect();
    let settings = organisations::Settings { flatten: &flatten, ..Default::default() };
    (organisations::find(organisation).unwrap().layout)(geometry, &settings).unwrap()
}
