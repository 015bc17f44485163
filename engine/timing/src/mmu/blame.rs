//! Where walks come from: which memory was accessed, and by which instructions.
//!
//! Memory is divided by what is mapped, as the trace's events say: a file, the heap, stacks, anonymous
//! memory, in which neighbouring mappings without different names are one, whatever their rights, as far as
//! they have ever reached. Counts outlive the mapping. Instructions are counted by their addresses, with the
//! file that their code came from.

use std::collections::BTreeMap;
use std::sync::Arc;

use flatwalk_trace::{Backing, Event};
use rustc_hash::FxHashMap;
use schemars::JsonSchema;
use serde::Serialize;

use crate::counts::{Add, Visitor, add};
use crate::memory::line::{PAGE_BYTES, page_start};
use crate::system::relocate::Relocation;

/// Regions that are told apart at most, and instructions: what comes later counts as [`OTHER`].
const MOST_REGIONS: usize = 1 << 16;
const MOST_INSTRUCTIONS: usize = 1 << 17;
/// Number of all regions, or of all instructions, that are not told apart.
const OTHER: u32 = 0;
/// Number of the memory that no event has mapped.
const UNMAPPED: u32 = 1;
/// Slots of the table that finds a hot instruction's number at once.
const HOT: usize = 256;

/// What memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A file.
    File,
    /// The heap that the program break ends.
    Heap,
    /// A stack.
    Stack,
    /// Memory of no file.
    Anonymous,
    /// No event of the trace had mapped it.
    Unmapped,
    /// All that there is no room to tell apart.
    Other,
}

/// Some walks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub walks: u64,
    /// Cycles in which retirement waited for translations, walks or not.
    pub cycles: u64,
}

add!(Count { walks, cycles });

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, more: Self) {
        self.walks += more.walks;
        self.cycles += more.cycles;
    }
}

/// A region of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// What it is.
    pub kind: Kind,
    /// As `/proc/PID/maps` calls it; empty if it does not.
    pub name: Arc<str>,
    /// The largest mapping that was ever in it: its first address and its bytes.
    pub largest: (u64, u64),
}

/// An instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Its address.
    pub address: u64,
    /// Where its code came from.
    pub code: Option<Code>,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The file's path.
    pub file: Arc<str>,
    /// Which file that was.
    pub build_id: Arc<str>,
    /// Offset in bytes.
    pub offset: u64,
}

/// What memory is called.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    text: Arc<str>,
    build_id: Arc<str>,
    /// A byte's offset in the file, less its address.
    difference: u64,
}

/// A mapping.
#[derive(Clone, Debug)]
struct Area {
    end: u64,
    region: u32,
    name: Option<Name>,
}

impl Area {
    /// Whether instructions in it are known by their offset in a file.
    fn is_code(&self) -> bool {
        self.name.as_ref().is_some_and(|name| !name.build_id.is_empty())
    }
}

/// What is counted.
#[derive(Clone, Debug, Default)]
struct Counted {
    regions: Vec<Count>,
    instructions: Vec<Count>,
}

impl Add for Counted {
    fn add(&mut self, more: &Self) {
        for (all, more) in
            [(&mut self.regions, &more.regions), (&mut self.instructions, &more.instructions)]
        {
            all.resize(all.len().max(more.len()), Count::default());
            all.iter_mut().zip(more).for_each(|(sum, more)| sum.add(more));
        }
    }
}

/// Where the walks of a run come from.
#[derive(Clone, Debug)]
pub struct Blame {
    /// Where the run has the trace's addresses.
    relocation: Option<Relocation>,
    /// By first address, as the trace has it; they do not overlap.
    areas: BTreeMap<u64, Area>,
    regions: Vec<Region>,
    /// Regions with a name, the heap and the unnamed stacks.
    named: FxHashMap<(Kind, Arc<str>), u32>,
    /// Anonymous regions without a name by the first address that each was mapped at.
    anonymous: FxHashMap<u64, u32>,
    /// The area that was asked for last: first address, end and region.
    last: (u64, u64, u32),
    sites: Vec<Site>,
    /// Of the instruction that is at an address, as the trace has it, now.
    numbers: BTreeMap<u64, u32>,
    hot: Box<[(u64, u32); HOT]>,
    /// The instruction whose access is being translated, as the run has its address.
    pub(super) instruction: u64,
    counted: Counted,
}

