//! Errors of the simulated operating system.

use flatwalk_paging::TableError;

/// Why the operating system could not continue. Each message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum OsError {
    /// The machine that the simulator runs on cannot hold that much simulated memory.
    #[error(
        "cannot simulate {bytes} bytes of physical memory: {source}; set a smaller `memory_bytes` in the machine's [os] section, or raise the limit on address space (ulimit -v)"
    )]
    MemorySize {
        /// The size requested.
        bytes: u64,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Simulated memory is used up, or the page table found no room in what is left of it.
    #[error("{}", used_up(*memory_bytes, *data_bytes, *table_bytes, *free_bytes))]
    OutOfMemory {
        /// Size of the memory.
        memory_bytes: u64,
        /// Bytes in data pages.
        data_bytes: u64,
        /// Bytes in page-table nodes.
        table_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// An address that the page table cannot translate.
    #[error(
        "address {address:#x} is beyond the {bits} bits that the scheme's page table translates; use a scheme with more levels"
    )]
    BeyondAddressSpace {
        /// The address.
        address: u64,
        /// Address bits of the page table.
        bits: u8,
    },
    /// An address at which a recursive page table shows its own entries.
    #[error(
        "address {address:#x} is where the recursive page table shows its own entries; set another `recursive_index` in the scheme"
    )]
    InWindow {
        /// The address.
        address: u64,
    },
    /// A setting out of its range.
    #[error("`{setting}` is {value}, but must be {allowed}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// The value given.
        value: String,
        /// The values allowed.
        allowed: &'static str,
    },
    /// A share of large pages is a share of the memory that is used, and the trace does not say which
    /// that is.
    #[error(
        "{percent} % large pages needs the ranges that the trace touches, which this trace does not contain; use 0 or 100 %, or `flatwalk trace import` it first"
    )]
    NoTouchedRanges {
        /// The share requested.
        percent: u8,
    },
    /// The page tables of a recorded machine cannot be used.
    #[error("{0}")]
    Recorded(String),
    /// The page table refused a change that should be possible as far as the operating system knows:
    /// an error in the simulator.
    #[error(
        "the page table and the operating system disagree: {0}; this is an error in flatwalk, please report it"
    )]
    Table(TableError),
}

/// What [`OsError::OutOfMemory`] says.
fn used_up(memory_bytes: u64, data_bytes: u64, table_bytes: u64, free_bytes: u64) -> String {
    if free_bytes == 0 {
        format!(
            "the simulated machine's memory of {memory_bytes} bytes is used up ({data_bytes} bytes of data, {table_bytes} bytes of page tables); raise `memory_bytes` in the machine's [os] section"
        )
    } else {
        format!(
            "the page table has no room for another entry, and no free block of memory is as large as it needs, though {free_bytes} of the simulated machine's {memory_bytes} bytes are free; give the table more room if its scheme says how much it has, or raise `memory_bytes` in the machine's [os] section"
        )
    }
}
