//! A process's virtual memory areas (VMAs): what is mapped where, before any page is touched.
//!
//! Areas are kept in page numbers (VPNs), so that even the last page of the address space has an end.
//! Neighbours with equal attributes are one area, as in Linux, which matters to the large-page policy:
//! a large page must lie within one.

use std::collections::BTreeMap;
use std::ops::Range;

use flatwalk_trace::{Backing, Protection};

/// Page numbers from `start` up to, not including, `end`.
pub type Pages = Range<u64>;

/// What an area is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The rights that the program asked for.
    pub protection: Protection,
    /// What fills its pages.
    pub backing: Backing,
    /// Shared with other processes or with the file.
    pub shared: bool,
    /// `Some(true)` after `MADV_HUGEPAGE`, `Some(false)` after `MADV_NOHUGEPAGE`.
    pub huge: Option<bool>,
    /// No event mapped it: the trace accessed memory that was not mapped.
    pub implicit: bool,
}

impl Attributes {
    /// The attributes of memory that a trace accesses without having mapped it: anonymous, all rights.
    pub const IMPLICIT: Self = Self {
        protection: Protection { read: true, write: true, execute: true },
        backing: Backing::Anonymous,
        shared: false,
        huge: None,
        implicit: true,
    };
}

/// One area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vma {
    /// Its pages.
    pub pages: Pages,
    /// What it is.
    pub attributes: Attributes,
}

/// All areas of a process; none overlap.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    /// By first page: the end and the attributes.
    areas: BTreeMap<u64, (u64, Attributes)>,
}

impl AddressSpace {
    /// The area that contains `page`.
    pub fn find(&self, page: u64) -> Option<Vma> {
        let (&start, &(end, attributes)) = self.areas.range(..=page).next_back()?;
        (page < end).then_some(Vma { pages: start..end, attributes })
    }

