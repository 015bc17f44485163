//! What drives a simulation: a run, what of a source is measured, several runs at once, and mixes.

pub(crate) mod cores;
pub mod error;
mod followers;
mod look_ahead;
pub mod mix;
mod parts;
pub mod piece;
pub(crate) mod predictions;
pub mod run;
pub mod sampling;
pub mod simulate;
pub(crate) mod stretches;
mod touched;
pub mod workers;
