//! Executions in bytes: which blocks ran, and which addresses their accesses used.
//!
//! Encoder and decoder keep the same [`Predictor`]; only what it predicts wrongly is stored. A block
//! costs one *token* byte: bit 0 says that its successor prediction was wrong, bits 1–7 that the
//! addresses of its first seven accesses were; further accesses have further bytes, eight each.
//! Wrong blocks go to the column `ids`, wrong addresses to `codes` (how) and `values` (the bytes).
//! The columns are stored apart because zstd compresses them far better that way.

use std::ops::Range;

use super::bytes::{Cursor, Malformed, put_varint, unzigzag, zigzag};
use crate::model::{Block, BlockId, Slice, ThreadId};

/// A run is cut after this many blocks …
pub(crate) const RUN_BLOCKS: usize = 1 << 15;
/// … or this many addresses (plus those of one block).
pub(crate) const RUN_ADDRESSES: usize = 1 << 17;
/// Most runs in one payload.
const MAX_RUNS: u64 = 1 << 20;

const NO_BLOCK: u32 = u32::MAX;
const PAIRS: usize = 1 << 16;

/// Codes of wrongly predicted addresses: the other prediction is right; else the difference from the
/// slot's last address, or from the access before, in so many bytes (0 to 8).
const CODE_OTHER: u8 = 0;
const CODE_LAST: u8 = 1;
const CODE_BEFORE: u8 = 10;
const CODE_END: u8 = 19;

/// What is known of a block, and what is remembered of it.
#[derive(Clone, Copy, Debug)]
struct BlockState {
    first_slot: u32,
    accesses: u32,
    instructions: u32,
    stores: u32,
    /// The block that came after it last time.
    successor: BlockId,
    /// Its slots are valid if this is the predictor's own generation.
    generation: u32,
}

/// What is remembered of one access of one block.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    last: u64,
    /// From the last address but one to the last.
    stride: u64,
    /// From the access that came before to this one, last time.
    offset: u64,
    /// Predict by `offset`; else by `stride`.
    follow: bool,
}

impl Slot {
    #[inline]
    fn predict(&self, before: u64, follow: bool) -> u64 {
        // Two selections rather than a branch, which would often be mispredicted.
        let base = if follow { before } else { self.last };
        let step = if follow { self.offset } else { self.stride };
        base.wrapping_add(step)
    }

    #[inline]
    fn learn(&mut self, before: u64, address: u64) {
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
    pairs: Box<[BlockId]>,
    place: Place,
}

/// Where the execution is.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The last block, and the one before it.
    previous: BlockId,
    before_previous: BlockId,
    /// Address of the last access.
    before: u64,
}

impl Place {
    const START: Self = Self { previous: NO_BLOCK, before_previous: NO_BLOCK, before: 0 };

    /// Where the successor of the last two blocks is in [`Predictor::pairs`].
    #[inline]
    fn pair(self) -> usize {
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
    fn successor(&self, place: Place) -> BlockId {
        match self.blocks.get(place.previous as usize) {
            Some(state) if state.generation == self.generation => state.successor,
            _ => NO_BLOCK,
        }
    }

    /// Notes that `id` comes next and gives its state and slots.
    #[inline]
    fn enter(&mut self, place: &mut Place, id: BlockId) -> Option<(BlockState, &mut [Slot])> {
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

/// A run of one thread within a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub thread: ThreadId,
    pub epoch: u64,
    pub blocks: u32,
    pub addresses: u32,
}

/// Sums over a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub instructions: u64,
    pub loads: u64,
    pub stores: u64,
}

/// Builds one payload after another.
#[derive(Debug)]
pub(crate) struct Encoder {
    pub predictor: Predictor,
    pub runs: Vec<Run>,
    pub sums: Sums,
    blocks: usize,
    tokens: Vec<u8>,
    ids: Vec<u8>,
    codes: Vec<u8>,
    values: Vec<u8>,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        Self {
            predictor: Predictor::new(),
            runs: Vec::new(),
            sums: Sums::default(),
            blocks: 0,
            tokens: Vec::new(),
            ids: Vec::new(),
            codes: Vec::new(),
            values: Vec::new(),
        }
    }

    /// About how long the payload is so far.
    pub(crate) fn raw_bytes(&self) -> usize {
        self.tokens.len()
            + self.ids.len()
            + self.codes.len()
            + self.values.len()
            + 16 * self.runs.len()
    }

