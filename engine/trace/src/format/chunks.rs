//! The chunks of a file: where they are, what is in them, in which order they are read.

use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;
use zstd::bulk::Decompressor;

use super::bytes::{Malformed, UNKNOWN_CHUNK, UNKNOWN_EVENT};
use super::container::{self, CHUNK_HEADER_BYTES, ChunkHeader, Kind, TRAILER_BYTES};
use super::summary::Summary;
use crate::disk::ReadSeek;
use crate::error::TraceError;

/// A chunk and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub offset: u64,
    pub header: ChunkHeader,
}

/// The file, and its decompressor.
pub(super) struct Disk {
    pub path: PathBuf,
    file: Box<dyn ReadSeek>,
    pub file_bytes: u64,
    decompressor: Decompressor<'static>,
    stored: Vec<u8>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Disk").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Disk {
    pub(super) fn new(
        path: &Path,
        file: Box<dyn ReadSeek>,
        file_bytes: u64,
    ) -> Result<Self, TraceError> {
        let decompressor = Decompressor::new().map_err(|error| TraceError::io(path, error))?;
        Ok(Self { path: path.to_owned(), file, file_bytes, decompressor, stored: Vec::new() })
    }

    pub(super) fn damaged(&self, offset: u64, what: impl Into<String>) -> TraceError {
        TraceError::damaged(&self.path, offset, what)
    }

    /// Reads and checks the header at `offset`.
    fn header(&mut self, offset: u64) -> Result<ChunkHeader, TraceError> {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        container::read_at(&mut *self.file, &self.path, offset, &mut bytes)?;
        ChunkHeader::decode(&bytes).map_err(|what| self.wrong(offset, what, ""))
    }

    /// Reads, checks and decompresses a payload.
    pub(super) fn payload(&mut self, chunk: &Chunk) -> Result<Vec<u8>, TraceError> {
        let header = &chunk.header;
        if chunk.offset + header.total_bytes() > self.file_bytes {
            return Err(TraceError::Truncated {
                path: self.path.clone(),
                offset: chunk.offset,
                what: "a chunk".into(),
            });
        }
        // Every chunk takes up more of the file than its entry does of the index.
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

    /// The error for impossible content of `chunk`.
    pub(super) fn malformed(&self, chunk: &Chunk, what: Malformed) -> TraceError {
        self.wrong(chunk.offset, what, "the chunk's content is impossible: ")
    }

    /// The error for what is wrong with the chunk at `offset`, whose checksum matches. `damage` comes before it
    /// if it is damage.
    fn wrong(&self, offset: u64, what: Malformed, damage: &str) -> TraceError {
        if let UNKNOWN_CHUNK | UNKNOWN_EVENT = what {
            return TraceError::Later { path: self.path.clone(), offset, what };
        }
        self.damaged(offset, format!("{damage}{what}"))
    }
}

/// The chunks as the index lists them, and the totals; `None` if the file has no footer.
pub(super) fn indexed(
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
        return Err(
            disk.damaged(index_offset, "there is no index where the trailer says that it is")
        );
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
pub(super) fn scan(disk: &mut Disk, header_bytes: u64) -> Result<Vec<Chunk>, TraceError> {
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
pub(super) struct Lanes {
    pub definitions: Vec<usize>,
    /// Those that continue in ascending order of epochs; those written late, by epoch.
    pub events: [Vec<usize>; 2],
    pub slices: [Vec<usize>; 2],
    pub blocks: u64,
    pub instructions: u64,
    pub loads: u64,
    pub stores: u64,
    event_count: u64,
}

impl Lanes {
    pub(super) fn sort(disk: &Disk, chunks: &[Chunk]) -> Result<Self, TraceError> {
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

    /// Compares the totals with those of the chunks' headers.
    pub(super) fn check(
        &self,
        disk: &Disk,
        offset: u64,
        summary: &Summary,
    ) -> Result<(), TraceError> {
        let events = summary.events.values().try_fold(0_u64, |sum, &count| sum.checked_add(count));
        let are_those = self.blocks == summary.blocks
            && self.instructions == summary.instructions
            && self.loads == summary.loads
            && self.stores == summary.stores
            && Some(self.event_count) == events;
        if !are_those {
            return Err(disk.damaged(offset, "the totals are not those of the chunks"));
        }
        if !summary.has_ranges() {
            return Err(disk.damaged(offset, "the ranges that were touched do not ascend"));
        }
        Ok(())
    }
}
