//! The code of files, by name: which function and which line of the source an offset in a file is, and
//! which file it was.
//!
//! Files are those of the machine that this runs on. A trace says which file it means ([`identity`]); one
//! that has changed since is not asked. Everything in a file may be wrong without harm: what cannot be
//! read has no names.

pub mod identity;
mod lookup;

pub use identity::identity;
pub use lookup::{Place, Symbols, Unknown};
