//! A process's mapping as a trace: its areas and present pages, as found by `flatwalk host inspect`,
//! and accesses to them in a chosen pattern. So a real process's page table can be built and walked
//! under every scheme without a recording of the process.

use std::collections::VecDeque;
use std::sync::Arc;

use flatwalk_trace::{
    Access, Advice, Backing, Block, Event, Instruction, Item, Operands, Protection, Slice, Source,
    SourceInfo, TraceError,
};
use serde::Deserialize;

use crate::error::WorkloadError;
use crate::program::SLICE_BLOCKS;
use crate::rng::mix;

/// A range of virtual addresses, `[start, end)`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Area {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
}

/// Present pages: a range, `[start, end)`, all 4 KiB or all 2 MiB pages.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pages {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Whether they are 2 MiB pages.
    #[serde(default)]
    pub large: bool,
}

/// Which of the present 4 KiB units an access goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Any, with the same probability.
    Random,
    /// One after another, upwards, and again.
    Sequential,
    /// Nine accesses of ten to the lowest tenth of them, one to the others.
    Hot,
}

/// A process's mapping, and the accesses to make.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    /// Its name, for people.
    pub name: String,
    /// Mapped areas: ascending, disjoint, on page boundaries.
    pub areas: Vec<Area>,
    /// Present pages: ascending, disjoint, each range within one area.
    pub pages: Vec<Pages>,
    /// The address of the instructions that access them, in a present page.
    pub code: u64,
    /// How they are accessed.
    pub pattern: Pattern,
    /// How often.
    pub accesses: u64,
}

pub(crate) const PAGE: u64 = 4096;
pub(crate) const LARGE: u64 = 2 << 20;
/// User addresses of five-level tables end here.
pub(crate) const LIMIT: u64 = 1 << 56;
/// Instructions of a block, one of which is the access.
const INSTRUCTIONS: u64 = 4;

/// Checks that ranges ascend, do not overlap, and lie on their boundaries.
fn check(what: &str, ranges: impl Iterator<Item = (u64, u64, u64)>) -> Result<(), WorkloadError> {
    let mut behind = 0;
    for (start, end, unit) in ranges {
        if start < behind || end <= start || end > LIMIT || start % unit != 0 || end % unit != 0 {
            return Err(WorkloadError::Mapping {
                what: format!(
                    "its {what} {start:#x}–{end:#x} must be on multiples of {unit}, behind {behind:#x}, \
                     not empty, and below {LIMIT:#x}"
                ),
            });
        }
        behind = end;
    }
    Ok(())
}

/// The trace of `mapping`; `seed` decides the accesses.
///
/// # Errors
/// [`WorkloadError::Mapping`].
pub fn open(mapping: Mapping, seed: u64) -> Result<Box<dyn Source>, WorkloadError> {
    check("area", mapping.areas.iter().map(|area| (area.start, area.end, PAGE)))?;
    let unit = |pages: &Pages| if pages.large { LARGE } else { PAGE };
    check("page range", mapping.pages.iter().map(|pages| (pages.start, pages.end, unit(pages))))?;
    for pages in &mapping.pages {
        let area = mapping.areas.partition_point(|area| area.end <= pages.start);
        if mapping
            .areas
            .get(area)
            .is_none_or(|area| area.start > pages.start || area.end < pages.end)
        {
            return Err(WorkloadError::Mapping {
                what: format!("its page range {:#x}–{:#x} is in no area", pages.start, pages.end),
            });
        }
    }
    if !mapping.pages.iter().any(|pages| (pages.start..pages.end).contains(&mapping.code)) {
        return Err(WorkloadError::Mapping {
            what: format!("its code at {:#x} is in no present page", mapping.code),
        });
    }
    Ok(Box::new(MappingSource::new(mapping, seed)))
}

/// The trace: definitions and events first, then accesses.
struct MappingSource {
    info: SourceInfo,
    before: VecDeque<Item>,
    /// Index of the first 4 KiB unit of each range of pages, and the number of all.
    first: Vec<u64>,
    units: u64,
    mapping: Mapping,
    /// Accesses made.
    made: u64,
    state: u64,
}

