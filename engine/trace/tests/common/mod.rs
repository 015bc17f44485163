//! Random traces, and how to write and read them.

#![allow(dead_code)] // Each test uses its part.

pub mod foreign;
pub mod parsers;

use std::path::Path;
use std::sync::Arc;

use flatwalk_trace::format::{MAX_ACCESS_BYTES, MAX_ADDRESS};
use flatwalk_trace::{
    Access, Advice, Backing, Block, Branch, Event, Header, Instruction, Item, Operands, Options,
    Protection, Reader, Slice, Source, Summary, TraceError, Writer,
};
use proptest::prelude::*;

/// What a test makes the writer write, in order.
#[derive(Clone, Debug)]
pub enum Step {
    Define(Block),
    /// Names blocks by position among those defined so far, modulo; addresses come from `seed`.
    Slice {
        epoch: u64,
        thread: u32,
        blocks: Vec<usize>,
        seed: u64,
    },
    Event {
        epoch: u64,
        event: Event,
    },
}

pub fn header() -> Header {
    Header {
        name: "a test: ünïcode".into(),
        origin: "test 1".into(),
        architecture: "x86_64".into(),
        segment_instructions: None,
        gap_pages: false,
    }
}

fn operands() -> impl Strategy<Value = (u8, Operands)> {
    prop_oneof![
        (0_u8..=15).prop_map(|length| (length, Operands::Unknown)),
        (1_u8..=15, any::<[u8; 15]>()).prop_map(|(length, mut code)| {
            code[usize::from(length)..].fill(0);
            (length, Operands::X86(code))
        }),
        (0_u8..=15, any::<[u8; 4]>(), any::<[u8; 4]>()).prop_map(|(length, reads, writes)| {
            (length, Operands::Registers { reads, writes, branch: Branch::None })
        }),
    ]
}

pub fn block() -> impl Strategy<Value = Block> {
    let instruction = (0..MAX_ADDRESS - 100, operands(), prop::bool::ANY);
    let access = (any::<u16>(), 1..=MAX_ACCESS_BYTES, any::<bool>());
    let last = prop_oneof![
        Just(Branch::None),
        Just(Branch::Conditional),
        Just(Branch::Direct),
        Just(Branch::Indirect),
        Just(Branch::Return),
        Just(Branch::DirectCall),
        Just(Branch::IndirectCall)
    ];
    (prop::collection::vec(instruction, 1..6), prop::collection::vec(access, 0..20), last).prop_map(
        |(parts, accesses, last)| {
            let mut instructions: Vec<Instruction> = Vec::new();
            for (jump, (length, operands), sequential) in parts {
                let pc = match instructions.last() {
                    Some(before) if sequential => before.pc.wrapping_add(u64::from(before.length)),
                    _ => jump,
                };
                instructions.push(Instruction { pc, length, operands });
            }
            if let Some(Operands::Registers { branch, .. }) =
                instructions.last_mut().map(|i| &mut i.operands)
            {
                *branch = last;
            }
            let mut accesses: Vec<Access> = accesses
                .into_iter()
                .map(|(instruction, size, store)| Access {
                    instruction: instruction % instructions.len() as u16,
                    size,
                    store,
                })
                .collect();
            accesses.sort_by_key(|access| access.instruction);
            Block { instructions: instructions.into(), accesses: accesses.into() }
        },
    )
}

