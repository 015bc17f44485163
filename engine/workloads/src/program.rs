//! What the workloads share: where code and data lie, how blocks are built, and the source that first
//! yields the set-up and then runs a kernel.

use std::sync::Arc;

use flatwalk_trace::{
    Access, Backing, Block, BlockId, Branch, Event, Instruction, Item, Operands, Protection, Slice,
    Source, SourceInfo, TraceError,
};

use crate::Arguments;

/// First address of the code, in bytes.
pub(crate) const CODE: u64 = 0x40_0000;
/// First address of the heap or of small data, in bytes: another 2 MiB region than the code's.
pub(crate) const SMALL_DATA: u64 = 0x60_0000;
/// First address of large data, in bytes: aligned to 1 GiB, and low enough for 39-bit addresses.
pub(crate) const LARGE_DATA: u64 = 64 << 30;
pub(crate) const PAGE: u64 = 4096;
const REGION: u64 = 2 << 20;

/// Blocks in a slice: enough that the cost of a slice does not matter, and few enough that it stays
/// in the second-level cache between producer and consumer.
pub(crate) const SLICE_BLOCKS: usize = 4096;

/// The flags register (its number in ChampSim's numbering).
pub(crate) const FLAGS: u8 = 25;

/// Names registers, with numbers from `first` on. Numbers from 32 on have no special meaning.
macro_rules! registers {
    ($first:expr;) => {};
    ($first:expr; $name:ident $(, $more:ident)*) => {
        const $name: u8 = $first;
        $crate::program::registers!($first + 1; $($more),*);
    };
}
pub(crate) use registers;

const READ_WRITE: Protection = Protection { read: true, write: true, execute: false };
const READ_EXECUTE: Protection = Protection { read: true, write: false, execute: true };

/// Builds blocks, one after another in memory. Every instruction is assumed to be 4 bytes long.
pub(crate) struct Assembler {
    pc: u64,
    blocks: Vec<Arc<Block>>,
    instructions: Vec<Instruction>,
    accesses: Vec<Access>,
}

impl Assembler {
    pub(crate) fn new() -> Self {
        Self { pc: CODE, blocks: Vec::new(), instructions: Vec::new(), accesses: Vec::new() }
    }

    /// An instruction that works on registers.
    pub(crate) fn operation(&mut self, reads: &[u8], writes: &[u8]) -> &mut Self {
        self.instruction(reads, writes, Branch::None)
    }

    /// A load of 8 bytes; `reads` make its address.
    pub(crate) fn load(&mut self, reads: &[u8], write: u8) -> &mut Self {
        self.load_bytes(8, reads, write)
    }

    /// A load of `size` bytes.
    pub(crate) fn load_bytes(&mut self, size: u16, reads: &[u8], write: u8) -> &mut Self {
        self.access(size, false).operation(reads, &[write])
    }

    /// A store of 8 bytes; `reads` make its address and its value.
    pub(crate) fn store(&mut self, reads: &[u8]) -> &mut Self {
        self.store_bytes(8, reads)
    }

    /// A store of `size` bytes.
    pub(crate) fn store_bytes(&mut self, size: u16, reads: &[u8]) -> &mut Self {
        self.access(size, true).operation(reads, &[])
    }

    /// An instruction that loads `size` bytes, changes them, and stores them.
    pub(crate) fn update_bytes(&mut self, size: u16, reads: &[u8]) -> &mut Self {
        self.access(size, false).access(size, true).operation(reads, &[])
    }

    /// Instructions that another function adds.
    pub(crate) fn then(&mut self, write: impl FnOnce(&mut Self) -> &mut Self) -> &mut Self {
        write(self)
    }

    /// Ends the block with a conditional branch on the flags: it falls through or goes to one place.
    pub(crate) fn branch(&mut self) -> BlockId {
        self.instruction(&[FLAGS], &[], Branch::Conditional).fall()
    }

    /// Ends the block with a jump: it always goes to the same place.
    pub(crate) fn jump(&mut self) -> BlockId {
        self.instruction(&[], &[], Branch::Direct).fall()
    }

    /// Ends the block with a call of a function, which always is the same.
    pub(crate) fn call(&mut self) -> BlockId {
        self.instruction(&[], &[], Branch::DirectCall).fall()
    }

