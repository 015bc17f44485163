//! A hash table with chains: buckets that are nodes themselves, and further nodes linked to them. A node
//! has the entries of one page, or of several neighbouring ones.
//! ```text
//!   node:  number of the block × 2 + 1 │ address of the next node, or 0 │ entries of the block's pages
//! ```
//! One table for each process, which doubles its buckets when there are more nodes than that. Where there
//! is no contiguous memory for that, chains grow longer, up to 255 nodes.

use super::by_size::{BySize, SizeTable};
use super::hash;
use super::probe::{Answer, LineRead, Probe};
use super::store::{Design, MakeStore, ReadWords, Store, largest_block, leaf_of, statistics_of};
use crate::addr::Physical;
use crate::entry::Entry;
use crate::error::{LayoutError, TableError};
use crate::geometry::{Geometry, Level, page_name};
use crate::mapping::{NodeStatistics, Resizes};
use crate::memory::{EntryMemory, Line, TableMemory};

/// Nodes in a chain at most: a table that cannot grow is full then.
const LONGEST: u8 = u8::MAX;
/// log2 of the bytes of a block of further nodes.
const POOL_SHIFT: u8 = 12;
/// The fewest buckets, as log2.
const LEAST_SHIFT: u8 = 5;
/// [`Probe::kind`] of the read of an entry; that of a node's head has 0.
const ENTRY: u8 = 1;

/// What tables with chains are like.
#[derive(Clone, Copy, Debug)]
pub struct Chains {
    /// log2 of the pages that a node has entries for.
    pub block_shift: u8,
    /// log2 of the buckets of a new table.
    pub first_shift: u8,
}

/// log2 of the `buckets` of a new table, a parameter of `organisation`.
///
/// # Errors
/// When there cannot be so many.
pub fn buckets_shift(organisation: &'static str, buckets: u32) -> Result<u8, LayoutError> {
    if !buckets.is_power_of_two() || !(32..=1 << 22).contains(&buckets) {
        let problem = format!("must be a power of two from 32 to 4194304, not {buckets}");
        return Err(LayoutError::value(organisation, "buckets", problem));
    }
    Ok(buckets.ilog2() as u8)
}

impl<Out: Physical> MakeStore<Out> for Chains {
    fn make(&self, geometry: Geometry) -> Box<dyn Store<Out>> {
        Box::new(BySize::<Out, Chained<Out>>::new(geometry, *self))
    }
}

impl Design for Chains {
    fn pages_shift(&self, _read: &LineRead) -> u8 {
        self.block_shift
    }

    fn explain(&self, read: &LineRead, bits: &str) -> ReadWords {
        let LineRead { level, way, number, found, .. } = *read;
        // Further nodes of a chain stand wherever there was room.
        let (index, found_by) = if way > 0 {
            (0, "linked to that before".to_owned())
        } else {
            (number, format!("{bits} hashes to line {number}"))
        };
        let head = (!found).then(|| "a node's head, which leads on or nowhere".to_owned());
        ReadWords {
            table: page_name(level).to_owned(),
            place: format!("node {way} of the chain"),
            index,
            found_by,
            meaning: head,
        }
    }
}

/// The table. What it holds is in memory; here are the registers that hardware has too, and the
/// operating system's list of nodes that are free.
#[derive(Clone, Debug)]
struct Chained<Out> {
    geometry: Geometry,
    level: Level,
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
    fn bucket(&self, key: u64) -> Out {
        let index = hash::index(key, self.salt, self.shift);
        self.base.offset(index * node_bytes(self.block_shift))
    }

