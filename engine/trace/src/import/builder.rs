//! From instructions and accesses, one after another, to blocks and slices.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHasher};

use crate::format::{MAX_ACCESS_BYTES, MAX_ACCESSES, MAX_ADDRESS};
use crate::model::{Access, Block, BlockId, Event, Instruction, Item, Operands, Slice, ThreadId};

/// A block is cut after this many instructions, so that straight-line code does not become a separate
/// block for every place where it is entered.
const BLOCK_INSTRUCTIONS: usize = 64;
const SLICE_BLOCKS: usize = 1 << 15;
const SLICE_ADDRESSES: usize = 1 << 17;
/// Most addresses of code whose operands are kept.
const MOST_KNOWN: usize = 1 << 24;

/// Collects what an importer reads, and returns it as items.
#[derive(Default)]
pub(crate) struct Builder {
    blocks: Vec<Arc<Block>>,
    ids: FxHashMap<u64, BlockId>,
    instructions: Vec<Instruction>,
    accesses: Vec<Access>,
    slice: Slice,
    items: VecDeque<Item>,
    threads: FxHashMap<u64, ThreadId>,
    /// What is known of the instructions at an address, where the trace says it only once.
    known: FxHashMap<u64, (u8, Operands)>,
}

impl Builder {
    /// The next instruction of the current thread. The caller ends the block before it where the
    /// program jumped.
    ///
    /// # Errors
    /// Why there can be no such instruction.
    #[inline]
    pub(crate) fn instruction(&mut self, instruction: Instruction) -> Result<(), &'static str> {
        if instruction.pc > MAX_ADDRESS {
            return Err(
                "an instruction is in the last 4 MiB of the address space, where nothing can be",
            );
        }
        if self.instructions.len() == BLOCK_INSTRUCTIONS {
            self.end_block();
        }
        self.instructions.push(instruction);
        Ok(())
    }

    /// An access of the last instruction.
    ///
    /// # Errors
    /// Why there can be no such access.
    #[inline]
    pub(crate) fn access(
        &mut self,
        address: u64,
        size: u16,
        store: bool,
    ) -> Result<(), &'static str> {
        let Some(last) = self.instructions.len().checked_sub(1) else {
            return Err("a data access comes before the first instruction of its thread");
        };
        if !(1..=MAX_ACCESS_BYTES).contains(&size) {
            return Err("a data access is of no bytes, or of more than 16 KiB");
        }
        if address > MAX_ADDRESS {
            return Err(
                "a data access begins in the last 4 MiB of the address space, where nothing can be",
            );
        }
        if self.accesses.len() == MAX_ACCESSES {
            // A string instruction with more accesses than a block may have: it is executed again.
            let again = self.instructions[last].clone();
            self.end_block();
            self.instructions.push(again);
            return self.access(address, size, store);
        }
        self.accesses.push(Access { instruction: last as u16, size, store });
        self.slice.addresses.push(address);
        Ok(())
    }

    /// The last instruction, if it may still get accesses.
    pub(crate) fn last(&self) -> Option<&Instruction> {
        self.instructions.last()
    }

    /// The program jumped, or may have.
    pub(crate) fn end_block(&mut self) {
        if self.instructions.is_empty() {
            return;
        }
        let mut hasher = FxHasher::default();
        self.instructions.hash(&mut hasher);
        self.accesses.hash(&mut hasher);
        let mut hash = hasher.finish();
        let id = loop {
            match self.ids.get(&hash) {
                Some(&id) if self.is(id) => break id,
                Some(_) => hash = hash.wrapping_add(1),
                None => {
                    let id = self.blocks.len() as BlockId;
                    let block = Arc::new(Block {
                        instructions: self.instructions.as_slice().into(),
                        accesses: self.accesses.as_slice().into(),
                    });
                    self.blocks.push(Arc::clone(&block));
                    self.ids.insert(hash, id);
                    self.items.push_back(Item::Define { id, block });
                    break id;
                }
            }
        };
        self.instructions.clear();
        self.accesses.clear();
        self.slice.blocks.push(id);
        if self.slice.blocks.len() >= SLICE_BLOCKS || self.slice.addresses.len() >= SLICE_ADDRESSES
        {
            self.end_slice();
        }
    }

    fn is(&self, id: BlockId) -> bool {
        let block = &self.blocks[id as usize];
        *block.instructions == *self.instructions && *block.accesses == *self.accesses
    }

    fn end_slice(&mut self) {
        if !self.slice.blocks.is_empty() {
            let next = Slice { thread: self.slice.thread, ..Slice::default() };
            self.items.push_back(Item::Slice(std::mem::replace(&mut self.slice, next)));
        }
    }

    /// Another thread runs from here on.
    pub(crate) fn thread(&mut self, thread: ThreadId) {
        if thread != self.slice.thread {
            self.end_block();
            self.end_slice();
            self.slice.thread = thread;
        }
    }

    /// The thread that runs.
    pub(crate) fn current_thread(&self) -> ThreadId {
        self.slice.thread
    }

    /// This trace's number of the thread that is called `id` in it.
    pub(crate) fn numbered(&mut self, id: u64) -> ThreadId {
        let next = self.threads.len() as ThreadId;
        *self.threads.entry(id).or_insert(next)
    }

    /// Remembers the operands of the instruction at `pc`.
    ///
    /// # Errors
    /// When there are too many.
    pub(crate) fn learn(
        &mut self,
        pc: u64,
        length: u8,
        operands: Operands,
    ) -> Result<(), &'static str> {
        if self.known.len() == MOST_KNOWN && !self.known.contains_key(&pc) {
            return Err("it has machine code at more than 16 Mi addresses");
        }
        self.known.insert(pc, (length, operands));
        Ok(())
    }

    /// The operands of the instruction at `pc`, if it is as long as the one that is known there.
    pub(crate) fn known(&self, pc: u64, length: u8) -> Option<&Operands> {
        self.known.get(&pc).filter(|(known, _)| *known == length).map(|(_, operands)| operands)
    }

    /// An event happens here.
    pub(crate) fn event(&mut self, event: Event) {
        self.end_block();
        self.end_slice();
        self.items.push_back(Item::Event(event));
    }

    /// The trace ends.
    pub(crate) fn finish(&mut self) {
        self.end_block();
        self.end_slice();
    }

    /// Whether an item with code is complete.
    pub(crate) fn has_code(&self) -> bool {
        self.items.iter().rev().any(|item| !matches!(item, Item::Event(_)))
    }

    /// The next complete item.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Item> {
        self.items.pop_front()
    }
}
