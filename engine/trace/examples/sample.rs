//! Writes a trace with everything that the format has, drawn at random from a seed:
//! `sample TRACE [SEED]`.

use std::error::Error;
use std::path::Path;

use flatwalk_trace::format::{MAX_ACCESS_BYTES, MAX_ADDRESS};
use flatwalk_trace::{
    Access, Advice, Backing, Block, Branch, Event, Header, Instruction, Operands, Protection,
    Slice, Writer,
};

/// A small generator (`SplitMix64`), so that a seed gives the same trace on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: sample TRACE [SEED]")?;
    let seed = arguments.next().map_or(Ok(1), |seed| seed.parse())?;
    let random = &mut Random(seed);
    let header = Header {
        name: format!("sample of seed {seed} – ünïcode"),
        origin: "flatwalk's example `sample`".into(),
        architecture: "x86_64".into(),
        segment_instructions: Some(5_000_000),
        gap_pages: true,
    };
    let mut writer = Writer::create(Path::new(&path), header)?;
    let (mut sizes, mut epoch) = (Vec::new(), 0);
    for step in 0..400 {
        if step < 8 || random.one_in(8) {
            let block = block(random, step == 7);
            sizes.push(block.accesses.len());
            writer.define(block)?;
        }
        if random.one_in(4) {
            epoch += 1;
            writer.event(epoch, &event(random))?;
        }
        // Some slices and events come late.
        let late = if random.one_in(10) { random.below(4).min(epoch) } else { 0 };
        if late > 0 && random.one_in(3) {
            writer.event(epoch - late, &event(random))?;
        }
        writer.slice(epoch - late, &slice(random, &sizes))?;
        if random.one_in(50) {
            writer.flush()?;
        }
    }
    let summary = writer.finish()?;
    println!("{} instructions", summary.instructions);
    Ok(())
}

fn block(random: &mut Random, many_accesses: bool) -> Block {
    let mut pc =
        if random.one_in(8) { random.next() >> 8 } else { 0x40_0000 + random.below(1 << 16) };
    let count = 1 + random.below(6);
    let mut instructions = Vec::new();
    for number in 1..=count {
        let instruction = instruction(random, pc, number == count);
        pc = pc.wrapping_add(u64::from(instruction.length));
        instructions.push(instruction);
    }
    let accesses = if many_accesses { 40 } else { random.below(12) };
    let mut owners: Vec<u16> = (0..accesses).map(|_| random.below(count) as u16).collect();
    owners.sort_unstable();
    let accesses = owners.into_iter().map(|instruction| {
        let size = if random.one_in(20) { MAX_ACCESS_BYTES } else { 1 << random.below(7) };
        Access { instruction, size, store: random.one_in(3) }
    });
    Block { accesses: accesses.collect(), instructions: instructions.into() }
}

fn instruction(random: &mut Random, pc: u64, last: bool) -> Instruction {
    let length = 1 + random.below(15) as u8;
    match random.below(3) {
        0 => Instruction { pc, length: random.below(16) as u8, operands: Operands::Unknown },
        1 => {
            let mut code = [0; 15];
            code[..usize::from(length)].fill_with(|| random.next() as u8);
            Instruction { pc, length, operands: Operands::X86(code) }
        }
        _ => {
            let branches = [
                Branch::Conditional,
                Branch::Direct,
                Branch::Indirect,
                Branch::Return,
                Branch::DirectCall,
                Branch::IndirectCall,
            ];
            let branch = if last { branches[random.below(6) as usize] } else { Branch::None };
            let [reads, writes] = [(); 2].map(|()| (random.next() as u32).to_le_bytes());
            Instruction { pc, length, operands: Operands::Registers { reads, writes, branch } }
        }
    }
}

/// Blocks in a loop with addresses that repeat, stride, follow each other or jump.
fn slice(random: &mut Random, sizes: &[usize]) -> Slice {
    let thread = if random.one_in(5) { random.below(3) as u32 } else { 0 };
    let body: Vec<u32> =
        (0..=random.below(5)).map(|_| random.below(sizes.len() as u64) as u32).collect();
    let mut slice = Slice { thread, ..Slice::default() };
    let (base, stride) = (random.next() >> 16, 8 << random.below(6));
    for turn in 0..random.below(30) {
        for &id in &body {
            if random.one_in(40) {
                continue;
            }
            slice.blocks.push(id);
            for number in 0..sizes[id as usize] as u64 {
                let before = slice.addresses.last().copied().unwrap_or(base);
                let address = match number % 4 {
                    _ if random.one_in(30) => random.next(),
                    0 => base.wrapping_add(turn * stride),
                    1 => before.wrapping_add(16),
                    2 => base,
                    _ => base.wrapping_sub(random.below(1 << (8 * (turn % 6)))),
                };
                slice.addresses.push(address.min(MAX_ADDRESS));
            }
        }
    }
    slice
}

fn event(random: &mut Random) -> Event {
    let [address, to] = [(); 2].map(|()| random.next() >> 16 & !0xfff);
    let [length, to_length] = [(); 2].map(|()| (1 + random.below(2000)) << 12);
    let [read, write, execute] = [(); 3].map(|()| random.one_in(2));
    let protection = Protection { read, write, execute };
    let backings = [Backing::Anonymous, Backing::File, Backing::Stack, Backing::Heap];
    let advices = [Advice::HugePage, Advice::NoHugePage, Advice::DontNeed, Advice::Populate];
    match random.below(16) {
        0 => Event::Map {
            address,
            length,
            protection,
            backing: backings[random.below(4) as usize],
            shared: random.one_in(2),
        },
        1 => Event::Unmap { address, length },
        2 => Event::Remap { from: address, from_length: length, to, to_length },
        3 => Event::Protect { address, length, protection },
        4 => Event::Advise { address, length, advice: advices[random.below(4) as usize] },
        5 => Event::Break { from: address, to },
        6 => Event::Populate { address, length, store: random.one_in(2) },
        7 => Event::ThreadStart { thread: random.below(4) as u32 },
        8 => Event::ThreadExit { thread: random.below(4) as u32 },
        9 => Event::Root { cr3: address, cr4: to },
        10 => Event::Entry { address, level: 1 + random.below(5) as u8, value: to },
        11 => Event::Gap { instructions: to },
        12 => Event::Name {
            address,
            length,
            offset: to,
            name: format!("/böx/{}", random.below(100)),
            build_id: format!("{:x}", random.below(1 << 20)),
        },
        13 => Event::Wake { thread: random.below(4) as u32, number: random.below(1000) },
        14 => Event::Woken { thread: random.below(4) as u32, number: random.below(1000) },
        _ => Event::Marker { name: format!("märker {}", random.below(100)) },
    }
}
