//! Words that results and explanations share.

use flatwalk_paging::{Geometry, Level};

/// A number of things: `1 walk`, `20 walks`.
pub(super) fn several(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// The size of a page that is a leaf of `level`, such as 4K.
pub(super) fn page_size(geometry: Geometry, level: Level) -> String {
    let shift = geometry.shift(level);
    let (unit, name) = [(30, "G"), (20, "M"), (10, "K")]
        .into_iter()
        .find(|&(unit, _)| shift >= unit)
        .unwrap_or((0, ""));
    format!("{}{name}", 1_u64 << (shift - unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_their_own_sizes() {
        let ia64 = Geometry::new(14, 11, 4).unwrap();
        assert_eq!([1, 2, 3].map(|level| page_size(ia64, level)), ["16K", "32M", "64G"]);
        assert_eq!([1, 2, 3].map(|level| page_size(Geometry::X86_4, level)), ["4K", "2M", "1G"]);
    }
}
