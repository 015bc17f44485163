//! The segments of a sample, and how some are taken out of a trace that is being written.

use std::path::Path;
use std::sync::Arc;

use flatwalk_recorder::pages::Pages;
use flatwalk_trace::{Block, Event, Header, Item, Reader, Slice, Source, TraceError, Writer};
use rustc_hash::FxHashMap;

use crate::names::thinned_name;

/// A segment: what was executed between two epochs.
#[derive(Clone, Copy, Debug)]
struct Segment {
    number: u64,
    /// The epoch that it begins with, and the first that is no longer of it.
    start: u64,
    end: u64,
}

/// The segments of a sample, by epoch. None: everything is recorded.
#[derive(Debug, Default)]
pub struct Segments(Vec<Segment>);

impl Segments {
    /// The segment with this number begins, and the one before ends if it has not.
    pub fn begin(&mut self, number: u64, epoch: u64) {
        self.end(epoch);
        self.0.push(Segment { number, start: epoch, end: u64::MAX });
    }

    /// The latest segment ends, if it has not.
    pub fn end(&mut self, epoch: u64) {
        if let Some(last) = self.0.last_mut() {
            last.end = last.end.min(epoch);
        }
    }

    /// Only those remain whose number, divided by `stride`, leaves `offset`.
    pub fn thin(&mut self, stride: u64, offset: u64) {
        self.0.retain(|segment| segment.number % stride == offset);
    }

    /// Whether what was executed in this epoch is to be in the trace.
    pub fn has(&self, epoch: u64) -> bool {
        let before = self.0.partition_point(|segment| segment.start <= epoch);
        self.0.is_empty() || before.checked_sub(1).is_some_and(|index| epoch < self.0[index].end)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        let mut numbers: Vec<u64> = self.0.iter().map(|segment| segment.number).collect();
        numbers.dedup();
        numbers.len()
    }
}

/// Replaces the trace at `path`, which `writer` writes, by one that has only the slices of `segments`, and
/// goes on with that. In place of the others stand gaps, and the pages that they touched first.
///
/// # Errors
/// When the trace cannot be read or written. What was written remains as it was then.
pub fn thin(
    writer: &mut Writer,
    path: &Path,
    header: &Header,
    segments: &Segments,
) -> Result<(), TraceError> {
    writer.flush()?;
    let mut reader = Reader::open(path)?;
    let target = thinned_name(path);
    let mut thinned = Writer::create(&target, header.clone())?;
    let result = copy(&mut reader, &mut thinned, segments)
        .and_then(|()| thinned.flush())
        .and_then(|()| thinned.rename(path));
    if result.is_err() {
        let _ = std::fs::remove_file(&target);
    }
    result?;
    *writer = thinned;
    Ok(())
}

fn copy(reader: &mut Reader, writer: &mut Writer, segments: &Segments) -> Result<(), TraceError> {
    let mut gap = Gap::default();
    let mut known = Known::default();
    while let Some(item) = reader.next_item()? {
        let epoch = reader.epoch();
        match item {
            Item::Define { block, .. } => {
                known.blocks.push(block.clone());
                writer.define((*block).clone())?;
            }
            Item::Slice(slice) if segments.has(epoch) => {
                gap.end(writer)?;
                known.touch(&slice, &mut |_, _, _| {});
                writer.slice(epoch, &slice)?;
            }
            Item::Slice(slice) => gap.add(epoch, &slice, &mut known),
            Item::Event(Event::Gap { instructions }) => gap.open(epoch, instructions),
            Item::Event(event) => {
                gap.populate();
                known.follow(&event);
                if gap.is_open {
                    gap.events.push((epoch, event));
                } else {
                    writer.event(epoch, &event)?;
                }
            }
        }
    }
    gap.end(writer)
}

/// A gap under construction: it comes first, with all its instructions; then what happened in it.
#[derive(Default)]
struct Gap {
    is_open: bool,
    /// The epoch that it began in, and the latest of what is in it.
    epoch: u64,
    latest: u64,
    instructions: u64,
    events: Vec<(u64, Event)>,
    /// Pages touched for the first time since the last of `events`, in order, and whether by stores too.
    touched: Vec<(u64, bool)>,
    places: FxHashMap<u64, usize>,
}

