//! What the workloads share: where code and data lie, how blocks are written down, and the source
//! that first tells the set-up and then runs a kernel.

use std::sync::Arc;

use flatwalk_trace::{
    Access, Backing, Block, BlockId, Branch, Event, Instruction, Item, Operands, Protection, Slice,
    Source, SourceInfo, TraceError,
};

use crate::error::WorkloadError;

/// First address of the code, in bytes.
pub(crate) const CODE: u64 = 0x40_0000;
/// First address of small data, in bytes: another 2 MiB region than the code's.
pub(crate) const SMALL_DATA: u64 = 0x60_0000;
/// First address of large data, in bytes: aligned to 1 GiB, and low enough for 39-bit addresses.
pub(crate) const LARGE_DATA: u64 = 64 << 30;
/// Least and greatest size of a workload in bytes.
pub(crate) const SIZES: std::ops::RangeInclusive<u64> = PAGE..=64 << 40;
pub(crate) const PAGE: u64 = 4096;
const REGION: u64 = 2 << 20;

/// Blocks in a slice: enough that the cost of a slice does not matter, and few enough that it stays
/// in the second-level cache between producer and consumer.
pub(crate) const SLICE_BLOCKS: usize = 4096;

/// The flags register (its number in ChampSim's numbering).
pub(crate) const FLAGS: u8 = 25;

const READ_WRITE: Protection = Protection { read: true, write: true, execute: false };
const READ_EXECUTE: Protection = Protection { read: true, write: false, execute: true };

/// Writes down blocks, one after another in memory. Every instruction is taken to be 4 bytes long.
pub(crate) struct Assembler {
    pc: u64,
    items: Vec<Item>,
    instructions: Vec<Instruction>,
    accesses: Vec<Access>,
}

impl Assembler {
    pub(crate) fn new() -> Self {
        Self { pc: CODE, items: Vec::new(), instructions: Vec::new(), accesses: Vec::new() }
    }

    /// An instruction that works on registers.
    pub(crate) fn operation(&mut self, reads: &[u8], writes: &[u8]) -> &mut Self {
        self.instruction(reads, writes, Branch::None)
    }

    /// A load of 8 bytes; `reads` make its address.
    pub(crate) fn load(&mut self, reads: &[u8], write: u8) -> &mut Self {
        self.access(false).operation(reads, &[write])
    }

    /// A store of 8 bytes; `reads` make its address and its value.
    pub(crate) fn store(&mut self, reads: &[u8]) -> &mut Self {
        self.access(true).operation(reads, &[])
    }

    /// Ends the block with a conditional branch on the flags; gives its number and how many
    /// instructions it has.
    pub(crate) fn branch(&mut self) -> (BlockId, u64) {
        self.instruction(&[FLAGS], &[], Branch::Conditional);
        let block = Block {
            instructions: std::mem::take(&mut self.instructions).into(),
            accesses: std::mem::take(&mut self.accesses).into(),
        };
        let id = self.items.len() as BlockId;
        let count = block.instructions.len() as u64;
        self.items.push(Item::Define { id, block: Arc::new(block) });
        (id, count)
    }

    fn access(&mut self, store: bool) -> &mut Self {
        let instruction = self.instructions.len() as u16;
        self.accesses.push(Access { instruction, size: 8, store });
        self
    }

    fn instruction(&mut self, reads: &[u8], writes: &[u8], branch: Branch) -> &mut Self {
        let slots =
            |registers: &[u8]| std::array::from_fn(|i| registers.get(i).copied().unwrap_or(0));
        let operands = Operands::Registers { reads: slots(reads), writes: slots(writes), branch };
        self.instructions.push(Instruction { pc: self.pc, length: 4, operands });
        self.pc += 4;
        self
    }
}

/// What a workload computes.
pub(crate) trait Kernel: Send {
    /// Goes on for about [`SLICE_BLOCKS`] blocks; adds nothing at the end.
    fn run(&mut self, slice: &mut Slice);
}

/// A workload as a source: its blocks, its mappings and their initialisation, then the kernel.
pub(crate) struct Program<K> {
    info: SourceInfo,
    prelude: std::vec::IntoIter<Item>,
    kernel: K,
    /// Blocks and addresses in the largest slice so far.
    capacity: (usize, usize),
}

