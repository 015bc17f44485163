//! Page tables as data and the walker as a pure step machine.
//!
//! Nothing here has a clock, does I/O, or owns memory: a [`Walk`] says which entry it wants to
//! read and is fed the word found there. What drives it decides where the words come from:
//! simulated memory, a timed memory hierarchy, or the RAM of a running guest.
//!
//! The shape of the next node always comes from the parent entry (or the root register), never
//! from a level number. Flattened nodes are therefore no special case anywhere. In a [`Hashed`] table
//! the reads that have no need of each other are made at once; each is fed the line found there.

mod addr;
mod entry;
mod geometry;
pub mod hardware;
pub mod hashed;
mod memory;
pub mod organisations;
mod recursion;
mod table;
mod tree;
mod walk;

pub use addr::{Address, Gpa, Gva, Hpa, Physical};
pub use entry::{AccessKind, Attributes, Decoded, Entry, Rights};
pub use geometry::{Geometry, GeometryError, Level, Width};
pub use hashed::Hashed;
pub use memory::{EntryMemory, EntryMemoryMut, NodeAllocator, TableMemory};
pub use organisations::{Density, Layout, LayoutError, Shape, Structure};
pub use recursion::Recursion;
pub use table::{Made, PageTable};
pub use tree::{
    Change, DensityChanges, Flush, Levels, Mapping, NodeKind, NodeStatistics, TableError, Tree,
};
pub use walk::{Fault, Leaf, NodeRef, Step, Walk};
