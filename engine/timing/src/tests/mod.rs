//! Tests that cross rooms, and the small machine that tests use.

mod blame;
mod mistakes;
mod stack;
pub mod testing;
mod warming;
