//! Counts of a process.

/// Defines a structure of counts, which can be added and subtracted.
macro_rules! counts {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl std::ops::Sub for $name {
            type Output = Self;

            fn sub(self, before: Self) -> Self {
                Self { $($field: self.$field - before.$field,)* }
            }
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, more: Self) {
                $(self.$field += more.$field;)*
            }
        }
    };
}

counts! {
    /// Counts since the start (subtract two to get a period's).
    Statistics {
        /// Faults of all kinds.
        faults,
        /// Faults that mapped a large page.
        large_page_faults,
        /// Large pages mapped: by faults or populating, moved by a remap, or put together as the
        /// scenario has it.
        large_pages_mapped,
        /// Regions that should have got a large page, but there was no block for it.
        large_page_fallbacks,
        /// Page-table nodes narrower than they should be, for want of a large block.
        node_fallbacks,
        /// Nodes split because of the NF rule.
        demotions,
        /// Nodes widened again, as they had fewer large pages below them than the NF rule takes.
        promotions,
        /// Nodes merged with their children because they had become dense.
        merges,
        /// Merged nodes split because they had become sparse.
        unmerges,
        /// Merges and splits that were due, but for which there was no memory.
        merge_refusals,
        /// Times that a hashed table started to grow or shrink.
        resizes,
        /// Times that there was not enough contiguous memory for that.
        resize_refusals,
        /// Page-table entries that the kernel accessed by virtual addresses, of a recursive table.
        window_accesses,
        /// Page-table entries that the hardware read for those.
        window_reads,
        /// Entries that the kernel accessed otherwise, as their nodes were not linked into that table.
        unlinked_accesses,
        /// Large pages split.
        splits,
        /// Pages mapped ahead of any access, by events.
        populated_pages,
        /// Pages of files that faults of their neighbours mapped.
        around_pages,
        /// Pages mapped at addresses that no event mapped.
        implicit_mappings,
        /// Accesses that the rights of their area do not allow, but that succeeded in the trace.
        protection_mismatches,
        /// Pages freed.
        pages_freed,
        /// Page-table nodes freed.
        nodes_freed,
        /// Events that concern memory.
        events,
    }
}
