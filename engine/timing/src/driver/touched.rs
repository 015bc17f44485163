//! Which pages a program touches in a part of a trace that is passed over.

use std::collections::HashMap;

use flatwalk_trace::{Advice, Event};
use rustc_hash::FxBuildHasher;

use crate::memory::line::{PAGE_BYTES, PAGE_SHIFT};

/// Pages of a region: one bit each in eight words.
const REGION_SHIFT: u32 = 9;
const REGION_PAGES: u64 = 1 << REGION_SHIFT;
/// Pages remembered as touched, each at its number's place modulo theirs.
const RECENT: usize = 256;

/// Pages in memory, as far as is known here.
#[derive(Debug)]
pub(crate) struct Touched {
    regions: HashMap<u64, [u64; 8], FxBuildHasher>,
    recent: [u64; RECENT],
    /// Touched for the first time since they were last taken, in order, neighbours joined.
    fresh: Vec<Event>,
}

impl Default for Touched {
    fn default() -> Self {
        Self { regions: HashMap::default(), recent: [u64::MAX; RECENT], fresh: Vec::new() }
    }
}

impl Touched {
    /// `address` is accessed.
    #[inline]
    pub(crate) fn touch(&mut self, address: u64, store: bool) {
        let page = address >> PAGE_SHIFT;
        let recent = &mut self.recent[page as usize % RECENT];
        if *recent != page {
            *recent = page;
            self.touch_page(page, store);
        }
    }

    /// All from `address` to `last` is accessed.
    #[inline]
    pub(crate) fn access(&mut self, address: u64, last: u64, store: bool) {
        self.touch(address, store);
        let mut at = address;
        while at >> PAGE_SHIFT != last >> PAGE_SHIFT {
            at = (at >> PAGE_SHIFT).wrapping_add(1) << PAGE_SHIFT;
            self.touch(at, store);
        }
    }

    fn touch_page(&mut self, page: u64, store: bool) {
        let words = self.regions.entry(page >> REGION_SHIFT).or_default();
        let within = page % REGION_PAGES;
        let (word, bit) = (&mut words[within as usize / 64], 1 << (within % 64));
        if *word & bit != 0 {
            return;
        }
        *word |= bit;
        let at = page << PAGE_SHIFT;
        if let Some(Event::Populate { address, length, store: how }) = self.fresh.last_mut()
            && address.wrapping_add(*length) == at
            && *how == store
        {
            *length += PAGE_BYTES;
            return;
        }
        self.fresh.push(Event::Populate { address: at, length: PAGE_BYTES, store });
    }

    /// What was touched for the first time since this was last asked for.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Event> {
        self.fresh.drain(..)
    }

    /// Pages that an event takes out of memory are new when they are next touched.
    pub(crate) fn apply(&mut self, event: &Event) {
        match *event {
            Event::Map { address, length, .. }
            | Event::Unmap { address, length }
            | Event::Advise { address, length, advice: Advice::DontNeed } => {
                self.forget(address, length);
            }
            Event::Remap { from, from_length, to, to_length } => {
                self.forget(from, from_length);
                self.forget(to, to_length);
            }
            Event::Break { from, to } if to < from => self.forget(to, from - to),
            _ => {}
        }
    }

    /// Pages of whole regions are forgotten: a process's pages may be larger than these, and which
    /// of them were in memory all the same, runs know.
    fn forget(&mut self, address: u64, length: u64) {
        self.recent = [u64::MAX; RECENT];
        let end = address.saturating_add(length).div_ceil(PAGE_BYTES).div_ceil(REGION_PAGES);
        let regions = address >> PAGE_SHIFT >> REGION_SHIFT..end;
        if regions.end.saturating_sub(regions.start) > self.regions.len() as u64 {
            self.regions.retain(|region, _| !regions.contains(region));
        } else {
            regions.for_each(|region| {
                self.regions.remove(&region);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn populate(page: u64, pages: u64, store: bool) -> Event {
        Event::Populate { address: page * PAGE_BYTES, length: pages * PAGE_BYTES, store }
    }

    #[test]
    fn pages_come_in_the_order_of_their_first_touch() {
        let mut touched = Touched::default();
        for page in [7, 3, 4, 5, 7, 3] {
            touched.touch(page * PAGE_BYTES + 123, false);
        }
        touched.touch(6 * PAGE_BYTES, true);
        let fresh: Vec<_> = touched.take().collect();
        assert_eq!(fresh, [populate(7, 1, false), populate(3, 3, false), populate(6, 1, true)]);
        touched.touch(3 * PAGE_BYTES, true);
        assert_eq!(touched.take().count(), 0);
    }

    #[test]
    fn what_was_unmapped_is_new_again() {
        let mut touched = Touched::default();
        for page in 500..530 {
            touched.touch(page * PAGE_BYTES, true);
        }
        touched.take().for_each(drop);
        touched.apply(&Event::Unmap { address: 510 * PAGE_BYTES, length: 4 * PAGE_BYTES });
        for page in 500..530 {
            touched.touch(page * PAGE_BYTES, true);
        }
        // All of two regions: what of them was left is known to runs.
        assert_eq!(touched.take().collect::<Vec<_>>(), [populate(500, 30, true)]);
        // More regions than are known.
        touched.apply(&Event::Unmap { address: 520 * PAGE_BYTES, length: 1 << 50 });
        for page in 500..530 {
            touched.touch(page * PAGE_BYTES, true);
        }
        assert_eq!(touched.take().collect::<Vec<_>>(), [populate(512, 18, true)]);
    }
}