/// What a program is called and how much it does.
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) size_bytes: u64,
    pub(crate) seed: u64,
    pub(crate) instructions: u64,
    /// Where its data lies: `(address, bytes)`, ascending. Each is a mapping of its own, and is
    /// written once from end to end beforehand.
    pub(crate) data: Vec<(u64, u64)>,
}

impl<K: Kernel> Program<K> {
    pub(crate) fn new(plan: Plan, assembler: Assembler, kernel: K) -> Self {
        let Plan { name, size_bytes, seed, instructions, data } = plan;
        let map = |address, length, protection, backing| {
            Item::Event(Event::Map { address, length, protection, backing, shared: false })
        };
        let mut items = assembler.items;
        let code = assembler.pc - CODE;
        items.push(map(CODE, code.next_multiple_of(PAGE), READ_EXECUTE, Backing::File));
        let mut touched = vec![regions(CODE, code)];
        for &(address, bytes) in &data {
            let length = bytes.next_multiple_of(PAGE);
            items.push(map(address, length, READ_WRITE, Backing::Anonymous));
            items.push(Item::Event(Event::Populate { address, length, store: true }));
            touched.push(regions(address, bytes));
        }
        // Raise the number when a workload changes what it does for the same parameters.
        let identity = format!("flatwalk workload 1: {name} {size_bytes} {seed}");
        let info = SourceInfo {
            name: format!("{name}:{}", size(size_bytes)),
            hash: format!("{:016x}", fnv1a(&identity)),
            instructions: Some(instructions),
            touched,
        };
        Self { info, prelude: items.into_iter(), kernel, capacity: (0, 0) }
    }
}

impl<K: Kernel> Source for Program<K> {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_item(&mut self) -> Result<Option<Item>, TraceError> {
        if let Some(item) = self.prelude.next() {
            return Ok(Some(item));
        }
        let (blocks, addresses) = self.capacity;
        let mut slice = Slice {
            thread: 0,
            blocks: Vec::with_capacity(blocks),
            addresses: Vec::with_capacity(addresses),
        };
        self.kernel.run(&mut slice);
        self.capacity = (blocks.max(slice.blocks.len()), addresses.max(slice.addresses.len()));
        Ok((!slice.blocks.is_empty()).then_some(Item::Slice(slice)))
    }
}

/// Refuses sizes out of [`SIZES`].
pub(crate) fn check_size(name: &'static str, size_bytes: u64) -> Result<(), WorkloadError> {
    if SIZES.contains(&size_bytes) {
        return Ok(());
    }
    let requirement = if size_bytes < *SIZES.start() {
        format!("the least is {}", size(*SIZES.start()))
    } else {
        format!("the most is {}", size(*SIZES.end()))
    };
    Err(WorkloadError::Size { name, size_bytes, requirement })
}

/// `8589934592` → `8GiB`: in the largest unit that gives a whole number.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes.trailing_zeros() >= *shift && bytes > 0) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => format!("{bytes}B"),
    }
}

/// A well-mixed word from a seed: one step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub(crate) fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The 2 MiB regions of a range of bytes, as [`SourceInfo::touched`] wants them.
fn regions(address: u64, bytes: u64) -> (u64, u64) {
    (address / REGION * REGION, (address + bytes).next_multiple_of(REGION))
}