impl MappingSource {
    fn new(mapping: Mapping, seed: u64) -> Self {
        let mut units = 0;
        let first = mapping
            .pages
            .iter()
            .map(|pages| {
                let index = units;
                units += (pages.end - pages.start) / PAGE;
                index
            })
            .collect();
        let mut touched: Vec<(u64, u64)> = Vec::new();
        let mut state = mix(seed ^ mapping.accesses);
        for pages in &mapping.pages {
            state = mix(state ^ pages.start) ^ mix(pages.end ^ u64::from(pages.large));
            let (start, end) = (pages.start & !(LARGE - 1), pages.end.next_multiple_of(LARGE));
            match touched.last_mut() {
                Some(last) if last.1 >= start => last.1 = last.1.max(end),
                _ => touched.push((start, end)),
            }
        }
        let info = SourceInfo {
            name: mapping.name.clone(),
            hash: format!("{state:016x}"),
            instructions: Some(mapping.accesses * INSTRUCTIONS),
            touched,
            gap_instructions: 0,
            segment_instructions: None,
            gap_pages: false,
        };
        let before = set_up(&mapping);
        Self { info, before, first, units, mapping, made: 0, state }
    }

    /// The index of the next access's unit.
    fn next_unit(&mut self) -> u64 {
        let mut below = |bound: u64| {
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            ((u128::from(mix(self.state)) * u128::from(bound)) >> 64) as u64
        };
        let hot = (self.units / 10).max(1);
        match self.mapping.pattern {
            Pattern::Random => below(self.units),
            Pattern::Sequential => self.made % self.units,
            Pattern::Hot if below(10) < 9 || hot == self.units => below(hot),
            Pattern::Hot => hot + below(self.units - hot),
        }
    }

    /// The address of unit number `unit`, at a line of it that belongs to it alone.
    fn address(&self, unit: u64) -> u64 {
        let range = self.first.partition_point(|&first| first <= unit) - 1;
        let line = mix(unit) % (PAGE / 64);
        self.mapping.pages[range].start + (unit - self.first[range]) * PAGE + line * 64
    }
}

/// What comes before the accesses: the code, and the address space as it was found.
fn set_up(mapping: &Mapping) -> VecDeque<Item> {
    let operation = |index: u64| Instruction {
        pc: (mapping.code & !(PAGE - 1)) + 4 * index,
        length: 4,
        operands: Operands::Unknown,
    };
    let block = Block {
        instructions: (0..INSTRUCTIONS).map(operation).collect(),
        accesses: [Access { instruction: 0, size: 8, store: false }].into(),
    };
    let protection = Protection { read: true, write: true, execute: true };
    let advise = |start, end, advice| Event::Advise { address: start, length: end - start, advice };
    let areas = mapping.areas.iter().flat_map(|area| {
        let (address, length) = (area.start, area.end - area.start);
        let backing = Backing::Anonymous;
        [
            Event::Map { address, length, protection, backing, shared: false },
            advise(area.start, area.end, Advice::NoHugePage),
        ]
    });
    let large = mapping.pages.iter().filter(|pages| pages.large);
    let huge = large.map(|pages| advise(pages.start, pages.end, Advice::HugePage));
    let present = mapping.pages.iter().map(|pages| Event::Populate {
        address: pages.start,
        length: pages.end - pages.start,
        store: true,
    });
    std::iter::once(Item::Define { id: 0, block: Arc::new(block) })
        .chain(areas.chain(huge).chain(present).map(Item::Event))
        .collect()
}

