//! How a recorded process introduces itself to the collector.

use serde::{Deserialize, Serialize};

/// What a recorded process sends when it attaches.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Layout of the region: both sides must be of the same build.
    pub version: String,
    /// Process number.
    pub pid: i32,
    /// How it came to be.
    pub origin: Origin,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Instructions of a segment, if the recording is a sample.
    pub segment: Option<u64>,
    /// Whether it will say which pages were touched in gaps.
    pub gap_pages: bool,
}

/// How a recorded process came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// It was started, by the user or through an exec.
    Start,
    /// Another recorded process forked.
    Fork,
    /// It is a machine, and one of its programs is recorded.
    Guest,
}

/// Names the layout of [`Region`](super::region::Region) and the meaning of its words.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "/9");

/// The collector's answer to a process that it records, which comes with the descriptor of its region. The process may
/// not be able to make one: its files may be limited in length.
pub const READY: &str = "ready";
/// What comes before the reason in its answer to a process that it cannot record, and that is to
/// run on all the same. Any other answer is an error.
pub const UNRECORDED: &str = "unrecorded: ";
