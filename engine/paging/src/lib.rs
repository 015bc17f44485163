//! Page tables as data and the walker as a pure step machine.
//!
//! Nothing here has a clock, does I/O, or owns memory: a [`Walk`] says which entry it wants to
//! read and is fed the word found there. What drives it decides where the words come from:
//! simulated memory, a timed memory hierarchy, or the RAM of a running guest.
//!
//! The shape of the next node always comes from the parent entry (or the root register), never
//! from a level number. Flattened nodes are therefore no special case anywhere. In a [`Keyed`] table
//! the reads that have no need of each other are made at once; each is fed the line found there.
//!
//! What an organisation is, is in one file of [`organisations`]: its parameters make a [`Layout`],
//! which makes a [`PageTable`].

mod addr;
#[cfg(feature = "conformance")]
pub mod conformance;
mod entry;
mod error;
mod geometry;
pub mod hardware;
pub mod keyed;
mod layout;
mod mapping;
mod memory;
pub mod organisations;
pub mod prototypes;
mod recursion;
mod table;
mod tree;
mod walk;

pub use addr::{Address, Gpa, Gva, Hpa, Physical};
pub use entry::{AccessKind, Attributes, Decoded, Entry, Rights};
pub use error::{LayoutError, TableError};
pub use geometry::{Geometry, GeometryError, Level, Width, levels_spanned, page_name};
pub use keyed::Keyed;
pub use layout::{Density, Layout, Shape, TreeShape};
pub use mapping::{
    DensityChanges, Entries, EntryKind, Flush, Levels, Made, Mapping, NodeStatistics, Part, Resizes,
};
pub use memory::{EntryMemory, EntryMemoryMut, LINE_BYTES, Line, NodeAllocator, TableMemory};
pub use recursion::Recursion;
pub use table::PageTable;
pub use tree::{Nodes, Tree, outline};
pub use walk::{Fault, Leaf, NodeRef, Step, Walk};
