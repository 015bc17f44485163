//! Traces: what a program executed and accessed, in flatwalk's own format and in those of others.

pub mod error;
pub mod format;
pub mod model;

pub use error::TraceError;
pub use format::{Header, Options, Reader, Summary, Writer};
pub use model::*;