    /// How many blocks the payload holds so far.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Appends blocks that are known to be defined, with exactly their addresses.
    pub(crate) fn push(
        &mut self,
        thread: ThreadId,
        epoch: u64,
        blocks: &[BlockId],
        addresses: &[u64],
    ) {
        let (mut blocks, mut addresses) = (blocks, addresses);
        while !blocks.is_empty() {
            let room = match self.runs.last() {
                Some(run) if run.thread == thread && run.epoch == epoch => {
                    let (used, filled) = (run.blocks as usize, run.addresses as usize);
                    (RUN_BLOCKS.saturating_sub(used), RUN_ADDRESSES.saturating_sub(filled))
                }
                _ => (0, 0),
            };
            if room.0 == 0 || room.1 == 0 {
                self.runs.push(Run { thread, epoch, blocks: 0, addresses: 0 });
                continue;
            }
            let (done, used) = self.push_some(blocks, addresses, room);
            if let Some(run) = self.runs.last_mut() {
                run.blocks += done as u32;
                run.addresses += used as u32;
            }
            self.blocks += done;
            blocks = &blocks[done..];
            addresses = &addresses[used..];
        }
    }

    /// Encodes blocks until the run has no room; gives how many blocks and addresses it took.
    fn push_some(
        &mut self,
        blocks: &[BlockId],
        addresses: &[u64],
        room: (usize, usize),
    ) -> (usize, usize) {
        let mut rest = addresses;
        let mut done = 0;
        let mut place = self.predictor.place;
        for &id in blocks.iter().take(room.0) {
            if addresses.len() - rest.len() >= room.1 {
                break;
            }
            let pair = place.pair();
            let mut token = 0;
            if self.predictor.pairs[pair] != id {
                self.predictor.pairs[pair] = id;
                token = 1;
                let code =
                    if self.predictor.successor(place) == id { 0 } else { u64::from(id) + 1 };
                put_varint(&mut self.ids, code);
            }
            let mut before = place.before;
            let Some((state, slots)) = self.predictor.enter(&mut place, id) else { break };
            let (here, later) = rest.split_at(slots.len());
            rest = later;
            let mut bit = 1;
            for (slot, &address) in slots.iter_mut().zip(here) {
                if bit == 8 {
                    self.tokens.push(token);
                    (token, bit) = (0, 0);
                }
                if slot.predict(before, slot.follow) != address {
                    token |= 1 << bit;
                    put_miss(&mut self.codes, &mut self.values, slot, before, address);
                }
                slot.learn(before, address);
                before = address;
                bit += 1;
            }
            self.tokens.push(token);
            place.before = before;
            self.sums.instructions += u64::from(state.instructions);
            self.sums.stores += u64::from(state.stores);
            self.sums.loads += u64::from(state.accesses - state.stores);
            done += 1;
        }
        self.predictor.place = place;
        (done, addresses.len() - rest.len())
    }

    /// The finished payload; the encoder starts the next one.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let first_epoch = self.runs.first().map_or(0, |run| run.epoch);
        let mut out = Vec::with_capacity(self.raw_bytes() + 64);
        put_varint(&mut out, self.runs.len() as u64);
        let mut epoch = first_epoch;
        for run in self.runs.drain(..) {
            put_varint(&mut out, u64::from(run.thread));
            put_varint(&mut out, run.epoch - epoch);
            epoch = run.epoch;
            put_varint(&mut out, u64::from(run.blocks));
            put_varint(&mut out, u64::from(run.addresses));
        }
        let columns = [&mut self.tokens, &mut self.ids, &mut self.codes, &mut self.values];
        for column in &columns {
            put_varint(&mut out, column.len() as u64);
        }
        for column in columns {
            out.append(column);
        }
        self.blocks = 0;
        self.sums = Sums::default();
        self.predictor.reset();
        out
    }
}

/// How many bytes the zigzag value needs.
#[inline]
fn width(value: u64) -> u8 {
    (64 - value.leading_zeros()).div_ceil(8) as u8
}

