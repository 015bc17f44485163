//! Tests that cross rooms, and the small machine that tests use.

mod blame;
mod cores;
mod kernels;
mod limits;
mod mistakes;
mod operands;
mod predictions;
mod prefetching;
mod reconvergence;
mod stack;
pub mod testing;
mod warming;
