//! A hash table with chains: buckets that are nodes themselves, and further nodes linked to them.
//!
//! Source: Huck and Hays (ISCA 1993) for one entry in a node; Talluri, Hill, Khalidi (SOSP 1995) for
//! several; see `organisations/hashed.rs` and `clustered.rs`.
//!
//! ```text
//!   node:  number of the block × 2 + 1 │ address of the next node, or 0 │ entries of the block's pages
//! ```

use super::cuckoo::Resizes;
use super::hash;
use super::line::Line;
use super::walk::{Part, Probe};
use crate::addr::Physical;
use crate::entry::Entry;
use crate::geometry::Level;
use crate::memory::{EntryMemory, TableMemory};
use crate::tree::TableError;

/// Nodes in a chain at most: a table that cannot grow is full then.
const LONGEST: u8 = u8::MAX;
/// log2 of the bytes of a block of further nodes.
const POOL_SHIFT: u8 = 12;
/// The fewest buckets, as log2.
const LEAST_SHIFT: u8 = 5;

/// The table. What it holds is in memory; here are the registers that hardware has too, and the
/// operating system's list of nodes that are free.
#[derive(Clone, Debug)]
pub(super) struct Chained<Out> {
    /// log2 of the pages that a node has entries for.
    block_shift: u8,
    base: Out,
    /// log2 of the buckets.
    shift: u8,
    salt: u64,
    /// Nodes in use.
    used: u64,
    /// Nodes in use at which growing is tried again.
    retry_at: u64,
    pool: Vec<Out>,
    free: Vec<Out>,
    resizes: Resizes,
}

impl<Out: Physical> Chained<Out> {
    /// An empty table of 2^`shift` buckets, or fewer where memory has no such block; nodes have entries
    /// for 2^`block_shift` pages, and `number` chooses the hash function.
    pub(super) fn new(
        memory: &mut impl TableMemory<Out>,
        number: u64,
        block_shift: u8,
        shift: u8,
    ) -> Result<Self, TableError> {
        let mut resizes = Resizes::default();
        for fits in (LEAST_SHIFT..=shift.max(LEAST_SHIFT)).rev() {
            if let Some(base) = memory.allocate(array_shift(block_shift, fits)) {
                return Ok(Self {
                    block_shift,
                    base,
                    shift: fits,
                    salt: hash::salt(number),
                    used: 0,
                    retry_at: 0,
                    pool: Vec::new(),
                    free: Vec::new(),
                    resizes,
                });
            }
            resizes.curtailed = 1;
        }
        Err(TableError::OutOfMemory)
    }