/// Stores an address that was predicted wrongly.
fn put_miss(codes: &mut Vec<u8>, values: &mut Vec<u8>, slot: &mut Slot, before: u64, address: u64) {
    if slot.predict(before, !slot.follow) == address {
        slot.follow = !slot.follow;
        codes.push(CODE_OTHER);
        return;
    }
    let from_last = zigzag(address.wrapping_sub(slot.last));
    let from_before = zigzag(address.wrapping_sub(before));
    let (last_width, before_width) = (width(from_last), width(from_before));
    let (base, width, value) = if last_width <= before_width {
        (CODE_LAST, last_width, from_last)
    } else {
        (CODE_BEFORE, before_width, from_before)
    };
    codes.push(base + width);
    values.extend_from_slice(&value.to_le_bytes()[..usize::from(width)]);
}

/// Reads one payload run by run.
#[derive(Debug)]
pub(crate) struct Decoder {
    pub predictor: Predictor,
    /// The runs of the payload, and how many were read.
    pub runs: Vec<Run>,
    pub next: usize,
    pub sums: Sums,
    payload: Vec<u8>,
    /// Positions in `payload`: of the next byte of each column, and of their ends.
    at: [usize; 4],
    end: [usize; 4],
}

const TRUNCATED: Malformed = "a column of the slices ends too early";

impl Decoder {
    pub(crate) fn new() -> Self {
        Self {
            predictor: Predictor::new(),
            runs: Vec::new(),
            next: 0,
            sums: Sums::default(),
            payload: Vec::new(),
            at: [0; 4],
            end: [0; 4],
        }
    }

    /// Starts a payload.
    pub(crate) fn load(&mut self, payload: Vec<u8>, first_epoch: u64) -> Result<(), Malformed> {
        let mut cursor = Cursor::new(&payload);
        self.runs.clear();
        self.next = 0;
        self.sums = Sums::default();
        let mut epoch = first_epoch;
        for _ in 0..cursor.bounded(MAX_RUNS)? {
            let thread = cursor.bounded(u64::from(u32::MAX))? as u32;
            epoch =
                epoch.checked_add(cursor.varint()?).ok_or("an epoch is larger than it can be")?;
            let blocks = cursor.bounded(RUN_BLOCKS as u64)? as u32;
            let addresses =
                cursor.bounded((RUN_ADDRESSES + super::definitions::MAX_ACCESSES) as u64)? as u32;
            if blocks == 0 {
                return Err("a run has no blocks");
            }
            self.runs.push(Run { thread, epoch, blocks, addresses });
        }
        let mut lengths = [0; 4];
        for length in &mut lengths {
            *length = cursor.bounded(payload.len() as u64)? as usize;
        }
        let mut start = cursor.position();
        for (column, length) in lengths.into_iter().enumerate() {
            self.at[column] = start;
            start += length;
            self.end[column] = start;
        }
        if start != payload.len() {
            return Err("the columns' lengths do not match the payload's");
        }
        self.payload = payload;
        self.predictor.reset();
        Ok(())
    }

    /// The run that comes next, if any.
    pub(crate) fn peek(&self) -> Option<Run> {
        self.runs.get(self.next).copied()
    }

    /// Reads the next run. The largest block that it names is known only then; so the caller must
    /// have defined every block that the file defines before this payload.
    #[inline(never)] // On its own, the loop over blocks keeps its state in registers.
    pub(crate) fn read(&mut self, slice: &mut Slice) -> Result<(), Malformed> {
        let run = self.runs.get(self.next).ok_or("no run is left")?;
        slice.thread = run.thread;
        slice.blocks.clear();
        slice.blocks.resize(run.blocks as usize, 0);
        slice.addresses.clear();
        slice.addresses.resize(run.addresses as usize, 0);
        let column = |column: usize| &self.payload[self.at[column]..self.end[column]];
        let mut columns = Columns {
            tokens: column(0),
            ids: Cursor::new(column(1)),
            codes: column(2),
            values: column(3),
        };
        let (mut instructions, mut stores, mut filled) = (0, 0, 0);
        let mut place = self.predictor.place;
        for id in &mut slice.blocks {
            let state;
            (*id, state) =
                columns.block(&mut self.predictor, &mut place, &mut slice.addresses[filled..])?;
            filled += state.accesses as usize;
            instructions += u64::from(state.instructions);
            stores += u64::from(state.stores);
        }
        self.predictor.place = place;
        if filled != slice.addresses.len() {
            return Err("a run has more addresses than its blocks make accesses");
        }
        self.sums.instructions += instructions;
        self.sums.loads += filled as u64 - stores;
        self.sums.stores += stores;
        self.at = [
            self.end[0] - columns.tokens.len(),
            self.end[1] - columns.ids.remaining(),
            self.end[2] - columns.codes.len(),
            self.end[3] - columns.values.len(),
        ];
        self.next += 1;
        if self.next == self.runs.len() && self.at != self.end {
            return Err("bytes are left over after the last run");
        }
        Ok(())
    }
}

