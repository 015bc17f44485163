//! The page table as a tree, as it is written to JSON.

use flatwalk_paging::{Entries, EntryKind, Geometry, Part, levels_spanned};
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
    /// Physical address of the first node, in hexadecimal.
    pub node: String,
    /// The first entries of that node, those next to each other together.
    pub entries: Vec<TreeEntries>,
    /// Entries that it has in use in addition.
    pub entries_left: u64,
}

/// What entries of a tree are.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TreeEntryKind {
    /// They lead to nodes.
    Table,
    /// They map pages of their own size.
    Page,
    /// They map parts of a larger page.
    Replica,
}

/// Entries of a node that are in use, next to each other, and of one kind.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TreeEntries {
    /// Number of the first one in its node.
    pub index: u64,
    /// How many.
    pub count: u64,
    /// What they are.
    pub kind: TreeEntryKind,
    /// The first one, as it stands in memory, in hexadecimal.
    pub value: String,
}

impl From<Entries> for TreeEntries {
    fn from(Entries { index, count, kind, word }: Entries) -> Self {
        let kind = match kind {
            EntryKind::Table => TreeEntryKind::Table,
            EntryKind::Page => TreeEntryKind::Page,
            EntryKind::Replica => TreeEntryKind::Replica,
        };
        Self { index, count, kind, value: format!("{word:#x}") }
    }
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
            node: format!("{:#x}", part.node),
            entries: part.entries.into_iter().map(TreeEntries::from).collect(),
            entries_left: part.entries_left,
        }
    }
}
