//! Notes in a trace that its program was stopped: whoever stops one knows it only when the trace is complete.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use zstd::bulk::Compressor;

use super::chunks::{Disk, indexed};
use super::container;
use super::writer::{Options, encode_end};
use crate::disk::open_file;
use crate::error::TraceError;

/// Notes in the trace at `path`, which is complete, what stopped its program before it ended by
/// itself. Only the totals change, and what comes behind them: what else is in the file is not
/// written anew. In a trace without an end, which says so already, nothing is noted.
///
/// # Errors
/// When the file cannot be read or written, or is damaged.
pub fn note_stopped(path: &Path, what: &str) -> Result<(), TraceError> {
    let io = |error| TraceError::io(path, error);
    let mut file = open_file(path)?;
    let file_bytes = file.metadata().map_err(io)?.len();
    let (_, header_bytes) = container::read_header(&mut file, path, file_bytes)?;
    let mut disk = Disk::new(path, Box::new(file), file_bytes)?;
    let Some((chunks, mut summary)) = indexed(&mut disk, header_bytes)? else { return Ok(()) };
    let Some((last, others)) = chunks.split_last() else { return Ok(()) };
    summary.stopped = Some(what.to_owned());
    let mut compressor = Compressor::new(Options::default().level).map_err(io)?;
    let index = others.iter().flat_map(|chunk| chunk.header.encode()).collect();
    let end = encode_end(&mut compressor, &summary, index, last.offset).map_err(io)?;
    let file = File::options().read(true).write(true).open(path).map_err(io)?;
    let mut old = vec![0; (file_bytes - last.offset) as usize];
    file.read_exact_at(&mut old, last.offset).map_err(io)?;
    replace_end(&file, last.offset, &end)
        // Of a full disk, say: there was room for what was there.
        .or_else(|error| replace_end(&file, last.offset, &old).and(Err(error)))
        .map_err(io)
}

/// Puts `end` in place of all that is from `offset` on. Should this not come to its end, the file
/// has no trailer, and is read as far as it goes.
fn replace_end(file: &File, offset: u64, end: &[u8]) -> std::io::Result<()> {
    file.set_len(offset)?;
    file.write_all_at(end, offset)
}
