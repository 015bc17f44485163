//! Policies: which memory large pages back, and where which levels of the page table are flattened.

use flatwalk_paging::{Density, Geometry, Layout, Level, Shape, Width};
use flatwalk_trace::{Backing, Protection};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::OsError;
use crate::vma::{AddressSpace, Attributes, Pages};

/// When transparent huge pages are used (`/sys/kernel/mm/transparent_hugepage/enabled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Thp {
    /// Wherever possible, except after `MADV_NOHUGEPAGE`.
    Always,
    /// After `MADV_HUGEPAGE` only.
    Madvise,
    /// Never.
    Never,
}

/// Which 2 MiB regions (the span of a level-2 entry, in any geometry) a large page backs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LargePages {
    /// The scenarios of Park et al. (ASPLOS 2022, section 7): all regions below `boundary`, none
    /// above. It is an ideal: a region has a large page if **all areas in it agree in their
    /// protection** (at least one area; areas without any rights do not count), whatever backs
    /// them, and even where they end within the region. The page stays while that holds, whatever
    /// is unmapped, remapped or discarded in parts of the region. Where pages moved, or got other
    /// rights, it comes back, too, if memory has a block, at no cost: the scenario says what is
    /// there, not how it came about. Make it with [`LargePages::share`].
    Below {
        /// First address that gets no large page, in bytes; a multiple of 2 MiB.
        boundary: u64,
    },
    /// What Linux does: a region has a large page if it lies within one area that is private and
    /// anonymous (heap and stack included), as the setting and `madvise` allow. The page is split as
    /// soon as a part of it is unmapped or discarded, or gets other rights.
    Transparent(Thp),
}

impl LargePages {
    /// Large pages in `percent` of the regions that `touched` (ranges of bytes, ascending, as
    /// [`flatwalk_trace::SourceInfo`] has them) covers: the lowest ones.
    ///
    /// # Errors
    /// [`OsError::Setting`] for more than 100 %, [`OsError::NoTouchedRanges`] when the boundary is
    /// asked for and `touched` is empty.
    pub fn share(percent: u8, touched: &[(u64, u64)], geometry: Geometry) -> Result<Self, OsError> {
        let boundary = match percent {
            0 => 0,
            100 => u64::MAX,
            1..100 => {
                let region = geometry.shift(2);
                let mut next = 0;
                let mut regions = Vec::new();
                for &(start, end) in touched.iter().filter(|(start, end)| start < end) {
                    let first = (start >> region).max(next);
                    next = (((end - 1) >> region) + 1).max(next);
                    regions.push(first..next);
                }
                let total: u64 = regions.iter().map(|r| r.end - r.start).sum();
                if total == 0 {
                    return Err(OsError::NoTouchedRanges { percent });
                }
                let mut left = (u128::from(total) * u128::from(percent) / 100) as u64;
                let mut boundary = 0;
                for range in regions {
                    boundary = range.start + left.min(range.end - range.start);
                    if left <= range.end - range.start {
                        break;
                    }
                    left -= range.end - range.start;
                }
                boundary << region
            }
            _ => {
                return Err(OsError::Setting {
                    setting: "large_pages",
                    value: percent.to_string(),
                    allowed: "a percentage, 0 to 100",
                });
            }
        };
        Ok(Self::Below { boundary })
    }
}

/// All decisions together.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) layout: Layout,
    pub(crate) large_pages: LargePages,
    /// Ranges of bytes that the program touches, ascending; none if that is not known.
    touched: Vec<(u64, u64)>,
    /// Topmost level and width of the flattened nodes that reach down to level 1, if there are any
    /// and the rule is on.
    pub(crate) guarded_nodes: Option<(Level, Width)>,
}

impl Policy {
    pub(crate) fn new(layout: Layout, large_pages: LargePages, touched: Vec<(u64, u64)>) -> Self {
        let lowest = layout.groups().pop();
        let guarded = |&(_, width): &(Level, Width)| layout.no_flatten_threshold() > 0 && width > 1;
        let guarded_nodes = lowest.filter(guarded);
        Self { layout, large_pages, touched, guarded_nodes }
    }

    fn geometry(&self) -> Geometry {
        self.layout.geometry()
    }

    /// If a large page should back the pages of `region` now: its protection.
    pub(crate) fn large(&self, areas: &AddressSpace, region: &Pages) -> Option<Protection> {
        match self.large_pages {
            LargePages::Below { boundary } => {
                if region.start >= boundary >> self.geometry().page_shift() {
                    return None;
                }
                areas.protection(region).filter(|protection| protection.is_accessible())
            }
            LargePages::Transparent(Thp::Never) => None,
            LargePages::Transparent(thp) => {
                let vma = areas.find(region.start)?;
                let Attributes { backing, shared, huge, protection, .. } = vma.attributes;
                let wanted = huge.unwrap_or(thp == Thp::Always);
                let suits = vma.pages.end >= region.end && backing != Backing::File && !shared;
                (wanted && suits).then_some(protection)
            }
        }
    }

