//! The content hash: over what was written, in the order of writing, independent of chunks.

use std::fmt::Write;

use xxhash_rust::xxh3::Xxh3;

use super::bytes::put_varint;
use super::events;
use crate::model::{Block, BlockId, Event, Operands, ThreadId};

/// Five running XXH3-128 hashes, so that the interleaving of definitions, events and slices in the
/// file, which depends on chunk sizes, does not matter.
pub(crate) struct ContentHash {
    definitions: Xxh3,
    events: Xxh3,
    runs: Xxh3,
    blocks: Xxh3,
    addresses: Xxh3,
    buffer: Vec<u8>,
    run: Option<(ThreadId, u64)>,
    executed: u64,
}

impl ContentHash {
    pub(crate) fn new() -> Self {
        Self {
            definitions: Xxh3::new(),
            events: Xxh3::new(),
            runs: Xxh3::new(),
            blocks: Xxh3::new(),
            addresses: Xxh3::new(),
            buffer: Vec::new(),
            run: None,
            executed: 0,
        }
    }

    pub(crate) fn define(&mut self, block: &Block) {
        let out = &mut self.buffer;
        out.clear();
        put_varint(out, block.instructions.len() as u64);
        for instruction in &block.instructions {
            out.extend_from_slice(&instruction.pc.to_le_bytes());
            out.push(instruction.length);
            match &instruction.operands {
                Operands::Unknown => out.push(0),
                Operands::X86(code) => {
                    out.push(1);
                    out.extend_from_slice(code);
                }
                Operands::Registers { reads, writes, branch } => {
                    out.push(2);
                    out.extend_from_slice(reads);
                    out.extend_from_slice(writes);
                    out.push(*branch as u8);
                }
            }
        }
        put_varint(out, block.accesses.len() as u64);
        for access in &block.accesses {
            out.extend_from_slice(&access.instruction.to_le_bytes());
            out.extend_from_slice(&access.size.to_le_bytes());
            out.push(u8::from(access.store));
        }
        self.definitions.update(out);
    }

    pub(crate) fn event(&mut self, epoch: u64, event: &Event) {
        self.buffer.clear();
        self.buffer.extend_from_slice(&epoch.to_le_bytes());
        events::put(&mut self.buffer, event);
        self.events.update(&self.buffer);
    }

    pub(crate) fn slice(
        &mut self,
        thread: ThreadId,
        epoch: u64,
        blocks: &[BlockId],
        addresses: &[u64],
    ) {
        if self.run != Some((thread, epoch)) {
            self.run = Some((thread, epoch));
            self.runs.update(&thread.to_le_bytes());
            self.runs.update(&epoch.to_le_bytes());
            self.runs.update(&self.executed.to_le_bytes());
        }
        self.executed += blocks.len() as u64;
        for part in blocks.chunks(256) {
            let mut bytes = [0; 1024];
            for (to, id) in bytes.chunks_exact_mut(4).zip(part) {
                to.copy_from_slice(&id.to_le_bytes());
            }
            self.blocks.update(&bytes[..4 * part.len()]);
        }
        for part in addresses.chunks(128) {
            let mut bytes = [0; 1024];
            for (to, address) in bytes.chunks_exact_mut(8).zip(part) {
                to.copy_from_slice(&address.to_le_bytes());
            }
            self.addresses.update(&bytes[..8 * part.len()]);
        }
    }

    /// The hash of everything so far, 32 hexadecimal digits.
    pub(crate) fn hex(&self) -> String {
        let mut all = Xxh3::new();
        for part in [&self.definitions, &self.events, &self.runs, &self.blocks, &self.addresses] {
            all.update(&part.digest128().to_le_bytes());
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write!(text, "{:032x}", all.digest128());
        text
    }
}
