//! Writes a trace.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;
use zstd::bulk::Compressor;

use super::container::{self, ChunkHeader, Header, Kind, SEVERAL_THREADS};
use super::hash::ContentHash;
use super::summary::Summary;
use super::touched::{MAX_FRESH_REGIONS, Touched};
use super::{definitions, events, slices};
use crate::error::TraceError;
use crate::model::{Block, BlockId, Event, Slice};

/// A payload is finished when it is this long before compression …
const TARGET_RAW_BYTES: usize = 1 << 20;
/// … or holds this many blocks, whichever comes first.
const TARGET_BLOCKS: usize = 1 << 20;

/// How to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// zstd level, 1 (fast) to 19 (small). Reading is equally fast at every level.
    pub level: i32,
}

impl Default for Options {
    fn default() -> Self {
        Self { level: 1 }
    }
}

/// Writes a trace file. What is complete on disk stays readable even if the process dies afterwards;
/// about a million executed blocks are buffered.
pub struct Writer {
    path: PathBuf,
    file: Box<dyn Write + Send>,
    compressor: Compressor<'static>,
    /// The headers of the chunks written so far, for the index.
    index: Vec<u8>,
    offset: u64,
    definitions: definitions::Encoder,
    /// Instructions and accesses of the blocks in `definitions`, and of all.
    expanded: usize,
    expanded_in_all: usize,
    blocks: u64,
    events: events::Encoder,
    /// Events in the chunks written so far.
    events_written: u64,
    slices: slices::Encoder,
    /// The largest epoch of any slice so far.
    latest: u64,
    /// The slices being buffered have an epoch before `latest`.
    late: bool,
    touched: Touched,
    /// Sizes of the accesses, in bytes, in the order of the predictor's slots.
    sizes: Vec<u16>,
    hash: ContentHash,
    summary: Summary,
    /// Set when a write failed: the file ends there.
    failed: bool,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Writer").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Writer {
    /// Creates (or overwrites) the file at `path`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn create(path: &Path, header: Header) -> Result<Self, TraceError> {
        Self::with_options(path, header, Options::default())
    }

    /// As [`Writer::create`], with options.
    ///
    /// # Errors
    /// When the system refuses, or the options make no sense.
    // By value for the sake of symmetry with `create`, whose callers build it in place.
    #[allow(clippy::needless_pass_by_value)]
    pub fn with_options(path: &Path, header: Header, options: Options) -> Result<Self, TraceError> {
        Self::to(path, &header, options, || File::create(path))
    }

    /// Writes to what `open` returns; messages call it `path`. With a sink, only the totals are computed.
    pub(crate) fn to<W: Write + Send + 'static>(
        path: &Path,
        header: &Header,
        options: Options,
        open: impl FnOnce() -> std::io::Result<W>,
    ) -> Result<Self, TraceError> {
        let io = |error| TraceError::io(path, error);
        let rejected = |what: String| TraceError::Rejected { path: path.to_owned(), what };
        if !(1..=19).contains(&options.level) {
            let level = options.level;
            return Err(rejected(format!("compression level {level} is not between 1 and 19")));
        }
        let compressor = Compressor::new(options.level).map_err(io)?;
        let header = container::encode_header(header).map_err(|what| rejected(what.into()))?;
        let mut file = open().map_err(io)?;
        file.write_all(&header).map_err(io)?;
        Ok(Self {
            path: path.to_owned(),
            file: Box::new(file),
            compressor,
            index: Vec::new(),
            offset: header.len() as u64,
            definitions: definitions::Encoder::default(),
            expanded: 0,
            expanded_in_all: 0,
            blocks: 0,
            events: events::Encoder::default(),
            events_written: 0,
            slices: slices::Encoder::new(),
            latest: 0,
            late: false,
            touched: Touched::new(),
            sizes: Vec::new(),
            hash: ContentHash::new(),
            summary: Summary::default(),
            failed: false,
        })
    }

    /// Defines the next block; identifiers are dense, from 0. The caller makes sure that equal
    /// blocks are defined only once.
    ///
    /// # Errors
    /// When the block breaks the model's rules, or the disk fails.
    // By value, although it is not kept: the signature says that the caller hands it over.
    #[allow(clippy::needless_pass_by_value)]
    pub fn define(&mut self, block: Block) -> Result<BlockId, TraceError> {
        definitions::check(&block).map_err(|what| self.rejected(what))?;
        let id = BlockId::try_from(self.blocks)
            .ok()
            .filter(|&id| id != BlockId::MAX)
            .ok_or_else(|| self.rejected("it has more than 2^32 - 1 blocks"))?;
        let expands_to = block.instructions.len() + block.accesses.len();
        if self.expanded_in_all + expands_to > definitions::MAX_EXPANDED_IN_ALL {
            return Err(self.rejected(
                "its blocks have more than 2^26 instructions and accesses; record a shorter part",
            ));
        }
        if self.expanded + expands_to > definitions::MAX_EXPANDED
            || self.definitions.out.len() >= TARGET_RAW_BYTES
        {
            self.flush_definitions()?;
        }
        self.slices.predictor.define(&block).map_err(|what| self.rejected(what))?;
        self.definitions.push(&block).map_err(|what| self.rejected(what))?;
        self.sizes.extend(block.accesses.iter().map(|access| access.size));
        self.expanded += expands_to;
        self.expanded_in_all += expands_to;
        self.blocks += 1;
        self.hash.define(&block);
        for instruction in &block.instructions {
            self.touched.touch(instruction.pc, u64::from(instruction.length.max(1)));
        }
        Ok(id)
    }

    /// A thread ran, after `epoch` events of the process and before the next.
    ///
    /// # Errors
    /// When the slice names undefined blocks or its addresses do not match them, or the disk fails.
    pub fn slice(&mut self, epoch: u64, slice: &Slice) -> Result<(), TraceError> {
        let mut addresses = 0;
        for &id in &slice.blocks {
            addresses +=
                self.slices.predictor.slots_of(id).map(|slots| slots.len()).ok_or_else(|| {
                    self.rejected(&format!("a slice names block {id}, which is not defined"))
                })?;
        }
        if addresses != slice.addresses.len() {
            return Err(self.rejected(&format!(
                "a slice has {} addresses, but its blocks make {addresses} accesses",
                slice.addresses.len()
            )));
        }
        if slice.blocks.is_empty() {
            return Ok(());
        }
        definitions::check_addresses(&slice.addresses).map_err(|what| self.rejected(what))?;
        let late = epoch < self.latest;
        let pending = self.slices.runs.last().map(|run| run.epoch);
        if pending.is_some_and(|pending| late != self.late || (late && pending != epoch)) {
            self.flush()?;
        }
        self.late = late;
        self.latest = self.latest.max(epoch);
        self.touched.thread(slice.thread);
        self.hash.slice(slice.thread, epoch, &slice.blocks, &slice.addresses);

        // A long slice goes to several payloads.
        let (mut blocks, mut addresses) = (&slice.blocks[..], &slice.addresses[..]);
        while !blocks.is_empty() {
            let (mut take, mut used) = (0, 0);
            while take < blocks.len() && take < slices::RUN_BLOCKS && used < slices::RUN_ADDRESSES {
                let Some(slots) = self.slices.predictor.slots_of(blocks[take]) else { break };
                let sizes = &self.sizes[slots];
                for (&address, &size) in addresses[used..].iter().zip(sizes) {
                    self.touched.touch(address, u64::from(size));
                }
                used += sizes.len();
                take += 1;
            }
            self.slices.push(slice.thread, epoch, &blocks[..take], &addresses[..used]);
            (blocks, addresses) = (&blocks[take..], &addresses[used..]);
            if self.slices.raw_bytes() >= TARGET_RAW_BYTES
                || self.slices.blocks() >= TARGET_BLOCKS
                || self.touched.fresh_regions() >= MAX_FRESH_REGIONS
            {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// The event that starts `epoch`.
    ///
    /// # Errors
    /// When the event cannot be stored, or the disk fails.
    pub fn event(&mut self, epoch: u64, event: &Event) -> Result<(), TraceError> {
        if let Event::Marker { name } | Event::Name { name, .. } = event
            && name.len() > events::MAX_NAME_BYTES
        {
            return Err(self.rejected("a name is longer than 65536 bytes"));
        }
        if let Event::Name { build_id, .. } = event
            && build_id.len() > events::MAX_NAME_BYTES
        {
            return Err(self.rejected("a build ID is longer than 65536 bytes"));
        }
        if !self.events.fits(epoch) || self.events.out.len() >= TARGET_RAW_BYTES {
            self.flush_events()?;
        }
        self.events.push(epoch, event);
        self.hash.event(epoch, event);
        self.summary.count(event, &mut self.touched);
        Ok(())
    }

    /// Gives the file another name, where another file may be.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn rename(&mut self, path: &Path) -> Result<(), TraceError> {
        std::fs::rename(&self.path, path).map_err(|error| TraceError::io(path, error))?;
        path.clone_into(&mut self.path);
        Ok(())
    }

    /// Instructions written so far.
    pub fn instructions(&self) -> u64 {
        self.summary.instructions + self.slices.sums.instructions
    }

    /// Bytes of the file so far, without what is buffered.
    pub fn file_bytes(&self) -> u64 {
        self.offset
    }

    /// Writes everything that is buffered, so that it survives the death of the process.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        // The order matters for a trace that ends early: what slices need has to be on disk before them.
        self.flush_definitions()?;
        self.flush_events()?;
        while self.touched.has_fresh() {
            let payload = self.touched.encode_fresh();
            self.chunk(Kind::Touched, &payload, |_| {})?;
        }
        let Some(&first) = self.slices.runs.first() else {
            return Ok(());
        };
        let last_epoch = self.slices.runs.last().map_or(first.epoch, |run| run.epoch);
        let one_thread = self.slices.runs.iter().all(|run| run.thread == first.thread);
        let sums = self.slices.sums;
        let instructions = self.summary.instructions;
        let payload = self.slices.take();
        self.chunk(Kind::Slices, &payload, |header| {
            header.first = instructions;
            header.count = sums.instructions;
            header.first_epoch = first.epoch;
            header.last_epoch = last_epoch;
            header.thread = if one_thread { first.thread } else { SEVERAL_THREADS };
            header.a = sums.loads as u32;
            header.b = sums.stores as u32;
        })?;
        self.summary.instructions += sums.instructions;
        self.summary.loads += sums.loads;
        self.summary.stores += sums.stores;
        Ok(())
    }

    /// Writes what is left, the totals and the index.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn finish(mut self) -> Result<Summary, TraceError> {
        self.flush()?;
        self.summary.set_touched(&self.touched);
        self.summary.blocks = self.blocks;
        self.summary.code_bytes = self.definitions.code_bytes;
        self.summary.hash = self.hash.hex();
        let index = std::mem::take(&mut self.index);
        let end = encode_end(&mut self.compressor, &self.summary, index, self.offset)
            .map_err(|error| TraceError::io(&self.path, error))?;
        self.write(&end)?;
        Ok(self.summary)
    }

    fn flush_definitions(&mut self) -> Result<(), TraceError> {
        if self.definitions.blocks == 0 {
            return Ok(());
        }
        let payload = std::mem::take(&mut self.definitions.out);
        let (count, total) = (self.definitions.blocks, self.blocks);
        let (instructions, bytes) =
            (self.definitions.new_instructions, self.definitions.new_code_bytes);
        self.chunk(Kind::Definitions, &payload, |header| {
            header.first = total - count;
            header.count = count;
            header.a = instructions;
            header.b = bytes;
        })?;
        self.definitions.reset();
        self.expanded = 0;
        Ok(())
    }

    fn flush_events(&mut self) -> Result<(), TraceError> {
        let count = std::mem::take(&mut self.events.count);
        if count == 0 {
            return Ok(());
        }
        let payload = std::mem::take(&mut self.events.out);
        let first = self.events_written;
        let (first_epoch, last_epoch) = (self.events.first_epoch, self.events.last_epoch);
        self.chunk(Kind::Events, &payload, |header| {
            header.first = first;
            header.count = count;
            header.first_epoch = first_epoch;
            header.last_epoch = last_epoch;
        })?;
        self.events_written += count;
        Ok(())
    }

    /// Compresses and writes one chunk with a single system call; `fill` completes its header.
    fn chunk(
        &mut self,
        kind: Kind,
        payload: &[u8],
        fill: impl FnOnce(&mut ChunkHeader),
    ) -> Result<(), TraceError> {
        let (header, bytes) = encode_chunk(&mut self.compressor, kind, payload, fill)
            .map_err(|error| TraceError::io(&self.path, error))?;
        self.index.extend_from_slice(&header.encode());
        self.write(&bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), TraceError> {
        if self.failed {
            return Err(self.rejected("an earlier write to it failed"));
        }
        self.file.write_all(bytes).map_err(|error| {
            self.failed = true;
            TraceError::io(&self.path, error)
        })?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn rejected(&self, what: &str) -> TraceError {
        TraceError::Rejected { path: self.path.clone(), what: what.to_owned() }
    }
}

/// What a trace ends with behind its other chunks, whose headers are `index`, at `offset`: the
/// totals, the index and the trailer.
pub(super) fn encode_end(
    compressor: &mut Compressor<'_>,
    summary: &Summary,
    mut index: Vec<u8>,
    offset: u64,
) -> std::io::Result<Vec<u8>> {
    let text = serde_json::to_vec(summary)?;
    let (header, mut end) = encode_chunk(compressor, Kind::Summary, &text, |_| {})?;
    index.extend_from_slice(&header.encode());
    let index_offset = offset + end.len() as u64;
    end.extend(encode_chunk(compressor, Kind::Index, &index, |_| {})?.1);
    end.extend_from_slice(&container::encode_trailer(index_offset));
    Ok(end)
}

/// A chunk's header and its bytes, which begin with that; `fill` completes it.
fn encode_chunk(
    compressor: &mut Compressor<'_>,
    kind: Kind,
    payload: &[u8],
    fill: impl FnOnce(&mut ChunkHeader),
) -> std::io::Result<(ChunkHeader, Vec<u8>)> {
    let raw_bytes = u32::try_from(payload.len())
        .map_err(|_| std::io::Error::other("a part of the trace is longer than 4 GiB"))?;
    let stored = compressor.compress(payload)?;
    let mut header = ChunkHeader {
        kind,
        stored_bytes: stored.len() as u32,
        raw_bytes,
        first: 0,
        count: 0,
        first_epoch: 0,
        last_epoch: 0,
        thread: 0,
        a: 0,
        b: 0,
        checksum: xxh3_64(&stored),
    };
    fill(&mut header);
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(&stored);
    Ok((header, bytes))
}
