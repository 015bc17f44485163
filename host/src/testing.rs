//! For tests.

use crate::Context;
use crate::counters::Counters;

/// A context without processors and counters.
pub fn context() -> Context {
    Context { cpus: Vec::new(), counters: Counters::default(), preemptions: 0, notes: Vec::new() }
}
