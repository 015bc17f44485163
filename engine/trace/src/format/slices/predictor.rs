//! What encoder and decoder predict: the next block, and the addresses of its accesses.

use std::ops::Range;

use super::super::bytes::Malformed;
use crate::model::{Block, BlockId};

const NO_BLOCK: u32 = u32::MAX;
const PAIRS: usize = 1 << 16;

/// What is known of a block, and what it did last time.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockState {
    first_slot: u32,
    pub(super) accesses: u32,
    pub(super) instructions: u32,
    pub(super) stores: u32,
    /// The block that came after it last time.
    successor: BlockId,
    /// Its slots are valid if this is the predictor's own generation.
    generation: u32,
}

/// What one access of one block did last time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) last: u64,
    /// From the last address but one to the last.
    stride: u64,
    /// From the access that came before to this one, last time.
    offset: u64,
    /// Predict by `offset`; else by `stride`.
    pub(super) follow: bool,
}

impl Slot {
    #[inline]
    pub(super) fn predict(&self, before: u64, follow: bool) -> u64 {
        // Two selections rather than a branch, which would often be mispredicted.
        let base = if follow { before } else { self.last };
        let step = if follow { self.offset } else { self.stride };
        base.wrapping_add(step)
    }

    #[inline]
    pub(super) fn learn(&mut self, before: u64, address: u64) {
        self.stride = address.wrapping_sub(self.last);
        self.offset = address.wrapping_sub(before);
        self.last = address;
    }
}

/// The state that encoder and decoder share; forgets everything between payloads.
#[derive(Debug)]
pub(crate) struct Predictor {
    blocks: Vec<BlockState>,
    slots: Vec<Slot>,
    generation: u32,
    /// Block that came after a pair of blocks.
    pub(super) pairs: Box<[BlockId]>,
    pub(super) place: Place,
}

/// Where the execution is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The last block, and the one before it.
    previous: BlockId,
    before_previous: BlockId,
    /// Address of the last access.
    pub(super) before: u64,
}

impl Place {
    const START: Self = Self { previous: NO_BLOCK, before_previous: NO_BLOCK, before: 0 };

    /// Where the successor of the last two blocks is in [`Predictor::pairs`].
    #[inline]
    pub(super) fn pair(self) -> usize {
        let mixed = self.previous.wrapping_mul(0x9e37_79b1)
            ^ self.before_previous.wrapping_mul(0x85eb_ca6b);
        (mixed >> 16) as usize
    }
}

impl Predictor {
    pub(crate) fn new() -> Self {
        Self {
            blocks: Vec::new(),
            slots: Vec::new(),
            generation: 1,
            pairs: vec![NO_BLOCK; PAIRS].into(),
            place: Place::START,
        }
    }

    /// How many blocks are known.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn define(&mut self, block: &Block) -> Result<(), Malformed> {
        let end = self.slots.len() + block.accesses.len();
        if u32::try_from(end).is_err() {
            return Err("its blocks make more than 2^32 accesses");
        }
        let first_slot = self.slots.len() as u32;
        self.slots.resize(self.slots.len() + block.accesses.len(), Slot::default());
        self.blocks.push(BlockState {
            first_slot,
            accesses: block.accesses.len() as u32,
            instructions: block.instructions.len() as u32,
            stores: block.accesses.iter().filter(|access| access.store).count() as u32,
            successor: NO_BLOCK,
            generation: 0,
        });
        Ok(())
    }

    /// Which slots the accesses of a block have, if it is defined.
    #[inline]
    pub(crate) fn slots_of(&self, block: BlockId) -> Option<Range<usize>> {
        let state = self.blocks.get(block as usize)?;
        Some(state.first_slot as usize..(state.first_slot + state.accesses) as usize)
    }

    /// Forgets what was predicted.
    pub(crate) fn reset(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        if self.generation == 0 {
            for block in &mut self.blocks {
                block.generation = 0;
            }
            self.generation = 1;
        }
        self.pairs.fill(NO_BLOCK);
        self.place = Place::START;
    }

    /// The successor of the previous block last time, whatever came before it.
    #[inline]
    pub(super) fn successor(&self, place: Place) -> BlockId {
        match self.blocks.get(place.previous as usize) {
            Some(state) if state.generation == self.generation => state.successor,
            _ => NO_BLOCK,
        }
    }

    /// Notes that `id` comes next; returns its state and slots.
    #[inline]
    pub(super) fn enter(
        &mut self,
        place: &mut Place,
        id: BlockId,
    ) -> Option<(BlockState, &mut [Slot])> {
        if let Some(previous) = self.blocks.get_mut(place.previous as usize) {
            previous.successor = id;
        }
        let state = self.blocks.get_mut(id as usize)?;
        let slots = self
            .slots
            .get_mut(state.first_slot as usize..(state.first_slot + state.accesses) as usize)?;
        if state.generation != self.generation {
            state.generation = self.generation;
            state.successor = NO_BLOCK;
            slots.fill(Slot::default());
        }
        place.before_previous = place.previous;
        place.previous = id;
        Some((*state, slots))
    }
}
