//! The words that a vCPU appends to its buffer: what its thread executed, in order.

/// Bits of a virtual address: user space of x86-64 Linux, in which QEMU's process, and so every
/// address that a guest accessed with success, lies.
pub const ADDRESS_BITS: u32 = 47;
/// Selects the address of an access word.
pub const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;

/// What a word of a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// A block with this number begins to execute.
    Block(u32),
    /// The thread has seen this many events.
    Epoch(u64),
    /// The latest block is of this epoch: the events before it happened while the block was under
    /// way, for its further accesses.
    Joins(u64),
    /// An access by the latest block: packed size, kind and instruction index, and the address.
    Access(u16, u64),
    /// Not a word that the recorder writes.
    Invalid,
}

const ACCESS: u64 = 1 << 63;
const BLOCK: u64 = 1 << 60;
const EPOCH: u64 = 2 << 60;
const JOINS: u64 = 3 << 60;
const PAYLOAD: u64 = (1 << 60) - 1;

/// The word that starts block `number`.
pub const fn block_word(number: u32) -> u64 {
    BLOCK | number as u64
}

/// The word that says that `epoch` events have been seen.
pub const fn epoch_word(epoch: u64) -> u64 {
    EPOCH | (epoch & PAYLOAD)
}

/// The word that says that the latest block is of `epoch`.
pub const fn joins_word(epoch: u64) -> u64 {
    JOINS | (epoch & PAYLOAD)
}

/// The fixed part of an access word: which instruction of the block.
pub const fn access_word(instruction: u16) -> u64 {
    ACCESS | (instruction as u64 & 0x1ff) << ADDRESS_BITS
}

/// Where an access word says whether it is of a store.
pub const STORE_POSITION: u32 = 62;

/// Where the size (log2 of bytes, 3 bits) stands in an access word.
pub const SIZE_POSITION: u32 = 59;

/// True for the word of an access.
#[inline]
pub const fn is_access(word: u64) -> bool {
    word & ACCESS != 0
}

/// The part of an access word above the address: the same for the same access of the same code.
#[inline]
pub const fn meta(word: u64) -> u32 {
    (word >> ADDRESS_BITS) as u32
}

/// Instruction index of a [`meta`].
pub const fn meta_instruction(meta: u32) -> u16 {
    (meta & 0x1ff) as u16
}

/// True if a [`meta`] is of a store.
pub const fn meta_store(meta: u32) -> bool {
    meta >> (STORE_POSITION - ADDRESS_BITS) & 1 != 0
}

/// Size in bytes of a [`meta`].
pub const fn meta_size(meta: u32) -> u16 {
    1 << (meta >> (SIZE_POSITION - ADDRESS_BITS) & 7)
}

/// What a word is.
#[inline]
pub fn decode(word: u64) -> Word {
    if is_access(word) {
        Word::Access(meta(word) as u16, word & ADDRESS_MASK)
    } else if let (BLOCK, Ok(number)) = (word & !PAYLOAD, u32::try_from(word & PAYLOAD)) {
        Word::Block(number)
    } else if word & !PAYLOAD == EPOCH {
        Word::Epoch(word & PAYLOAD)
    } else if word & !PAYLOAD == JOINS {
        Word::Joins(word & PAYLOAD)
    } else {
        Word::Invalid
    }
}
