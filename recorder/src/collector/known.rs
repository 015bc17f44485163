//! The pages that what was recorded so far touched or says to be in memory.

use flatwalk_recorder::pages::Pages;
use flatwalk_trace::{Block, Event, Slice};

const NONE: u64 = u64::MAX;
/// Pages that need not be looked up.
const RECENT: usize = 4096;
/// In the word that stands for an access: it is a store. The rest is its size.
const STORE: u16 = 1 << 15;

/// What an execution of a block touches.
#[derive(Debug)]
struct Reach {
    /// The first and the last page of its code.
    code: (u64, u64),
    /// Its accesses, in [`Known::accesses`].
    first: u32,
    count: u32,
    instructions: u32,
}

/// The pages, and the blocks that slices name.
#[derive(Debug)]
pub struct Known {
    blocks: Vec<Reach>,
    accesses: Vec<u16>,
    pages: Pages,
    /// Direct-mapped: pages, with the kind of access in the lowest bit.
    recent: Box<[u64]>,
}

impl Default for Known {
    fn default() -> Self {
        Known {
            blocks: Vec::new(),
            accesses: Vec::new(),
            pages: Pages::new(),
            recent: vec![NONE; RECENT].into(),
        }
    }
}

impl Known {
    /// The next block; they are numbered as those of the trace.
    pub fn define(&mut self, block: &Block) {
        let start = block.instructions.first().map_or(0, |first| first.pc);
        let end = block
            .instructions
            .last()
            .map_or(0, |last| last.pc.saturating_add(u64::from(last.length.max(1)) - 1));
        self.blocks.push(Reach {
            code: (start >> 12, end.max(start) >> 12),
            first: self.accesses.len() as u32,
            count: block.accesses.len() as u32,
            instructions: block.instructions.len() as u32,
        });
        let accesses = block.accesses.iter();
        self.accesses
            .extend(accesses.map(|access| access.size | (u16::from(access.store) * STORE)));
    }

    /// Instructions that a slice executes.
    pub fn instructions_of(&self, slice: &Slice) -> u64 {
        slice.blocks.iter().map(|&id| u64::from(self.blocks[id as usize].instructions)).sum()
    }

    /// Calls `found` for each page that a slice touches, but for repetitions: its number, whether it was
    /// stored to, whether it is new. Returns the instructions that the slice executes.
    pub fn touch(&mut self, slice: &Slice, mut found: impl FnMut(u64, bool, bool)) -> u64 {
        let Known { blocks, accesses, pages, recent } = self;
        let mut touch = |page: u64, store: bool| {
            let key = page << 1 | u64::from(store);
            let recent = &mut recent[key as usize % RECENT];
            if *recent != key {
                *recent = key;
                found(page, store, pages.insert(page));
            }
        };
        let (mut instructions, mut code) = (0, (NONE, NONE));
        let mut addresses = &slice.addresses[..];
        for &id in &slice.blocks {
            let block = &blocks[id as usize];
            instructions += u64::from(block.instructions);
            if block.code != code {
                code = block.code;
                (code.0..=code.1).for_each(|page| touch(page, false));
            }
            let (here, later) = addresses.split_at(block.count as usize);
            addresses = later;
            let first = block.first as usize;
            for (&access, &address) in accesses[first..first + here.len()].iter().zip(here) {
                let (bytes, store) = (u64::from(access & !STORE), access & STORE != 0);
                let last = address.saturating_add(bytes.max(1) - 1) >> 12;
                touch(address >> 12, store);
                if last != address >> 12 {
                    ((address >> 12) + 1..=last).for_each(|page| touch(page, store));
                }
            }
        }
        instructions
    }

    /// Takes note of an event.
    pub fn follow(&mut self, event: &Event) {
        if self.pages.follow(event) {
            self.recent.fill(NONE);
        }
        if let Event::Populate { address, length, .. } = *event {
            self.pages.insert_range(address, length);
        }
    }
}