impl Source for MappingSource {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_item(&mut self) -> Result<Option<Item>, TraceError> {
        if let Some(item) = self.before.pop_front() {
            return Ok(Some(item));
        }
        let count = (self.mapping.accesses - self.made).min(SLICE_BLOCKS as u64);
        if count == 0 {
            return Ok(None);
        }
        let mut slice = Slice { thread: 0, blocks: vec![0; count as usize], addresses: Vec::new() };
        for _ in 0..count {
            let unit = self.next_unit();
            slice.addresses.push(self.address(unit));
            self.made += 1;
        }
        Ok(Some(Item::Slice(slice)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(pattern: Pattern) -> Mapping {
        Mapping {
            name: "test".to_owned(),
            areas: vec![Area { start: 0x1000, end: 0x9000 }, Area { start: LARGE, end: 3 * LARGE }],
            pages: vec![
                Pages { start: 0x2000, end: 0x4000, large: false },
                Pages { start: LARGE, end: 2 * LARGE, large: true },
            ],
            code: 0x2000,
            pattern,
            accesses: 10_000,
        }
    }

    fn items(mapping: Mapping, seed: u64) -> Vec<Item> {
        let mut source = open(mapping, seed).unwrap();
        std::iter::from_fn(|| source.next_item().unwrap()).collect()
    }

    fn addresses(mapping: Mapping, seed: u64) -> Vec<u64> {
        items(mapping, seed)
            .into_iter()
            .filter_map(|item| match item {
                Item::Slice(slice) => Some(slice.addresses),
                _ => None,
            })
            .flatten()
            .collect()
    }

    #[test]
    fn every_access_goes_to_a_present_page() {
        for pattern in [Pattern::Random, Pattern::Sequential, Pattern::Hot] {
            let found = addresses(mapping(pattern), 1);
            assert_eq!(found.len(), 10_000);
            let inside = |a: &u64| (0x2000..0x4000).contains(a) || (LARGE..2 * LARGE).contains(a);
            assert!(found.iter().all(inside), "{pattern:?}");
        }
    }

    #[test]
    fn patterns_are_what_they_say() {
        let pages = |pattern| {
            addresses(mapping(pattern), 1).into_iter().map(|a| a / PAGE).collect::<Vec<_>>()
        };
        assert_eq!(pages(Pattern::Sequential)[..4], [2, 3, 512, 513]);
        // 51 of 514 units are hot: 0x2, 0x3 and the first 49 of the large page.
        let hot = pages(Pattern::Hot).iter().filter(|&&page| page < 512 + 49).count();
        assert!((8_800..9_200).contains(&hot), "{hot}");
        let low = pages(Pattern::Random).iter().filter(|&&page| page < 512 + 255).count();
        assert!((4_800..5_200).contains(&low), "{low}");
    }

    #[test]
    fn pages_are_populated_and_only_large_ones_advised() {
        let events: Vec<Event> = items(mapping(Pattern::Random), 1)
            .into_iter()
            .filter_map(|item| match item {
                Item::Event(event) => Some(event),
                _ => None,
            })
            .collect();
        let huge = Event::Advise { address: LARGE, length: LARGE, advice: Advice::HugePage };
        let of = |f: fn(&Event) -> bool| events.iter().filter(|event| f(event)).count();
        assert_eq!(of(|event| matches!(event, Event::Populate { .. })), 2);
        assert_eq!(of(|event| matches!(event, Event::Advise { advice: Advice::HugePage, .. })), 1);
        assert!(events.contains(&huge));
    }

    #[test]
    fn seeds_and_mappings_decide() {
        let hash = |mapping, seed| open(mapping, seed).unwrap().info().hash.clone();
        let random = || mapping(Pattern::Random);
        assert_eq!(items(random(), 1), items(random(), 1));
        assert_ne!(addresses(random(), 1), addresses(random(), 2));
        assert_ne!(hash(random(), 1), hash(random(), 2));
        let mut other = random();
        other.pages[0].end = 0x5000;
        assert_ne!(hash(random(), 1), hash(other, 1));
    }

    #[test]
    fn impossible_mappings_are_refused() {
        let refused = |change: fn(&mut Mapping)| {
            let mut changed = mapping(Pattern::Random);
            change(&mut changed);
            open(changed, 1).err().unwrap().to_string()
        };
        assert!(refused(|m| m.areas[1].start = 0x8000).contains("area"));
        assert!(refused(|m| m.areas[0].end = 0x8800).contains("multiples of 4096"));
        assert!(refused(|m| m.pages[0].end = 0x2000).contains("not empty"));
        assert!(refused(|m| m.pages[0].end = 0xa000).contains("in no area"));
        assert!(refused(|m| m.pages[1].end -= PAGE).contains("multiples of 2097152"));
        assert!(refused(|m| m.pages[1].end = LIMIT + LARGE).contains("below"));
        assert!(refused(|m| m.code = 0x1000).contains("in no present page"));
        assert!(refused(|m| m.pages.clear()).contains("in no present page"));
    }
}