    /// Ends the block with a call of whatever function `register` has the address of.
    pub(crate) fn call_through(&mut self, register: u8) -> BlockId {
        self.instruction(&[register], &[], Branch::IndirectCall).fall()
    }

    /// Ends the block with a return from a function.
    pub(crate) fn return_(&mut self) -> BlockId {
        self.instruction(&[], &[], Branch::Return).fall()
    }

    /// Ends the block without a branch: the next one follows.
    pub(crate) fn fall(&mut self) -> BlockId {
        self.blocks.push(Arc::new(Block {
            instructions: std::mem::take(&mut self.instructions).into(),
            accesses: std::mem::take(&mut self.accesses).into(),
        }));
        self.blocks.len() as BlockId - 1
    }

    /// Instructions of a block.
    pub(crate) fn length(&self, block: BlockId) -> u64 {
        self.blocks[block as usize].instructions.len() as u64
    }

    #[cfg(test)]
    pub(crate) fn blocks(&self) -> Vec<Arc<Block>> {
        self.blocks.clone()
    }

    fn access(&mut self, size: u16, store: bool) -> &mut Self {
        let instruction = self.instructions.len() as u16;
        self.accesses.push(Access { instruction, size, store });
        self
    }

    fn instruction(&mut self, reads: &[u8], writes: &[u8], branch: Branch) -> &mut Self {
        debug_assert!(reads.len() <= 4 && writes.len() <= 4, "an instruction has four slots");
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
    /// Continues for about [`SLICE_BLOCKS`] blocks; adds nothing at the end.
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

/// A program's name, and how much it does.
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) arguments: Arguments,
    /// The number of instructions, where it is known beforehand.
    pub(crate) instructions: Option<u64>,
    /// Where its data lies: `(address, bytes)`, ascending. Each is a mapping of its own, and is
    /// written once from end to end beforehand.
    pub(crate) data: Vec<(u64, u64)>,
}

