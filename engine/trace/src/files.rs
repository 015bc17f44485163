//! Whole files: open, describe, import.

use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::disk::{self, Target, length, open_file};
use crate::error::TraceError;
use crate::format::{Header, MAGIC, Options, Reader, Summary, VERSION, Writer};
use crate::import::folder::Files;
use crate::import::input::Input;
use crate::import::{self, Format, Importer};
use crate::model::{Item, Source, SourceInfo};

/// Called with the bytes done and the bytes in all; may ask to stop.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// A description of a trace file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// Its format.
    pub format: Format,
    /// Version of flatwalk's own format.
    pub version: Option<u32>,
    /// Its name, for people.
    pub name: String,
    /// What made it.
    pub origin: String,
    /// Instruction set.
    pub architecture: String,
    /// Of a sampled recording: how many instructions a segment was to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_instructions: Option<u64>,
    /// Of a sampled recording: its events name every page that was touched in gaps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gap_pages: bool,
    /// Totals over the content.
    #[serde(flatten)]
    pub summary: Summary,
    /// Whether its end is missing.
    pub ended_early: bool,
    /// Whether everything in it was read and checked.
    pub verified: bool,
    /// Length of the file in bytes.
    pub file_bytes: u64,
    /// `file_bytes` for each instruction; `None` if there are none.
    pub bytes_per_instruction: Option<f64>,
}

impl Info {
    fn new(format: Format, header: Header, summary: Summary, file_bytes: u64) -> Self {
        let bytes_per_instruction =
            (summary.instructions > 0).then(|| file_bytes as f64 / summary.instructions as f64);
        Self {
            format,
            version: (format == Format::Flatwalk).then_some(VERSION),
            name: header.name,
            origin: header.origin,
            architecture: header.architecture,
            segment_instructions: header.segment_instructions,
            gap_pages: header.gap_pages,
            summary,
            ended_early: false,
            verified: true,
            file_bytes,
            bytes_per_instruction,
        }
    }

    fn of(reader: &Reader, verified: bool) -> Self {
        let summary = reader.summary().clone();
        let mut info =
            Self::new(Format::Flatwalk, reader.header().clone(), summary, reader.file_bytes());
        info.ended_early = reader.ended_early();
        info.verified = verified;
        info
    }
}

/// Opens a trace in any format that flatwalk knows. A foreign one is read once beforehand, because
/// what a simulation must know before it starts (length, touched ranges, hash) is not in its file:
/// [`import_to_file`] saves that for the next time.
///
/// # Errors
/// When the file cannot be read, is not in a known format, or is damaged.
pub fn open(path: &Path) -> Result<Box<dyn Source>, TraceError> {
    open_with_progress(path, &mut |_, _| ControlFlow::Continue(()))
}

/// As [`open`], and reports the progress of the reading beforehand.
///
/// # Errors
/// As [`open`]; and when `progress` asks to stop.
pub fn open_with_progress(
    path: &Path,
    progress: Progress<'_>,
) -> Result<Box<dyn Source>, TraceError> {
    if is_own(path)? {
        return Ok(Box::new(Reader::open(path)?));
    }
    let (_, summary, format) = measure(path, progress)?;
    let mut importer = Importer::new(path, Files::open(path, Some(format))?)?;
    importer.set_info(SourceInfo {
        name: importer.info().name.clone(),
        hash: summary.hash,
        instructions: Some(summary.instructions),
        touched: summary.touched,
        gap_instructions: 0,
        segment_instructions: None,
        gap_pages: false,
    });
    Ok(Box::new(importer))
}

/// A trace for readers that need to know nothing beforehand.
pub(crate) enum Opened {
    Own(Box<Reader>),
    /// With the file's length.
    Foreign(Box<Importer>, u64),
}

impl Opened {
    pub(crate) fn open(path: &Path) -> Result<Self, TraceError> {
        if is_own(path)? {
            return Ok(Self::Own(Box::new(Reader::open(path)?)));
        }
        let files = Files::open(path, None)?;
        let bytes = files.bytes;
        Ok(Self::Foreign(Box::new(Importer::new(path, files)?), bytes))
    }

    pub(crate) fn next_item(&mut self) -> Result<Option<Item>, TraceError> {
        match self {
            Self::Own(reader) => reader.next_item(),
            Self::Foreign(importer, _) => importer.next_item(),
        }
    }

    /// Whether the file's end is missing. Foreign files that are cut off are errors.
    pub(crate) fn ended_early(&self) -> bool {
        matches!(self, Self::Own(reader) if reader.ended_early())
    }

    /// Bytes of the file read, and its length.
    pub(crate) fn progress(&self) -> (u64, u64) {
        match self {
            Self::Own(reader) => (reader.progress(), reader.file_bytes()),
            Self::Foreign(importer, total) => (importer.progress().min(*total), *total),
        }
    }
}

