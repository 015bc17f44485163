//! What a trace consists of: blocks of code, defined once; slices of execution that name blocks and give
//! the addresses their accesses used; and events that change the address space.
//!
//! Every producer (the recorder, an importer, a built-in workload) yields the same [`Item`]s through
//! [`Source`], so a consumer neither knows nor cares where they come from.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::TraceError;

/// Names a [`Block`] within one trace: dense, from 0, in order of definition.
pub type BlockId = u32;
/// Names a thread of the traced process: dense, from 0 (the first thread seen).
pub type ThreadId = u32;

/// A straight run of instructions together with the exact accesses that it makes.
///
/// The number, order, size and kind of the accesses belong to the block; only the addresses vary
/// between executions. Where the same code accesses memory differently (a string instruction with
/// another count, a block left early by a signal), that is another block. So a stream of block
/// identifiers and addresses is complete and has no special cases.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// At least one instruction, in program order. Only the last may be a branch.
    pub instructions: Box<[Instruction]>,
    /// In program order: `instruction` never decreases.
    pub accesses: Box<[Access]>,
}

/// One instruction of a [`Block`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// Virtual address of its first byte.
    pub pc: u64,
    /// Length in bytes, 1 to 15; 0 where it is not known.
    pub length: u8,
    /// What is known of its operands.
    pub operands: Operands,
}

/// What is known of an instruction's operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operands {
    /// The machine code itself: the first `length` bytes are x86-64 code, the rest are zero.
    X86([u8; 15]),
    /// Registers by number (1–254, in the numbering of the trace's origin; 0 = empty slot).
    Registers {
        /// Registers read.
        reads: [u8; 4],
        /// Registers written.
        writes: [u8; 4],
        /// Whether and how it transfers control.
        branch: Branch,
    },
    /// The origin records nothing: the timing model assumes no register dependences.
    Unknown,
}

/// How an instruction transfers control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Branch {
    /// It does not.
    None,
    /// Taken or not.
    Conditional,
    /// A direct jump.
    Direct,
    /// A jump through a register or memory.
    Indirect,
    /// A return.
    Return,
    /// A direct call.
    DirectCall,
    /// A call through a register or memory.
    IndirectCall,
}

/// One data access that an instruction of a block makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// Index into [`Block::instructions`].
    pub instruction: u16,
    /// Size in bytes, at least 1.
    pub size: u16,
    /// True for a store. A read-modify-write instruction makes two accesses.
    pub store: bool,
}

/// A run of one thread: blocks executed one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// The thread.
    pub thread: ThreadId,
    /// Blocks in order of execution; each was defined by an earlier [`Item::Define`].
    pub blocks: Vec<BlockId>,
    /// One virtual address for each access of each block, in order.
    pub addresses: Vec<u64>,
}

/// What a mapping is backed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// Private or shared anonymous memory.
    Anonymous,
    /// A file.
    File,
    /// A thread's or the main stack.
    Stack,
    /// The program-break heap.
    Heap,
}

/// Memory protection: a mapping's rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Protection {
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub execute: bool,
}

impl Protection {
    /// True if it allows anything (it is not `PROT_NONE`).
    #[must_use]
    pub const fn is_accessible(self) -> bool {
        self.read || self.write || self.execute
    }
}

/// Advice that changes how memory is mapped (`madvise`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// `MADV_HUGEPAGE`.
    HugePage,
    /// `MADV_NOHUGEPAGE`.
    NoHugePage,
    /// `MADV_DONTNEED`, `MADV_FREE`, `MADV_REMOVE`: the pages are freed.
    DontNeed,
    /// `MADV_POPULATE_READ`, `MADV_POPULATE_WRITE`: fault in now.
    Populate,
}