pub fn event() -> impl Strategy<Value = Event> {
    let protection =
        any::<[bool; 3]>().prop_map(|[read, write, execute]| Protection { read, write, execute });
    let backing = prop_oneof![
        Just(Backing::Anonymous),
        Just(Backing::File),
        Just(Backing::Stack),
        Just(Backing::Heap)
    ];
    let advice = prop_oneof![
        Just(Advice::HugePage),
        Just(Advice::NoHugePage),
        Just(Advice::DontNeed),
        Just(Advice::Populate)
    ];
    prop_oneof![
        (any::<u64>(), any::<u64>(), protection.clone(), backing, any::<bool>()).prop_map(
            |(address, length, protection, backing, shared)| Event::Map {
                address,
                length,
                protection,
                backing,
                shared
            }
        ),
        (any::<u64>(), any::<u64>()).prop_map(|(address, length)| Event::Unmap { address, length }),
        any::<[u64; 4]>().prop_map(|[from, from_length, to, to_length]| Event::Remap {
            from,
            from_length,
            to,
            to_length
        }),
        (any::<u64>(), any::<u64>(), protection).prop_map(|(address, length, protection)| {
            Event::Protect { address, length, protection }
        }),
        (any::<u64>(), any::<u64>(), advice).prop_map(|(address, length, advice)| Event::Advise {
            address,
            length,
            advice
        }),
        (any::<u64>(), any::<u64>()).prop_map(|(from, to)| Event::Break { from, to }),
        (any::<u64>(), any::<u64>(), any::<bool>())
            .prop_map(|(address, length, store)| Event::Populate { address, length, store }),
        any::<u32>().prop_map(|thread| Event::ThreadStart { thread }),
        any::<u32>().prop_map(|thread| Event::ThreadExit { thread }),
        any::<(u32, u64)>().prop_map(|(thread, number)| Event::Wake { thread, number }),
        any::<(u32, u64)>().prop_map(|(thread, number)| Event::Woken { thread, number }),
        ".{0,20}".prop_map(|name| Event::Marker { name }),
        any::<(u64, u64)>().prop_map(|(cr3, cr4)| Event::Root { cr3, cr4 }),
        (any::<u64>(), 1..=5_u8, any::<u64>()).prop_map(|(address, level, value)| Event::Entry {
            address,
            level,
            value
        }),
        any::<u64>().prop_map(|instructions| Event::Gap { instructions }),
        (any::<[u64; 3]>(), ".{0,20}", "[0-9a-f]{0,40}").prop_map(
            |([address, length, offset], name, build_id)| Event::Name {
                address,
                length,
                offset,
                name,
                build_id
            }
        ),
    ]
}

/// A trace with late epochs, threads and events in any order.
pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let epoch = prop_oneof![0_u64..6, Just(u64::MAX)];
    prop::collection::vec(
        prop_oneof![
            2 => block().prop_map(Step::Define),
            4 => (epoch.clone(), 0_u32..3, prop::collection::vec(any::<usize>(), 0..50), any::<u64>())
                .prop_map(|(epoch, thread, blocks, seed)| Step::Slice { epoch, thread, blocks, seed }),
            1 => (epoch, event()).prop_map(|(epoch, event)| Step::Event { epoch, event }),
        ],
        0..40,
    )
}

/// What a reader must yield for the steps: an oracle that does not know the format.
#[derive(Debug, Default, PartialEq)]
pub struct Expected {
    pub blocks: Vec<Block>,
    /// In reading order: (thread, block, its addresses), or an event.
    pub execution: Vec<Executed>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Executed {
    Block { thread: u32, id: u32, addresses: Vec<u64> },
    Event(Event),
}

/// Addresses that repeat, stride, follow each other and jump.
fn address(seed: u64, count: u64) -> u64 {
    let mixed = (seed ^ count).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let address = match mixed >> 61 {
        0 => mixed,
        1 => seed,
        2 => (mixed >> 40) & !7,
        3 => MAX_ADDRESS - count,
        _ => seed.wrapping_add(count * 8),
    };
    address.min(MAX_ADDRESS)
}

/// Writes the steps to `path`, flushing now and then if `flush`.
pub fn write(
    path: &Path,
    steps: &[Step],
    options: Options,
    flush: bool,
) -> Result<(Summary, Expected), TraceError> {
    let mut writer = Writer::with_options(path, header(), options)?;
    let mut expected = Expected::default();
    let mut keyed: Vec<(u64, u8, Vec<Executed>)> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Define(block) => {
                let id = writer.define(block.clone())?;
                assert_eq!(id as usize, expected.blocks.len());
                expected.blocks.push(block.clone());
            }
            Step::Slice { epoch, thread, blocks, seed } => {
                let mut slice = Slice { thread: *thread, ..Slice::default() };
                let mut executed = Vec::new();
                for &position in blocks.iter().filter(|_| !expected.blocks.is_empty()) {
                    let id = position % expected.blocks.len();
                    let first = slice.addresses.len() as u64;
                    let addresses: Vec<u64> = (first..)
                        .take(expected.blocks[id].accesses.len())
                        .map(|n| address(*seed, n))
                        .collect();
                    slice.blocks.push(id as u32);
                    slice.addresses.extend_from_slice(&addresses);
                    executed.push(Executed::Block { thread: *thread, id: id as u32, addresses });
                }
                writer.slice(*epoch, &slice)?;
                keyed.push((*epoch, 1, executed));
            }
            Step::Event { epoch, event } => {
                writer.event(*epoch, event)?;
                keyed.push((*epoch, 0, vec![Executed::Event(event.clone())]));
            }
        }
        if flush && number % 3 == 0 {
            writer.flush()?;
        }
    }
    keyed.sort_by_key(|&(epoch, kind, _)| (epoch, kind));
    expected.execution = keyed.into_iter().flat_map(|(_, _, executed)| executed).collect();
    Ok((writer.finish()?, expected))
}

