//! Sets of pages: one bit per page of 4 KiB, kept per 2 MiB.

use std::collections::BTreeMap;

use flatwalk_trace::{Advice, Event};

/// Bytes of a page, as a power of two.
const SHIFT: u32 = 12;
/// Pages of 2 MiB, as a power of two.
const GROUP: u32 = 9;

/// A set of pages, by number (address / 4096).
#[derive(Clone, Debug, Default)]
pub struct Pages(BTreeMap<u64, [u64; 8]>);

fn place(page: u64) -> (u64, usize, u64) {
    (page >> GROUP, (page / 64 % 8) as usize, 1 << (page % 64))
}

/// Calls `with` for each word of a set that has pages of these bytes: its group, its index there, its bits.
fn each_word(address: u64, length: u64, mut with: impl FnMut(u64, usize, u64)) {
    if length == 0 {
        return;
    }
    let (first, last) = (address >> SHIFT, address.saturating_add(length - 1) >> SHIFT);
    for start in (first & !63..=last).step_by(64) {
        let (from, to) = (first.max(start), last.min(start + 63));
        let (group, word, _) = place(start);
        with(group, word, (u64::MAX >> (63 - (to - from))) << (from - start));
    }
}

impl Pages {
    /// A set without pages.
    pub const fn new() -> Pages {
        Pages(BTreeMap::new())
    }

    /// Adds a page; false if it was there.
    pub fn insert(&mut self, page: u64) -> bool {
        let (group, word, bit) = place(page);
        let bits = &mut self.0.entry(group).or_default()[word];
        let is_new = *bits & bit == 0;
        *bits |= bit;
        is_new
    }

    /// Adds the pages of these bytes.
    pub fn insert_range(&mut self, address: u64, length: u64) {
        each_word(address, length, |group, word, mask| {
            self.0.entry(group).or_default()[word] |= mask;
        });
    }

    /// Whether a page is there.
    pub fn contains(&self, page: u64) -> bool {
        let (group, word, bit) = place(page);
        self.0.get(&group).is_some_and(|bits| bits[word] & bit != 0)
    }

    /// Takes the pages of these bytes out; false if none was there.
    pub fn remove(&mut self, address: u64, length: u64) -> bool {
        if length == 0 {
            return false;
        }
        let (first, last) = (address >> SHIFT, address.saturating_add(length - 1) >> SHIFT);
        let mut any = false;
        let mut empty = Vec::new();
        for (&group, bits) in self.0.range_mut(first >> GROUP..=last >> GROUP) {
            let start = group << GROUP;
            for (word, bits) in bits.iter_mut().enumerate() {
                let start = start + 64 * word as u64;
                let (from, to) = (first.max(start), last.min(start + 63));
                if from <= to {
                    let mask = (u64::MAX >> (63 - (to - from))) << (from - start);
                    any |= *bits & mask != 0;
                    *bits &= !mask;
                }
            }
            if *bits == [0; 8] {
                empty.push(group);
            }
        }
        for group in empty {
            self.0.remove(&group);
        }
        any
    }

    /// Takes out the pages that an event takes from memory, or replaces by others; false if none was
    /// there.
    pub fn follow(&mut self, event: &Event) -> bool {
        match *event {
            Event::Map { address, length, .. }
            | Event::Unmap { address, length }
            | Event::Advise { address, length, advice: Advice::DontNeed } => {
                self.remove(address, length)
            }
            Event::Remap { from, from_length, to, to_length } => {
                let old = self.remove(from, from_length);
                self.remove(to, to_length) || old
            }
            Event::Break { from, to } if to < from => {
                // The page that the break lies in stays.
                let to = to.saturating_add((1 << SHIFT) - 1) >> SHIFT << SHIFT;
                self.remove(to, from.saturating_sub(to))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_range_leaves_its_neighbours() {
        for (first, last) in [(0, 0), (3, 700), (64, 127), (511, 512), (100, 1500)] {
            let mut pages = Pages::new();
            pages.insert_range(first << SHIFT, (last - first + 1) << SHIFT);
            assert!((0..1500).all(|page| pages.contains(page) == (first..=last).contains(&page)));
            let mut pages = Pages::new();
            assert!((0..1500).all(|page| pages.insert(page)));
            assert!(!pages.insert(7));
            assert!(pages.remove(first << SHIFT, (last - first + 1) << SHIFT));
            for page in 0..1500 {
                assert_eq!(pages.contains(page), !(first..=last).contains(&page), "{page}");
            }
            assert!(!pages.remove(1500 << SHIFT, u64::MAX));
        }
    }

    #[test]
    fn pages_go_with_their_mappings() {
        let mut pages = Pages::new();
        let mut follow = |event| {
            for page in 0..10 {
                pages.insert(page);
            }
            pages.follow(&event);
            (0..10).filter(|&page| pages.contains(page)).count()
        };
        assert_eq!(follow(Event::Unmap { address: 0x1000, length: 0x2000 }), 8);
        let (from, to) = (0x1000, 0x5000);
        assert_eq!(follow(Event::Remap { from, from_length: 0x1000, to, to_length: 0x1000 }), 8);
        assert_eq!(follow(Event::Break { from: 0x9000, to: 0x4000 }), 5);
        assert_eq!(follow(Event::Break { from: 0x8001, to: 0x4001 }), 6);
        assert_eq!(follow(Event::Break { from: 0x4fff, to: 0x4001 }), 10);
        assert_eq!(follow(Event::Break { from: 0x4000, to: 0x9000 }), 10);
        let advise = |advice| Event::Advise { address: 0, length: 0x3000, advice };
        assert_eq!(follow(advise(Advice::DontNeed)), 7);
        assert_eq!(follow(advise(Advice::HugePage)), 10);
    }
}
