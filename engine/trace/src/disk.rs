//! Files on disk: only regular files are opened, and files are created whole or not at all.

use std::fs::File;
use std::io::{Cursor, Read, Seek};
use std::path::{Path, PathBuf};

use crate::error::TraceError;

/// Anything that a trace may be read from.
pub(crate) trait ReadSeek: Read + Seek + Send {}
impl<T: Read + Seek + Send> ReadSeek for T {}

/// Bytes in memory as a file.
pub(crate) fn bytes(bytes: Vec<u8>) -> Box<dyn ReadSeek> {
    Box::new(Cursor::new(bytes))
}

/// Opens a file for reading. Directories, pipes and devices are refused at once: they cannot be read
/// twice or from any place, and a pipe could block.
pub(crate) fn open_file(path: &Path) -> Result<File, TraceError> {
    let io = |error| TraceError::io(path, error);
    let kind = std::fs::metadata(path).map_err(io)?.file_type();
    let foreign = |what: &str, remedy: &str| {
        Err(TraceError::Foreign { path: path.to_owned(), what: what.into(), remedy: remedy.into() })
    };
    if kind.is_dir() {
        return foreign("it is a directory", "name one trace file inside it");
    }
    if !kind.is_file() {
        return foreign("it is a pipe or a device", "save its contents to a file, and name that");
    }
    File::open(path).map_err(io)
}

/// A file's length in bytes.
pub(crate) fn length(path: &Path) -> Result<u64, TraceError> {
    std::fs::metadata(path)
        .map(|metadata| metadata.len())
        .map_err(|error| TraceError::io(path, error))
}

/// A file that appears under its name only when it is complete.
pub(crate) struct Target {
    path: PathBuf,
    /// Where it is until then.
    partial: PathBuf,
}

impl Target {
    /// Creates the file that is to become `path`. A file that has that name already stays until then.
    pub(crate) fn create(path: &Path) -> Result<(Self, File), TraceError> {
        let io = |error| TraceError::io(path, error);
        // Renaming would replace a device by a file, and a link instead of what it leads to.
        let path = match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => std::fs::canonicalize(path).map_err(io)?,
            Ok(_) => {
                return Err(TraceError::Rejected {
                    path: path.to_owned(),
                    what: "it exists already and is not a file; name a file".into(),
                });
            }
            Err(_) => path.to_owned(),
        };
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}.partial", std::process::id()));
        let target = Self { path, partial: partial.into() };
        let file = File::create(&target.partial).map_err(io)?;
        Ok((target, file))
    }

    /// Gives the file its name.
    pub(crate) fn complete(self) -> Result<(), TraceError> {
        std::fs::rename(&self.partial, &self.path)
            .map_err(|error| TraceError::io(&self.path, error))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It does not exist any more if it is complete. A failure to remove it cannot be helped.
        let _ = std::fs::remove_file(&self.partial);
    }
}