    /// The node for block `key`, and the one before it.
    fn find(&self, memory: &dyn EntryMemory<Out>, key: u64) -> Option<(Out, Option<Out>)> {
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

    /// A node for block `key`, which has none.
    fn add(&mut self, memory: &mut dyn TableMemory<Out>, key: u64) -> Result<Out, TableError> {
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
    fn obtain(&mut self, memory: &mut dyn TableMemory<Out>) -> Option<Out> {
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

    /// Twice the buckets; false if there is no memory for them.
    fn grow(&mut self, memory: &mut dyn TableMemory<Out>) -> bool {
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
                    let Ok(node) = new.add(memory, key) else {
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

    /// The read of a node's head, number `way` of its chain.
    fn head(&self, node: Out, way: u8) -> Probe<Out> {
        Probe::word(node, self.base, self.level, way)
    }
}

impl<Out: Physical> SizeTable<Out> for Chained<Out> {
    type Parameters = Chains;

    /// An empty table with as many buckets as its parameters say, or fewer where memory has no such
    /// block.
    fn new(
        memory: &mut dyn TableMemory<Out>,
        &Chains { block_shift, first_shift }: &Chains,
        geometry: Geometry,
        level: Level,
    ) -> Result<Self, TableError> {
        let bytes_shift = |shift| array_shift(block_shift, shift);
        let (base, shift) = largest_block(memory, LEAST_SHIFT..=first_shift, bytes_shift)
            .ok_or(TableError::OutOfMemory)?;
        let curtailed = u64::from(shift < first_shift);
        Ok(Self {
            geometry,
            level,
            block_shift,
            base,
            shift,
            salt: hash::salt(level.into()),
            used: 0,
            retry_at: 0,
            pool: Vec::new(),
            free: Vec::new(),
            resizes: Resizes { curtailed, ..Resizes::default() },
        })
    }

    fn entry(&self, memory: &dyn EntryMemory<Out>, number: u64) -> Option<Entry> {
        let (node, _) = self.find(memory, number >> self.block_shift)?;
        let entry = Entry(memory.read(self.slot(node, number)));
        entry.is_present().then_some(entry)
    }

    fn insert(
        &mut self,
        memory: &mut dyn TableMemory<Out>,
        number: u64,
        entry: Entry,
    ) -> Result<(), TableError> {
        let key = number >> self.block_shift;
        let node = match self.find(memory, key) {
            Some((node, _)) => node,
            None => self.add(memory, key)?,
        };
        memory.write(self.slot(node, number), entry.0);
        if self.used > (1 << self.shift) && self.used >= self.retry_at && !self.grow(memory) {
            self.resizes.refused += 1;
            self.retry_at = self.used + (1 << self.shift >> 3);
        }
        Ok(())
    }

    fn remove(&mut self, memory: &mut dyn TableMemory<Out>, number: u64) {
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

    fn statistics(&self) -> Vec<NodeStatistics> {
        let page = page_name(self.level);
        let array = 1 << array_shift(self.block_shift, self.shift);
        let pool = self.pool.len() as u64;
        let blocks = [
            (format!("{page} buckets"), array, 1),
            (format!("{page} chains"), 1 << POOL_SHIFT, pool),
        ];
        statistics_of(blocks, self.level, self.used)
    }

    fn resizes(&self) -> Resizes {
        self.resizes
    }

    fn destroy(self, memory: &mut dyn TableMemory<Out>) {
        memory.free(self.base, array_shift(self.block_shift, self.shift));
        for block in self.pool {
            memory.free(block, POOL_SHIFT);
        }
    }

    fn first(&self, number: u64) -> Probe<Out> {
        self.head(self.bucket(number >> self.block_shift), 0)
    }

    fn answer(&self, number: u64, probe: &Probe<Out>, line: &Line) -> Answer<Out> {
        let word = usize::from(probe.word);
        let entry = |at: Out, word| leaf_of(self.geometry, self.level, at, line, word);
        if probe.kind == ENTRY {
            return entry(probe.at, probe.word.into());
        }
        if line[word] == tag(number >> self.block_shift) {
            let node = probe.at.offset(u64::from(probe.word) * 8);
            let slot = self.slot(node, number);
            let next = Probe { kind: ENTRY, ..Probe::word(slot, self.base, self.level, probe.way) };
            // The entry may stand in the line that has just been read.
            return if next.at == probe.at {
                entry(probe.at, next.word.into())
            } else {
                Answer::Follow(next)
            };
        }
        let next = line[word + 1];
        match probe.way.checked_add(1) {
            Some(way) if next != 0 && next.is_multiple_of(16) => {
                Answer::Follow(self.head(Out::new(next), way))
            }
            _ => Answer::Nothing,
        }
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