impl Gap {
    fn open(&mut self, epoch: u64, instructions: u64) {
        if !self.is_open {
            self.is_open = true;
            self.epoch = epoch;
        }
        self.latest = epoch;
        self.instructions = self.instructions.saturating_add(instructions);
    }

    /// Adds a slice that is not to be in the trace.
    fn add(&mut self, epoch: u64, slice: &Slice, known: &mut Known) {
        let executed = slice.blocks.iter().map(|&id| known.blocks[id as usize].instructions.len());
        self.open(epoch, executed.sum::<usize>() as u64);
        let Gap { touched, places, .. } = self;
        known.touch(slice, &mut |page, store, is_new| {
            if is_new {
                places.insert(page, touched.len());
                touched.push((page, store));
            } else if store && let Some(&place) = places.get(&page) {
                touched[place].1 = true;
            }
        });
    }

    /// Turns the touched pages into events: something else happens.
    fn populate(&mut self) {
        self.places.clear();
        let mut latest: Option<(u64, u64, bool)> = None;
        for (page, stored) in self.touched.drain(..) {
            match &mut latest {
                Some((first, pages, store)) if *first + *pages == page && *store == stored => {
                    *pages += 1;
                }
                _ => {
                    let before = latest.replace((page, 1, stored));
                    self.events.extend(before.map(|range| (self.latest, populate(range))));
                }
            }
        }
        self.events.extend(latest.map(|range| (self.latest, populate(range))));
    }

    /// Writes the gap, if there is one: what follows is in the trace.
    fn end(&mut self, writer: &mut Writer) -> Result<(), TraceError> {
        if !std::mem::take(&mut self.is_open) {
            return Ok(());
        }
        self.populate();
        let instructions = std::mem::take(&mut self.instructions);
        writer.event(self.epoch, &Event::Gap { instructions })?;
        for (epoch, event) in self.events.drain(..) {
            writer.event(epoch, &event)?;
        }
        Ok(())
    }
}

fn populate((first, pages, store): (u64, u64, bool)) -> Event {
    Event::Populate { address: first << 12, length: pages << 12, store }
}

const NONE: u64 = u64::MAX;

/// The pages that the trace so far says are in memory.
struct Known {
    blocks: Vec<Arc<Block>>,
    pages: Pages,
    /// Direct-mapped: pages, with the kind of access in the lowest bit, that need not be looked up.
    recent: Box<[u64]>,
}

impl Default for Known {
    fn default() -> Self {
        Known { blocks: Vec::new(), pages: Pages::new(), recent: vec![NONE; 4096].into() }
    }
}

impl Known {
    /// Calls `found` for each page that a slice touches, but for repetitions: its number, whether it was
    /// stored to, whether it is new.
    fn touch(&mut self, slice: &Slice, found: &mut impl FnMut(u64, bool, bool)) {
        let Known { blocks, pages, recent } = self;
        let mut touch = |address: u64, bytes: u64, store: bool| {
            for page in address >> 12..=address.saturating_add(bytes.max(1) - 1) >> 12 {
                let key = page << 1 | u64::from(store);
                let recent = &mut recent[key as usize % 4096];
                if *recent != key {
                    *recent = key;
                    found(page, store, pages.insert(page));
                }
            }
        };
        let mut addresses = slice.addresses.iter();
        for &id in &slice.blocks {
            let block = &blocks[id as usize];
            if let (Some(first), Some(last)) =
                (block.instructions.first(), block.instructions.last())
            {
                let end = last.pc.saturating_add(u64::from(last.length.max(1)));
                touch(first.pc, end.saturating_sub(first.pc), false);
            }
            for (access, &address) in block.accesses.iter().zip(&mut addresses) {
                touch(address, u64::from(access.size), access.store);
            }
        }
    }

    /// Takes note of an event.
    fn follow(&mut self, event: &Event) {
        if self.pages.follow(event) {
            self.recent.fill(NONE);
        }
        if let Event::Populate { address, length, .. } = *event {
            self.pages.insert_range(address, length);
        }
    }
}
