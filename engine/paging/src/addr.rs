//! Addresses. The three kinds are different types; only a translation turns one into another.

use std::fmt;
use std::hash::Hash;

/// An address of some kind, in bytes.
pub trait Address:
    Copy + Eq + Ord + Hash + fmt::Debug + fmt::LowerHex + Send + Sync + 'static
{
    /// The address with this numeric value.
    fn new(raw: u64) -> Self;
    /// Its numeric value in bytes.
    fn raw(self) -> u64;
    /// The address `bytes` further on (wrapping).
    #[must_use]
    fn offset(self, bytes: u64) -> Self {
        Self::new(self.raw().wrapping_add(bytes))
    }
}

/// An address that memory answers to, so that page-table nodes can live there.
pub trait Physical: Address {}

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl Address for $name {
            #[inline]
            fn new(raw: u64) -> Self {
                Self(raw)
            }
            #[inline]
            fn raw(self) -> u64 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

address! {
    /// Guest-virtual: what a program uses, natively too.
    Gva
}
address! {
    /// Guest-physical: what a guest's page table yields and a host's page table takes.
    Gpa
}
address! {
    /// Host-physical: what the memory hierarchy is indexed by.
    Hpa
}

impl Physical for Gpa {}
impl Physical for Hpa {}