/// The 64-bit FNV-1a hash (Fowler, Noll and Vo).
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{REGISTRY, open};

    /// A block and the addresses of its accesses.
    type Played = (Arc<Block>, Vec<u64>);

    /// Everything that a source yields: events, then blocks in order with their accesses' addresses.
    pub(crate) fn play(mut source: Box<dyn Source>) -> (Vec<Event>, Vec<Played>) {
        let (mut defined, mut events, mut played) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(item) = source.next_item().unwrap() {
            match item {
                Item::Define { id, block } => {
                    assert_eq!(id as usize, defined.len());
                    defined.push(block);
                }
                Item::Event(event) => {
                    assert!(played.is_empty(), "events come first");
                    events.push(event);
                }
                Item::Slice(slice) => {
                    let mut addresses = slice.addresses.into_iter();
                    for id in slice.blocks {
                        let block = Arc::clone(&defined[id as usize]);
                        let own = addresses.by_ref().take(block.accesses.len()).collect::<Vec<_>>();
                        assert_eq!(own.len(), block.accesses.len());
                        played.push((block, own));
                    }
                    assert_eq!(addresses.next(), None, "an address too many");
                }
            }
        }
        (events, played)
    }

    #[test]
    fn every_workload_is_well_formed() {
        for workload in REGISTRY {
            let size_bytes = 64 << 10;
            let source = open(workload.name, size_bytes, 1).unwrap();
            let info = source.info().clone();
            assert_eq!(info.name, format!("{}:64KiB", workload.name));
            let (events, played) = play(source);
            let mapped: Vec<_> = events
                .iter()
                .filter_map(|event| match *event {
                    Event::Map { address, length, protection, .. } => {
                        Some((address..address + length, protection))
                    }
                    _ => None,
                })
                .collect();
            let data: u64 = mapped.iter().map(|(range, _)| range.end - range.start).sum();
            assert!((size_bytes..=size_bytes + 2 * PAGE).contains(&data), "{}", workload.name);
            let mut pages = BTreeSet::new();
            let mut instructions = 0;
            for (i, (block, addresses)) in played.iter().enumerate() {
                instructions += block.instructions.len() as u64;
                for (access, &address) in block.accesses.iter().zip(addresses) {
                    let (_, protection) =
                        mapped.iter().find(|(range, _)| range.contains(&address)).unwrap();
                    assert!(!access.store || protection.write);
                    assert!(address.is_multiple_of(8));
                    pages.insert(address / PAGE);
                }
                let pc = block.instructions[0].pc;
                let (range, protection) = &mapped[0];
                assert!(range.contains(&pc) && protection.execute);
                assert!(block.accesses.is_sorted_by_key(|access| access.instruction));
                // A block leads to itself, to its neighbour, or back.
                if let Some((next, _)) = played.get(i + 1) {
                    let end = block.instructions.last().unwrap().pc + 4;
                    assert!(next.instructions[0].pc <= end);
                }
            }
            assert_eq!(info.instructions, Some(instructions), "{}", workload.name);
            let touched = |address: u64| {
                info.touched.iter().any(|&(start, end)| (start..end).contains(&address))
            };
            assert!(pages.iter().all(|page| touched(page * PAGE)) && touched(CODE));
            assert!(pages.len() >= 16, "{} uses only {} pages", workload.name, pages.len());
        }
    }

    #[test]
    fn parameters_decide_everything() {
        for workload in REGISTRY {
            let trace = |size, seed| play(open(workload.name, size, seed).unwrap()).1;
            let hash = |size, seed| open(workload.name, size, seed).unwrap().info().hash.clone();
            assert_eq!(trace(8192, 7), trace(8192, 7));
            if workload.parameters.iter().any(|parameter| parameter.name == "seed") {
                assert_ne!(trace(8192, 7), trace(8192, 8), "{}", workload.name);
            }
            let hashes = BTreeSet::from([hash(8192, 7), hash(8192, 8), hash(16384, 7)]);
            assert_eq!(hashes.len(), 3);
        }
    }

    #[test]
    fn unknown_names_and_impossible_sizes_are_errors_with_a_remedy() {
        let message = |name, size| open(name, size, 1).err().unwrap().to_string();
        assert!(message("gup", 4096).contains("gups, random, chase, stream"));
        for workload in REGISTRY {
            for bytes in [0, 1, 4095] {
                assert!(message(workload.name, bytes).contains("the least is 4KiB"));
            }
            assert!(message(workload.name, u64::MAX).contains("the most is 64TiB"));
            assert!(open(workload.name, 64 << 40, u64::MAX).is_ok());
        }
    }

    #[test]
    fn sizes_are_written_in_their_largest_whole_unit() {
        let sizes = [8 << 30, 1536 << 20, 4096, 5000, 1 << 40, 0].map(size);
        assert_eq!(sizes, ["8GiB", "1536MiB", "4KiB", "5000B", "1TiB", "0B"]);
    }
}
