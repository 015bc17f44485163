//! The lines that are on their way to a cache.

use crate::memory::line::Line;

/// A line on its way: asked for at cycle `asked`, on its way from `start` on, when an MSHR was
/// free, and there at `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Miss {
    pub line: Line,
    pub asked: u64,
    pub start: u64,
    pub end: u64,
}

/// Misses remembered before those that have arrived are dropped.
const MISSES: usize = 64;
/// Chains in which they are found by their lines.
const CHAINS: usize = 64;

/// Misses that may be on their way.
#[derive(Clone, Debug)]
pub(super) struct Outstanding {
    /// In the order of requests, each with the number of the one before it in its chain. They are numbered
    /// from 1 on; 0 is none.
    misses: Vec<(Miss, u32)>,
    /// The last of each chain.
    chains: [u32; CHAINS],
}

impl Default for Outstanding {
    fn default() -> Self {
        Self { misses: Vec::with_capacity(MISSES), chains: [0; CHAINS] }
    }
}

impl Outstanding {
    #[inline]
    fn chain(line: Line) -> usize {
        (line.0 ^ line.0 >> 6) as usize % CHAINS
    }

    /// The last miss of `line`.
    #[inline]
    pub fn last(&self, line: Line) -> Option<Miss> {
        let mut number = self.chains[Self::chain(line)];
        while let Some(place) = number.checked_sub(1) {
            let (miss, before) = self.misses[place as usize];
            if miss.line == line {
                return Some(miss);
            }
            number = before;
        }
        None
    }

    /// Adds a miss. When there are many, those are dropped first that were to be there at `arrived`.
    #[inline]
    pub fn add(&mut self, miss: Miss, arrived: u64) {
        if self.misses.len() == self.misses.capacity() {
            self.drop_arrived(arrived);
        }
        let number = self.misses.len() as u32 + 1;
        let before = std::mem::replace(&mut self.chains[Self::chain(miss.line)], number);
        self.misses.push((miss, before));
    }

    /// Which have arrived, a processor cannot predict: each is put behind those that stay, and
    /// where it does not stay itself, the next one in its place.
    #[inline(never)]
    fn drop_arrived(&mut self, arrived: u64) {
        self.chains = [0; CHAINS];
        let mut kept = 0;
        for place in 0..self.misses.len() {
            let (miss, _) = self.misses[place];
            let last = &mut self.chains[Self::chain(miss.line)];
            self.misses[kept] = (miss, *last);
            let stays = miss.end > arrived;
            kept += usize::from(stays);
            *last = if stays { kept as u32 } else { *last };
        }
        self.misses.truncate(kept);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_last_miss_of_each_line_is_found(
            requests in prop::collection::vec((0u64..40, 1u64..300), 1..600),
        ) {
            let mut outstanding = Outstanding::default();
            let mut all = Vec::<Miss>::with_capacity(MISSES);
            for (start, (n, length)) in (0..).zip(requests) {
                // Some are of one chain.
                let line = |n: u64| Line((n * 3) << (n % 8));
                let miss = Miss { line: line(n), asked: start, start, end: start + length };
                if all.len() == all.capacity() {
                    all.retain(|miss| miss.end > start);
                }
                all.push(miss);
                outstanding.add(miss, start);
                for line in (0..40).map(line) {
                    let last = all.iter().rev().find(|miss| miss.line == line).copied();
                    prop_assert_eq!(outstanding.last(line), last);
                }
            }
        }
    }
}