/// Everything that a source yields, block by block; asserts what a source promises.
pub fn read(source: &mut dyn Source) -> Result<Expected, TraceError> {
    let mut found = Expected::default();
    while let Some(item) = source.next_item()? {
        match item {
            Item::Define { id, block } => {
                assert_eq!(id as usize, found.blocks.len());
                found.blocks.push(Arc::unwrap_or_clone(block));
            }
            Item::Slice(slice) => {
                let mut addresses = slice.addresses.iter().copied();
                for &id in &slice.blocks {
                    let count = found.blocks[id as usize].accesses.len();
                    let addresses: Vec<u64> = addresses.by_ref().take(count).collect();
                    assert_eq!(addresses.len(), count);
                    found.execution.push(Executed::Block { thread: slice.thread, id, addresses });
                }
                assert_eq!(addresses.next(), None);
            }
            Item::Event(event) => found.execution.push(Executed::Event(event)),
        }
    }
    Ok(found)
}

/// Opens, verifies and reads a file.
pub fn read_file(path: &Path) -> Result<Expected, TraceError> {
    let mut reader = Reader::open(path)?;
    reader.verify(&mut |_, _| std::ops::ControlFlow::Continue(()))?;
    read(&mut reader)
}

/// An instruction that stores, then loads.
pub fn simple_block(pc: u64, loads: u16) -> Block {
    let mut code = [0; 15];
    code[..3].copy_from_slice(&[0x48, 0x8b, 0x07]);
    Block {
        instructions: [Instruction { pc, length: 3, operands: Operands::X86(code) }].into(),
        accesses: (0..loads)
            .map(|number| Access { instruction: 0, size: 8, store: number == 0 })
            .collect(),
    }
}

/// A small trace with every kind of chunk, two of slices, and late ones.
pub fn small() -> (Vec<u8>, Expected) {
    let slice =
        |epoch, thread, seed| Step::Slice { epoch, thread, blocks: vec![0, 1, 1, 0, 2], seed };
    let marker =
        |epoch, name: &str| Step::Event { epoch, event: Event::Marker { name: name.into() } };
    let steps = [
        Step::Define(simple_block(0x40_1000, 1)),
        Step::Define(simple_block(0x40_1003, 9)),
        Step::Define(simple_block(0x40_1003, 0)),
        marker(1, "start"),
        slice(1, 0, 0x7fff_0000),
        slice(1, 1, 0x5555_0000),
        marker(2, "stop"),
        slice(2, 1, 0x7fff_0000),
        slice(0, 2, 0x6666_0000),
        marker(1, "late"),
        Step::Event {
            epoch: 2,
            event: Event::Populate { address: 1 << 30, length: 1 << 22, store: true },
        },
    ];
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("trace");
    let (_, expected) = write(&path, &steps, Options::default(), true).expect("it can be written");
    (std::fs::read(&path).expect("it can be read"), expected)
}
