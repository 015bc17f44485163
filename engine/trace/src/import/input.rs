//! The bytes of a foreign trace, decompressed, with their offsets.

use std::io::{BufReader, Read, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::lz4::Frames;
use crate::disk::{ReadSeek, open_file};
use crate::error::TraceError;

/// Of each of the few buffers that a file needs; a trace may have thousands of files.
const BUFFER_BYTES: usize = 1 << 16;
/// Most memory that decompressing xz may take: its header alone decides how much. `xz -9` takes 65 MiB.
const XZ_MEMORY_BYTES: u64 = 512 << 20;

/// A decompressed stream. A window of it can be looked at before it is consumed.
pub(crate) struct Input {
    path: PathBuf,
    reader: Box<dyn Read + Send>,
    window: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset of `window[0]` in the decompressed stream.
    base: u64,
    ended: bool,
    progress: Arc<AtomicU64>,
}

/// Counts the bytes that are read from the file itself.
struct Counted<R> {
    inner: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Whether a bzip2 stream goes on so behind its header: with a block, or its end. A file that is
/// cut off there is one.
fn is_bzip2_block(rest: &[u8]) -> bool {
    const BLOCK: [u8; 6] = [0x31, 0x41, 0x59, 0x26, 0x53, 0x59];
    const END: [u8; 6] = [0x17, 0x72, 0x45, 0x38, 0x50, 0x90];
    BLOCK.starts_with(rest) || END.starts_with(rest)
}

impl Input {
    /// Opens a file that may be compressed with gzip, xz, bzip2, zstd or lz4, or be a zip archive of
    /// `chunk.NNNN` members.
    pub(crate) fn open(path: &Path) -> Result<Self, TraceError> {
        Self::new(path, Box::new(open_file(path)?))
    }

    /// The same for any bytes; messages call them `path`.
    pub(crate) fn new(path: &Path, mut file: Box<dyn ReadSeek>) -> Result<Self, TraceError> {
        let io = |error| TraceError::io(path, error);
        let mut magic = Vec::new();
        file.by_ref().take(10).read_to_end(&mut magic).map_err(io)?;
        if magic.is_empty() {
            return Err(TraceError::Empty { path: path.to_owned() });
        }
        file.seek(SeekFrom::Start(0)).map_err(io)?;
        let progress = Arc::new(AtomicU64::new(0));
        let counted = |file| {
            let inner = Counted { inner: file, count: Arc::clone(&progress) };
            BufReader::with_capacity(BUFFER_BYTES, inner)
        };
        // A trace that is not compressed begins with anything: ChampSim's with an address. So all
        // that is sure of a compressed one is compared.
        let reader: Box<dyn Read + Send> = match magic.as_slice() {
            [0x1f, 0x8b, 0x08, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(counted(file))),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
                let flags = liblzma::stream::CONCATENATED;
                let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_BYTES, flags)
                    .map_err(|error| io(error.into()))?;
                Box::new(liblzma::bufread::XzDecoder::new_stream(counted(file), stream))
            }
            [b'B', b'Z', b'h', b'1'..=b'9', rest @ ..] if is_bzip2_block(rest) => {
                Box::new(bzip2::bufread::MultiBzDecoder::new(counted(file)))
            }
            [0x28, 0xb5, 0x2f, 0xfd, ..] => {
                Box::new(zstd::stream::read::Decoder::with_buffer(counted(file)).map_err(io)?)
            }
            [0x04, 0x22, 0x4d, 0x18, ..] => Box::new(Frames::new(counted(file))),
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => {
                Box::new(Members::new(path, file, Arc::clone(&progress))?)
            }
            _ => Box::new(counted(file)),
        };
        Ok(Self {
            path: path.to_owned(),
            reader,
            window: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            base: 0,
            ended: false,
            progress,
        })
    }

    /// At least `wanted` bytes (64 KiB at most), or all that are left.
    #[inline]
    pub(crate) fn peek(&mut self, wanted: usize) -> Result<&[u8], TraceError> {
        if self.end - self.start < wanted && !self.ended {
            self.fill(wanted)?;
        }
        Ok(&self.window[self.start..self.end])
    }

    #[cold]
    fn fill(&mut self, wanted: usize) -> Result<(), TraceError> {
        self.window.copy_within(self.start..self.end, 0);
        self.base += self.start as u64;
        self.end -= self.start;
        self.start = 0;
        while self.end < wanted.min(self.window.len()) && !self.ended {
            match self.reader.read(&mut self.window[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    fn failed(&self, error: std::io::Error) -> TraceError {
        if error.raw_os_error().is_some() {
            return TraceError::io(&self.path, error);
        }
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            return self.truncated("the compressed stream");
        }
        self.damaged(format!("it cannot be decompressed ({error})"))
    }

    /// Consumes `count` of the bytes that were peeked at.
    #[inline]
    pub(crate) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Offset of the next byte in the decompressed stream.
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// The next record of `N` bytes, `None` at the end.
    #[inline]
    pub(crate) fn record<const N: usize>(
        &mut self,
        what: &str,
    ) -> Result<Option<[u8; N]>, TraceError> {
        let window = self.peek(N)?;
        if let Some(&record) = window.first_chunk() {
            self.consume(N);
            return Ok(Some(record));
        }
        if window.is_empty() { Ok(None) } else { Err(self.truncated(what)) }
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes of the file itself were read so far.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// The error for what comes next being impossible.
    pub(crate) fn damaged(&self, what: impl Into<String>) -> TraceError {
        TraceError::damaged(&self.path, self.offset(), what)
    }

    /// The error for what comes next being incomplete.
    pub(crate) fn truncated(&self, what: &str) -> TraceError {
        TraceError::Truncated {
            path: self.path.clone(),
            offset: self.offset(),
            what: what.to_owned(),
        }
    }
}

/// Where a member of a zip archive is.
struct Member {
    start: u64,
    stored_bytes: u64,
    bytes: u64,
    deflated: bool,
    crc32: u32,
}

/// The members `chunk.NNNN` of a zip archive, one after another.
struct Members {
    file: Box<dyn ReadSeek>,
    remaining: std::vec::IntoIter<Member>,
    open: Option<Open>,
    progress: Arc<AtomicU64>,
}

/// A member being read.
struct Open {
    member: Member,
    /// Read from the file so far.
    taken: u64,
    inflate: flate2::Decompress,
    input: Box<[u8]>,
    at: usize,
    end: usize,
    crc: flate2::Crc,
}

/// Whether a member is compressed by deflate (or not at all); else the method that it is compressed by.
fn is_deflated(method: zip::CompressionMethod) -> Result<bool, zip::CompressionMethod> {
    match method {
        zip::CompressionMethod::Stored => Ok(false),
        // Method 8 is deflate, which is decompressed here rather than by the archive's reader.
        #[allow(deprecated)]
        zip::CompressionMethod::Unsupported(8) => Ok(true),
        other => Err(other),
    }
}

impl Members {
    fn new(
        path: &Path,
        file: Box<dyn ReadSeek>,
        progress: Arc<AtomicU64>,
    ) -> Result<Self, TraceError> {
        let damaged = |what: String| TraceError::damaged(path, 0, what);
        let mut archive = zip::ZipArchive::new(file)
            .map_err(|error| damaged(format!("the zip archive cannot be read ({error})")))?;
        let mut members = Vec::new();
        for index in 0..archive.len() {
            let member = archive.by_index_raw(index).map_err(|error| {
                damaged(format!("member {index} of the zip archive cannot be read ({error})"))
            })?;
            let name = member
                .name()
                .map_err(|error| {
                    damaged(format!(
                        "member {index} of the zip archive has an impossible name ({error})"
                    ))
                })?
                .into_owned();
            let number = name.strip_prefix("chunk.").and_then(|digits| digits.parse::<u64>().ok());
            let Some(number) = number else {
                return Err(TraceError::Foreign {
                    path: path.to_owned(),
                    what: format!("a zip archive with a member `{name}`"),
                    remedy:
                        "a drmemtrace archive holds members `chunk.NNNN` only: name such an archive"
                            .into(),
                });
            };
            let deflated = is_deflated(member.compression()).map_err(|other| {
                damaged(format!("member `{name}` is compressed by an unknown method ({other})"))
            })?;
            let start = member.data_start().ok_or_else(|| {
                damaged(format!("member `{name}` of the zip archive cannot be found"))
            })?;
            members.push((
                number,
                Member {
                    start,
                    stored_bytes: member.compressed_size(),
                    bytes: member.size(),
                    deflated,
                    crc32: member.crc32(),
                },
            ));
        }
        members.sort_by_key(|&(number, _)| number);
        if let Some((expected, _)) =
            (0_u64..).zip(&members).find(|(expected, (number, _))| expected != number)
        {
            return Err(damaged(format!(
                "the archive has no member `chunk.{expected:04}`, or has it twice"
            )));
        }
        let members: Vec<Member> = members.into_iter().map(|(_, member)| member).collect();
        Ok(Self {
            file: archive.into_inner(),
            remaining: members.into_iter(),
            open: None,
            progress,
        })
    }
}

fn invalid(what: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, what)
}

impl Read for Members {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let open = match &mut self.open {
                Some(open) => open,
                None => match self.remaining.next() {
                    None => return Ok(0),
                    Some(member) => {
                        self.file.seek(SeekFrom::Start(member.start))?;
                        self.open.insert(Open {
                            member,
                            taken: 0,
                            inflate: flate2::Decompress::new(false),
                            input: vec![0; BUFFER_BYTES].into(),
                            at: 0,
                            end: 0,
                            crc: flate2::Crc::new(),
                        })
                    }
                },
            };
            let read = open.read(&mut *self.file, buffer, &self.progress)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            if u64::from(open.crc.amount()) != open.member.bytes & u64::from(u32::MAX)
                || open.crc.sum() != open.member.crc32
            {
                return Err(invalid("the checksum of a member of the zip archive does not match"));
            }
            self.open = None;
        }
    }
}

impl Open {
    fn read(
        &mut self,
        file: &mut dyn ReadSeek,
        buffer: &mut [u8],
        progress: &AtomicU64,
    ) -> std::io::Result<usize> {
        loop {
            if self.at == self.end {
                let left =
                    (self.member.stored_bytes - self.taken).min(self.input.len() as u64) as usize;
                self.at = 0;
                self.end = if left == 0 { 0 } else { file.read(&mut self.input[..left])? };
                if self.end == 0 && left > 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                self.taken += self.end as u64;
                progress.fetch_add(self.end as u64, Ordering::Relaxed);
            }
            let available = &self.input[self.at..self.end];
            let (used, made, done) = if self.member.deflated {
                let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
                let status = self
                    .inflate
                    .decompress(available, buffer, flate2::FlushDecompress::None)
                    .map_err(|_| invalid("a member of the zip archive is damaged"))?;
                let used = (self.inflate.total_in() - before_in) as usize;
                let made = (self.inflate.total_out() - before_out) as usize;
                (used, made, status == flate2::Status::StreamEnd)
            } else {
                let made = available.len().min(buffer.len());
                buffer[..made].copy_from_slice(&available[..made]);
                (made, made, available.is_empty())
            };
            self.at += used;
            self.crc.update(&buffer[..made]);
            if made > 0 || done || buffer.is_empty() {
                return Ok(made);
            }
            if used == 0 && self.taken == self.member.stored_bytes && self.at == self.end {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