    /// If the large page in `region` may stay after its areas changed, or after a part of it was
    /// discarded: the protection that it has now.
    pub(crate) fn keeps_large(
        &self,
        areas: &AddressSpace,
        region: &Pages,
        partly_discarded: bool,
    ) -> Option<Protection> {
        match self.large_pages {
            LargePages::Below { .. } => areas.protection(region),
            LargePages::Transparent(_) => {
                if partly_discarded || !areas.holes(region.clone()).is_empty() {
                    return None;
                }
                let mut protections =
                    areas.intersecting(region.clone()).map(|vma| vma.attributes.protection);
                let first = protections.next()?;
                protections.all(|protection| protection == first).then_some(first)
            }
        }
    }

    /// True unless it is known that the program touches nothing in `region`.
    fn may_be_touched(&self, region: &Pages) -> bool {
        let shift = self.geometry().page_shift();
        let next = self.touched.partition_point(|&(_, end)| end <= region.start << shift);
        self.touched.is_empty()
            || self.touched.get(next).is_some_and(|&(start, _)| start >> shift < region.end)
    }

    /// True if `region` will have so many large pages that it must not be flattened down to
    /// level 1: `there` are now, and others may come where it `is_empty`, while memory has `blocks`
    /// for them.
    pub(crate) fn will_be_mostly_large(
        &self,
        areas: &AddressSpace,
        region: &Pages,
        (there, blocks): (u32, u64),
        is_empty: impl Fn(&Pages) -> bool,
    ) -> bool {
        let missing = self.layout.no_flatten_threshold().saturating_sub(there);
        if missing == 0 || u64::from(missing) > blocks {
            return missing == 0;
        }
        let per_large = 1_u64 << self.geometry().index_bits();
        let mut expected = 0;
        let mut next = region.start;
        for vma in areas.intersecting(region.clone()) {
            let first = (vma.pages.start & !(per_large - 1)).max(next);
            let end = vma.pages.end.min(region.end);
            for start in (first..end).step_by(per_large as usize) {
                let part = start..start + per_large;
                let may_come = self.large(areas, &part).is_some()
                    && self.may_be_touched(&part)
                    && is_empty(&part);
                expected += u32::from(may_come);
                if expected >= missing {
                    return true;
                }
                next = start + per_large;
            }
        }
        false
    }
}

/// The shape of new nodes: the layout's, less the lowest level where large pages are expected.
///
/// The decision must be made before the pages are there, so it asks which large pages the policy
/// *would* give to the areas that are mapped now, where the program will touch them and memory has blocks. If
/// there are more in the end, the process splits the node then; if there are fewer, it widens it.
pub(crate) struct PolicyShape<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) areas: &'a AddressSpace,
    /// Blocks for large pages, that of a page which the node is made for included.
    pub(crate) blocks: u64,
}

impl Shape for PolicyShape<'_> {
    fn width(&self, level: Level, address: u64) -> Width {
        let width = self.policy.layout.width(level, address);
        if self.policy.guarded_nodes != Some((level, width)) {
            return width;
        }
        let geometry = self.policy.geometry();
        let pages_shift = geometry.shift(level + 1) - geometry.page_shift();
        let start = address >> geometry.page_shift() >> pages_shift << pages_shift;
        let region = start..start + (1 << pages_shift);
        let so_far = (0, self.blocks);
        width - Width::from(self.policy.will_be_mostly_large(self.areas, &region, so_far, |_| true))
    }

    fn density(&self) -> Option<Density> {
        self.policy.layout.density()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn boundary(percent: u8, touched: &[(u64, u64)]) -> u64 {
        match LargePages::share(percent, touched, Geometry::X86_4) {
            Ok(LargePages::Below { boundary }) => boundary,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_boundary_halves_the_touched_regions_not_the_address_space() {
        let touched = [(4 * MIB, 8 * MIB), (1 << 40, (1 << 40) + 12 * MIB)];
        assert_eq!(boundary(0, &touched), 0);
        assert_eq!(boundary(25, &touched), 8 * MIB);
        assert_eq!(boundary(50, &touched), (1 << 40) + 4 * MIB);
        assert_eq!(boundary(99, &touched), (1 << 40) + 10 * MIB);
        assert_eq!(boundary(100, &touched), u64::MAX);
        // Ranges that share a region, or overlap, count it once.
        assert_eq!(boundary(50, &[(0, 100), (200, 4 * MIB), (MIB, 3 * MIB)]), 2 * MIB);
    }

    #[test]
    fn an_unknown_footprint_and_an_impossible_share_are_errors() {
        for touched in [&[][..], &[(5, 5)]] {
            let error = LargePages::share(50, touched, Geometry::X86_4);
            assert!(matches!(error, Err(OsError::NoTouchedRanges { percent: 50 })));
            assert!(LargePages::share(100, touched, Geometry::X86_4).is_ok());
        }
        assert!(matches!(
            LargePages::share(101, &[], Geometry::X86_4),
            Err(OsError::Setting { .. })
        ));
    }
}
