//! Reads a trace.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};
use zstd::bulk::Decompressor;

use super::bytes::Cursor;
use super::container::{
    self, CHUNK_HEADER_BYTES, ChunkHeader, Header, Kind, SEVERAL_THREADS, TRAILER_BYTES,
};
use super::hash::ContentHash;
use super::summary::Summary;
use super::touched::Touched;
use super::{definitions, events, slices};
use crate::disk::{ReadSeek, bytes, open_file};
use crate::error::TraceError;
use crate::model::{Block, Event, Item, Slice, Source, SourceInfo};

/// A chunk and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    offset: u64,
    header: ChunkHeader,
}

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
    /// Blocks already given to the caller.
    given: usize,
    /// Instructions before the next run, in reading order.
    position: u64,
    /// Instructions before this one are skipped.
    start: u64,
}

/// The file, and what decompresses it.
struct Disk {
    path: PathBuf,
    file: Box<dyn ReadSeek>,
    file_bytes: u64,
    decompressor: Decompressor<'static>,
    stored: Vec<u8>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Disk").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Disk {
    fn damaged(&self, offset: u64, what: impl Into<String>) -> TraceError {
        TraceError::damaged(&self.path, offset, what)
    }

    /// Reads and checks the header at `offset`.
    fn header(&mut self, offset: u64) -> Result<ChunkHeader, TraceError> {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        container::read_at(&mut *self.file, &self.path, offset, &mut bytes)?;
        ChunkHeader::decode(&bytes).map_err(|what| self.damaged(offset, what))
    }

    /// Reads, checks and decompresses a payload.
    fn payload(&mut self, chunk: &Chunk) -> Result<Vec<u8>, TraceError> {
        let header = &chunk.header;
        if chunk.offset + header.total_bytes() > self.file_bytes {
            return Err(TraceError::Truncated {
                path: self.path.clone(),
                offset: chunk.offset,
                what: "a chunk".into(),
            });
        }
        // Every chunk of the index takes up more of the file than its entry does of the index.
        if u64::from(header.raw_bytes) > self.file_bytes.max(u64::from(container::MAX_RAW_BYTES)) {
            return Err(self.damaged(chunk.offset, "the chunk's length is impossible"));
        }
        if self.header(chunk.offset)? != *header {
            return Err(self.damaged(chunk.offset, "the chunk is not the one in the index"));
        }
        self.stored.resize(header.stored_bytes as usize, 0);
        let at = chunk.offset + CHUNK_HEADER_BYTES as u64;
        container::read_at(&mut *self.file, &self.path, at, &mut self.stored)?;
        if xxh3_64(&self.stored) != header.checksum {
            return Err(self.damaged(at, "the chunk's checksum does not match"));
        }
        let raw = self.decompressor.decompress(&self.stored, header.raw_bytes as usize);
        match raw {
            Ok(raw) if raw.len() == header.raw_bytes as usize => Ok(raw),
            _ => Err(self.damaged(at, "the chunk cannot be decompressed to its length")),
        }
    }

    fn malformed(&self, chunk: &Chunk, what: &str) -> TraceError {
        self.damaged(chunk.offset, format!("the chunk's content is impossible: {what}"))
    }
}

/// The definitions read so far.
#[derive(Debug, Default)]
struct Code {
    /// Chunks of definitions.
    chunks: Vec<usize>,
    next: usize,
    decoder: definitions::Decoder,
    blocks: Vec<Arc<Block>>,
}

impl Code {
    /// Reads the definitions in chunks before number `before` of the file.
    fn read_until(
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
}

/// Chunks of events in ascending order of epochs, and the open one.
#[derive(Debug, Default)]
struct EventLane {
    chunks: Vec<usize>,
    next: usize,
    payload: Vec<u8>,
    at: usize,
    left: u64,
    epoch: u64,
}

impl EventLane {
    fn peek(&self, chunks: &[Chunk]) -> Result<Option<u64>, &'static str> {
        if self.left == 0 {
            return Ok(self.chunks.get(self.next).map(|&index| chunks[index].header.first_epoch));
        }
        let step = Cursor::new(&self.payload[self.at..]).varint()?;
        self.epoch.checked_add(step).map(Some).ok_or("an epoch is larger than it can be")
    }

