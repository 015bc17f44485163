//! Addresses from elsewhere as a trace: each is one load of the 8-byte word that it lies in, one
//! instruction in some number of others. The program has nothing else: one mapping for each run of 2 MiB
//! regions that it touches, and one for its code, in the lowest region above 2 MiB that it does not.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;

use flatwalk_trace::{
    Access, Backing, Block, Event, Instruction, Item, Operands, Protection, Slice, Source,
    SourceInfo, TraceError,
};

use crate::error::WorkloadError;
use crate::mapping::{LARGE, LIMIT, PAGE};
use crate::program::SLICE_BLOCKS;
use crate::rng::mix;

/// Addresses that are read in order, perhaps several times.
pub trait Addresses: Send {
    /// How many there are.
    fn count(&self) -> u64;

    /// Puts the addresses from number `from` on into `into`, which it fills.
    ///
    /// # Errors
    /// If whoever has them does not give them.
    fn read(&mut self, from: u64, into: &mut [u64]) -> io::Result<()>;
}

/// Instructions for each access, at most.
const MOST_INSTRUCTIONS: u64 = 64;

/// The trace of `addresses`, named `name`, with `instructions` instructions for each.
///
/// # Errors
/// [`WorkloadError::Addresses`] if there are none, one is beyond user space, or `instructions` is out
/// of range.
pub fn open(
    name: &str,
    mut addresses: Box<dyn Addresses>,
    instructions: u64,
) -> Result<Box<dyn Source>, WorkloadError> {
    let refused = |what: String| Err(WorkloadError::Addresses { what });
    if !(1..=MOST_INSTRUCTIONS).contains(&instructions) {
        return refused(format!(
            "each takes 1 to {MOST_INSTRUCTIONS} instructions, not {instructions}"
        ));
    }
    let (mut regions, mut hash, mut last) = (BTreeSet::new(), mix(instructions), u64::MAX);
    let count = addresses.count();
    let mut chunk = Vec::new();
    for from in (0..count).step_by(SLICE_BLOCKS) {
        fill(&mut chunk, &mut *addresses, from)
            .map_err(|error| WorkloadError::Addresses { what: error.to_string() })?;
        for (at, &address) in chunk.iter().enumerate() {
            if address >= LIMIT {
                let number = from + at as u64;
                return refused(format!("number {number} is {address:#x}, not below {LIMIT:#x}"));
            }
            hash = mix(hash ^ address);
            if address / LARGE != last {
                last = address / LARGE;
                regions.insert(last);
            }
        }
    }
    if regions.is_empty() {
        return refused("there are none".to_owned());
    }
    // One of so many regions is not among them.
    let mut places = 1..=regions.len() as u64 + 1;
    let code = places.find(|region| !regions.contains(region)).unwrap_or(1) * LARGE;
    let mut touched: Vec<(u64, u64)> = Vec::new();
    for region in &regions {
        let (start, end) = (region * LARGE, (region + 1) * LARGE);
        match touched.last_mut() {
            Some(run) if run.1 == start => run.1 = end,
            _ => touched.push((start, end)),
        }
    }
    let before = set_up(code, instructions, &touched);
    let at = touched.partition_point(|run| run.0 < code);
    touched.insert(at, (code, code + LARGE));
    let info = SourceInfo {
        name: name.to_owned(),
        hash: format!("{hash:016x}"),
        instructions: Some(count.saturating_mul(instructions)),
        touched,
        gap_instructions: 0,
        segment_instructions: None,
        gap_pages: false,
    };
    Ok(Box::new(AddressSource { info, before, addresses, read: 0 }))
}

/// Puts what comes next, at most a slice of it, into `chunk`.
fn fill(chunk: &mut Vec<u64>, addresses: &mut dyn Addresses, from: u64) -> io::Result<()> {
    let count = (addresses.count() - from).min(SLICE_BLOCKS as u64);
    chunk.resize(count as usize, 0);
    addresses.read(from, chunk)
}

