//! Traces of other tools. An importer reads each file once, from front to back.
//!
//! A trace may have several files, for as many threads. They are read in the order of their parsers' clocks.

mod builder;
pub(crate) mod champsim;
mod drmemtrace;
pub(crate) mod folder;
pub(crate) mod input;
mod lackey;
mod lz4;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::TraceError;
use crate::format::MAGIC;
use crate::model::{Item, Source, SourceInfo, ThreadId};
use builder::Builder;
pub use drmemtrace::v2p::physical_pages;
use folder::Files;
use input::Input;

/// A trace format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// flatwalk's own.
    Flatwalk,
    /// ChampSim's `input_instr`, 64 bytes an instruction.
    ChampSim,
    /// ChampSim's `cloudsuite_instr`, 96 bytes an instruction.
    CloudSuite,
    /// DynamoRIO's drmemtrace.
    DrMemTrace,
    /// Valgrind's lackey, `--trace-mem=yes`.
    Lackey,
}

impl Format {
    /// Every format, in the order of their names in messages.
    pub const ALL: [Self; 5] =
        [Self::Flatwalk, Self::ChampSim, Self::CloudSuite, Self::DrMemTrace, Self::Lackey];

    /// Its name in commands and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flatwalk => "flatwalk",
            Self::ChampSim => "champsim",
            Self::CloudSuite => "cloudsuite",
            Self::DrMemTrace => "drmemtrace",
            Self::Lackey => "lackey",
        }
    }

    /// The format of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// Reads one file of a foreign trace.
pub(crate) trait Parser: Send {
    /// Reads one record or line; false at the end.
    fn step(&mut self, input: &mut Input, out: &mut Builder) -> Result<bool, TraceError>;

    /// When the next record happened, by any measure that the trace's files share; never goes back. Where it
    /// goes on, another file may be read before that record.
    fn clock(&self) -> u64 {
        0
    }

    /// Instruction set, if the trace records it.
    fn architecture(&self) -> &'static str {
        "x86_64"
    }
}

/// A parser of a format; flatwalk's own has none.
fn parser(format: Format) -> Option<Box<dyn Parser>> {
    Some(match format {
        Format::Flatwalk => return None,
        Format::ChampSim => Box::new(champsim::ChampSim::default()),
        Format::CloudSuite => Box::new(champsim::CloudSuite::default()),
        Format::DrMemTrace => Box::new(drmemtrace::DrMemTrace::default()),
        Format::Lackey => Box::new(lackey::Lackey::default()),
    })
}

/// One file of a trace, as far as it was read.
struct Stream {
    parser: Box<dyn Parser>,
    input: Input,
    /// The thread whose turn it is in it.
    thread: ThreadId,
}

/// A foreign trace as a [`Source`]. Nothing is known of it beforehand.
pub(crate) struct Importer {
    /// Those that are read to their end are closed.
    streams: Vec<Option<Stream>>,
    /// By its clock, then in order: the stream that is read next comes first.
    order: BinaryHeap<Reverse<(u64, usize)>>,
    current: usize,
    /// Bytes of the closed ones.
    closed_bytes: u64,
    architecture: &'static str,
    builder: Builder,
    ended: bool,
    info: SourceInfo,
}

impl Importer {
    /// Reads `files`, which are not in flatwalk's own format, and calls the trace as its file or folder.
    pub(crate) fn new(path: &Path, files: Files) -> Result<Self, TraceError> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let mut streams = Vec::new();
        for (thread, input) in (0..).zip(files.inputs) {
            let Some(parser) = parser(files.format) else {
                return Err(TraceError::Foreign {
                    path: path.to_owned(),
                    what: "it is not in flatwalk's own format".into(),
                    remedy: "leave out the format, or name another".into(),
                });
            };
            streams.push(Some(Stream { parser, input, thread }));
        }
        let mut builder = Builder::default();
        files.events.into_iter().for_each(|event| builder.event(event));
        Ok(Self {
            order: (0..streams.len()).map(|number| Reverse((0, number))).collect(),
            current: 0,
            streams,
            closed_bytes: 0,
            architecture: "unknown",
            builder,
            ended: false,
            info: SourceInfo {
                name,
                hash: String::new(),
                instructions: None,
                touched: Vec::new(),
                gap_instructions: 0,
                segment_instructions: None,
                gap_pages: false,
            },
        })
    }

    /// Reads up to the first slice. A trace's architecture is recorded before that.
    pub(crate) fn prepare(&mut self) -> Result<(), TraceError> {
        while !self.ended && !self.builder.has_code() {
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), TraceError> {
        let Some(Reverse((_, number))) = self.order.pop() else {
            self.builder.finish();
            self.ended = true;
            return Ok(());
        };
        let next = self.order.peek().map(|&Reverse(next)| next);
        let Some(stream) = &mut self.streams[number] else { return Ok(()) };
        if self.current != number {
            self.builder.end_block();
            self.builder.thread(stream.thread);
            self.current = number;
        }
        // Records are small: many at a time.
        for _ in 0..4096 {
            if !stream.parser.step(&mut stream.input, &mut self.builder)? {
                self.builder.end_block();
                self.closed_bytes += stream.input.progress();
                self.architecture = stream.parser.architecture();
                self.streams[number] = None;
                return Ok(());
            }
            if next.is_some_and(|next| (stream.parser.clock(), number) > next) {
                break;
            }
        }
        stream.thread = self.builder.current_thread();
        self.architecture = stream.parser.architecture();
        self.order.push(Reverse((stream.parser.clock(), number)));
        Ok(())
    }

    /// How many bytes of the files were read so far.
    pub(crate) fn progress(&self) -> u64 {
        let open = self.streams.iter().flatten().map(|stream| stream.input.progress());
        self.closed_bytes + open.sum::<u64>()
    }

    /// Instruction set, as far as the trace was read.
    pub(crate) fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// The result of reading the whole trace.
    pub(crate) fn set_info(&mut self, info: SourceInfo) {
        self.info = info;
    }
}

impl Source for Importer {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_item(&mut self) -> Result<Option<Item>, TraceError> {
        loop {
            if let Some(item) = self.builder.next() {
                return Ok(Some(item));
            }
            if self.ended {
                return Ok(None);
            }
            self.step()?;
        }
    }
}

/// Detects a foreign trace's format.
///
/// # Errors
/// When the format is not known.
pub(crate) fn sniff(input: &mut Input) -> Result<Format, TraceError> {
    let start = input.peek(96 * 64)?;
    if drmemtrace::sniff(start) {
        return Ok(Format::DrMemTrace);
    }
    if lackey::sniff(start) {
        return Ok(Format::Lackey);
    }
    let (champsim, cloudsuite) = (champsim::sniff::<64>(start), champsim::sniff::<96>(start));
    let (what, remedy) = match (champsim, cloudsuite) {
        (true, false) => return Ok(Format::ChampSim),
        (false, true) => return Ok(Format::CloudSuite),
        (true, true) => (
            "it could be champsim or cloudsuite",
            "say which with `flatwalk trace import --format`, and use what that writes",
        ),
        _ if start.starts_with(&MAGIC) => {
            ("it is a trace in flatwalk's own format, compressed", "decompress it first")
        }
        (false, false) => (
            "neither its first bytes nor its first records are those of a known format",
            "flatwalk reads its own traces and those of ChampSim (champsim, cloudsuite), DynamoRIO (drmemtrace) and \
             Valgrind (lackey); if this is one of them, say which with `flatwalk trace import --format`",
        ),
    };
    Err(TraceError::Foreign {
        path: Path::to_owned(input.path()),
        what: what.into(),
        remedy: remedy.into(),
    })
}
