//! Chunks being read: definitions, and *lanes* of events and slices. A lane has chunks in ascending
//! order of epochs; what was written late has a lane of its own.

use std::sync::Arc;

use super::bytes::{Cursor, Malformed};
use super::chunks::{Chunk, Disk};
use super::container::SEVERAL_THREADS;
use super::{definitions, events, slices};
use crate::error::TraceError;
use crate::model::{Block, Event, Slice};

/// The definitions read so far.
#[derive(Debug, Default)]
pub(super) struct Code {
    /// Chunks of definitions.
    chunks: Vec<usize>,
    next: usize,
    decoder: definitions::Decoder,
    pub blocks: Vec<Arc<Block>>,
}

impl Code {
    /// These chunks, of which nothing was read yet.
    pub(super) fn new(chunks: Vec<usize>) -> Self {
        Self { chunks, ..Self::default() }
    }

    /// The same, with nothing read yet.
    pub(super) fn unread(&self) -> Self {
        Self::new(self.chunks.clone())
    }

    /// Reads the definitions in chunks before number `before` of the file.
    pub(super) fn read_until(
        &mut self,
        disk: &mut Disk,
        chunks: &[Chunk],
        before: usize,
    ) -> Result<(), TraceError> {
        while let Some(&index) = self.chunks.get(self.next)
            && index < before
        {
            let chunk = &chunks[index];
            let payload = disk.payload(chunk)?;
            self.decoder
                .decode(&payload, &chunk.header, &mut self.blocks)
                .map_err(|what| disk.malformed(chunk, what))?;
            self.next += 1;
        }
        Ok(())
    }

    /// Bytes of the code read so far.
    pub(super) fn code_bytes(&self) -> u64 {
        self.decoder.code_bytes
    }
}

/// A chunk of events, one by one.
#[derive(Debug)]
pub(super) struct OpenEvents {
    chunk: Chunk,
    payload: Vec<u8>,
    at: usize,
    left: u64,
    epoch: u64,
}

impl OpenEvents {
    pub(super) fn open(disk: &mut Disk, chunk: &Chunk) -> Result<Self, TraceError> {
        let payload = disk.payload(chunk)?;
        let header = &chunk.header;
        Ok(Self { chunk: *chunk, payload, at: 0, left: header.count, epoch: header.first_epoch })
    }

    /// The next event and its epoch.
    pub(super) fn next(&mut self, disk: &Disk) -> Result<Option<(u64, Event)>, TraceError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.read().map(Some).map_err(|what| disk.malformed(&self.chunk, what))
    }

    fn read(&mut self) -> Result<(u64, Event), Malformed> {
        let mut cursor = Cursor::new(&self.payload[self.at..]);
        let step = cursor.varint()?;
        self.epoch = self.epoch.checked_add(step).ok_or("an epoch is larger than it can be")?;
        let event = events::get(&mut cursor)?;
        self.at += cursor.position();
        self.left -= 1;
        let last_epoch = self.chunk.header.last_epoch;
        if self.epoch > last_epoch || (self.left == 0 && self.epoch != last_epoch) {
            return Err("its epochs are not those in its header");
        }
        if self.left == 0 && self.at != self.payload.len() {
            return Err("bytes are left over");
        }
        Ok((self.epoch, event))
    }
}

/// One of the two lanes of events.
#[derive(Debug, Default)]
pub(super) struct EventLane {
    chunks: Vec<usize>,
    next: usize,
    open: Option<OpenEvents>,
    /// Read ahead, to know its epoch.
    ready: Option<(u64, Event)>,
}

impl EventLane {
    pub(super) fn new(chunks: Vec<usize>) -> Self {
        Self { chunks, ..Self::default() }
    }

    /// The epoch of the next event.
    pub(super) fn peek(
        &mut self,
        disk: &mut Disk,
        chunks: &[Chunk],
    ) -> Result<Option<u64>, TraceError> {
        while self.ready.is_none() {
            if let Some(open) = &mut self.open {
                self.ready = open.next(disk)?;
            }
            if self.ready.is_none() {
                let Some(&index) = self.chunks.get(self.next) else { return Ok(None) };
                self.open = Some(OpenEvents::open(disk, &chunks[index])?);
                self.next += 1;
            }
        }
        Ok(self.ready.as_ref().map(|&(epoch, _)| epoch))
    }