/// What happens other than loads and stores. All addresses and lengths are in bytes; successful calls
/// only, as the kernel carried them out (results, not requests).
#[allow(missing_docs)] // The fields' names repeat the variants' descriptions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// Memory is mapped (`mmap`, `shmat`, a segment of the program at its start). Replaces what was there.
    Map { address: u64, length: u64, protection: Protection, backing: Backing, shared: bool },
    /// Memory is unmapped (`munmap`, `shmdt`).
    Unmap { address: u64, length: u64 },
    /// A mapping moves or changes size (`mremap`).
    Remap { from: u64, from_length: u64, to: u64, to_length: u64 },
    /// Rights change (`mprotect`).
    Protect { address: u64, length: u64, protection: Protection },
    /// `madvise`.
    Advise { address: u64, length: u64, advice: Advice },
    /// The program break moves from `from` to `to`.
    Break { from: u64, to: u64 },
    /// The program touched each page of the range once, in ascending order, in a part that is not
    /// in the trace (a workload's initialisation, a skipped prefix).
    Populate { address: u64, length: u64, store: bool },
    /// A thread starts.
    ThreadStart { thread: ThreadId },
    /// A thread ends.
    ThreadExit { thread: ThreadId },
    /// A thread makes a system call that may wake others, which sleep in theirs (`write`, `futex`, `exit`).
    Wake { thread: ThreadId, number: u64 },
    /// A thread goes on that slept in a system call. The call that woke it is that of the `Wake` of
    /// this number, if that is in the trace.
    Woken { thread: ThreadId, number: u64 },
    /// The program marked a place (region-of-interest start/stop, a name).
    Marker { name: String },
    /// The recorded machine translates by the tables that these registers name (x86-64's CR3 and CR4,
    /// as docs/flat-page-tables.md has them).
    Root { cr3: u64, cr4: u64 },
    /// The recorded machine's processor read `value`, an entry of `level`, at physical address
    /// `address` of its own memory: part of the recorded program's real page tables.
    Entry { address: u64, level: u8, value: u64 },
    /// So many instructions, of all threads of the process, were executed here and are not in the
    /// trace. With none, a gap begins, and its instructions follow at its end. What they did to the address
    /// space is in the events around it; `Populate` events behind it say which pages are in memory that
    /// were not before.
    Gap { instructions: u64 },
    /// What the memory that was just mapped there is called, as `/proc/PID/maps` has it: a file's path,
    /// `[stack]`, `[anon:…]`. Of a file, the first byte is the one at `offset` in it. `build_id` says
    /// which file it was, where code of it is mapped: its GNU build ID in hexadecimal, or `xxh3-` and
    /// the XXH3-128 of its bytes if it has none; empty otherwise.
    Name { address: u64, length: u64, offset: u64, name: String, build_id: String },
}

/// One piece of a trace, in order.
#[allow(missing_docs)] // As above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Defines block number `id`; `id`s come in ascending order without gaps.
    Define { id: BlockId, block: Arc<Block> },
    /// A thread ran.
    Slice(Slice),
    /// The address space changed.
    Event(Event),
}

/// What is known of a source before it is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceInfo {
    /// Its name, for people: a program's command line or a workload's `name:size`.
    pub name: String,
    /// Content hash (hex), which enters every result. Workloads: of their parameters.
    pub hash: String,
    /// Instructions in all, where known; without those of gaps.
    pub instructions: Option<u64>,
    /// Ranges `[start, end)` of virtual addresses that the trace touches, ascending, 2 MiB
    /// granularity. The "lower half of the used address space" scenarios need it beforehand.
    pub touched: Vec<(u64, u64)>,
    /// Instructions that were executed and are not in the trace: the sum of its `Gap` events.
    pub gap_instructions: u64,
    /// Of a sampled recording: how many instructions a segment (a stretch without a gap) was to have.
    pub segment_instructions: Option<u64>,
    /// The events in and around gaps name every page that was touched in them, also those that were given
    /// back before the gap's end (docs/trace-format.md says which do not count). If not, only those that
    /// were still in memory then.
    pub gap_pages: bool,
}

/// Anything that yields a trace.
pub trait Source: Send {
    /// What is known beforehand.
    fn info(&self) -> &SourceInfo;
    /// The next piece, `None` at the end.
    ///
    /// # Errors
    /// When the underlying file is damaged or cannot be read.
    fn next_item(&mut self) -> Result<Option<Item>, TraceError>;
}
