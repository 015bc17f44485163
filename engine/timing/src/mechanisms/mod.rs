//! Mechanisms that help translation, next to the page table itself.

pub mod asap;
pub mod csalt;
pub mod direct_segment;
pub mod pom_tlb;
pub mod vhpt;