/// Reads bytes that `path` names in messages, with nothing known of a foreign trace beforehand.
/// `format` is detected unless given.
///
/// # Errors
/// When the first bytes show that it is not such a trace.
pub fn open_bytes(
    path: &Path,
    format: Option<Format>,
    bytes: Vec<u8>,
) -> Result<Box<dyn Source>, TraceError> {
    let own = || MAGIC.starts_with(&bytes[..bytes.len().min(MAGIC.len())]);
    if format.map_or_else(own, |format| format == Format::Flatwalk) {
        return Ok(Box::new(Reader::from_bytes(path, bytes)?));
    }
    let mut input = Input::new(path, disk::bytes(bytes))?;
    let format = format.map_or_else(|| import::sniff(&mut input), Ok)?;
    let files = Files { format, inputs: vec![input], events: Vec::new(), bytes: 0 };
    Ok(Box::new(Importer::new(path, files)?))
}

/// Describes a trace file. Of one in flatwalk's own format the footer is read, and everything is
/// checked if `verify`; one in another format is always read as a whole.
///
/// # Errors
/// When the file cannot be read, is not in a known format, or is damaged; or `progress` asks to stop.
pub fn info(path: &Path, verify: bool, progress: Progress<'_>) -> Result<Info, TraceError> {
    if is_own(path)? {
        let mut reader = Reader::open(path)?;
        if verify {
            reader.verify(progress)?;
        }
        return Ok(Info::of(&reader, verify));
    }
    let (header, summary, format) = measure(path, progress)?;
    Ok(Info::new(format, header, summary, length(path)?))
}

/// Imports a foreign trace, one file or a folder with a file for each thread, into a file of
/// flatwalk's own format. `format` is detected unless given. The target appears only when it is
/// complete.
///
/// # Errors
/// When the source cannot be read, is not in a known format, or is damaged; when the target cannot be
/// written; or `progress` asks to stop.
pub fn import_to_file(
    source: &Path,
    target: &Path,
    format: Option<Format>,
    progress: Progress<'_>,
) -> Result<Info, TraceError> {
    if !source.is_dir() && is_own(source)? {
        Reader::open(source)?; // It may be empty, cut off, or damaged.
        return Err(TraceError::Own { path: source.to_owned() });
    }
    let files = Files::open(source, format)?;
    let (format, total) = (files.format, files.bytes);
    let mut importer = Importer::new(source, files)?;
    importer.prepare()?;
    let header = header(&importer, format);
    let path = target;
    let (target, file) = Target::create(path)?;
    let mut writer = Writer::to(path, &header, Options::default(), || Ok(file))?;
    copy(&mut importer, &mut writer, source, total, progress)?;
    writer.finish()?;
    target.complete()?;
    Ok(Info::of(&Reader::open(path)?, true))
}

fn header(importer: &Importer, format: Format) -> Header {
    Header {
        name: importer.info().name.clone(),
        origin: format.name().into(),
        architecture: importer.architecture().into(),
        segment_instructions: None,
        gap_pages: false,
    }
}

/// Reads a whole foreign trace; returns what the header and the footer of its import would contain,
/// and its format.
fn measure(path: &Path, progress: Progress<'_>) -> Result<(Header, Summary, Format), TraceError> {
    let files = Files::open(path, None)?;
    let (format, total) = (files.format, files.bytes);
    let mut importer = Importer::new(path, files)?;
    importer.prepare()?;
    let header = header(&importer, format);
    let mut writer = Writer::to(path, &header, Options::default(), || Ok(std::io::sink()))?;
    copy(&mut importer, &mut writer, path, total, progress)?;
    Ok((header, writer.finish()?, format))
}

fn copy(
    importer: &mut Importer,
    writer: &mut Writer,
    path: &Path,
    total: u64,
    progress: Progress<'_>,
) -> Result<(), TraceError> {
    let mut epoch = 0;
    while let Some(item) = importer.next_item()? {
        match item {
            Item::Define { block, .. } => {
                writer.define((*block).clone())?;
            }
            Item::Slice(slice) => {
                writer.slice(epoch, &slice)?;
                if progress(importer.progress().min(total), total).is_break() {
                    return Err(TraceError::stopped(path));
                }
            }
            Item::Event(event) => {
                epoch += 1;
                writer.event(epoch, &event)?;
            }
        }
    }
    Ok(())
}

/// Whether the file starts as one in flatwalk's own format. True for one that is too short to say:
/// the reader reports that.
fn is_own(path: &Path) -> Result<bool, TraceError> {
    let mut start = Vec::new();
    open_file(path)?
        .take(MAGIC.len() as u64)
        .read_to_end(&mut start)
        .map_err(|error| TraceError::io(path, error))?;
    Ok(MAGIC.starts_with(&start))
}
