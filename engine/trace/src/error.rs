//! Errors of reading and writing traces.

use std::path::PathBuf;

/// Why a trace could not be read or written. Each message names the file, the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}