    fn open(&mut self, disk: &mut Disk, chunks: &[Chunk]) -> Result<(), TraceError> {
        let chunk = &chunks[self.chunks[self.next]];
        self.payload = disk.payload(chunk)?;
        self.at = 0;
        self.left = chunk.header.count;
        self.epoch = chunk.header.first_epoch;
        self.next += 1;
        Ok(())
    }

    /// The chunk being read; meaningful after [`EventLane::open`].
    fn chunk<'a>(&self, chunks: &'a [Chunk]) -> &'a Chunk {
        &chunks[self.chunks[self.next.saturating_sub(1)]]
    }

    fn read(&mut self, last_epoch: u64) -> Result<(u64, Event), &'static str> {
        let mut cursor = Cursor::new(&self.payload[self.at..]);
        let step = cursor.varint()?;
        self.epoch = self.epoch.checked_add(step).ok_or("an epoch is larger than it can be")?;
        let event = events::get(&mut cursor)?;
        self.at += cursor.position();
        self.left -= 1;
        if self.epoch > last_epoch || (self.left == 0 && self.epoch != last_epoch) {
            return Err("its epochs are not those in its header");
        }
        if self.left == 0 && self.at != self.payload.len() {
            return Err("bytes are left over");
        }
        Ok((self.epoch, event))
    }
}

/// Chunks of slices in ascending order of epochs, and the open one.
#[derive(Debug, Default)]
struct SliceLane {
    chunks: Vec<usize>,
    next: usize,
    /// Made when the lane's first chunk is opened.
    decoder: Option<Box<slices::Decoder>>,
}

impl SliceLane {
    fn peek(&self, chunks: &[Chunk]) -> Option<u64> {
        let open = self.decoder.as_ref().and_then(|decoder| decoder.peek());
        let next = || self.chunks.get(self.next).map(|&index| chunks[index].header.first_epoch);
        open.map(|run| run.epoch).or_else(next)
    }

    /// Opens the next chunk if none is open. Every definition that it needs has been read.
    fn open(
        &mut self,
        disk: &mut Disk,
        chunks: &[Chunk],
        code: &mut Code,
    ) -> Result<(), TraceError> {
        let index = self.chunks[self.next];
        let chunk = &chunks[index];
        code.read_until(disk, chunks, index)?;
        let payload = disk.payload(chunk)?;
        let decoder = self.decoder.get_or_insert_with(|| Box::new(slices::Decoder::new()));
        for block in &code.blocks[decoder.predictor.len()..] {
            decoder.predictor.define(block).map_err(|what| disk.malformed(chunk, what))?;
        }
        decoder
            .load(payload, chunk.header.first_epoch)
            .map_err(|what| disk.malformed(chunk, what))?;
        let header = &chunk.header;
        let (first, last) = (decoder.runs.first(), decoder.runs.last());
        let epochs_match =
            first.is_some() && last.is_some_and(|run| run.epoch == header.last_epoch);
        let one_thread =
            first.is_some_and(|first| decoder.runs.iter().all(|run| run.thread == first.thread));
        let thread = first.filter(|_| one_thread).map_or(SEVERAL_THREADS, |run| run.thread);
        let starts = first.is_some_and(|run| run.epoch == header.first_epoch);
        if !epochs_match || !starts || thread != header.thread {
            return Err(disk.malformed(chunk, "its epochs or threads are not those in its header"));
        }
        self.next += 1;
        Ok(())
    }

    /// Reads the next run of the open chunk; gives its instructions.
    fn read(
        &mut self,
        disk: &Disk,
        chunks: &[Chunk],
        slice: &mut Slice,
    ) -> Result<u64, TraceError> {
        let chunk = &chunks[self.chunks[self.next.saturating_sub(1)]];
        let malformed = |what| disk.malformed(chunk, what);
        let decoder = self.decoder.as_mut().ok_or_else(|| malformed("no chunk is open"))?;
        let before = decoder.sums.instructions;
        decoder.read(slice).map_err(malformed)?;
        let sums = decoder.sums;
        let header = &chunk.header;
        if decoder.peek().is_none()
            && (sums.instructions != header.count
                || sums.loads != u64::from(header.a)
                || sums.stores != u64::from(header.b))
        {
            return Err(malformed("its totals are not those in its header"));
        }
        Ok(sums.instructions - before)
    }

