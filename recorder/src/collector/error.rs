//! What can end a recording.

use std::io::ErrorKind;

use flatwalk_recorder::sys;
use flatwalk_trace::TraceError;

use crate::client::OPEN_FILES;

/// What went wrong.
#[derive(Debug)]
pub enum RecordError {
    /// The words are not what the recorder writes: the program overwrote them.
    Corrupt(&'static str),
    /// The trace could not be written.
    Trace(TraceError),
    /// The recorder found its own recording wrong.
    Wrong(String),
}

impl From<TraceError> for RecordError {
    fn from(error: TraceError) -> RecordError {
        RecordError::Trace(error)
    }
}

impl RecordError {
    /// Whether there was no room for the trace.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, RecordError::Trace(TraceError::Io { source, .. })
            if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
    }

    /// Whether the limit of open files stood in the way.
    pub fn is_out_of_descriptors(&self) -> bool {
        matches!(self, RecordError::Trace(TraceError::Io { source, .. })
            if sys::is_out_of_descriptors(source))
    }

    /// What the user is to know of it.
    pub fn explain(&self) -> String {
        match self {
            RecordError::Trace(error) if self.is_out_of_descriptors() => {
                format!("{error}{OPEN_FILES}")
            }
            RecordError::Trace(error) => error.to_string(),
            RecordError::Wrong(why) => why.clone(),
            RecordError::Corrupt(what) => format!(
                "the program destroyed the recorder's memory ({what}); the trace ends there. \
                 Check the program for stray stores, e.g. with valgrind"
            ),
        }
    }
}