impl<K: Kernel> Program<K> {
    pub(crate) fn new(plan: Plan, assembler: Assembler, kernel: K) -> Self {
        let Plan { name, arguments, instructions, data } = plan;
        let Arguments { size_bytes, seed, array_order, keys, instructions_per_access, traced } =
            arguments;
        let map = |address, length, protection, backing| {
            Item::Event(Event::Map { address, length, protection, backing, shared: false })
        };
        let define = |(id, block)| Item::Define { id, block };
        let mut items: Vec<_> = (0..).zip(assembler.blocks).map(define).collect();
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
        let identity = format!(
            "flatwalk workload 3: {name} {size_bytes} {seed} {array_order:?} {keys:?} \
             {instructions_per_access} {traced:?}"
        );
        let info = SourceInfo {
            name: format!("{name}:{}{}", size(size_bytes), arguments.suffix()),
            hash: format!("{:016x}", fnv1a(&identity)),
            instructions,
            touched,
            gap_instructions: 0,
            segment_instructions: None,
            gap_pages: false,
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

/// `8589934592` → `8GiB`: in the largest unit that gives a whole number.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes.trailing_zeros() >= *shift && bytes > 0) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => format!("{bytes}B"),
    }
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
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::rng::mix;
    use crate::spread;
    use crate::{ArrayOrder, Description, Keys, Parameter, REGISTRY, Traced, open};

    /// A block and the addresses of its accesses.
    type Played = (Arc<Block>, Vec<u64>);

    /// Everything that a source yields: events, then blocks in order with their accesses' addresses.
    pub(crate) fn play(source: Box<dyn Source>) -> (Vec<Event>, Vec<Played>) {
        play_until(source, usize::MAX)
    }

    /// The same, until it has yielded so many blocks.
    fn play_until(mut source: Box<dyn Source>, blocks: usize) -> (Vec<Event>, Vec<Played>) {
        let (mut defined, mut events, mut played) = (Vec::new(), Vec::new(), Vec::new());
        while played.len() < blocks
            && let Some(item) = source.next_item().unwrap()
        {
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
                    assert_eq!(addresses.next(), None, "one address too many");
                }
            }
        }
        (events, played)
    }

    fn has(workload: &Description, parameter: &str) -> bool {
        workload.parameters.iter().any(|known| known.name == parameter)
    }

    #[test]
    fn every_size_is_described_with_its_limits() {
        // As in prose, with a space.
        let spaced = |bytes| {
            let text = size(bytes);
            let (number, unit) = text.split_at(text.find(char::is_alphabetic).unwrap());
            format!("{number} {unit}")
        };
        for workload in REGISTRY {
            let is_size = |known: &&Parameter| known.name == "size_bytes";
            let said = workload.parameters.iter().find(is_size).unwrap().description;
            let [least, most] = [workload.least_bytes, workload.greatest_bytes].map(spaced);
            assert!(said.contains(&format!(" {least} to {most}")), "{}: {said}", workload.name);
        }
    }

    #[test]
    fn every_workload_is_well_formed() {
        let whole = |workload| (workload, Arguments::new(128 << 10, 1), usize::MAX);
        // Large enough that arrays are mapped.
        let usual = Arguments::new(1 << 20, 1);
        let beginning = |parameter, arguments: Arguments| {
            let has = move |workload: &&Description| has(workload, parameter);
            REGISTRY.iter().filter(has).map(move |workload| (workload, arguments, 100_000))
        };
        let upwards = Arguments { array_order: ArrayOrder::Upwards, ..usual };
        let all = REGISTRY
            .iter()
            .map(whole)
            .chain(beginning("array_order", usual))
            .chain(beginning("array_order", upwards))
            .chain(beginning("keys", Arguments { keys: Keys::Uniform, ..usual }))
            .chain(beginning(
                "instructions_per_access",
                Arguments { instructions_per_access: 30, ..Arguments::new(128 << 10, 1) },
            ))
            .chain(beginning("traced", Arguments { traced: Traced::Searches, ..usual }));
        for (workload, arguments, blocks) in all {
            let size_bytes = arguments.size_bytes;
            let source = open(workload.name, &arguments).unwrap();
            let info = source.info().clone();
            let suffix = if arguments.array_order == ArrayOrder::Upwards {
                ":upwards"
            } else if arguments.keys == Keys::Uniform {
                ":uniform"
            } else if arguments.instructions_per_access == 30 {
                ":30"
            } else if arguments.traced == Traced::Searches {
                ":searches"
            } else {
                ""
            };
            assert_eq!(info.name, format!("{}:{}{suffix}", workload.name, size(size_bytes)));
            let (events, played) = play_until(source, blocks);
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
            let least = size_bytes - size_bytes / 8;
            // The size of `spread` does not include the pages that it reads.
            let extra = if workload.name == "spread" { spread::PAGES * spread::MAPPED } else { 0 };
            let most = size_bytes + 8 * PAGE;
            assert!((least..=most).contains(&(data - extra)), "{}: {data}", workload.name);
            let mut pages = BTreeSet::new();
            let mut instructions = 0;
            for (block, addresses) in &played {
                instructions += block.instructions.len() as u64;
                for (access, &address) in block.accesses.iter().zip(addresses) {
                    let (_, protection) =
                        mapped.iter().find(|(range, _)| range.contains(&address)).unwrap();
                    assert!(!access.store || protection.write);
                    let unit = access.size.min(8);
                    assert!(unit.is_power_of_two() && address.is_multiple_of(u64::from(unit)));
                    pages.insert(address / PAGE);
                }
                let pc = block.instructions[0].pc;
                let (range, protection) = &mapped[0];
                assert!(range.contains(&pc) && protection.execute);
                assert!(block.accesses.is_sorted_by_key(|access| access.instruction));
            }
            assert!(info.instructions.is_none_or(|n| n == instructions), "{}", workload.name);
            let touched = |address: u64| {
                info.touched.iter().any(|&(start, end)| (start..end).contains(&address))
            };
            assert!(pages.iter().all(|page| touched(page * PAGE)) && touched(CODE));
            assert!(pages.len() >= 16, "{} uses only {} pages", workload.name, pages.len());
        }
    }

    /// A block's last instruction decides what may follow it.
    #[test]
    fn control_flow_is_that_of_a_program() {
        let usual = Arguments::new(128 << 10, 1);
        let searches = ("graph500", Arguments { traced: Traced::Searches, ..usual });
        for (name, arguments) in
            REGISTRY.iter().map(|workload| (workload.name, usual)).chain([searches])
        {
            let mut taken = BTreeMap::new();
            for pair in play(open(name, &arguments).unwrap()).1.windows(2) {
                let (last, next) = (pair[0].0.instructions.last().unwrap(), &pair[1].0);
                let Operands::Registers { branch, .. } = last.operands else { unreachable!() };
                let (falls, to) = (last.pc + 4, next.instructions[0].pc);
                let place = (name, last.pc, to);
                match branch {
                    Branch::None => assert_eq!(to, falls, "{place:x?}"),
                    Branch::Conditional if to == falls => {}
                    Branch::Return | Branch::IndirectCall => {}
                    _ => assert_eq!(*taken.entry(last.pc).or_insert(to), to, "{place:x?}"),
                }
            }
        }
    }

    /// The output of the first workloads is part of published results.
    #[test]
    fn the_first_workloads_have_not_changed() {
        let fingerprints = [
            ("gups", 0x5d33_a00b_aa47_3362),
            ("random", 0xfde8_de4c_9dbc_c63b),
            ("chase", 0x0cbb_4055_3af2_bdda),
            ("stream", 0x184a_710d_a555_f0a5),
        ];
        for (name, expected) in fingerprints {
            let played = play(open(name, &Arguments::new(64 << 10, 3)).unwrap()).1;
            let found = played.iter().fold(0_u64, |hash, (block, addresses)| {
                let executed = (block.instructions[0].pc, addresses);
                mix(hash ^ fnv1a(&format!("{executed:?}")))
            });
            assert_eq!(found, expected, "{name}: {found:#x}");
        }
    }

    #[test]
    fn parameters_decide_everything() {
        for workload in REGISTRY {
            let trace =
                |size, seed| play(open(workload.name, &Arguments::new(size, seed)).unwrap()).1;
            let hash = |size, seed| {
                open(workload.name, &Arguments::new(size, seed)).unwrap().info().hash.clone()
            };
            let (small, large) = (64 << 10, 128 << 10);
            assert_eq!(trace(small, 7), trace(small, 7));
            if has(workload, "seed") {
                assert_ne!(trace(small, 7), trace(small, 8), "{}", workload.name);
            }
            let hashes = BTreeSet::from([hash(small, 7), hash(small, 8), hash(large, 7)]);
            assert_eq!(hashes.len(), 3);
            let usual = Arguments::new(small, 7);
            let variants = [
                ("array_order", Arguments { array_order: ArrayOrder::Upwards, ..usual }),
                ("keys", Arguments { keys: Keys::Uniform, ..usual }),
                ("instructions_per_access", Arguments { instructions_per_access: 30, ..usual }),
                ("traced", Arguments { traced: Traced::Searches, ..usual }),
            ];
            for (parameter, arguments) in variants {
                let variant = open(workload.name, &arguments).map(|of| of.info().hash.clone());
                if has(workload, parameter) {
                    assert_ne!(variant.unwrap(), hash(small, 7), "{}", workload.name);
                } else {
                    let remedy = format!("leave {parameter} out");
                    assert!(variant.unwrap_err().to_string().contains(&remedy));
                }
            }
        }
    }

    #[test]
    fn unknown_names_and_impossible_sizes_are_errors_with_a_remedy() {
        let message = |name, size| open(name, &Arguments::new(size, 1)).err().unwrap().to_string();
        assert!(message("gup", 4096).contains("gups, random, chase, stream"));
        for workload in REGISTRY {
            assert!(workload.least_bytes <= 64 << 10);
            for bytes in [0, 1, workload.least_bytes - 1] {
                let least = format!("the least is {}", size(workload.least_bytes));
                assert!(message(workload.name, bytes).contains(&least));
            }
            let most = format!("the most is {}", size(workload.greatest_bytes));
            assert!(message(workload.name, u64::MAX).contains(&most));
            assert!(open(workload.name, &Arguments::new(workload.least_bytes, 0)).is_ok());
            assert!(
                open(workload.name, &Arguments::new(workload.greatest_bytes, u64::MAX)).is_ok()
            );
            assert!(open(workload.name, &Arguments::new(workload.default_size_bytes, 1)).is_ok());
        }
    }

    #[test]
    fn sizes_are_written_in_their_largest_whole_unit() {
        let sizes = [8 << 30, 1536 << 20, 4096, 5000, 1 << 40, 0].map(size);
        assert_eq!(sizes, ["8GiB", "1536MiB", "4KiB", "5000B", "1TiB", "0B"]);
    }
}
