//! The page table as a tree, as it is written to JSON.

use flatwalk_paging::{Geometry, Part, levels_spanned};
use schemars::JsonSchema;
use serde::Serialize;

/// A table that is a tree, in outline.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TreeResult {
    /// `guest` or `host`; empty without a guest.
    pub whose: &'static str,
    /// Bits of the addresses that it translates.
    pub address_bits: u8,
    /// Its nodes, the root first and the lowest last.
    pub parts: Vec<TreePart>,
}

/// Neighbouring nodes of one shape, summed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TreePart {
    /// Number in `parts` of the part whose entries lead to them; of the root its own, 0.
    pub under: usize,
    /// Levels spanned, such as `L4L3`.
    pub level: String,
    /// Levels spanned.
    pub width: u8,
    /// Address bits that choose an entry of a node.
    pub index_bits: u8,
    /// Bytes of addresses that one entry translates.
    pub entry_bytes: u64,
    /// Bytes of one node.
    pub node_bytes: u64,
    /// First virtual address under them, in hexadecimal.
    pub first: String,
    /// The last one. The nodes are next to each other unless there were too many parts.
    pub last: String,
    /// How many nodes.
    pub nodes: u64,
    /// The nodes were to be wider, but there was no large block for that.
    pub fallback: bool,
    /// Entries that lead to nodes.
    pub tables: u64,
    /// Entries that map a page of their own size.
    pub pages: u64,
    /// Entries that map a part of a larger page.
    pub replicas: u64,
}

impl From<(&'static str, Geometry, Vec<Part>)> for TreeResult {
    fn from((whose, geometry, parts): (&'static str, Geometry, Vec<Part>)) -> Self {
        let parts = parts.into_iter().map(|part| TreePart::new(geometry, part)).collect();
        Self { whose, address_bits: geometry.address_bits(), parts }
    }
}

impl TreePart {
    fn new(geometry: Geometry, part: Part) -> Self {
        let Part { under, level, width, .. } = part;
        Self {
            under,
            level: levels_spanned(level, width),
            width,
            index_bits: geometry.index_bits() * width,
            entry_bytes: geometry.span(level + 1 - width),
            node_bytes: 1 << geometry.node_shift(width),
            first: format!("{:#x}", part.first),
            last: format!("{:#x}", part.last),
            nodes: part.nodes,
            fallback: part.is_fallback,
            tables: part.tables,
            pages: part.pages,
            replicas: part.replicas,
        }
    }
}
