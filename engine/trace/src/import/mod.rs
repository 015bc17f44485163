//! Traces of other tools, one file each. An importer reads its file once, from front to back.

mod builder;
pub(crate) mod champsim;
mod drmemtrace;
pub(crate) mod input;
mod lackey;

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::TraceError;
use crate::model::{Item, Source, SourceInfo};
use builder::Builder;
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

/// Reads one kind of foreign trace.
pub(crate) trait Parser: Send {
    /// Reads one record or line; false at the end.
    fn step(&mut self, input: &mut Input, out: &mut Builder) -> Result<bool, TraceError>;

    /// Instruction set, if the trace records it.
    fn architecture(&self) -> &'static str {
        "x86_64"
    }
}

/// A foreign trace as a [`Source`]. Nothing is known of it beforehand.
pub(crate) struct Importer {
    parser: Box<dyn Parser>,
    input: Input,
    builder: Builder,
    ended: bool,
    info: SourceInfo,
}

impl Importer {
    /// Reads `input` as a trace in `format`, which is not flatwalk's own.
    pub(crate) fn new(format: Format, input: Input) -> Result<Self, TraceError> {
        let parser: Box<dyn Parser> = match format {
            Format::Flatwalk => {
                return Err(TraceError::Foreign {
                    path: input.path().to_owned(),
                    what: "it is not in flatwalk's own format".into(),
                    remedy: "leave out the format, or name another".into(),
                });
            }
            Format::ChampSim => Box::new(champsim::ChampSim::default()),
            Format::CloudSuite => Box::new(champsim::CloudSuite::default()),
            Format::DrMemTrace => Box::new(drmemtrace::DrMemTrace::default()),
            Format::Lackey => Box::new(lackey::Lackey::default()),
        };
        let name = input
            .path()
            .file_name()
            .unwrap_or(input.path().as_os_str())
            .to_string_lossy()
            .into_owned();
        Ok(Self {
            parser,
            input,
            builder: Builder::default(),
            ended: false,
            info: SourceInfo {
                name,
                hash: String::new(),
                instructions: None,
                touched: Vec::new(),
                gap_instructions: 0,
                segment_instructions: None,
            },
        })
    }

    /// Reads up to the first item. A trace's architecture is recorded before that.
    pub(crate) fn prepare(&mut self) -> Result<(), TraceError> {
        while !self.ended && self.builder.is_empty() {
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), TraceError> {
        // Records are small: many at a time.
        for _ in 0..4096 {
            if !self.parser.step(&mut self.input, &mut self.builder)? {
                self.builder.finish();
                self.ended = true;
                break;
            }
        }
        Ok(())
    }

    /// How many bytes of the file were read so far.
    pub(crate) fn progress(&self) -> u64 {
        self.input.progress()
    }

    /// Instruction set, as far as the trace was read.
    pub(crate) fn architecture(&self) -> &'static str {
        self.parser.architecture()
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
        (true, true) => ("it could be champsim or cloudsuite", "say which with `--format`"),
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