    fn is_open(&self) -> bool {
        self.decoder.as_ref().is_some_and(|decoder| decoder.peek().is_some())
    }

    /// Forgets the open chunk and goes on at the `next`th of the lane.
    fn rewind(&mut self, next: usize) {
        self.next = next;
        if let Some(decoder) = &mut self.decoder {
            decoder.runs.clear();
            decoder.next = 0;
        }
    }
}

impl Reader {
    /// Opens a trace file. One without a footer, because its writer died or its end was cut off, is
    /// opened as far as it is complete: see [`Reader::ended_early`].
    ///
    /// # Errors
    /// When the file cannot be read, is of another format or a later version, or is damaged.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let file = open_file(path)?;
        let metadata = file.metadata().map_err(|error| TraceError::io(path, error))?;
        Self::new(path, Box::new(file), metadata.len())
    }

    /// The same over a trace in memory; `path` is what messages call it.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn from_bytes(path: &Path, trace: Vec<u8>) -> Result<Self, TraceError> {
        let length = trace.len() as u64;
        Self::new(path, bytes(trace), length)
    }

    fn new(path: &Path, mut file: Box<dyn ReadSeek>, file_bytes: u64) -> Result<Self, TraceError> {
        let (header, header_bytes) = container::read_header(&mut *file, path, file_bytes)?;
        let decompressor = Decompressor::new().map_err(|error| TraceError::io(path, error))?;
        let mut disk =
            Disk { path: path.to_owned(), file, file_bytes, decompressor, stored: Vec::new() };
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
        };
        let slice_lane = |chunks| SliceLane { chunks, ..SliceLane::default() };
        let event_lane = |chunks| EventLane { chunks, ..EventLane::default() };
        Ok(Self {
            disk,
            header,
            chunks,
            ended_early,
            summary,
            info,
            code: Code { chunks: lanes.definitions, ..Code::default() },
            events: lanes.events.map(event_lane),
            slices: lanes.slices.map(slice_lane),
            given: 0,
            position: 0,
            start: 0,
        })
    }

    /// What the trace says of itself.
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

    /// Goes to instruction number `instruction` (from 0, in reading order): what follows are all
    /// definitions and events before it (for the address space), then execution from the block that
    /// contains it. Beyond the end, only definitions and events follow.
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
        self.given = 0;
        for lane in &mut self.events {
            lane.next = 0;
            lane.left = 0;
        }
    }

    /// Reads the whole file and checks everything: every chunk, every reference, the totals, the
    /// content hash. `progress` is told the bytes checked and the bytes of the file.
    ///
    /// # Errors
    /// When anything is wrong, or `progress` asks to stop.
    pub fn verify(
        &mut self,
        progress: &mut dyn FnMut(u64, u64) -> std::ops::ControlFlow<()>,
    ) -> Result<(), TraceError> {
        let mut hash = ContentHash::new();
        let (mut touched, mut noted) = (Touched::new(), Touched::new());
        let mut lane = SliceLane::default();
        let mut events = EventLane::default();
        let mut code = Code { chunks: self.code.chunks.clone(), ..Code::default() };
        let mut slice = Slice::default();
        let mut found = Summary::default();
        let mut hashed = 0;
        for index in 0..self.chunks.len() {
            let chunk = self.chunks[index];
            if progress(chunk.offset, self.disk.file_bytes).is_break() {
                return Err(TraceError::Stopped { path: self.disk.path.clone() });
            }
            match chunk.header.kind {
                Kind::Definitions => {
                    code.read_until(&mut self.disk, &self.chunks, index + 1)?;
                    for block in &code.blocks[hashed..] {
                        hash.define(block);
                        for instruction in &block.instructions {
                            touched.touch(instruction.pc, u64::from(instruction.length.max(1)));
                        }
                    }
                    hashed = code.blocks.len();
                }
                Kind::Events => {
                    events.chunks = vec![index];
                    events.next = 0;
                    events.open(&mut self.disk, &self.chunks)?;
                    while events.left > 0 {
                        let read = events.read(chunk.header.last_epoch);
                        let (epoch, event) =
                            read.map_err(|what| self.disk.malformed(&chunk, what))?;
                        hash.event(epoch, &event);
                        count_event(&mut found, &mut touched, &event);
                    }
                }
                Kind::Slices => {
                    lane.chunks = vec![index];
                    lane.rewind(0);
                    lane.open(&mut self.disk, &self.chunks, &mut code)?;
                    while let Some(run) = lane.decoder.as_ref().and_then(|decoder| decoder.peek()) {
                        found.instructions += lane.read(&self.disk, &self.chunks, &mut slice)?;
                        touched.thread(run.thread);
                        hash.slice(run.thread, run.epoch, &slice.blocks, &slice.addresses);
                        let mut addresses = slice.addresses.iter();
                        for &id in &slice.blocks {
                            for (access, &address) in
                                code.blocks[id as usize].accesses.iter().zip(&mut addresses)
                            {
                                touched.touch(address, u64::from(access.size));
                            }
                        }
                    }
                    found.loads += u64::from(chunk.header.a);
                    found.stores += u64::from(chunk.header.b);
                }
                Kind::Touched => {
                    let payload = self.disk.payload(&chunk)?;
                    noted.merge(&payload).map_err(|what| self.disk.malformed(&chunk, what))?;
                }
                Kind::Summary | Kind::Index => {
                    self.disk.payload(&chunk)?;
                }
            }
        }
        if self.ended_early {
            // What touched the pages that were noted may have been lost.
            found.threads = self.summary.threads;
            found.footprint_bytes = self.summary.footprint_bytes;
            found.touched.clone_from(&self.summary.touched);
            found.hash.clone_from(&self.summary.hash);
        } else {
            found.threads = touched.threads();
            found.footprint_bytes = touched.page_count() << 12;
            found.touched = touched.ranges();
            found.hash = hash.hex();
            if !touched.was_noted_in(&noted) {
                let offset = self.chunks.last().map_or(0, |chunk| chunk.offset);
                return Err(self
                    .disk
                    .damaged(offset, "the touched pages are not those that were noted"));
            }
        }
        found.blocks = code.blocks.len() as u64;
        found.code_bytes = code.decoder.code_bytes;
        if found != self.summary {
            let offset = self.chunks.last().map_or(0, |chunk| chunk.offset);
            return Err(self.disk.damaged(offset, "the totals are not those of the content"));
        }
        let _ = progress(self.disk.file_bytes, self.disk.file_bytes);
        Ok(())
    }

    /// The epochs that are next, and where: (epoch, 0 for events or 1 for slices, lane).
    fn earliest(&self) -> Result<Option<(u64, usize, usize)>, TraceError> {
        let mut best = None;
        for (number, lane) in self.events.iter().enumerate() {
            let epoch = lane
                .peek(&self.chunks)
                .map_err(|what| self.disk.malformed(lane.chunk(&self.chunks), what))?;
            best = epoch.map(|epoch| (epoch, 0, number)).into_iter().chain(best).min();
        }
        for (number, lane) in self.slices.iter().enumerate() {
            let epoch = lane.peek(&self.chunks);
            best = epoch.map(|epoch| (epoch, 1, number)).into_iter().chain(best).min();
        }
        Ok(best)
    }

    fn next_event(&mut self, number: usize) -> Result<Event, TraceError> {
        let lane = &mut self.events[number];
        if lane.left == 0 {
            lane.open(&mut self.disk, &self.chunks)?;
        }
        let chunk = lane.chunk(&self.chunks);
        let (_, event) =
            lane.read(chunk.header.last_epoch).map_err(|what| self.disk.malformed(chunk, what))?;
        Ok(event)
    }

    /// The next run, unless it is before where reading starts.
    fn next_slice(&mut self, number: usize) -> Result<Option<Slice>, TraceError> {
        let lane = &mut self.slices[number];
        let mut slice = Slice::default();
        let instructions = lane.read(&self.disk, &self.chunks, &mut slice)?;
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
            if let Some(block) = self.code.blocks.get(self.given) {
                let id = self.given as u32;
                self.given += 1;
                return Ok(Some(Item::Define { id, block: block.clone() }));
            }
            match self.earliest()? {
                Some((_, 0, lane)) => {
                    return self.next_event(lane).map(|event| Some(Item::Event(event)));
                }
                Some((_, _, lane)) => {
                    if !self.slices[lane].is_open() {
                        self.slices[lane].open(&mut self.disk, &self.chunks, &mut self.code)?;
                        continue;
                    }
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

/// The chunks as the index lists them, and the totals; `None` if the file has no footer.
fn indexed(
    disk: &mut Disk,
    header_bytes: u64,
) -> Result<Option<(Vec<Chunk>, Summary)>, TraceError> {
    if disk.file_bytes < header_bytes + TRAILER_BYTES as u64 {
        return Ok(None);
    }
    let mut trailer = [0; TRAILER_BYTES];
    let trailer_offset = disk.file_bytes - TRAILER_BYTES as u64;
    container::read_at(&mut *disk.file, &disk.path, trailer_offset, &mut trailer)?;
    let Some(index_offset) = container::decode_trailer(&trailer) else {
        return Ok(None);
    };
    let fits = index_offset
        .checked_add(CHUNK_HEADER_BYTES as u64)
        .is_some_and(|end| index_offset >= header_bytes && end <= trailer_offset);
    if !fits {
        return Err(
            disk.damaged(trailer_offset, "the trailer names an impossible place for the index")
        );
    }
    let index = Chunk { offset: index_offset, header: disk.header(index_offset)? };
    if index.header.kind != Kind::Index
        || index_offset + index.header.total_bytes() != trailer_offset
    {
        return Err(disk.damaged(index_offset, "there is no index where the trailer says"));
    }
    let payload = disk.payload(&index)?;
    let mut chunks = Vec::with_capacity(payload.len() / CHUNK_HEADER_BYTES);
    let mut offset = header_bytes;
    let entries = payload.chunks_exact(CHUNK_HEADER_BYTES);
    let whole = entries.remainder().is_empty();
    for entry in entries {
        let header = entry.first_chunk().ok_or("too short").and_then(ChunkHeader::decode);
        let header = header.map_err(|what| disk.malformed(&index, what))?;
        chunks.push(Chunk { offset, header });
        offset += header.total_bytes();
    }
    if !whole || offset != index_offset {
        return Err(disk.malformed(&index, "the chunks that it lists do not fill the file"));
    }
    let Some(last) = chunks.last().filter(|chunk| chunk.header.kind == Kind::Summary) else {
        return Err(disk.malformed(&index, "the totals are missing"));
    };
    let last = *last;
    let text = disk.payload(&last)?;
    let summary = serde_json::from_slice(&text).map_err(|error| {
        disk.damaged(last.offset, format!("the totals cannot be read: {error}"))
    })?;
    Ok(Some((chunks, summary)))
}

/// Finds the chunks of a file without footer. The last may be incomplete: it is left out.
fn scan(disk: &mut Disk, header_bytes: u64) -> Result<Vec<Chunk>, TraceError> {
    let mut chunks = Vec::new();
    let mut offset = header_bytes;
    while disk.file_bytes - offset >= CHUNK_HEADER_BYTES as u64 {
        let header = disk.header(offset)?;
        if disk.file_bytes - offset < header.total_bytes() {
            break;
        }
        if !matches!(header.kind, Kind::Summary | Kind::Index) {
            chunks.push(Chunk { offset, header });
        }
        offset += header.total_bytes();
    }
    Ok(chunks)
}

/// Which chunks hold what, in reading order.
struct Lanes {
    definitions: Vec<usize>,
    /// Those that continue in ascending order of epochs; those written late, by epoch.
    events: [Vec<usize>; 2],
    slices: [Vec<usize>; 2],
    blocks: u64,
    instructions: u64,
    loads: u64,
    stores: u64,
    event_count: u64,
}

impl Lanes {
    fn sort(disk: &Disk, chunks: &[Chunk]) -> Result<Self, TraceError> {
        let mut lanes = Self {
            definitions: Vec::new(),
            events: [Vec::new(), Vec::new()],
            slices: [Vec::new(), Vec::new()],
            blocks: 0,
            instructions: 0,
            loads: 0,
            stores: 0,
            event_count: 0,
        };
        let mut latest = [0; 2];
        for (index, chunk) in chunks.iter().enumerate() {
            let header = &chunk.header;
            let (so_far, kind) = match header.kind {
                Kind::Definitions => {
                    lanes.definitions.push(index);
                    (&mut lanes.blocks, None)
                }
                Kind::Events => (&mut lanes.event_count, Some((&mut lanes.events, &mut latest[0]))),
                Kind::Slices => {
                    lanes.loads += u64::from(header.a);
                    lanes.stores += u64::from(header.b);
                    (&mut lanes.instructions, Some((&mut lanes.slices, &mut latest[1])))
                }
                Kind::Touched | Kind::Summary | Kind::Index => continue,
            };
            if header.first != *so_far || header.count == 0 {
                return Err(
                    disk.damaged(chunk.offset, "a chunk is missing, doubled or out of order")
                );
            }
            *so_far += header.count;
            let Some((pair, latest)) = kind else { continue };
            if header.first_epoch >= *latest {
                *latest = header.last_epoch;
                pair[0].push(index);
            } else if header.first_epoch == header.last_epoch {
                pair[1].push(index);
            } else {
                return Err(disk.damaged(chunk.offset, "a late chunk spans several epochs"));
            }
        }
        for pair in [&mut lanes.events, &mut lanes.slices] {
            // Stable: within an epoch the order of the file.
            pair[1].sort_by_key(|&index| chunks[index].header.first_epoch);
        }
        Ok(lanes)
    }

    /// Compares the totals that the chunks' headers give.
    fn check(&self, disk: &Disk, offset: u64, summary: &Summary) -> Result<(), TraceError> {
        let events = summary.events.values().try_fold(0_u64, |sum, &count| sum.checked_add(count));
        if self.blocks == summary.blocks
            && self.instructions == summary.instructions
            && self.loads == summary.loads
            && self.stores == summary.stores
            && Some(self.event_count) == events
        {
            Ok(())
        } else {
            Err(disk.damaged(offset, "the totals are not those of the chunks"))
        }
    }
}

/// Counts an event and what it says of the address space and the threads.
fn count_event(summary: &mut Summary, touched: &mut Touched, event: &Event) {
    *summary.events.entry(events::kind_name(event).to_owned()).or_default() += 1;
    match *event {
        Event::Populate { address, length, .. } => touched.populate(address, length),
        Event::ThreadStart { thread } => touched.thread(thread),
        _ => {}
    }
}

/// The totals of a file that ended early, from the chunks' headers, the touched pages and the events.
fn recover(disk: &mut Disk, chunks: &[Chunk], lanes: &Lanes) -> Result<Summary, TraceError> {
    let mut touched = Touched::new();
    let mut hash = Xxh3::new();
    let mut summary = Summary {
        instructions: lanes.instructions,
        loads: lanes.loads,
        stores: lanes.stores,
        blocks: lanes.blocks,
        ..Summary::default()
    };
    let mut lane = EventLane::default();
    for (index, chunk) in chunks.iter().enumerate() {
        hash.update(&chunk.header.encode());
        match chunk.header.kind {
            Kind::Definitions => summary.code_bytes += u64::from(chunk.header.b),
            Kind::Touched => {
                let payload = disk.payload(chunk)?;
                touched.merge(&payload).map_err(|what| disk.malformed(chunk, what))?;
            }
            Kind::Events => {
                lane.chunks = vec![index];
                lane.next = 0;
                lane.open(disk, chunks)?;
                while lane.left > 0 {
                    let read = lane.read(chunk.header.last_epoch);
                    let (_, event) = read.map_err(|what| disk.malformed(chunk, what))?;
                    count_event(&mut summary, &mut touched, &event);
                }
            }
            Kind::Slices | Kind::Summary | Kind::Index => {}
        }
    }
    summary.threads = touched.threads();
    summary.footprint_bytes = touched.page_count() << 12;
    summary.touched = touched.ranges();
    summary.hash = format!("partial-{:032x}", hash.digest128());
    Ok(summary)
}