impl Blame {
    /// Of a run that has not begun, and that moves the trace's addresses as `relocation` says.
    pub fn new(relocation: Option<Relocation>) -> Self {
        let region = |kind| Region { kind, name: "".into(), largest: (0, 0) };
        Self {
            relocation,
            areas: BTreeMap::new(),
            regions: vec![region(Kind::Other), region(Kind::Unmapped)],
            named: FxHashMap::default(),
            anonymous: FxHashMap::default(),
            last: (0, 0, UNMAPPED),
            sites: vec![Site { address: 0, code: None }],
            numbers: BTreeMap::new(),
            hot: Box::new([(u64::MAX, OTHER); HOT]),
            instruction: 0,
            counted: Counted::default(),
        }
    }

    /// A walk for `address`, by the instruction under way.
    pub(super) fn walk(&mut self, address: u64) {
        let (region, instruction) = self.count(self.instruction, address);
        region.walks += 1;
        instruction.walks += 1;
    }

    /// Retirement waited `cycles` for the translation of `address`, by `instruction`.
    pub fn wait(&mut self, instruction: u64, address: u64, cycles: u64) {
        if cycles == 0 {
            return;
        }
        let (region, instruction) = self.count(instruction, address);
        region.cycles += cycles;
        instruction.cycles += cycles;
    }

    /// The counts that an access of `instruction` to `address` belongs to.
    fn count(&mut self, instruction: u64, address: u64) -> (&mut Count, &mut Count) {
        let region = self.region(self.original(address)) as usize;
        let number = self.number(instruction) as usize;
        let Counted { regions, instructions } = &mut self.counted;
        if regions.len() <= region {
            regions.resize(self.regions.len(), Count::default());
        }
        if instructions.len() <= number {
            instructions.resize(self.sites.len(), Count::default());
        }
        (&mut regions[region], &mut instructions[number])
    }

    /// Where the trace has the run's `address`.
    fn original(&self, address: u64) -> u64 {
        self.relocation.as_ref().map_or(address, |relocation| relocation.original(address))
    }

    /// The region that `address` lies in.
    fn region(&mut self, address: u64) -> u32 {
        let (start, end, region) = self.last;
        if (start..end).contains(&address) {
            return region;
        }
        let Some((start, area)) = self.area(address) else { return UNMAPPED };
        self.last = (start, area.end, area.region);
        self.last.2
    }

    fn area(&self, address: u64) -> Option<(u64, &Area)> {
        let (&start, area) = self.areas.range(..=address).next_back()?;
        (address < area.end).then_some((start, area))
    }

    /// The number of the instruction at the run's `address`.
    fn number(&mut self, address: u64) -> u32 {
        let slot = (address ^ address >> 8) as usize % HOT;
        let (known, number) = self.hot[slot];
        if known == address {
            return number;
        }
        let place = self.original(address);
        let number = match self.numbers.get(&place) {
            Some(&number) => number,
            None if self.sites.len() >= MOST_INSTRUCTIONS => OTHER,
            None => {
                let number = self.sites.len() as u32;
                self.numbers.insert(place, number);
                self.sites.push(self.site(place));
                number
            }
        };
        self.hot[slot] = (address, number);
        number
    }

    /// The instruction that is at `address` now.
    fn site(&self, address: u64) -> Site {
        let name = self.area(address).and_then(|(_, area)| area.name.as_ref());
        let code = name.filter(|name| !name.build_id.is_empty()).map(|name| Code {
            file: Arc::clone(&name.text),
            build_id: Arc::clone(&name.build_id),
            offset: name.difference.wrapping_add(address),
        });
        Site { address, code }
    }

