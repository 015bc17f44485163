//! Which pages a program touches in a part of a trace that is passed over, and of which of them it used
//! the entries of its page table last.

use std::collections::HashMap;

use flatwalk_trace::{Advice, Event, ThreadId};
use rustc_hash::FxBuildHasher;

use crate::driver::piece::Uses;

use crate::memory::line::{LINE_SHIFT, PAGE_BYTES, PAGE_SHIFT};

/// Pages of a region: one bit each in eight words.
const REGION_SHIFT: u32 = 9;
const REGION_PAGES: u64 = 1 << REGION_SHIFT;
/// Pages remembered as touched, each at its number's place modulo theirs.
const RECENT: usize = 256;
/// log2 of the pages whose entries share a line, in a table of base pages with entries of 8 bytes.
const SHARING_SHIFT: u32 = LINE_SHIFT - 3;
/// Parts that are told of a time in which uses are followed.
const PARTS: usize = 16;
/// Such groups of pages in a region.
const GROUPS: usize = 1 << (REGION_SHIFT - SHARING_SHIFT);

/// Pages in memory, as far as is known here.
#[derive(Debug)]
pub(crate) struct Touched {
    regions: HashMap<u64, Region, FxBuildHasher>,
    recent: [u64; RECENT],
    /// The threads that have run, and how often each used an entry since uses were followed last.
    threads: Vec<(ThreadId, u64)>,
    /// Which of them runs.
    runs: usize,
    /// Uses of groups so far, if they are followed …
    uses: u64,
    /// … and when that was asked for.
    followed_from: Option<u64>,
    /// Touched for the first time since they were last taken, in order, neighbours joined.
    fresh: Vec<Event>,
}

/// What is known of a region.
#[derive(Debug, Default)]
struct Region {
    /// A bit for each page that is in memory.
    pages: [u64; REGION_PAGES as usize / 64],
    /// By thread, of each group the page that it used last, behind how many uses of others came before that;
    /// 0 for none.
    used: Vec<Option<Box<[u64; GROUPS]>>>,
}

impl Default for Touched {
    fn default() -> Self {
        Self {
            regions: HashMap::default(),
            recent: [u64::MAX; RECENT],
            threads: vec![(0, 0)],
            runs: 0,
            uses: 0,
            followed_from: None,
            fresh: Vec::new(),
        }
    }
}

impl Touched {
    /// What follows is accessed by `thread`.
    pub(crate) fn run(&mut self, thread: ThreadId) {
        if self.threads[self.runs].0 != thread {
            let known = self.threads.iter().position(|&(one, _)| one == thread);
            self.runs = known.unwrap_or(self.threads.len());
            if known.is_none() {
                self.threads.push((thread, 0));
            }
        }
    }

