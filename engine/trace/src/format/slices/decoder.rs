//! Reads payloads of executions.

use super::super::bytes::{Cursor, Malformed, unzigzag};
use super::super::definitions::{MAX_ACCESSES, check_addresses};
use super::payload::{
    CODE_BEFORE, CODE_END, CODE_LAST, CODE_OTHER, MAX_RUNS, RUN_ADDRESSES, RUN_BLOCKS, Run, Sums,
};
use super::predictor::{BlockState, Place, Predictor, Slot};
use crate::model::{BlockId, Slice};

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
            let addresses = cursor.bounded((RUN_ADDRESSES + MAX_ACCESSES) as u64)? as u32;
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

    /// Reads the next run. Which blocks it names is known only then, so the caller must have defined
    /// every block that the file defines before this payload.
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
        check_addresses(&slice.addresses)?;
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

    /// Reads one block, and its addresses into the start of `room`.
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

    /// Reads the addresses of a block, of which some may be predicted wrongly; returns the last.
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