    /// The address space changes.
    pub fn apply(&mut self, event: &Event) {
        match *event {
            Event::Map { address, length, backing, .. } => {
                let end = address.saturating_add(page_up(length));
                self.take(address, end);
                let region = self.region_of(backing, address, end);
                self.insert(address, Area { end, region, name: None });
            }
            Event::Unmap { address, length } => {
                self.take(address, address.saturating_add(page_up(length)));
            }
            Event::Remap { from, from_length, to, to_length } => self.remap(
                (from, from.saturating_add(page_up(from_length))),
                (to, to.saturating_add(page_up(to_length))),
            ),
            Event::Break { from, to } => {
                let (from, to) = (page_up(from), page_up(to));
                self.take(from.min(to), from.max(to));
                if from < to {
                    let region = self.named(Kind::Heap, &"[heap]".into());
                    self.insert(from, Area { end: to, region, name: None });
                }
            }
            Event::Name { address, length, offset, ref name, ref build_id } => {
                let end = address.saturating_add(page_up(length));
                let name = Name {
                    text: name.as_str().into(),
                    build_id: build_id.as_str().into(),
                    difference: offset.wrapping_sub(address),
                };
                if !name.build_id.is_empty() {
                    self.forget_instructions(address, end);
                }
                for (start, area) in self.take(address, end) {
                    let region = self.named(self.regions[area.region as usize].kind, &name.text);
                    self.insert(start, Area { region, name: Some(name.clone()), ..area });
                }
            }
            _ => {}
        }
    }

    /// Moves what is mapped from `from` to `to`, ranges both; what is longer there continues it.
    fn remap(&mut self, from: (u64, u64), to: (u64, u64)) {
        // Nothing is taken from an empty range: Linux duplicates shared memory so.
        let kept = self.area(from.0).map(|(_, area)| area.clone());
        let mut moved = self.take(from.0, from.1);
        if moved.is_empty() {
            moved.extend(kept.map(|area| (from.0, Area { end: from.1, ..area })));
        }
        self.take(to.0, to.1);
        let Some((_, last)) = moved.last_mut() else { return };
        last.end = from.0.saturating_add(to.1 - to.0).max(last.end);
        for (start, mut area) in moved {
            let place = |address: u64| to.0.saturating_add(address - from.0).min(to.1);
            if let Some(name) = &mut area.name {
                name.difference = name.difference.wrapping_add(from.0).wrapping_sub(to.0);
            }
            self.insert(place(start), Area { end: place(area.end), ..area });
        }
    }

    /// The region of memory of `backing` that is mapped from `start` to `end`, before it has a name.
    fn region_of(&mut self, backing: Backing, start: u64, end: u64) -> u32 {
        match backing {
            Backing::File => self.named(Kind::File, &"".into()),
            Backing::Heap => self.named(Kind::Heap, &"[heap]".into()),
            Backing::Stack => self.named(Kind::Stack, &"".into()),
            Backing::Anonymous => {
                let known = self.joined(start, end).or(self.anonymous.get(&start).copied());
                known.unwrap_or_else(|| {
                    let region = self.new_region(Kind::Anonymous, "".into());
                    if region != OTHER {
                        self.anonymous.insert(start, region);
                    }
                    region
                })
            }
        }
    }

    /// The region that anonymous memory mapped from `start` to `end` is to be one with.
    fn joined(&self, start: u64, end: u64) -> Option<u32> {
        let below = start.checked_sub(1).and_then(|address| self.area(address));
        let mut areas = [below, self.area(end)].into_iter().flatten().map(|(_, area)| area);
        let kind = |region: u32| self.regions[region as usize].kind;
        let joined = areas.find(|area| area.name.is_none() && kind(area.region) == Kind::Anonymous);
        joined.map(|area| area.region)
    }

