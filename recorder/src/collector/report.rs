//! What the collector reports to the program that started it: lines of JSON on standard output.

use std::io::Write;
use std::path::PathBuf;

use flatwalk_recorder::channel::hello::Origin;
use serde::Serialize;

/// A line of JSON on standard output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Report {
    /// The socket is there: programs can be started.
    Ready,
    /// A process is being recorded.
    Start {
        /// Its number.
        pid: i32,
        /// How it came to be.
        origin: Origin,
        /// What it runs.
        command: Vec<String>,
        /// Where its trace will be.
        file: PathBuf,
    },
    /// A process has executed more.
    Progress {
        /// Its number.
        pid: i32,
        /// The file of its trace, which distinguishes programs that ran in one process.
        file: PathBuf,
        /// Instructions executed so far, since recording began: recorded, or in a gap.
        instructions: u64,
    },
    /// Something that the user should read.
    Warning {
        /// Whose.
        pid: i32,
        /// What.
        message: String,
    },
    /// The engine's walker and a machine that is recorded agreed.
    Checked {
        /// Whose.
        pid: i32,
        /// On so many of the machine's walks.
        walks: u64,
        /// On so many of the program's accesses, which were sampled.
        accesses: u64,
        /// Instructions that the machine's kernel executed for the program while it was recorded …
        kernel: u64,
        /// … and repetitions of string instructions among them.
        repeated: u64,
    },
    /// A trace is complete.
    End {
        /// Its process.
        pid: i32,
        /// Where it is; nothing if nothing could be written.
        file: Option<PathBuf>,
        /// Why recording ended.
        reason: Reason,
        /// Instructions in it.
        instructions: u64,
        /// Instructions that were executed and are not in it.
        gap_instructions: u64,
        /// Segments in it, if it is a sample.
        segments: Option<usize>,
        /// Bytes of the file.
        bytes: u64,
        /// What went wrong, if anything.
        error: Option<String>,
        /// Whether that is that there was no room for the trace.
        disk_full: bool,
    },
}

/// Why recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The process ended, in whatever way.
    Exit,
    /// The process replaced itself by another program.
    Exec,
    /// The limit, or the place to stop at, was reached.
    Limit,
    /// The user wanted no more.
    Detached,
    /// The trace could not be written, or the program destroyed what was recorded.
    Failed,
}

/// Writes a report on standard output.
pub fn report(report: &Report) {
    if let Ok(mut line) = serde_json::to_vec(report) {
        line.push(b'\n');
        // The parent may be gone; there is nobody else to report to.
        let _ = std::io::stdout().lock().write_all(&line);
    }
}
