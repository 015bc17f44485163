//! Reads a trace.

use std::path::Path;

use super::chunks::{Chunk, Disk, Lanes, indexed, scan};
use super::container::{self, Header};
use super::lanes::{Code, EventLane, SliceLane};
use super::summary::Summary;
use super::verify::{recover, verify};
use crate::disk::{ReadSeek, bytes, open_file};
use crate::error::TraceError;
use crate::model::{Item, Slice, Source, SourceInfo};

/// Reads a trace file from front to back, with memory that does not depend on its length beyond
/// 88 bytes for each chunk (of about a mebibyte) and the code.
#[derive(Debug)]
pub struct Reader {
    disk: Disk,
    header: Header,
    chunks: Vec<Chunk>,
    /// No footer: the writer died, or the end was cut off.
    ended_early: bool,
    summary: Summary,
    info: SourceInfo,
    code: Code,
    events: [EventLane; 2],
    slices: [SliceLane; 2],
    /// Blocks already returned to the caller.
    yielded: usize,
    /// Instructions before the next run, in reading order.
    position: u64,
    /// Instructions before this one are skipped.
    start: u64,
    /// Of the latest event or slice.
    epoch: u64,
}

impl Reader {
    /// Opens a trace file. If its footer is missing, because the writer died or the end was cut off, it
    /// is read as far as it is complete: see [`Reader::ended_early`].
    ///
    /// # Errors
    /// When the file cannot be read, is of another format or a later version, or is damaged.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let file = open_file(path)?;
        let metadata = file.metadata().map_err(|error| TraceError::io(path, error))?;
        Self::new(path, Box::new(file), metadata.len())
    }

    /// The same for a trace in memory; messages call it `path`.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn from_bytes(path: &Path, trace: Vec<u8>) -> Result<Self, TraceError> {
        let length = trace.len() as u64;
        Self::new(path, bytes(trace), length)
    }

    fn new(path: &Path, mut file: Box<dyn ReadSeek>, file_bytes: u64) -> Result<Self, TraceError> {
        let (header, header_bytes) = container::read_header(&mut *file, path, file_bytes)?;
        let mut disk = Disk::new(path, file, file_bytes)?;
        let (chunks, summary) = match indexed(&mut disk, header_bytes)? {
            Some((chunks, summary)) => (chunks, Some(summary)),
            None => (scan(&mut disk, header_bytes)?, None),
        };
        let lanes = Lanes::sort(&disk, &chunks)?;
        let ended_early = summary.is_none();
        let summary = match summary {
            Some(summary) => summary,
            None => recover(&mut disk, &chunks, &lanes)?,
        };
        lanes.check(&disk, header_bytes, &summary)?;
        let info = SourceInfo {
            name: header.name.clone(),
            hash: summary.hash.clone(),
            instructions: Some(summary.instructions),
            touched: summary.touched.clone(),
            gap_instructions: summary.gap_instructions,
            segment_instructions: header.segment_instructions,
            gap_pages: header.gap_pages,
        };
        Ok(Self {
            disk,
            header,
            chunks,
            ended_early,
            summary,
            info,
            code: Code::new(lanes.definitions),
            events: lanes.events.map(EventLane::new),
            slices: lanes.slices.map(SliceLane::new),
            yielded: 0,
            position: 0,
            start: 0,
            epoch: 0,
        })
    }

    /// The trace's description of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Totals. Those of a trace that ended early were computed from what is complete.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The file has no footer: its writer died before it could finish, or its end was cut off.
    pub fn ended_early(&self) -> bool {
        self.ended_early
    }

    /// The epoch of the event or slice that was read last, for a copy of it.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Length of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.disk.file_bytes
    }

    /// About how much of the file was read so far, in bytes.
    pub fn progress(&self) -> u64 {
        let total = self.summary.instructions.max(1);
        let scaled = u128::from(self.disk.file_bytes) * u128::from(self.position.min(total));
        (scaled / u128::from(total)) as u64
    }

    /// Seeks to instruction number `instruction` (from 0, in reading order). All definitions and events
    /// before it still follow (they make the address space), then execution from the block that contains
    /// it. Beyond the end, only definitions and events follow.
    pub fn seek(&mut self, instruction: u64) {
        let chunks = &self.chunks;
        let count = |&index: &usize| chunks[index].header.count;
        let [primary, late] = &self.slices;
        // Where each chunk of the first lane starts: after those before it, and the late ones of
        // earlier epochs.
        let (mut start, mut found, mut late_before, mut late_count) = (0, (0, 0, 0), 0, 0);
        for (number, index) in primary.chunks.iter().enumerate() {
            let epoch = chunks[*index].header.first_epoch;
            while let Some(next) = late.chunks.get(late_before)
                && chunks[*next].header.first_epoch < epoch
            {
                late_count += count(next);
                late_before += 1;
            }
            if start + late_count > instruction {
                break;
            }
            if number > 0 {
                found = (number, late_before, start + late_count);
            }
            start += count(index);
        }
        self.slices[0].rewind(found.0);
        self.slices[1].rewind(found.1);
        self.position = found.2;
        self.start = instruction;
        self.yielded = 0;
        self.events.iter_mut().for_each(EventLane::rewind);
    }

    /// Reads the whole file and checks everything: every chunk, every reference, the totals, the
    /// content hash. `progress` is called with the bytes checked and the bytes of the file.
    ///
    /// # Errors
    /// When anything is wrong, or `progress` asks to stop.
    pub fn verify(
        &mut self,
        progress: &mut dyn FnMut(u64, u64) -> std::ops::ControlFlow<()>,
    ) -> Result<(), TraceError> {
        verify(
            &mut self.disk,
            &self.chunks,
            &mut self.code.unread(),
            &self.summary,
            self.ended_early,
            progress,
        )
    }

    /// Where the next item is: (its epoch, 0 for events or 1 for slices, which lane).
    fn earliest(&mut self) -> Result<Option<(u64, usize, usize)>, TraceError> {
        let mut best = None;
        for (number, lane) in self.events.iter_mut().enumerate() {
            let epoch = lane.peek(&mut self.disk, &self.chunks)?;
            best = epoch.map(|epoch| (epoch, 0, number)).into_iter().chain(best).min();
        }
        for (number, lane) in self.slices.iter().enumerate() {
            let epoch = lane.peek(&self.chunks);
            best = epoch.map(|epoch| (epoch, 1, number)).into_iter().chain(best).min();
        }
        Ok(best)
    }

    /// The next run, unless it is before where reading starts, or its chunk had to be opened first.
    fn next_slice(&mut self, number: usize) -> Result<Option<Slice>, TraceError> {
        let lane = &mut self.slices[number];
        let Some(open) = lane.opened() else {
            lane.open(&mut self.disk, &self.chunks, &mut self.code)?;
            return Ok(None);
        };
        let mut slice = Slice::default();
        let instructions = open.read(&self.disk, &mut slice)?;
        let first = self.position;
        self.position += instructions;
        if self.position <= self.start {
            return Ok(None);
        }
        if first < self.start {
            let (mut at, mut blocks, mut addresses) = (first, 0, 0);
            for &id in &slice.blocks {
                let block = &self.code.blocks[id as usize];
                at += block.instructions.len() as u64;
                if at > self.start {
                    break;
                }
                blocks += 1;
                addresses += block.accesses.len();
            }
            slice.blocks.drain(..blocks);
            slice.addresses.drain(..addresses);
        }
        Ok(Some(slice))
    }
}

impl Source for Reader {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_item(&mut self) -> Result<Option<Item>, TraceError> {
        loop {
            // Definitions come before the first slice of the chunk that may need them.
            if let Some(block) = self.code.blocks.get(self.yielded) {
                let id = self.yielded as u32;
                self.yielded += 1;
                return Ok(Some(Item::Define { id, block: block.clone() }));
            }
            match self.earliest()? {
                Some((epoch, 0, lane)) => {
                    self.epoch = epoch;
                    return Ok(self.events[lane].take().map(Item::Event));
                }
                Some((epoch, _, lane)) => {
                    self.epoch = epoch;
                    if let Some(slice) = self.next_slice(lane)? {
                        return Ok(Some(Item::Slice(slice)));
                    }
                }
                None => {
                    // Definitions after the last slice.
                    let before = self.code.blocks.len();
                    self.code.read_until(&mut self.disk, &self.chunks, usize::MAX)?;
                    if self.code.blocks.len() == before {
                        return Ok(None);
                    }
                }
            }
        }
    }
}
