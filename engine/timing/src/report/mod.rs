//! What a run found: figures, warnings, and translations explained step by step.

pub mod blame;
pub mod explain;
pub mod outline;
pub mod response;
pub mod result;
mod words;