struct Columns<'a> {
    tokens: &'a [u8],
    ids: Cursor<'a>,
    codes: &'a [u8],
    values: &'a [u8],
}

impl Columns<'_> {
    #[inline]
    fn token(&mut self) -> Result<u8, Malformed> {
        let (&token, rest) = self.tokens.split_first().ok_or(TRUNCATED)?;
        self.tokens = rest;
        Ok(token)
    }

    /// Reads one block and its addresses, which it puts at the start of `room`.
    #[inline(always)]
    #[allow(clippy::inline_always)] // A tenth faster: the caller's sums stay in registers.
    fn block(
        &mut self,
        predictor: &mut Predictor,
        place: &mut Place,
        room: &mut [u64],
    ) -> Result<(BlockId, BlockState), Malformed> {
        let token = self.token()?;
        let pair = place.pair();
        let id = if token & 1 == 0 {
            predictor.pairs[pair]
        } else {
            let id = match self.ids.varint()? {
                0 => predictor.successor(*place),
                code => u32::try_from(code - 1).map_err(|_| "a block is not defined")?,
            };
            predictor.pairs[pair] = id;
            id
        };
        let mut before = place.before;
        let (state, slots) = predictor.enter(place, id).ok_or("a block is not defined")?;
        let room = room
            .get_mut(..slots.len())
            .ok_or("a run has fewer addresses than its blocks make accesses")?;
        if token < 2 && slots.len() < 8 {
            // Nearly always: every address is as predicted.
            for (slot, address) in slots.iter_mut().zip(room) {
                *address = slot.predict(before, slot.follow);
                slot.learn(before, *address);
                before = *address;
            }
        } else {
            before = self.addresses(token, slots, room, before)?;
        }
        place.before = before;
        Ok((id, state))
    }

    /// Reads the addresses of a block of which some may be predicted wrongly; gives the last.
    fn addresses(
        &mut self,
        mut token: u8,
        slots: &mut [Slot],
        room: &mut [u64],
        mut before: u64,
    ) -> Result<u64, Malformed> {
        let mut bit = 1;
        for (slot, address) in slots.iter_mut().zip(room) {
            if bit == 8 {
                token = self.token()?;
                bit = 0;
            }
            *address = if token >> bit & 1 == 0 {
                slot.predict(before, slot.follow)
            } else {
                self.miss(slot, before)?
            };
            slot.learn(before, *address);
            before = *address;
            bit += 1;
        }
        if u32::from(token) >> bit != 0 {
            return Err("a token has bits beyond its accesses");
        }
        Ok(before)
    }

    /// Reads an address that was predicted wrongly.
    fn miss(&mut self, slot: &mut Slot, before: u64) -> Result<u64, Malformed> {
        let (&code, rest) = self.codes.split_first().ok_or(TRUNCATED)?;
        self.codes = rest;
        let (base, width) = match code {
            CODE_OTHER => {
                slot.follow = !slot.follow;
                return Ok(slot.predict(before, slot.follow));
            }
            CODE_LAST..CODE_BEFORE => (slot.last, code - CODE_LAST),
            CODE_BEFORE..CODE_END => (before, code - CODE_BEFORE),
            _ => return Err("an address is coded in an unknown way"),
        };
        let value = if let Some(&bytes) = self.values.first_chunk::<8>() {
            u64::from_le_bytes(bytes) & u64::MAX.checked_shr(64 - 8 * u32::from(width)).unwrap_or(0)
        } else {
            let mut bytes = [0; 8];
            let available = self.values.get(..usize::from(width)).ok_or(TRUNCATED)?;
            bytes[..usize::from(width)].copy_from_slice(available);
            u64::from_le_bytes(bytes)
        };
        self.values = self.values.get(usize::from(width)..).ok_or(TRUNCATED)?;
        Ok(base.wrapping_add(unzigzag(value)))
    }
}
