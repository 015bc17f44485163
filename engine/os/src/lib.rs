//! The simulated operating system: physical memory and its allocator, a process's address space,
//! demand paging, large pages, and where page tables are flattened.

pub mod buddy;
pub mod vma;
mod random;
pub use buddy::Buddy;
