//! Traces of several files in one folder: a file for each thread, or each core.

use std::path::{Path, PathBuf};

use super::drmemtrace::v2p;
use super::input::Input;
use super::{Format, sniff};
use crate::disk::length;
use crate::error::TraceError;
use crate::model::Event;

/// Most files of a trace. Each is open while it is read.
const MOST_FILES: usize = 4096;
/// How files begin that are next to those of the threads in DynamoRIO's folders: schedules,
/// modules, functions.
const BESIDE: [&str; 5] =
    ["cpu_schedule.", "serial_schedule.", "modules.log", "funclist.log", "encodings.bin"];
/// How they end: page tables, statistics.
const BESIDE_ENDS: [&str; 2] = [".textproto", ".csv"];
/// What no process may have open more of (Linux's `EMFILE`).
const TOO_MANY_OPEN: i32 = 24;

/// The files of a foreign trace.
pub(crate) struct Files {
    pub(crate) format: Format,
    pub(crate) inputs: Vec<Input>,
    /// What comes before everything else.
    pub(crate) events: Vec<Event>,
    /// Their length.
    pub(crate) bytes: u64,
}

impl Files {
    /// A trace's file, or the folder with its files, in `format` if given.
    ///
    /// # Errors
    /// When they cannot be read, are of no known format, or of several.
    pub(crate) fn open(path: &Path, format: Option<Format>) -> Result<Self, TraceError> {
        if path.is_dir() {
            return Self::folder(path, format);
        }
        let mut input = Input::open(path)?;
        let format = format.map_or_else(|| sniff(&mut input), Ok)?;
        Ok(Self { format, inputs: vec![input], events: Vec::new(), bytes: length(path)? })
    }

    fn folder(path: &Path, format: Option<Format>) -> Result<Self, TraceError> {
        let inner = path.join("trace");
        let folder = if inner.is_dir() { inner.as_path() } else { path };
        let names = listed(folder)?;
        let foreign = |path: &Path, what: String, remedy: &str| {
            Err(TraceError::Foreign { path: path.to_owned(), what, remedy: remedy.into() })
        };
        if names.is_empty() {
            return foreign(
                path,
                "this directory has no files of a trace".into(),
                "name one trace file, or the directory with its threads' files",
            );
        }
        if names.len() > MOST_FILES {
            let what = format!("the folder has {} files, more than {MOST_FILES}", names.len());
            return foreign(path, what, "put the files of the trace into a folder of their own");
        }
        let mut files =
            Self { format: Format::DrMemTrace, inputs: Vec::new(), events: Vec::new(), bytes: 0 };
        for name in &names {
            let mut input = match Input::open(name) {
                Err(TraceError::Io { source, .. })
                    if source.raw_os_error() == Some(TOO_MANY_OPEN) =>
                {
                    let what = format!(
                        "more than {} of its files cannot be open at once",
                        files.inputs.len()
                    );
                    return foreign(
                        path,
                        what,
                        "raise the limit, `ulimit -n 5000`, and call again",
                    );
                }
                opened => opened?,
            };
            let found = format.map_or_else(|| sniff(&mut input), Ok)?;
            if !files.inputs.is_empty() && found != files.format {
                let what = format!(
                    "it is {}, the files before it are {}",
                    found.name(),
                    files.format.name()
                );
                return foreign(name, what, "keep only the files of one trace in the folder");
            }
            files.bytes += length(name)?;
            files.inputs.push(input);
            files.format = found;
        }
        if !matches!(files.format, Format::DrMemTrace | Format::ChampSim | Format::CloudSuite) {
            let what = format!("a folder of files in the format {}", files.format.name());
            return foreign(path, what, "such a trace is one file: name that");
        }
        if files.format == Format::DrMemTrace
            && let Some(mapping) = mapping(path, folder)
        {
            files.events = v2p::events(&mapping)?;
        }
        Ok(files)
    }
}

/// The regular files that may be a thread's, by name.
fn listed(folder: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let io = |error| TraceError::io(folder, error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let beside = name.starts_with('.')
            || BESIDE.iter().any(|start| name.starts_with(start))
            || BESIDE_ENDS.iter().any(|end| name.ends_with(end));
        if !beside && entry.path().is_file() {
            names.push(entry.path());
        }
    }
    names.sort();
    Ok(names)
}

/// `v2p.textproto` of a trace, where its tools look for it.
fn mapping(path: &Path, folder: &Path) -> Option<PathBuf> {
    let places = [path, &path.join("aux"), folder, &folder.join("aux"), &folder.join("../aux")];
    places.iter().map(|place| place.join("v2p.textproto")).find(|file| file.is_file())
}
