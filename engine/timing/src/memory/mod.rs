//! Caches and main memory, and when what they hold is there.

pub mod cache;
pub mod dram;
pub mod energy;
pub mod hierarchy;
pub mod line;
pub mod mshrs;
mod outstanding;
pub mod prefetchers;
pub mod reader;
pub mod replacement;
pub mod simulator_prefetch;
pub mod slots;
pub(crate) mod ways;
