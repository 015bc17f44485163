//! The simulated operating system: physical memory and its allocator, a process's address space,
//! demand paging, large pages, and where page tables are flattened.

mod block_set;
pub mod buddy;
mod error;
mod frames;
mod memory;
mod metered_memory;
mod ordered;
mod placement;
mod policy;
mod process;
mod random;
#[cfg(test)]
mod testing;
mod virtual_machine;
pub mod vma;
mod windows;
pub use buddy::Buddy;
pub use error::OsError;
pub use frames::Frames;
pub use memory::{PhysicalMemory, Piece};
pub use metered_memory::Work;
pub use ordered::{OrderedNodes, Range};
pub use placement::Placement;
pub use policy::{LargePages, Thp};
pub use process::{Configuration, FaultKind, FaultOutcome, Moved, Outcome, Process, Statistics};
pub use random::Random;
pub use virtual_machine::{Handled, VirtualMachine};