    /// The areas that share a page with `pages`, whole, in ascending order.
    pub fn intersecting(&self, pages: Pages) -> impl Iterator<Item = Vma> + '_ {
        let before =
            self.areas.range(..pages.start).next_back().filter(|(_, (end, _))| *end > pages.start);
        let inside = self.areas.range(pages.start..pages.end.max(pages.start));
        before
            .into_iter()
            .filter(move |_| !pages.is_empty())
            .chain(inside)
            .map(|(&start, &(end, attributes))| Vma { pages: start..end, attributes })
    }

    /// The parts of `pages` that are in no area, in ascending order.
    pub fn holes(&self, pages: Pages) -> Vec<Pages> {
        let mut holes = Vec::new();
        let mut at = pages.start;
        for vma in self.intersecting(pages.clone()) {
            if vma.pages.start > at {
                holes.push(at..vma.pages.start);
            }
            at = vma.pages.end;
        }
        if at < pages.end {
            holes.push(at..pages.end);
        }
        holes
    }

    /// The protection that all areas in `pages` share; areas without any rights do not count if there
    /// are others. `None` if they differ or there are no areas.
    pub fn protection(&self, pages: &Pages) -> Option<Protection> {
        let mut common: Option<Protection> = None;
        for vma in self.intersecting(pages.clone()) {
            let protection = vma.attributes.protection;
            match common {
                Some(known) if known == protection || !protection.is_accessible() => {}
                Some(known) if known.is_accessible() => return None,
                _ => common = Some(protection),
            }
        }
        common
    }

    /// Maps `pages` in place of what was there.
    pub fn map(&mut self, pages: Pages, attributes: Attributes) {
        self.unmap(pages.clone());
        self.insert(pages, attributes);
    }

    /// Removes what is mapped in `pages`.
    pub fn unmap(&mut self, pages: Pages) {
        drop(self.take(pages));
    }

    /// Changes the attributes of all areas within `pages`, splitting those that reach beyond.
    pub fn update(&mut self, pages: Pages, change: impl Fn(&mut Attributes)) {
        for mut vma in self.take(pages) {
            change(&mut vma.attributes);
            self.insert(vma.pages, vma.attributes);
        }
    }

    /// Moves what is mapped in `from` to `to`, in place of what was there; where `to` is longer, its
    /// rest continues the last area moved, where it is shorter, the rest of `from` is unmapped. An
    /// empty `from` duplicates the area that it starts in (Linux does so for shared memory). Where
    /// nothing is mapped at all, the memory is taken to be [`Attributes::IMPLICIT`].
    pub fn remap(&mut self, from: Pages, to: Pages) {
        let last = match from.end.checked_sub(1) {
            Some(last) if !from.is_empty() => self.find(last),
            _ => self.find(from.start),
        };
        let tail = last.map_or(Attributes::IMPLICIT, |vma| vma.attributes);
        let moved = self.take(from.clone());
        self.unmap(to.clone());
        for vma in moved {
            let start = to.start.saturating_add(vma.pages.start - from.start).min(to.end);
            let end = to.start.saturating_add(vma.pages.end - from.start).min(to.end);
            self.insert(start..end, vma.attributes);
        }
        self.insert(
            to.start.saturating_add(from.end.saturating_sub(from.start)).min(to.end)..to.end,
            tail,
        );
    }

    /// Removes `pages` and returns what was there, cut to `pages`.
    fn take(&mut self, pages: Pages) -> Vec<Vma> {
        let mut taken: Vec<_> = self.intersecting(pages.clone()).collect();
        for vma in &mut taken {
            let whole = vma.pages.clone();
            self.areas.remove(&whole.start);
            if whole.start < pages.start {
                self.areas.insert(whole.start, (pages.start, vma.attributes));
                vma.pages.start = pages.start;
            }
            if whole.end > pages.end {
                self.areas.insert(pages.end, (whole.end, vma.attributes));
                vma.pages.end = pages.end;
            }
        }
        taken
    }

    /// Adds an area where there is none, and joins it with equal neighbours.
    fn insert(&mut self, mut pages: Pages, attributes: Attributes) {
        if pages.is_empty() {
            return;
        }
        if let Some((&start, &(end, before))) = self.areas.range(..pages.start).next_back()
            && end == pages.start
            && before == attributes
        {
            pages.start = start;
        }
        if let Some(&(end, after)) = self.areas.get(&pages.end)
            && after == attributes
        {
            self.areas.remove(&pages.end);
            pages.end = end;
        }
        self.areas.insert(pages.start, (pages.end, attributes));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// One of a few attributes, by which the tests distinguish what was mapped.
    fn attributes(kind: u8) -> Attributes {
        Attributes {
            protection: Protection { read: true, write: kind & 1 != 0, execute: kind & 2 != 0 },
            implicit: false,
            ..Attributes::IMPLICIT
        }
    }

    /// What every page is, page by page.
    fn pages(space: &AddressSpace) -> BTreeMap<u64, Attributes> {
        let mut pages = BTreeMap::new();
        for (&start, &(end, attributes)) in &space.areas {
            for page in start..end {
                assert!(pages.insert(page, attributes).is_none(), "areas overlap at {page}");
            }
        }
        pages
    }

    #[test]
    fn equal_neighbours_become_one_and_a_hole_splits() {
        let mut space = AddressSpace::default();
        space.map(0..10, attributes(1));
        space.map(20..30, attributes(1));
        space.map(10..20, attributes(1));
        assert_eq!(space.find(29).unwrap().pages, 0..30);
        space.unmap(12..13);
        assert_eq!(space.find(11).unwrap().pages, 0..12);
        assert_eq!(space.find(12), None);
        assert_eq!(space.find(13).unwrap().pages, 13..30);
        space.update(20..40, |a| a.protection.write = false);
        assert_eq!(space.find(19).unwrap().pages, 13..20);
        assert!(!space.find(20).unwrap().attributes.protection.write);
    }

    #[test]
    fn areas_without_rights_have_no_say_in_the_common_protection() {
        let mut space = AddressSpace::default();
        assert_eq!(space.protection(&(0..10)), None);
        let none = Protection { read: false, write: false, execute: false };
        space.map(0..10, Attributes { protection: none, ..attributes(0) });
        assert_eq!(space.protection(&(0..10)), Some(none));
        space.map(4..6, attributes(1));
        assert_eq!(space.protection(&(0..10)), Some(attributes(1).protection));
        assert_eq!(space.protection(&(0..4)), Some(none));
        space.map(7..8, attributes(2));
        assert_eq!(space.protection(&(0..10)), None);
    }

    #[test]
    fn the_last_page_of_the_address_space_can_be_mapped() {
        let mut space = AddressSpace::default();
        let last = u64::MAX >> 12;
        space.map(last..last + 1, attributes(1));
        assert!(space.find(last).is_some());
    }

    #[derive(Clone, Debug)]
    enum Operation {
        Map(Pages, u8),
        Unmap(Pages),
        Update(Pages),
        Remap(Pages, Pages),
    }

    fn range() -> impl Strategy<Value = Pages> {
        (0_u64..60, 0_u64..20).prop_map(|(start, length)| start..start + length)
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            3 => (range(), 0_u8..4).prop_map(|(pages, kind)| Operation::Map(pages, kind)),
            2 => range().prop_map(Operation::Unmap),
            2 => range().prop_map(Operation::Update),
            2 => (range(), range()).prop_map(|(from, to)| Operation::Remap(from, to)),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_map_of_pages(operations in prop::collection::vec(operation(), 1..60)) {
            let mut space = AddressSpace::default();
            let mut model: BTreeMap<u64, Attributes> = BTreeMap::new();
            for operation in operations {
                match operation.clone() {
                    Operation::Map(pages, kind) => {
                        space.map(pages.clone(), attributes(kind));
                        model.extend(pages.map(|page| (page, attributes(kind))));
                    }
                    Operation::Unmap(pages) => {
                        space.unmap(pages.clone());
                        model.retain(|page, _| !pages.contains(page));
                    }
                    Operation::Update(pages) => {
                        space.update(pages.clone(), |a| a.huge = Some(true));
                        model.range_mut(pages).for_each(|(_, a)| a.huge = Some(true));
                    }
                    Operation::Remap(from, to) => {
                        space.remap(from.clone(), to.clone());
                        let template = from.end.max(from.start + 1) - 1;
                        let tail = model.get(&template).copied().unwrap_or(Attributes::IMPLICIT);
                        let old: Vec<_> = from.clone().map(|page| model.remove(&page)).collect();
                        model.retain(|page, _| !to.contains(page));
                        for (i, page) in to.enumerate() {
                            if let Some(attributes) = old.get(i).copied().unwrap_or(Some(tail)) {
                                model.insert(page, attributes);
                            }
                        }
                    }
                }
                prop_assert_eq!(&pages(&space), &model, "after {:?}", operation);
                // No two equal neighbours remain apart.
                for &(end, attributes) in space.areas.values() {
                    prop_assert!(space.areas.get(&end).is_none_or(|&(_, next)| next != attributes));
                }
                for window in [0..80, 5..5, 17..33] {
                    let holes: Vec<_> = space.holes(window.clone()).into_iter().flatten().collect();
                    let expected: Vec<_> = window.filter(|page| !model.contains_key(page)).collect();
                    prop_assert_eq!(holes, expected);
                }
            }
        }
    }
}
