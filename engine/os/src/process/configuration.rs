//! What a process is made with.

use flatwalk_paging::{Layout, Level};

use crate::placement::Placement;
use crate::policy::LargePages;

/// What a process runs on and how the operating system decides.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// What the page table is like.
    pub layout: Layout,
    /// Which memory large pages back.
    pub large_pages: LargePages,
    /// Ranges of addresses that the program touches, in bytes, ascending; none if that is not
    /// known. Of what no range covers no large page is expected.
    pub touched: Vec<(u64, u64)>,
    /// Physical memory in bytes.
    pub memory_bytes: u64,
    /// Bytes at its end that belong to the hardware from the start.
    pub reserved_bytes: u64,
    /// Addresses that hardware translates without the table: nothing is populated there.
    pub segment: Option<std::ops::Range<u64>>,
    /// Share of the 2 MiB blocks that are not free as a whole from the start, 0 to 1; see
    /// [`Buddy::fragment`](crate::Buddy::fragment).
    pub fragmentation: f64,
    /// Probability that an allocation of 2 MiB or more fails although there is memory for it, 0 to 1.
    pub large_failure_probability: f64,
    /// Levels of entries whose nodes are contiguous in memory, in the order of the addresses that they
    /// translate, as ASAP wants; see [`OrderedNodes`](crate::OrderedNodes).
    pub ordered_levels: Vec<Level>,
    /// Index at which the root leads back to itself, if the kernel accesses page-table entries by virtual
    /// addresses; see [`Recursion`](flatwalk_paging::Recursion). For trees that are not merged by density.
    pub recursive_index: Option<u16>,
    /// Where frames lie.
    pub placement: Placement,
    /// Seed of what is random in all these.
    pub seed: u64,
}

impl Configuration {
    /// A table of `layout` in `memory_bytes` that are not fragmented, base pages only, and nothing
    /// that departs from a common machine.
    #[must_use]
    pub fn new(layout: Layout, memory_bytes: u64) -> Self {
        Self {
            layout,
            large_pages: LargePages::Below { boundary: 0 },
            touched: Vec::new(),
            memory_bytes,
            reserved_bytes: 0,
            segment: None,
            fragmentation: 0.0,
            large_failure_probability: 0.0,
            ordered_levels: Vec::new(),
            recursive_index: None,
            placement: Placement::Compact,
            seed: 1,
        }
    }
}