/// The code and the mappings.
fn set_up(code: u64, instructions: u64, touched: &[(u64, u64)]) -> VecDeque<Item> {
    let operation =
        |index: u64| Instruction { pc: code + 4 * index, length: 4, operands: Operands::Unknown };
    let block = Block {
        instructions: (0..instructions).map(operation).collect(),
        accesses: [Access { instruction: 0, size: 8, store: false }].into(),
    };
    let map = |address: u64, length: u64, execute: bool| {
        let protection = Protection { read: true, write: !execute, execute };
        let backing = Backing::Anonymous;
        Item::Event(Event::Map { address, length, protection, backing, shared: false })
    };
    std::iter::once(Item::Define { id: 0, block: Arc::new(block) })
        .chain([map(code, PAGE, true)])
        .chain(touched.iter().map(|&(start, end)| map(start, end - start, false)))
        .collect()
}

struct AddressSource {
    info: SourceInfo,
    before: VecDeque<Item>,
    addresses: Box<dyn Addresses>,
    /// Addresses read.
    read: u64,
}

impl Source for AddressSource {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_item(&mut self) -> Result<Option<Item>, TraceError> {
        if let Some(item) = self.before.pop_front() {
            return Ok(Some(item));
        }
        if self.read == self.addresses.count() {
            return Ok(None);
        }
        let mut addresses = Vec::new();
        fill(&mut addresses, &mut *self.addresses, self.read)
            .map_err(|source| TraceError::Io { path: self.info.name.clone().into(), source })?;
        self.read += addresses.len() as u64;
        for address in &mut addresses {
            *address &= !7;
        }
        Ok(Some(Item::Slice(Slice { thread: 0, blocks: vec![0; addresses.len()], addresses })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct List(Vec<u64>);

    impl Addresses for List {
        fn count(&self) -> u64 {
            self.0.len() as u64
        }

        fn read(&mut self, from: u64, into: &mut [u64]) -> io::Result<()> {
            into.copy_from_slice(&self.0[from as usize..][..into.len()]);
            Ok(())
        }
    }

    fn opened(addresses: Vec<u64>, instructions: u64) -> Result<Box<dyn Source>, WorkloadError> {
        open("test", Box::new(List(addresses)), instructions)
    }

    #[test]
    fn each_address_is_a_load_of_its_word_in_a_mapping() {
        let given: Vec<u64> = (0..3 * SLICE_BLOCKS as u64 + 5).map(|n| mix(n) % LIMIT).collect();
        let mut source = opened(given.clone(), 3).unwrap();
        assert_eq!(source.info().instructions, Some(given.len() as u64 * 3));
        let (mut found, mut mapped) = (Vec::new(), Vec::new());
        while let Some(item) = source.next_item().unwrap() {
            match item {
                Item::Slice(slice) => {
                    assert_eq!(slice.blocks.len(), slice.addresses.len());
                    found.extend(slice.addresses);
                }
                Item::Event(Event::Map { address, length, .. }) => mapped.push((address, length)),
                Item::Define { block, .. } => {
                    assert_eq!((block.instructions.len(), block.accesses.len()), (3, 1));
                }
                other @ Item::Event(_) => panic!("{other:?}"),
            }
        }
        assert_eq!(found, given.iter().map(|address| address & !7).collect::<Vec<_>>());
        let inside = |address: &u64| mapped.iter().any(|m| (m.0..m.0 + m.1).contains(address));
        assert!(found.iter().all(inside));
        let code = mapped.remove(0);
        assert!(!found.iter().any(|address| (code.0..code.0 + LARGE).contains(address)));
        let touched = &source.info().touched;
        assert!(touched.windows(2).all(|pair| pair[0].1 <= pair[1].0), "they ascend");
        assert!(found.iter().all(|a| touched.iter().any(|run| (run.0..run.1).contains(a))));
    }

    #[test]
    fn what_decides_is_hashed() {
        let hash = |given, each| opened(given, each).unwrap().info().hash.clone();
        assert_eq!(hash(vec![8, 16], 4), hash(vec![8, 16], 4));
        assert_ne!(hash(vec![8, 16], 4), hash(vec![16, 8], 4));
        assert_ne!(hash(vec![8, 16], 4), hash(vec![8, 16], 5));
    }

    #[test]
    fn impossible_ones_are_refused() {
        let refused = |given, each| opened(given, each).err().unwrap().to_string();
        assert!(refused(vec![], 4).contains("none"));
        assert!(refused(vec![1, LIMIT], 4).contains("number 1 is 0x100000000000000"));
        assert!(refused(vec![1], 0).contains("not 0"));
        assert!(refused(vec![1], 65).contains("not 65"));
    }
}
