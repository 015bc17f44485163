//! The guest's blocks of user code.
//!
//! QEMU keeps translations by physical address, and uses one of them wherever that page is mapped: in
//! another process perhaps elsewhere than where it was translated.

use std::sync::atomic::{AtomicU32, Ordering};

use rustc_hash::FxHashMap;

use crate::plugin::block::number_of;
use crate::plugin::guest::memory::ram;
use crate::plugin::lock::Lock;
use crate::plugin::space::PAGE;

/// A translated block of user code.
pub struct Block {
    /// The collector's number of the block at the address where it is now.
    number: AtomicU32,
    length: u32,
    /// Its definition there.
    definition: Lock<Vec<u8>>,
}

impl Block {
    /// Its number, and its length in instructions.
    pub fn describe(&self) -> (u32, u32) {
        (self.number.load(Ordering::Relaxed), self.length)
    }
}

/// Blocks by the physical page that they start in, and there by physical address and code.
#[derive(Default)]
pub struct Blocks(FxHashMap<u64, FxHashMap<(u64, Vec<u8>), &'static Block>>);

impl Blocks {
    /// A block that QEMU has just translated: with this definition and length in instructions, at
    /// `address` in QEMU's memory if that is in the guest's RAM.
    pub fn translated(&mut self, address: u64, definition: &[u8], length: usize) -> &'static Block {
        let new = || {
            // Kept for ever, as are the collector's definitions.
            Box::leak(Box::new(Block {
                number: AtomicU32::new(number_of(definition)),
                length: length as u32,
                definition: Lock::new(definition.to_vec()),
            }))
        };
        let Some(physical) = ram().physical(address) else { return new() };
        let key = (physical, definition[8..].to_vec());
        let block = *self.0.entry(physical / PAGE).or_default().entry(key).or_insert_with(|| new());
        block.definition.with(|known| {
            if known != definition {
                known.copy_from_slice(definition);
                block.number.store(number_of(definition), Ordering::Relaxed);
            }
        });
        block
    }

    /// The program has physical page `physical` at `page`: the blocks in it run there.
    pub fn place(&mut self, physical: u64, page: u64) {
        for block in self.0.get(&physical).into_iter().flat_map(FxHashMap::values) {
            block.definition.with(|definition| {
                let Some(start) = definition.first_chunk_mut::<8>() else { return };
                let address = u64::from_le_bytes(*start);
                let here = page + address % PAGE;
                if address != here {
                    *start = here.to_le_bytes();
                    block.number.store(number_of(definition), Ordering::Relaxed);
                }
            });
        }
    }
}