    pub(super) fn resizes(&self) -> Resizes {
        self.resizes
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Bytes and number of blocks: the buckets, and those of further nodes.
    pub(super) fn blocks(&self) -> [(u64, u64); 2] {
        let array = 1 << array_shift(self.block_shift, self.shift);
        [(array, 1), (1 << POOL_SHIFT, self.pool.len() as u64)]
    }

    fn bucket(&self, key: u64) -> Out {
        let index = hash::index(key, self.salt, self.shift);
        self.base.offset(index * node_bytes(self.block_shift))
    }

    /// The node for block `key`, and the one before it.
    fn find(&self, memory: &impl EntryMemory<Out>, key: u64) -> Option<(Out, Option<Out>)> {
        let (mut at, mut before) = (self.bucket(key), None);
        for _ in 0..LONGEST {
            if memory.read(at) == tag(key) {
                return Some((at, before));
            }
            let next = memory.read(at.offset(8));
            if next == 0 {
                return None;
            }
            (before, at) = (Some(at), Out::new(next));
        }
        None
    }

    fn slot(&self, node: Out, number: u64) -> Out {
        node.offset(16 + (number & ((1 << self.block_shift) - 1)) * 8)
    }

    /// The entry of page `number`, if it is present, and where it stands.
    pub(super) fn entry(
        &self,
        memory: &impl EntryMemory<Out>,
        number: u64,
    ) -> Option<(Out, Entry)> {
        let (node, _) = self.find(memory, number >> self.block_shift)?;
        let at = self.slot(node, number);
        let entry = Entry(memory.read(at));
        entry.is_present().then_some((at, entry))
    }

    /// Puts in the entry of a page that has none.
    pub(super) fn insert_entry(
        &mut self,
        memory: &mut impl TableMemory<Out>,
        number: u64,
        entry: Entry,
    ) -> Result<(), TableError> {
        let key = number >> self.block_shift;
        let node = match self.find(memory, key) {
            Some((node, _)) => node,
            None => self.insert(memory, key)?,
        };
        memory.write(self.slot(node, number), entry.0);
        if self.used > (1 << self.shift) && self.used >= self.retry_at && !self.grow(memory) {
            self.resizes.refused += 1;
            self.retry_at = self.used + (1 << self.shift >> 3);
        }
        Ok(())
    }

    /// A node for block `key`, which has none.
    fn insert(&mut self, memory: &mut impl TableMemory<Out>, key: u64) -> Result<Out, TableError> {
        let bucket = self.bucket(key);
        if memory.read(bucket) == 0 {
            memory.write(bucket, tag(key));
            self.used += 1;
            return Ok(bucket);
        }
        let (mut last, mut length) = (bucket, 1);
        loop {
            let next = memory.read(last.offset(8));
            if next == 0 {
                break;
            }
            (last, length) = (Out::new(next), length + 1);
        }
        if length == u32::from(LONGEST) {
            return Err(TableError::OutOfMemory);
        }
        let node = self.obtain(memory).ok_or(TableError::OutOfMemory)?;
        memory.write(node, tag(key));
        memory.write(last.offset(8), node.raw());
        self.used += 1;
        Ok(node)
    }

    /// A further node, all zero.
    fn obtain(&mut self, memory: &mut impl TableMemory<Out>) -> Option<Out> {
        if self.free.is_empty() {
            let block = memory.allocate(POOL_SHIFT)?;
            let bytes = node_bytes(self.block_shift);
            self.pool.push(block);
            let nodes = (0..(1 << POOL_SHIFT) / bytes).rev().map(|i| block.offset(i * bytes));
            // A link to address 0 says that no node follows, so nothing that is linked can be there.
            self.free.extend(nodes.filter(|node| node.raw() != 0));
        }
        self.free.pop()
    }

    /// Takes the entry of page `number` away, which is present.
    pub(super) fn remove_entry(&mut self, memory: &mut impl TableMemory<Out>, number: u64) {
        let Some((node, before)) = self.find(memory, number >> self.block_shift) else { return };
        memory.write(self.slot(node, number), 0);
        let words = words(self.block_shift);
        if (2..words).any(|i| Entry(memory.read(node.offset(i * 8))).is_present()) {
            return;
        }
        self.used -= 1;
        let next = memory.read(node.offset(8));
        let gone = match (before, next) {
            (Some(before), _) => {
                memory.write(before.offset(8), next);
                node
            }
            (None, 0) => {
                memory.write(node, 0);
                return;
            }
            // The bucket takes the next node's place.
            (None, next) => {
                let next = Out::new(next);
                for i in 0..words {
                    memory.write(node.offset(i * 8), memory.read(next.offset(i * 8)));
                }
                next
            }
        };
        for i in 0..words {
            memory.write(gone.offset(i * 8), 0);
        }
        self.free.push(gone);
    }

    /// Twice the buckets; false if there is no memory for them.
    fn grow(&mut self, memory: &mut impl TableMemory<Out>) -> bool {
        let Some(base) = memory.allocate(array_shift(self.block_shift, self.shift + 1)) else {
            return false;
        };
        let (pool, free) = (Vec::new(), Vec::new());
        let mut new = Self { base, shift: self.shift + 1, used: 0, pool, free, ..self.clone() };
        for i in 0..1 << self.shift {
            let mut at = self.base.offset(i * node_bytes(self.block_shift));
            loop {
                let key = memory.read(at) >> 1;
                if memory.read(at) != 0 {
                    let Ok(node) = new.insert(memory, key) else {
                        new.destroy(memory);
                        return false;
                    };
                    for i in 2..words(self.block_shift) {
                        memory.write(node.offset(i * 8), memory.read(at.offset(i * 8)));
                    }
                }
                match memory.read(at.offset(8)) {
                    0 => break,
                    next => at = Out::new(next),
                }
            }
        }
        new.resizes.grown += 1;
        std::mem::replace(self, new).destroy(memory);
        true
    }

    /// Gives all memory back.
    pub(super) fn destroy(self, memory: &mut impl TableMemory<Out>) {
        memory.free(self.base, array_shift(self.block_shift, self.shift));
        for block in self.pool {
            memory.free(block, POOL_SHIFT);
        }
    }

    // ---- the walk -------------------------------------------------------------------------------

    /// The read of a node's head, number `way` of its chain.
    fn head(&self, node: Out, level: Level, way: u8) -> Probe<Out> {
        self.probe(node, level, way, false)
    }

    fn probe(&self, at: Out, level: Level, way: u8, entry: bool) -> Probe<Out> {
        Probe { entry, ..Probe::word(at, Part::Chain(level), way, self.base) }
    }

    /// The first read of a walk for page `number`.
    pub(super) fn first(&self, number: u64, level: Level) -> Probe<Out> {
        self.head(self.bucket(number >> self.block_shift), level, 0)
    }

    /// What a node's head leads to: the read of the entry, which may be in the same line, or of the
    /// next node.
    pub(super) fn follow(
        &self,
        number: u64,
        level: Level,
        probe: &Probe<Out>,
        line: &Line,
    ) -> Option<Probe<Out>> {
        let node = probe.at.offset(u64::from(probe.word) * 8);
        if line[usize::from(probe.word)] == tag(number >> self.block_shift) {
            return Some(self.probe(self.slot(node, number), level, probe.way, true));
        }
        let next = line[usize::from(probe.word) + 1];
        let way = probe.way.checked_add(1)?;
        (next != 0 && next.is_multiple_of(16)).then(|| self.head(Out::new(next), level, way))
    }
}

/// Words of a node: tag, next, and entries.
fn words(block_shift: u8) -> u64 {
    2 + (1 << block_shift)
}

/// Bytes from one node to the next: a multiple of 16, so that a head is within one line.
fn node_bytes(block_shift: u8) -> u64 {
    (words(block_shift) * 8).next_multiple_of(16)
}

/// log2 of the bytes of 2^`shift` buckets.
fn array_shift(block_shift: u8, shift: u8) -> u8 {
    let bytes = node_bytes(block_shift) << shift;
    (bytes.next_power_of_two().ilog2() as u8).max(POOL_SHIFT)
}

/// The first word of the node for block `key`.
fn tag(key: u64) -> u64 {
    key << 1 | 1
}