    /// The region of this kind and name.
    fn named(&mut self, kind: Kind, name: &Arc<str>) -> u32 {
        let key = (kind, Arc::clone(name));
        if let Some(&region) = self.named.get(&key) {
            return region;
        }
        let region = self.new_region(kind, Arc::clone(name));
        if region != OTHER {
            self.named.insert(key, region);
        }
        region
    }

    fn new_region(&mut self, kind: Kind, name: Arc<str>) -> u32 {
        if self.regions.len() >= MOST_REGIONS {
            return OTHER;
        }
        self.regions.push(Region { kind, name, largest: (0, 0) });
        self.regions.len() as u32 - 1
    }

    /// Adds an area where there is none.
    fn insert(&mut self, start: u64, area: Area) {
        if start >= area.end {
            return;
        }
        // Only memory that nothing else tells apart is one mapping with its neighbours.
        let joins = |other: &Area| {
            other.region == area.region && other.name.is_none() && area.name.is_none()
        };
        let (mut from, mut to) = (start, area.end);
        if let Some((&before, below)) = self.areas.range(..start).next_back()
            && below.end == start
            && joins(below)
        {
            from = before;
        }
        if let Some(above) = self.areas.get(&area.end)
            && joins(above)
        {
            to = above.end;
            self.areas.remove(&area.end);
        }
        self.areas.insert(from, Area { end: to, ..area });
        let largest = &mut self.regions[area.region as usize].largest;
        if to - from > largest.1 {
            *largest = (from, to - from);
        }
        self.last = (0, 0, UNMAPPED);
    }

    /// Removes what is mapped from `start` to `end`, and returns it.
    fn take(&mut self, start: u64, end: u64) -> Vec<(u64, Area)> {
        self.last = (0, 0, UNMAPPED);
        if start >= end {
            return Vec::new();
        }
        for edge in [start, end] {
            if let Some((&below, area)) = self.areas.range_mut(..edge).next_back()
                && area.end > edge
                && below < edge
            {
                let above = area.clone();
                area.end = edge;
                self.areas.insert(edge, above);
            }
        }
        let inside: Vec<u64> = self.areas.range(start..end).map(|(&address, _)| address).collect();
        let taken: Vec<(u64, Area)> =
            inside.into_iter().filter_map(|at| Some((at, self.areas.remove(&at)?))).collect();
        if taken.iter().any(|(_, area)| area.is_code()) {
            self.forget_instructions(start, end);
        }
        taken
    }

    /// From now on there are other instructions between `start` and `end`.
    fn forget_instructions(&mut self, start: u64, end: u64) {
        let gone: Vec<u64> = self.numbers.range(start..end).map(|(&place, _)| place).collect();
        for place in &gone {
            self.numbers.remove(place);
        }
        if !gone.is_empty() {
            self.hot.fill((u64::MAX, OTHER));
        }
    }

    /// The regions that walks came from, and how many.
    pub fn regions(&self) -> impl Iterator<Item = (&Region, Count)> {
        counted(&self.regions, &self.counted.regions)
    }

    /// The instructions that made the accesses; the first is all that could not be told apart.
    pub fn instructions(&self) -> impl Iterator<Item = (Option<&Site>, Count)> {
        let all = self.sites.iter().enumerate().zip(&self.counted.instructions);
        all.filter(|&(_, &count)| count != Count::default())
            .map(|((number, site), &count)| ((number != OTHER as usize).then_some(site), count))
    }

    /// Shows its counts.
    pub(super) fn counts(&mut self, visit: &mut Visitor<'_>) {
        visit(&mut self.counted);
    }
}

fn counted<'a, T>(all: &'a [T], counts: &'a [Count]) -> impl Iterator<Item = (&'a T, Count)> {
    let with = all.iter().zip(counts).map(|(one, &count)| (one, count));
    with.filter(|&(_, count)| count != Count::default())
}

/// `value`, up to the next multiple of a page.
fn page_up(value: u64) -> u64 {
    page_start(value.saturating_add(PAGE_BYTES - 1))
}
