//! Strides by instruction: where the accesses of one instruction are a constant distance apart.
//!
//! Source: the reference prediction table of Chen and Baer, "Effective Hardware-Based Data Prefetching for
//! High-Performance Processors", IEEE Transactions on Computers 1995. Intel's L1D has one (the IP-based
//! stride prefetcher: Intel 64 and IA-32 Architectures Optimization Reference Manual, "Data Prefetching"),
//! which sees loads, sends the next address and detects strides up to 2 KiB; so has AMD's (L1 stride:
//! Software Optimization Guide for the Zen 4 Microarchitecture, 57647). Neither says how large the table is.
//!
//! The table is direct-mapped by the instruction's address. An entry has the last address, the stride between
//! the last two, and how often in a row it was the same. Once that is `confidence` times, the lines are
//! wanted that lie from `distance` strides ahead on, `degree` of them, but for the line of the access.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Parameters, Prefetcher, Request};
use crate::memory::line::LINE_SHIFT;

/// Lines at a constant distance from the last access of the same instruction.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// Entries of the table, which is direct-mapped by the instruction's address.
    #[schemars(range(min = 1, max = 65_536), extend("powerOfTwo" = true))]
    entries: u64,
    /// Times in a row that an instruction's stride must be the same.
    #[schemars(range(min = 1, max = 16))]
    confidence: u8,
    /// Longest stride, forwards or backwards.
    #[schemars(range(min = 1, max = 1_048_576))]
    max_stride_bytes: u64,
    /// Strides from the access to the first address that is prefetched.
    #[schemars(range(min = 1, max = 64))]
    distance: u64,
    /// Addresses that are prefetched, a stride apart.
    #[schemars(range(min = 1, max = 16))]
    degree: u64,
    /// Stores are seen too.
    stores: bool,
}

impl Parameters for Settings {
    const NAME: &'static str = "ip_stride";

    fn prefetcher(self) -> Box<dyn Prefetcher> {
        let table = vec![Entry::default(); self.entries as usize];
        Box::new(IpStride { settings: self, table })
    }
}

/// What is known of an instruction's accesses.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    instruction: u64,
    last: u64,
    stride: u64,
    same: u8,
}

#[derive(Clone, Debug)]
struct IpStride {
    settings: Settings,
    table: Vec<Entry>,
}

impl Prefetcher for IpStride {
    fn clone_box(&self) -> Box<dyn Prefetcher> {
        Box::new(self.clone())
    }

    fn observe(&mut self, request: &Request, wanted: &mut Vec<u64>) {
        let &Request { instruction, address, store, .. } = request;
        if store && !self.settings.stores {
            return;
        }
        let place = instruction % self.settings.entries;
        let entry = &mut self.table[place as usize];
        if entry.instruction != instruction {
            *entry = Entry { instruction, last: address, ..Entry::default() };
            return;
        }
        let stride = address.wrapping_sub(entry.last);
        if stride == 0 {
            return;
        }
        entry.last = address;
        if stride != entry.stride {
            (entry.stride, entry.same) = (stride, 0);
            return;
        }
        entry.same = entry.same.saturating_add(1);
        let length = stride.cast_signed().unsigned_abs();
        if entry.same < self.settings.confidence || length > self.settings.max_stride_bytes {
            return;
        }
        let first = wanted.len();
        for ahead in self.settings.distance..self.settings.distance + self.settings.degree {
            let line = address.wrapping_add(stride.wrapping_mul(ahead)) >> LINE_SHIFT;
            if line != request.line() && !wanted[first..].contains(&line) {
                wanted.push(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{NONE, load, only};
    use super::super::{Found, Prefetchers};
    use super::*;

    fn prefetcher(distance: u64, degree: u64) -> Prefetchers {
        only(
            Settings::NAME,
            json!({
                "entries": 16, "confidence": 2, "max_stride_bytes": 2048, "distance": distance,
                "degree": degree, "stores": false,
            }),
        )
    }

    #[test]
    fn a_stride_is_followed_once_it_was_the_same_twice() {
        let mut one = prefetcher(1, 2);
        let mut at = |address: u64| load(&mut one, (0x400, address), Found::Line);
        // 0x100 apart: four lines. The stride is known from the second access on, and twice the same at
        // the fourth.
        assert_eq!(at(0x1000), NONE);
        assert_eq!(at(0x1100), NONE);
        assert_eq!(at(0x1200), NONE);
        assert_eq!(at(0x1300), [0x50, 0x54]);
        assert_eq!(at(0x1300), NONE, "the same address again is not a step");
        assert_eq!(at(0x1400), [0x54, 0x58]);
        // Another stride begins anew; backwards as well.
        assert_eq!(at(0x1380), NONE);
        assert_eq!(at(0x1300), NONE);
        assert_eq!(at(0x1280), [0x48, 0x46]);
    }

    #[test]
    fn small_strides_want_the_next_line_when_it_comes() {
        let mut one = prefetcher(1, 1);
        let wanted: Vec<Vec<u64>> =
            (0..16).map(|step| load(&mut one, (0x400, 0x1000 + 8 * step), Found::Line)).collect();
        let some: Vec<usize> = (0..16).filter(|&step| !wanted[step].is_empty()).collect();
        assert_eq!(some, [7, 15], "the last word of each line");
        assert_eq!(wanted[7], [0x41]);
    }

    #[test]
    fn instructions_do_not_disturb_each_other_unless_they_share_an_entry() {
        let mut one = prefetcher(4, 1);
        for step in 0..3 {
            load(&mut one, (0x401, 0x1000 + 64 * step), Found::Line);
            load(&mut one, (0x402, 0x9000 - 64 * step), Found::Line);
        }
        assert_eq!(load(&mut one, (0x401, 0x10c0), Found::Line), [0x43 + 4]);
        assert_eq!(load(&mut one, (0x402, 0x8f40), Found::Line), [0x23d - 4]);
        // 16 entries: 0x411 has the place of 0x401.
        load(&mut one, (0x411, 0x5000), Found::Line);
        assert_eq!(load(&mut one, (0x401, 0x1100), Found::Line), NONE);
    }

    #[test]
    fn long_strides_and_stores_are_left_alone() {
        let mut one = prefetcher(1, 1);
        for step in 0..8 {
            assert_eq!(load(&mut one, (0x400, 0x1_0000 + 2056 * step), Found::Line), NONE);
        }
        let mut wanted = Vec::new();
        for step in 0..8 {
            let address = 0x1000 + 64 * step;
            let request = Request { instruction: 1, address, store: true, found: Found::Line };
            one.observe(&request, &mut wanted);
        }
        assert!(wanted.is_empty());
    }
}
