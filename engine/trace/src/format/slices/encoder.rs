//! Builds payloads of executions.

use super::super::bytes::{put_varint, zigzag};
use super::payload::{CODE_BEFORE, CODE_LAST, CODE_OTHER, RUN_ADDRESSES, RUN_BLOCKS, Run, Sums};
use super::predictor::{Predictor, Slot};
use crate::model::{BlockId, ThreadId};

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

    /// Approximate length of the payload so far.
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

    /// Encodes blocks until the run is full; returns how many blocks and addresses it took.
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

/// Bytes that the zigzag value needs.
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
