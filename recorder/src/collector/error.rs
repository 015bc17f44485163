//! What can end a recording.

use std::io::ErrorKind;

use flatwalk_trace::TraceError;
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
    /// What the user is to know of it.
    pub fn explain(&self) -> String {
        match self {
            RecordError::Trace(TraceError::Io { path, source })
                if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
            {
                format!(
                    "{}: {source}; free some space, record elsewhere with --output, or record less \
                     with --limit",
                    path.display()
                )
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
