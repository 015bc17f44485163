//! What drives a simulation: a run, its windows of the trace, several runs at once, and mixes.

mod look_ahead;
pub mod mix;
mod parts;
pub mod run;
pub mod simulate;
