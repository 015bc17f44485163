//! The container: file header, chunks, trailer. docs/trace-format.md describes every byte.

use std::io::SeekFrom;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::bytes::{Cursor, Malformed, UNKNOWN_CHUNK};
use crate::disk::ReadSeek;
use crate::error::TraceError;

/// First bytes of a trace. The high bit and the line ends show whether it was transferred as text.
pub(crate) const MAGIC: [u8; 8] = *b"\x89FWTR\r\n\x1a";
/// Version of the format that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;
/// Longest accepted description in a file header.
pub(crate) const MAX_HEADER_BYTES: u32 = 1 << 20;
/// Longest accepted payload of a chunk other than the index, after decompression.
pub(crate) const MAX_RAW_BYTES: u32 = 32 << 20;
pub(crate) const CHUNK_HEADER_BYTES: usize = 80;
pub(crate) const TRAILER_BYTES: usize = 32;
const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"FWck");
const TRAILER_MAGIC: [u8; 8] = *b"FWTR-end";
/// In [`ChunkHeader::thread`]: slices of several threads.
pub(crate) const SEVERAL_THREADS: u32 = u32::MAX;

/// A trace's description of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Its name, for people: the program's command line.
    pub name: String,
    /// What made it, with its version: `qemu-user 7.2.22`.
    pub origin: String,
    /// Instruction set of the program: `x86_64`, or `unknown`.
    pub architecture: String,
    /// Of a sampled recording: how many instructions a segment was to have. It stands here and not with
    /// the totals, so that it is known of a trace that ended early, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_instructions: Option<u64>,
    /// Of a sampled recording: the events in and around gaps name every page that was touched in them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gap_pages: bool,
}

/// The file header's bytes.
///
/// # Errors
/// When the description is longer than a reader accepts.
pub(crate) fn encode_header(header: &Header) -> Result<Vec<u8>, Malformed> {
    let text = serde_json::to_vec(header).map_err(|_| "its description cannot be written")?;
    if text.len() > MAX_HEADER_BYTES as usize {
        return Err("its name is longer than a mebibyte; give it a shorter one");
    }
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(&text);
    let checksum = xxh3_64(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    Ok(out)
}

/// Reads the file header; returns it and its length.
pub(crate) fn read_header(
    file: &mut dyn ReadSeek,
    path: &Path,
    file_bytes: u64,
) -> Result<(Header, u64), TraceError> {
    if file_bytes == 0 {
        return Err(TraceError::Empty { path: path.to_owned() });
    }
    let mut start = [0; 16];
    let available = file_bytes.min(16) as usize;
    read_at(file, path, 0, &mut start[..available])?;
    if start[..available.min(8)] != MAGIC[..available.min(8)] {
        return Err(TraceError::Foreign {
            path: path.to_owned(),
            what: "it does not start with the mark of a flatwalk trace".into(),
            remedy: "import it with `flatwalk trace import`, or name another file".into(),
        });
    }
    let truncated = || TraceError::Truncated {
        path: path.to_owned(),
        offset: 0,
        what: "the file header".into(),
    };
    if available < 16 {
        return Err(truncated());
    }
    let word =
        |at: usize| u32::from_le_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]]);
    if word(8) != VERSION {
        // There never was a version 0; anything else that is not known here is taken to be later.
        return Err(if word(8) == 0 {
            TraceError::damaged(path, 8, "the format version is 0")
        } else {
            TraceError::Future { path: path.to_owned(), version: word(8), supported: VERSION }
        });
    }
    let text_bytes = word(12);
    if text_bytes > MAX_HEADER_BYTES {
        return Err(TraceError::damaged(path, 12, "the description's length is impossible"));
    }
    let header_bytes = 16 + u64::from(text_bytes) + 8;
    if header_bytes > file_bytes {
        return Err(truncated());
    }
    let mut bytes = vec![0; header_bytes as usize];
    read_at(file, path, 0, &mut bytes)?;
    let (checked, checksum) = bytes.split_at(bytes.len() - 8);
    if xxh3_64(checked).to_le_bytes() != checksum {
        return Err(TraceError::damaged(path, 0, "the file header's checksum does not match"));
    }
    let header = serde_json::from_slice(&checked[16..]).map_err(|error| {
        TraceError::damaged(path, 16, format!("the description cannot be read: {error}"))
    })?;
    Ok((header, header_bytes))
}

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Definitions = 1,
    Events = 2,
    Touched = 3,
    Slices = 4,
    Summary = 5,
    Index = 6,
}

