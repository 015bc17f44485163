//! Traces: what a program executed and accessed, in flatwalk's own format and in those of other tools.

mod disk;
pub mod error;
pub mod export;
pub mod files;
pub mod format;
pub mod import;
pub mod model;

pub use error::TraceError;
pub use export::{Exported, export_to_file};
pub use files::{Info, Progress, import_to_file, info, open, open_bytes, open_with_progress};
pub use format::{
    Header, Options, Reader, Summary, Writer, decode_events, encode_event, note_stopped,
};
pub use import::Format;
pub use model::*;
