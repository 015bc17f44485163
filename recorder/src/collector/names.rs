//! The names of the files that traces are written to.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Gives files their names: the first process's as the user said, further ones with their process
/// number before the extension, and a count where one process runs several programs.
pub struct Names {
    output: PathBuf,
    given: HashMap<i32, u32>,
    any: bool,
}

impl Names {
    /// Names made from `output`, the name for the first.
    pub fn new(output: &Path) -> Names {
        Names { output: output.into(), given: HashMap::new(), any: false }
    }

    /// The name for the next program, which process `pid` runs.
    pub fn next(&mut self, pid: i32) -> PathBuf {
        if !std::mem::replace(&mut self.any, true) {
            return self.output.clone();
        }
        let count = self.given.entry(pid).or_insert(0);
        *count += 1;
        let mut name = self.output.file_stem().unwrap_or_default().to_owned();
        name.push(format!(".{pid}"));
        if *count > 1 {
            name.push(format!(".{count}"));
        }
        name.push(".");
        name.push(self.output.extension().unwrap_or("fwt".as_ref()));
        let name = self.output.with_file_name(name);
        // What an earlier recording left under these names is not this one's.
        let _ = fs::remove_file(partial_name(&name));
        name
    }
}

/// The name that a trace has while it grows.
pub fn partial_name(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// The name of a file that holds what may come to be in a trace.
pub fn aside_name(partial: &Path) -> PathBuf {
    let mut name = partial.as_os_str().to_owned();
    name.push(".aside");
    name.into()
}