/// The fixed part before a chunk's payload. The index is a copy of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    pub kind: Kind,
    /// Length of the payload as stored (zstd).
    pub stored_bytes: u32,
    /// Length of the payload after decompression.
    pub raw_bytes: u32,
    /// Number of the first block, event or instruction, in file order.
    pub first: u64,
    /// How many blocks, events or instructions.
    pub count: u64,
    pub first_epoch: u64,
    pub last_epoch: u64,
    /// Slices: their thread, or [`SEVERAL_THREADS`].
    pub thread: u32,
    /// Definitions: instructions defined. Slices: loads.
    pub a: u32,
    /// Definitions: bytes of code. Slices: stores.
    pub b: u32,
    /// XXH3-64 of the stored payload.
    pub checksum: u64,
}

impl ChunkHeader {
    pub(crate) fn encode(&self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut out = [0; CHUNK_HEADER_BYTES];
        out[0..4].copy_from_slice(&CHUNK_MAGIC.to_le_bytes());
        out[4] = self.kind as u8;
        out[8..12].copy_from_slice(&self.stored_bytes.to_le_bytes());
        out[12..16].copy_from_slice(&self.raw_bytes.to_le_bytes());
        out[16..24].copy_from_slice(&self.first.to_le_bytes());
        out[24..32].copy_from_slice(&self.count.to_le_bytes());
        out[32..40].copy_from_slice(&self.first_epoch.to_le_bytes());
        out[40..48].copy_from_slice(&self.last_epoch.to_le_bytes());
        out[48..52].copy_from_slice(&self.thread.to_le_bytes());
        out[52..56].copy_from_slice(&self.a.to_le_bytes());
        out[56..60].copy_from_slice(&self.b.to_le_bytes());
        out[64..72].copy_from_slice(&self.checksum.to_le_bytes());
        let checksum = xxh3_64(&out[..72]);
        out[72..80].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        if cursor.u32()? != CHUNK_MAGIC {
            return Err("no chunk starts here");
        }
        if xxh3_64(&bytes[..72]).to_le_bytes() != bytes[72..80] {
            return Err("the chunk header's checksum does not match");
        }
        let kind = match cursor.u32()? {
            1 => Kind::Definitions,
            2 => Kind::Events,
            3 => Kind::Touched,
            4 => Kind::Slices,
            5 => Kind::Summary,
            6 => Kind::Index,
            _ => return Err(UNKNOWN_CHUNK),
        };
        let header = Self {
            kind,
            stored_bytes: cursor.u32()?,
            raw_bytes: cursor.u32()?,
            first: cursor.u64()?,
            count: cursor.u64()?,
            first_epoch: cursor.u64()?,
            last_epoch: cursor.u64()?,
            thread: cursor.u32()?,
            a: cursor.u32()?,
            b: cursor.u32()?,
            checksum: {
                cursor.u32()?;
                cursor.u64()?
            },
        };
        if header.first_epoch > header.last_epoch
            || header.first.checked_add(header.count).is_none()
            || (kind != Kind::Index && header.raw_bytes > MAX_RAW_BYTES)
        {
            return Err("the chunk header contradicts itself");
        }
        Ok(header)
    }

    /// Length on disk, header included.
    pub(crate) fn total_bytes(&self) -> u64 {
        CHUNK_HEADER_BYTES as u64 + u64::from(self.stored_bytes)
    }
}

/// The last bytes of a complete trace: where the index is.
pub(crate) fn encode_trailer(index_offset: u64) -> [u8; TRAILER_BYTES] {
    let mut out = [0; TRAILER_BYTES];
    out[0..8].copy_from_slice(&index_offset.to_le_bytes());
    out[16..24].copy_from_slice(&TRAILER_MAGIC);
    let checksum = xxh3_64(&out[..24]);
    out[24..32].copy_from_slice(&checksum.to_le_bytes());
    out
}

/// The index's offset, if these are the last bytes of a complete trace.
pub(crate) fn decode_trailer(bytes: &[u8; TRAILER_BYTES]) -> Option<u64> {
    let sound =
        bytes[16..24] == TRAILER_MAGIC && xxh3_64(&bytes[..24]).to_le_bytes() == bytes[24..32];
    let mut cursor = Cursor::new(bytes);
    sound.then(|| cursor.u64().ok()).flatten()
}

/// Reads exactly `buffer.len()` bytes at `offset`.
pub(crate) fn read_at(
    file: &mut dyn ReadSeek,
    path: &Path,
    offset: u64,
    buffer: &mut [u8],
) -> Result<(), TraceError> {
    file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(buffer)).map_err(|error| {
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            TraceError::Truncated {
                path: path.to_owned(),
                offset,
                what: "what was there before".into(),
            }
        } else {
            TraceError::io(path, error)
        }
    })
}
