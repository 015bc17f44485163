//! Why a layout cannot be, or a page table was not changed, and the checks that all tables make first.

use crate::addr::Physical;
use crate::entry::Entry;
use crate::geometry::{Geometry, Level, Width};

/// Why a layout cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Unknown organisation.
    #[error("unknown `organisation` `{name}`; known are {known}")]
    UnknownOrganisation {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// Parameters that cannot be read as the organisation's.
    #[error("organisation `{organisation}`: {problem}")]
    Parameters {
        /// The organisation.
        organisation: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A parameter that cannot be.
    #[error("organisation `{organisation}`: `{key}` {problem}")]
    Value {
        /// The organisation.
        organisation: &'static str,
        /// The parameter's key.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

impl LayoutError {
    /// What is wrong with a parameter of an organisation.
    pub fn value(
        organisation: &'static str,
        key: &'static str,
        problem: impl Into<String>,
    ) -> Self {
        Self::Value { organisation, key, problem: problem.into() }
    }

    /// The key of the parameter that cannot be, if it is that.
    pub fn key(&self) -> Option<&'static str> {
        match self {
            Self::Value { key, .. } => Some(key),
            Self::UnknownOrganisation { .. } | Self::Parameters { .. } => None,
        }
    }
}

/// Why a change was not made. The table is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The address is not one that the geometry can translate.
    #[error("address {address:#x} is beyond the table's {bits} address bits")]
    NotCanonical {
        /// The address.
        address: u64,
        /// Address bits that the table translates.
        bits: u8,
    },
    /// Address or frame is not aligned to the page.
    #[error("{address:#x} is not aligned to a page of {page_bytes} bytes")]
    Misaligned {
        /// Address or frame.
        address: u64,
        /// Page size.
        page_bytes: u64,
    },
    /// The frame has more address bits than an entry, or lies beyond the memory.
    #[error(
        "frame {0:#x} is too high: physical addresses have at most 52 bits, and lie in the memory"
    )]
    FrameTooHigh(u64),
    /// The frame has a page already, in a table with one entry for each frame.
    #[error("frame {0:#x} has a page already: this table has one entry for each frame")]
    FrameTaken(u64),
    /// No page of this level can be mapped.
    #[error("level {0} has no leaves: pages are mapped at levels 1 to 3 of those the table has")]
    NoSuchPage(Level),
    /// Something is mapped there.
    #[error("something is mapped at {0:#x} already")]
    Occupied(u64),
    /// Nothing is mapped there.
    #[error("nothing is mapped at {0:#x}")]
    NotMapped(u64),
    /// No memory for a node, not even the smallest.
    #[error("no memory for a page-table node: give the machine more, or unmap something")]
    OutOfMemory,
    /// The node cannot get this width: it would overlap others, or the level lies inside a node.
    #[error("the node at level {level} on the path of {address:#x} cannot span {width} levels")]
    Shape {
        /// The address.
        address: u64,
        /// Topmost level of the node.
        level: Level,
        /// Width asked for.
        width: Width,
    },
    /// An entry has a reserved combination of bits: something else wrote to the table.
    #[error("an entry on the path of {0:#x} is corrupt")]
    Corrupt(u64),
}

/// Refuses addresses that `geometry` cannot translate.
pub(crate) fn check_canonical(geometry: Geometry, address: u64) -> Result<(), TableError> {
    if geometry.is_canonical(address) {
        Ok(())
    } else {
        Err(TableError::NotCanonical { address, bits: geometry.address_bits() })
    }
}

fn check_alignment(geometry: Geometry, address: u64, level: Level) -> Result<(), TableError> {
    if geometry.within(address, level) == 0 {
        Ok(())
    } else {
        Err(TableError::Misaligned { address, page_bytes: geometry.span(level) })
    }
}

/// Refuses what can be no page of `level`.
pub(crate) fn check_page(geometry: Geometry, address: u64, level: Level) -> Result<(), TableError> {
    if level == 0 || level > geometry.largest() {
        return Err(TableError::NoSuchPage(level));
    }
    check_canonical(geometry, address)?;
    check_alignment(geometry, address, level)
}

/// Refuses what can be no frame of a page of `level`.
pub(crate) fn check_frame<Out: Physical>(
    geometry: Geometry,
    frame: Out,
    level: Level,
) -> Result<(), TableError> {
    check_alignment(geometry, frame.raw(), level)?;
    if Entry::can_hold(frame) { Ok(()) } else { Err(TableError::FrameTooHigh(frame.raw())) }
}
