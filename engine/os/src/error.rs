//! Errors of the simulated operating system.

use flatwalk_paging::TableError;

/// Why the operating system could not go on. Each message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum OsError {
    /// The host cannot simulate that much memory.
    #[error(
        "cannot simulate {bytes} bytes of physical memory: {source}; set a smaller `memory_bytes` in the machine's [os] section, or raise the limit on address space (ulimit -v)"
    )]
    MemorySize {
        /// Size asked for.
        bytes: u64,
        /// What the host said.
        source: std::io::Error,
    },
    /// Simulated memory is used up.
    #[error(
        "the simulated machine's memory of {memory_bytes} bytes is used up ({data_bytes} bytes of data, {table_bytes} bytes of page tables); raise `memory_bytes` in the machine's [os] section"
    )]
    OutOfMemory {
        /// All of it.
        memory_bytes: u64,
        /// Bytes in data pages.
        data_bytes: u64,
        /// Bytes in page-table nodes.
        table_bytes: u64,
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
    /// An address at which a recursive page table shows itself.
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
        /// What was given.
        value: String,
        /// What may be.
        allowed: &'static str,
    },
    /// The share of large pages needs to know which memory is used, and the trace does not tell.
    #[error(
        "{percent} % large pages needs the ranges that the trace touches, which this trace does not tell; use 0 or 100 %, or `flatwalk trace import` it first"
    )]
    NoTouchedRanges {
        /// Share asked for.
        percent: u8,
    },
    /// The page tables of a recorded machine cannot be used.
    #[error("{0}")]
    Recorded(String),
    /// The page table refused a change that the operating system's books say is possible: an
    /// error in the simulator.
    #[error(
        "the page table and the operating system disagree: {0}; this is an error in flatwalk, please report it"
    )]
    Table(TableError),
}