    /// `address` is accessed.
    #[inline]
    pub(crate) fn touch(&mut self, address: u64, store: bool) {
        let page = address >> PAGE_SHIFT;
        let recent = &mut self.recent[page as usize % RECENT];
        if *recent != page || self.followed_from.is_some() {
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
        let region = self.regions.entry(page >> REGION_SHIFT).or_default();
        let within = page % REGION_PAGES;
        if self.followed_from.is_some() {
            self.uses += 1;
            self.threads[self.runs].1 += 1;
            if region.used.len() <= self.runs {
                region.used.resize(self.runs + 1, None);
            }
            let used = region.used[self.runs].get_or_insert_with(|| Box::new([0; GROUPS]));
            let sharing = page % (1 << SHARING_SHIFT);
            used[within as usize >> SHARING_SHIFT] = self.uses << SHARING_SHIFT | sharing;
        }
        let (word, bit) = (&mut region.pages[within as usize / 64], 1 << (within % 64));
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

    /// From here on it is followed which entries are used.
    pub(crate) fn follow_uses(&mut self) {
        self.followed_from = Some(self.uses);
        self.threads.iter_mut().for_each(|(_, times)| *times = 0);
    }

    /// What was used since [`Self::follow_uses`], by each thread: of each group of pages whose entries share a
    /// line an address, the group that was used last comes last. They are in the parts of that time in
    /// which they were used last: its first half, half of the rest, and so on.
    pub(crate) fn end_uses(&mut self) -> Vec<Uses> {
        let Some(from) = self.followed_from.take() else { return Vec::new() };
        let threads = self.threads.iter().enumerate().filter(|(_, (_, times))| *times > 0);
        threads
            .map(|(place, &(thread, times))| Uses { thread, times, parts: self.used(place, from) })
            .collect()
    }

    /// The parts of what one thread used.
    fn used(&self, place: usize, from: u64) -> Vec<Vec<u64>> {
        let mut found = Vec::new();
        for (&region, Region { used, .. }) in &self.regions {
            let groups = used.get(place).into_iter().flatten();
            let groups = groups.flat_map(|used| used.iter()).zip(0_u64..);
            let used_since = groups.filter(|(when, _)| *when >> SHARING_SHIFT > from);
            found.extend(
                used_since
                    .map(|(&when, group)| (when, region << REGION_SHIFT | group << SHARING_SHIFT)),
            );
        }
        found.sort_unstable();
        let uses = self.uses - from;
        let mut parts = vec![Vec::new(); PARTS];
        for (when, first) in found {
            let left = self.uses - (when >> SHARING_SHIFT);
            let part = (uses / (left + 1)).checked_ilog2().unwrap_or(0);
            let page = first + when % (1 << SHARING_SHIFT);
            parts[(part as usize).min(PARTS - 1)].push(page << PAGE_SHIFT);
        }
        parts
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
    fn entries_are_used_line_by_line_in_the_order_of_their_last_use() {
        let mut touched = Touched::default();
        touched.touch(100 * PAGE_BYTES, true);
        assert_eq!(touched.end_uses(), [], "nobody asked");
        touched.follow_uses();
        // Pages 0 to 7 share a line, 8 to 15 the next one; 264 is 8 to those that remember few pages.
        for page in [100, 3, 12, 600, 264, 8, 5, 100] {
            touched.touch(page * PAGE_BYTES + 8, false);
        }
        touched.apply(&Event::Unmap { address: 600 * PAGE_BYTES, length: PAGE_BYTES });
        let mut expected = vec![Vec::new(); PARTS];
        // Eight uses: four, two, one and the last.
        (expected[1], expected[2], expected[3]) = (vec![264, 8], vec![5], vec![100]);
        expected.iter_mut().flatten().for_each(|page| *page *= PAGE_BYTES);
        assert_eq!(touched.end_uses(), [Uses { thread: 0, times: 8, parts: expected }]);
        touched.follow_uses();
        touched.touch(5 * PAGE_BYTES, false);
        let [uses] = touched.end_uses().try_into().unwrap();
        assert_eq!(uses.parts.concat(), [5 * PAGE_BYTES], "what came before is not told again");
    }

    #[test]
    fn each_thread_uses_entries_of_its_own() {
        let mut touched = Touched::default();
        touched.follow_uses();
        for (thread, page) in [(7, 16), (9, 100), (7, 100), (9, 24), (7, 17)] {
            touched.run(thread);
            touched.touch(page * PAGE_BYTES, false);
        }
        let found = touched.end_uses();
        let of = |thread: ThreadId| {
            let uses = found.iter().find(|uses| uses.thread == thread).unwrap();
            let pages =
                uses.parts.iter().map(|part| part.iter().map(|at| at / PAGE_BYTES).collect());
            (uses.times, pages.filter(|part: &Vec<_>| !part.is_empty()).collect::<Vec<_>>())
        };
        // The first three of five uses, the fourth, and the last.
        assert_eq!(of(7), (3, vec![vec![100], vec![17]]));
        assert_eq!(of(9), (2, vec![vec![100], vec![24]]));
        assert_eq!(found.len(), 2, "thread 0 did not run");
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
