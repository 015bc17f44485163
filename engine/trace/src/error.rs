//! Errors of reading and writing traces.

use std::path::{Path, PathBuf};

/// Why a trace could not be read or written. Each message names the file, the place and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The operating system refused.
    #[error("{}: {source}; {}", path.display(), remedy(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is empty.
    #[error("{}: the file is empty; record or import the trace again", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file ends where something should follow.
    #[error(
        "{}: cut off: {what} at byte {offset} is incomplete; copy it again from the original, or record it again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where the incomplete part starts, in bytes (in the uncompressed stream of a compressed
        /// foreign trace).
        offset: u64,
        /// What is incomplete.
        what: String,
    },
    /// The file contradicts its format or its own checksums.
    #[error(
        "{}: damaged at byte {offset}: {what}; copy it again from the original, or record it again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where, in bytes (in the uncompressed stream of a compressed foreign trace).
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// The file is not a trace in any known format.
    #[error("{}: not a trace that flatwalk knows ({what}); {remedy}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What was found instead.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// The file was written by a later flatwalk.
    #[error(
        "{}: trace format version {version} at byte 8, but this flatwalk reads up to version {supported}; \
         update flatwalk",
        path.display()
    )]
    Future {
        /// The file.
        path: PathBuf,
        /// The file's version.
        version: u32,
        /// The newest version that this program reads.
        supported: u32,
    },
    /// The file holds what a later flatwalk added within this version of the format.
    #[error("{}: {what} at byte {offset}: a later flatwalk wrote this trace; update flatwalk", path.display())]
    Later {
        /// The file.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// What is not known.
        what: &'static str,
    },
    /// There is nothing to import.
    #[error("{}: this trace is in flatwalk's own format already; use it as it is", path.display())]
    Own {
        /// The file.
        path: PathBuf,
    },
    /// The caller asked the writer for something that no trace can hold.
    #[error("{}: cannot write this trace: {what}", path.display())]
    Rejected {
        /// The file being written.
        path: PathBuf,
        /// What is wrong and how to fix it.
        what: String,
    },
    /// The progress callback asked to stop.
    #[error("{}: stopped on request", path.display())]
    Stopped {
        /// The file that was being worked on.
        path: PathBuf,
    },
}

/// What to do about an error of the system.
fn remedy(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{NotFound, PermissionDenied, QuotaExceeded, StorageFull};
    match error.kind() {
        NotFound => "check the path",
        PermissionDenied => "change its permissions, or name another file",
        StorageFull | QuotaExceeded => "free some space, or choose another place",
        _ => "check the disk, or copy the file to another one",
    }
}

impl TraceError {
    /// Wraps the system's error about `path`.
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    /// What is at `offset` of `path` is impossible.
    pub(crate) fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset, what: what.into() }
    }

    /// A progress callback asked to stop.
    pub(crate) fn stopped(path: &Path) -> Self {
        Self::Stopped { path: path.to_owned() }
    }
}
