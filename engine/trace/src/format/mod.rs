//! flatwalk's own trace format, which docs/trace-format.md describes byte by byte.

pub(crate) mod bytes;
mod chunks;
mod container;
mod definitions;
mod events;
mod hash;
mod lanes;
mod reader;
mod slices;
mod stopping;
mod summary;
pub(crate) mod touched;
mod verify;
mod writer;

pub(crate) use container::MAGIC;
pub use container::{Header, VERSION};
pub use definitions::{MAX_ACCESS_BYTES, MAX_ACCESSES, MAX_ADDRESS, MAX_INSTRUCTIONS};
pub use events::{decode_events, encode_event};
pub use reader::Reader;
pub use stopping::note_stopped;
pub use summary::Summary;
pub use writer::{Options, Writer};
