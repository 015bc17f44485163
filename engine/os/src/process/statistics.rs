//! What a process counts.

/// Counts since the start (subtract two to get a period's).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Faults of all kinds.
    pub faults: u64,
    /// Faults that mapped a large page.
    pub large_page_faults: u64,
    /// Large pages mapped, by faults or populating.
    pub large_pages_mapped: u64,
    /// Regions that should have had a large page, but there was no block for it.
    pub large_page_fallbacks: u64,
    /// Page-table nodes narrower than they should be, for want of a large block.
    pub node_fallbacks: u64,
    /// Nodes taken apart because of the NF rule.
    pub demotions: u64,
    /// Nodes merged with their children because they had become dense.
    pub merges: u64,
    /// Merged nodes taken apart because they had become sparse.
    pub unmerges: u64,
    /// Times that either was due, but there was no memory for it.
    pub merge_refusals: u64,
    /// Times that a hashed table began to grow or to shrink.
    pub resizes: u64,
    /// Times that there was no contiguous memory for that, or not for as much as was due.
    pub resize_refusals: u64,
    /// Page-table entries that the kernel accessed by virtual addresses, of a recursive table.
    pub window_accesses: u64,
    /// Page-table entries that the hardware read to find those.
    pub window_reads: u64,
    /// Entries that the kernel accessed otherwise, as they were not linked into that table.
    pub unlinked_accesses: u64,
    /// Large pages split.
    pub splits: u64,
    /// Pages mapped ahead of any access, by events.
    pub populated_pages: u64,
    /// Pages mapped at addresses that no event had mapped.
    pub implicit_mappings: u64,
    /// Accesses that succeeded in the trace against the rights of their area.
    pub protection_mismatches: u64,
    /// Pages given back.
    pub pages_freed: u64,
    /// Page-table nodes given back.
    pub nodes_freed: u64,
    /// Events that concern memory.
    pub events: u64,
}
