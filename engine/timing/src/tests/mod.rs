//! Tests that cross rooms, and the small machine that tests use.

mod mistakes;
pub mod testing;
