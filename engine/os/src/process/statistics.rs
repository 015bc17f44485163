//! Counts of a process.

/// Counts since the start (subtract two to get a period's).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Faults of all kinds.
    pub faults: u64,
    /// Faults that mapped a large page.
    pub large_page_faults: u64,
    /// Large pages mapped, by faults or populating.
    pub large_pages_mapped: u64,
    /// Regions that should have got a large page, but there was no block for it.
    pub large_page_fallbacks: u64,
    /// Page-table nodes narrower than they should be, for want of a large block.
    pub node_fallbacks: u64,
    /// Nodes split because of the NF rule.
    pub demotions: u64,
    /// Nodes merged with their children because they had become dense.
    pub merges: u64,
    /// Merged nodes split because they had become sparse.
    pub unmerges: u64,
    /// Merges and splits that were due, but for which there was no memory.
    pub merge_refusals: u64,
    /// Times that a hashed table started to grow or shrink.
    pub resizes: u64,
    /// Times that there was not enough contiguous memory for that.
    pub resize_refusals: u64,
    /// Page-table entries that the kernel accessed by virtual addresses, of a recursive table.
    pub window_accesses: u64,
    /// Page-table entries that the hardware read for those.
    pub window_reads: u64,
    /// Entries that the kernel accessed otherwise, as their nodes were not linked into that table.
    pub unlinked_accesses: u64,
    /// Large pages split.
    pub splits: u64,
    /// Pages mapped ahead of any access, by events.
    pub populated_pages: u64,
    /// Pages mapped at addresses that no event mapped.
    pub implicit_mappings: u64,
    /// Accesses that the rights of their area do not allow, but that succeeded in the trace.
    pub protection_mismatches: u64,
    /// Pages freed.
    pub pages_freed: u64,
    /// Page-table nodes freed.
    pub nodes_freed: u64,
    /// Events that concern memory.
    pub events: u64,
}