    /// The event that was peeked at.
    pub(super) fn take(&mut self) -> Option<Event> {
        self.ready.take().map(|(_, event)| event)
    }

    /// Starts from the front again.
    pub(super) fn rewind(&mut self) {
        self.next = 0;
        self.open = None;
        self.ready = None;
    }
}

/// A chunk of slices, run by run. The next one reuses its predictor's memory.
#[derive(Debug)]
pub(super) struct OpenSlices {
    chunk: Chunk,
    decoder: slices::Decoder,
}

impl OpenSlices {
    /// Opens a chunk whose definitions are among `blocks`, reusing the memory of the one before.
    pub(super) fn open(
        before: Option<Self>,
        disk: &mut Disk,
        chunk: &Chunk,
        blocks: &[Arc<Block>],
    ) -> Result<Self, TraceError> {
        let mut decoder = before.map_or_else(slices::Decoder::new, |before| before.decoder);
        let payload = disk.payload(chunk)?;
        let malformed = |what| disk.malformed(chunk, what);
        for block in &blocks[decoder.predictor.len()..] {
            decoder.predictor.define(block).map_err(malformed)?;
        }
        let header = &chunk.header;
        decoder.load(payload, header.first_epoch).map_err(malformed)?;
        let runs = &decoder.runs;
        let epochs = runs.first().zip(runs.last()).map(|(first, last)| (first.epoch, last.epoch));
        let thread = match runs.first() {
            Some(first) if runs.iter().all(|run| run.thread == first.thread) => first.thread,
            _ => SEVERAL_THREADS,
        };
        if epochs != Some((header.first_epoch, header.last_epoch)) || thread != header.thread {
            return Err(malformed("its epochs or threads are not those in its header"));
        }
        Ok(Self { chunk: *chunk, decoder })
    }

    /// The run that comes next, if any.
    pub(super) fn peek(&self) -> Option<slices::Run> {
        self.decoder.peek()
    }

    /// Reads the next run; returns its instructions.
    pub(super) fn read(&mut self, disk: &Disk, slice: &mut Slice) -> Result<u64, TraceError> {
        let malformed = |what| disk.malformed(&self.chunk, what);
        let before = self.decoder.sums.instructions;
        self.decoder.read(slice).map_err(malformed)?;
        let (sums, header) = (self.decoder.sums, &self.chunk.header);
        if self.decoder.peek().is_none()
            && (sums.instructions, sums.loads, sums.stores)
                != (header.count, u64::from(header.a), u64::from(header.b))
        {
            return Err(malformed("its totals are not those in its header"));
        }
        Ok(sums.instructions - before)
    }
}

/// One of the two lanes of slices.
#[derive(Debug, Default)]
pub(super) struct SliceLane {
    pub chunks: Vec<usize>,
    next: usize,
    /// The chunk being read, or the last one that was.
    open: Option<OpenSlices>,
}

impl SliceLane {
    pub(super) fn new(chunks: Vec<usize>) -> Self {
        Self { chunks, ..Self::default() }
    }

    /// The epoch of the next run.
    pub(super) fn peek(&self, chunks: &[Chunk]) -> Option<u64> {
        let open = self.open.as_ref().and_then(OpenSlices::peek);
        let next = || self.chunks.get(self.next).map(|&index| chunks[index].header.first_epoch);
        open.map(|run| run.epoch).or_else(next)
    }

    /// The chunk with the next run, if it is open.
    pub(super) fn opened(&mut self) -> Option<&mut OpenSlices> {
        self.open.as_mut().filter(|open| open.peek().is_some())
    }

    /// Opens the next chunk, and reads the definitions that it needs.
    pub(super) fn open(
        &mut self,
        disk: &mut Disk,
        chunks: &[Chunk],
        code: &mut Code,
    ) -> Result<(), TraceError> {
        let index = self.chunks[self.next];
        code.read_until(disk, chunks, index)?;
        let open = OpenSlices::open(self.open.take(), disk, &chunks[index], &code.blocks)?;
        self.open = Some(open);
        self.next += 1;
        Ok(())
    }

    /// Goes on at the start of the `next`th chunk of the lane.
    pub(super) fn rewind(&mut self, next: usize) {
        self.next = next;
        self.open = None;
    }
}
