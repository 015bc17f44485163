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
        return foreign(
            "it is a directory",
            "name one trace file inside it, or turn all of them into one with `flatwalk trace import`",
        );
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
    /// Creates the file that is to become `path`. A file that has that name already stays until then, and
    /// hands on its permissions. `flatwalk.terminal.output.whole_file` has the same rules.
    pub(crate) fn create(path: &Path) -> Result<(Self, File), TraceError> {
        let io = |error| TraceError::io(path, error);
        let rejected =
            |what: &str| Err(TraceError::Rejected { path: path.to_owned(), what: what.into() });
        // Renaming would replace a device by a file, and a link instead of what it leads to.
        let (path, before) = match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_file() => {
                (std::fs::canonicalize(path).map_err(io)?, Some(metadata.permissions()))
            }
            Ok(_) => return rejected("it exists already and is not a file; name a file"),
            Err(_) if path.is_symlink() => {
                return rejected("it is a link that leads nowhere; remove the link");
            }
            Err(_) => (path.to_owned(), None),
        };
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}.partial", std::process::id()));
        let target = Self { path, partial: partial.into() };
        let file = File::create(&target.partial).map_err(io)?;
        if let Some(before) = before {
            file.set_permissions(before).map_err(io)?;
        }
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::Target;

    fn write(path: &std::path::Path) -> Result<(), crate::TraceError> {
        let (target, mut file) = Target::create(path)?;
        file.write_all(b"new").unwrap();
        target.complete()
    }

    #[test]
    fn outputs_links_are_followed_and_permissions_stay() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| directory.path().join(name));
        std::fs::write(&file, "old").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        symlink(&file, &link).unwrap();
        write(&link).unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn outputs_a_link_that_leads_nowhere_and_a_directory_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        symlink("nothing", &link).unwrap();
        for (path, why) in [(link.as_path(), "leads nowhere"), (directory.path(), "not a file")] {
            assert!(write(path).unwrap_err().to_string().contains(why));
        }
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
