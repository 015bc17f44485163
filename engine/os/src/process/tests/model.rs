//! A model of a process, page by page.

use std::collections::BTreeMap;

use flatwalk_paging::EntryMemory;

use super::*;
use crate::process::rights::HEAP;
use crate::vma::Attributes;

/// What each page is and holds, page by page.
#[derive(Default)]
pub(super) struct Model {
    pub(super) areas: BTreeMap<u64, Attributes>,
    /// A word written to each page that was touched since it last became new.
    pub(super) contents: BTreeMap<u64, u64>,
}

pub(super) fn pages_in(address: u64, length: u64) -> Pages {
    address / PAGE..(address + length).div_ceil(PAGE).max(address / PAGE)
}

impl Model {
    pub(super) fn discard(&mut self, pages: &Pages) {
        self.contents.retain(|page, _| !pages.contains(page));
    }

    pub(super) fn unmap(&mut self, pages: &Pages) {
        self.areas.retain(|page, _| !pages.contains(page));
        self.discard(pages);
    }

    pub(super) fn cover(&mut self, pages: Pages) {
        for page in pages {
            if !self.areas.contains_key(&page) {
                let region = page & !511..(page & !511) + 512;
                region.for_each(|page| {
                    self.areas.entry(page).or_insert(Attributes::IMPLICIT);
                });
            }
        }
    }

    /// True if a trace could contain the access: other rights than the areas' have their own test.
    pub(super) fn allows(&self, pages: &Pages, access: AccessKind) -> bool {
        self.areas.range(pages.clone()).all(|(_, area)| permits(rights(area.protection), access))
    }

    pub(super) fn apply(&mut self, event: &Event) {
        match *event {
            Event::Map { address, length, protection, backing, shared } => {
                let pages = pages_in(address, length);
                self.unmap(&pages);
                let attributes =
                    Attributes { protection, backing, shared, huge: None, implicit: false };
                self.areas.extend(pages.map(|page| (page, attributes)));
            }
            Event::Unmap { address, length } => self.unmap(&pages_in(address, length)),
            Event::Protect { address, length, protection } => self
                .areas
                .range_mut(pages_in(address, length))
                .for_each(|(_, area)| area.protection = protection),
            Event::Advise { address, length, advice } => {
                let pages = pages_in(address, length);
                match advice {
                    Advice::HugePage | Advice::NoHugePage => self
                        .areas
                        .range_mut(pages)
                        .for_each(|(_, area)| area.huge = Some(advice == Advice::HugePage)),
                    Advice::DontNeed => self.discard(&pages),
                    Advice::Populate => {}
                }
            }
            Event::Break { from, to } => {
                if to >= from {
                    for page in from.div_ceil(PAGE)..to.div_ceil(PAGE) {
                        self.areas.entry(page).or_insert(HEAP);
                    }
                } else {
                    self.unmap(&(to.div_ceil(PAGE)..from.div_ceil(PAGE)));
                }
            }
            Event::Remap { from, from_length, to, to_length } => {
                let (from, to) = (pages_in(from, from_length), pages_in(to, to_length));
                let last = from.end.max(from.start + 1) - 1;
                let tail = self.areas.get(&last).copied().unwrap_or(Attributes::IMPLICIT);
                let old: Vec<_> = from
                    .map(|page| (self.areas.remove(&page), self.contents.remove(&page)))
                    .collect();
                self.unmap(&to);
                for (i, page) in to.enumerate() {
                    let (area, content) = old.get(i).copied().unwrap_or((Some(tail), None));
                    self.areas.extend(area.map(|area| (page, area)));
                    self.contents.extend(content.map(|content| (page, content)));
                }
            }
            // What it maps outside every area depends on large pages: see the test.
            Event::Populate { .. }
            | Event::ThreadStart { .. }
            | Event::ThreadExit { .. }
            | Event::Wake { .. }
            | Event::Woken { .. }
            | Event::Marker { .. }
            | Event::Root { .. }
            | Event::Entry { .. }
            | Event::Gap { .. }
            | Event::Name { .. } => {}
        }
    }

    /// Panics if the process differs.
    pub(super) fn check(&self, process: &Process, total_frames: u64) {
        let mut mapped = BTreeMap::new();
        let mut data_frames = 0;
        for mapping in mappings(process) {
            let pages = process.pages_of(&mapping);
            data_frames += pages.end - pages.start;
            for (page, frame) in pages.clone().enumerate_frames(mapping.frame) {
                assert!(mapped.insert(page, frame).is_none());
                let leaf =
                    process.table.translate(process.memory(), Gva::new(page * PAGE)).unwrap();
                assert_eq!(leaf.level, mapping.level);
                assert_eq!(leaf.rights, mapping.attributes.rights);
                let content = process.memory().read(Hpa::new(frame + 8));
                assert_eq!(
                    content,
                    self.contents.get(&page).copied().unwrap_or(0),
                    "page {page:#x}"
                );
            }
            let areas: Vec<_> = pages.clone().filter_map(|page| self.areas.get(&page)).collect();
            assert!(!areas.is_empty(), "page {:#x} is in no area", pages.start);
            let mut expected = rights(areas[0].protection);
            if mapping.level > 1 {
                let allowed: Vec<_> = areas.iter().map(|area| rights(area.protection)).collect();
                expected = allowed.iter().copied().find(|rights| rights.user).unwrap_or(expected);
                assert!(allowed.iter().all(|rights| !rights.user || *rights == expected));
                if let LargePages::Transparent(_) = process.policy.large_pages {
                    assert_eq!(areas.len(), 512, "a large page reaches beyond its areas");
                }
            }
            assert_eq!(mapping.attributes.rights, expected, "page {:#x}", pages.start);
        }
        let mut frames: Vec<_> = mapped.values().collect();
        frames.sort_unstable();
        assert!(frames.windows(2).all(|pair| pair[0] != pair[1]), "a frame is mapped twice");
        for page in self.contents.keys() {
            assert!(mapped.contains_key(page), "page {page:#x} is lost");
        }
        assert_eq!(process.data_bytes(), data_frames * PAGE);
        let tables = process.page_table_bytes() / PAGE;
        assert_eq!(
            process.frames().free_frames() + data_frames + tables,
            total_frames,
            "frames leak"
        );
        // The areas agree too.
        for (page, area) in &self.areas {
            assert_eq!(process.areas().find(*page).map(|vma| vma.attributes), Some(*area));
        }
        for hole in process.areas().intersecting(0..1 << 52).map(|vma| vma.pages) {
            assert!(hole.clone().all(|page| self.areas.contains_key(&page)), "{hole:?}");
        }
    }
}
