//! Definitions of blocks: instructions are stored once each, blocks refer to runs of them.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::bytes::{Cursor, Malformed, put_varint, unzigzag, zigzag};
use super::container::ChunkHeader;
use crate::model::{Access, Block, Branch, Instruction, Operands};

/// Most instructions in a block: an access names its instruction by 16 bits.
pub const MAX_INSTRUCTIONS: usize = 1 << 16;
/// Most accesses in a block.
pub const MAX_ACCESSES: usize = 1 << 16;
/// Most bytes of an access: of x86-64's, XSAVE with AMX's tiles makes the longest, 11 KiB.
pub const MAX_ACCESS_BYTES: u16 = 1 << 14;
/// The highest address at which an access or an instruction can begin, so that all end well within the
/// address space. Linux maps nothing above.
pub const MAX_ADDRESS: u64 = u64::MAX - (4 << 20);
/// Most instructions and accesses that the blocks of one payload may have together …
pub(crate) const MAX_EXPANDED: usize = 1 << 20;
/// … and those of a trace: both bound what a forged trace can make a reader allocate.
pub(crate) const MAX_EXPANDED_IN_ALL: usize = 1 << 26;

const KIND_UNKNOWN: u8 = 0;
const KIND_X86: u8 = 1;
const KIND_REGISTERS: u8 = 2;

/// Checks a block against the rules of the model.
///
/// # Errors
/// The rule that it violates.
pub(crate) fn check(block: &Block) -> Result<(), Malformed> {
    let (_, body) = block.instructions.split_last().ok_or("a block has no instructions")?;
    if block.instructions.len() > MAX_INSTRUCTIONS {
        return Err("a block has more than 65536 instructions");
    }
    if block.accesses.len() > MAX_ACCESSES {
        return Err("a block has more than 65536 accesses");
    }
    for instruction in &block.instructions {
        check_instruction(instruction)?;
    }
    if body.iter().any(
        |i| matches!(&i.operands, Operands::Registers { branch, .. } if *branch != Branch::None),
    ) {
        return Err("a branch is not the last instruction of its block");
    }
    let mut previous = 0;
    for access in &block.accesses {
        if access.size == 0 {
            return Err("an access has size 0");
        }
        if access.size > MAX_ACCESS_BYTES {
            return Err("an access is of more than 16 KiB");
        }
        if usize::from(access.instruction) >= block.instructions.len() {
            return Err("an access belongs to no instruction of its block");
        }
        if access.instruction < previous {
            return Err("a block's accesses are not in program order");
        }
        previous = access.instruction;
    }
    Ok(())
}

fn check_instruction(instruction: &Instruction) -> Result<(), Malformed> {
    if instruction.pc > MAX_ADDRESS {
        return Err(
            "an instruction is in the last 4 MiB of the address space, where nothing can be",
        );
    }
    if instruction.length > 15 {
        return Err("an instruction is longer than 15 bytes");
    }
    if let Operands::X86(bytes) = &instruction.operands {
        if instruction.length == 0 {
            return Err("an instruction has code but no length");
        }
        if bytes[usize::from(instruction.length)..].iter().any(|&byte| byte != 0) {
            return Err("an instruction's code is longer than its length");
        }
    }
    Ok(())
}

/// Checks where accesses begin.
///
/// # Errors
/// If that is above [`MAX_ADDRESS`].
pub(crate) fn check_addresses(addresses: &[u64]) -> Result<(), Malformed> {
    // Not `any`: without an end before the end it takes several at once.
    let highest = addresses.iter().fold(0, |highest, &address| address.max(highest));
    if highest > MAX_ADDRESS {
        return Err(
            "an access begins in the last 4 MiB of the address space, where nothing can be",
        );
    }
    Ok(())
}

/// Encodes definitions. It keeps every instruction, in order to store it only once.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    known: FxHashMap<Instruction, u32>,
    /// Where the last new instruction ended, and the last run of instructions.
    next_pc: u64,
    next_index: u32,
    pub code_bytes: u64,
    /// The payload under construction.
    pub out: Vec<u8>,
    pub blocks: u64,
    pub new_instructions: u32,
    pub new_code_bytes: u32,
}

impl Encoder {
    /// Appends a checked block. New instructions come first, then the block that uses them.
    pub(crate) fn push(&mut self, block: &Block) -> Result<(), Malformed> {
        let mut new = Vec::new();
        let mut new_count = 0;
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for instruction in &block.instructions {
            let next = u32::try_from(self.known.len())
                .map_err(|_| "it has more than 2^32 instructions of code")?;
            let index = *self.known.entry(instruction.clone()).or_insert(next);
            if index == next {
                new_count += 1;
                put_instruction(&mut new, instruction, &mut self.next_pc);
                self.new_instructions += 1;
                self.new_code_bytes += u32::from(instruction.length);
                self.code_bytes += u64::from(instruction.length);
            }
            match runs.last_mut() {
                Some((start, length)) if *start + *length == index => *length += 1,
                _ => runs.push((index, 1)),
            }
        }
        put_varint(&mut self.out, new_count);
        self.out.extend_from_slice(&new);
        put_varint(&mut self.out, runs.len() as u64);
        for (start, length) in runs {
            put_varint(
                &mut self.out,
                zigzag(u64::from(start).wrapping_sub(u64::from(self.next_index))),
            );
            put_varint(&mut self.out, u64::from(length));
            self.next_index = start.wrapping_add(length);
        }
        put_varint(&mut self.out, block.accesses.len() as u64);
        let mut previous = 0;
        for access in &block.accesses {
            let step = u64::from(access.instruction - previous);
            previous = access.instruction;
            put_varint(&mut self.out, step << 1 | u64::from(access.store));
            put_varint(&mut self.out, u64::from(access.size));
        }
        self.blocks += 1;
        Ok(())
    }

    /// Starts the next payload: only the instructions are kept.
    pub(crate) fn reset(&mut self) {
        self.out.clear();
        self.next_pc = 0;
        self.next_index = 0;
        self.blocks = 0;
        self.new_instructions = 0;
        self.new_code_bytes = 0;
    }
}

fn put_instruction(out: &mut Vec<u8>, instruction: &Instruction, next_pc: &mut u64) {
    let (kind, extra): (u8, &[u8]) = match &instruction.operands {
        Operands::Unknown => (KIND_UNKNOWN, &[]),
        Operands::X86(bytes) => (KIND_X86, &bytes[..usize::from(instruction.length)]),
        Operands::Registers { .. } => (KIND_REGISTERS, &[]),
    };
    out.push(instruction.length | kind << 4);
    put_varint(out, zigzag(instruction.pc.wrapping_sub(*next_pc)));
    *next_pc = instruction.pc.wrapping_add(u64::from(instruction.length));
    out.extend_from_slice(extra);
    if let Operands::Registers { reads, writes, branch } = &instruction.operands {
        out.extend_from_slice(reads);
        out.extend_from_slice(writes);
        out.push(match branch {
            Branch::None => 0,
            Branch::Conditional => 1,
            Branch::Direct => 2,
            Branch::Indirect => 3,
            Branch::Return => 4,
            Branch::DirectCall => 5,
            Branch::IndirectCall => 6,
        });
    }
}

fn get_instruction(cursor: &mut Cursor<'_>, next_pc: &mut u64) -> Result<Instruction, Malformed> {
    let tag = cursor.byte()?;
    let length = tag & 15;
    let pc = next_pc.wrapping_add(unzigzag(cursor.varint()?));
    *next_pc = pc.wrapping_add(u64::from(length));
    let operands = match tag >> 4 {
        KIND_UNKNOWN => Operands::Unknown,
        KIND_X86 => {
            let mut bytes = [0; 15];
            bytes[..usize::from(length)].copy_from_slice(cursor.take(usize::from(length))?);
            Operands::X86(bytes)
        }
        KIND_REGISTERS => Operands::Registers {
            reads: cursor.array()?,
            writes: cursor.array()?,
            branch: match cursor.byte()? {
                0 => Branch::None,
                1 => Branch::Conditional,
                2 => Branch::Direct,
                3 => Branch::Indirect,
                4 => Branch::Return,
                5 => Branch::DirectCall,
                6 => Branch::IndirectCall,
                _ => return Err("an instruction branches in an unknown way"),
            },
        },
        _ => return Err("an instruction's operands are of an unknown kind"),
    };
    Ok(Instruction { pc, length, operands })
}

/// Decodes definitions; keeps every instruction, because later blocks may use it.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    instructions: Vec<Instruction>,
    /// Instructions and accesses of all blocks.
    expanded: usize,
    pub code_bytes: u64,
}

impl Decoder {
    /// Decodes the payload of the chunk with this header into `blocks`.
    pub(crate) fn decode(
        &mut self,
        payload: &[u8],
        header: &ChunkHeader,
        blocks: &mut Vec<Arc<Block>>,
    ) -> Result<(), Malformed> {
        let mut cursor = Cursor::new(payload);
        let mut next_pc = 0;
        let mut next_index = 0_u64;
        let (known, known_bytes) = (self.instructions.len(), self.code_bytes);
        let mut expanded = 0;
        for _ in 0..header.count {
            let new = cursor.bounded(MAX_INSTRUCTIONS as u64)?;
            for _ in 0..new {
                let instruction = get_instruction(&mut cursor, &mut next_pc)?;
                self.code_bytes += u64::from(instruction.length);
                self.instructions.push(instruction);
            }
            let mut instructions = Vec::new();
            for _ in 0..cursor.bounded(MAX_INSTRUCTIONS as u64)? {
                let start = next_index.wrapping_add(unzigzag(cursor.varint()?));
                let length = cursor.bounded((MAX_INSTRUCTIONS - instructions.len()) as u64)?;
                let run = usize::try_from(start)
                    .ok()
                    .and_then(|start| {
                        self.instructions.get(start..start.checked_add(length as usize)?)
                    })
                    .ok_or("a block uses instructions that are not defined")?;
                instructions.extend_from_slice(run);
                next_index = start + length;
            }
            let mut accesses = Vec::new();
            let mut instruction = 0;
            for _ in 0..cursor.bounded(MAX_ACCESSES as u64)? {
                let step = cursor.bounded(u64::from(u16::MAX) << 1 | 1)?;
                instruction += step >> 1;
                accesses.push(Access {
                    instruction: u16::try_from(instruction)
                        .map_err(|_| "an access belongs to no instruction")?,
                    size: cursor.bounded(u64::from(u16::MAX))? as u16,
                    store: step & 1 != 0,
                });
            }
            let block = Block { instructions: instructions.into(), accesses: accesses.into() };
            check(&block)?;
            if new > block.instructions.len() as u64 {
                return Err("a block brings instructions that it does not execute");
            }
            expanded += block.instructions.len() + block.accesses.len();
            if expanded > MAX_EXPANDED || self.expanded + expanded > MAX_EXPANDED_IN_ALL {
                return Err("its blocks are longer than a chunk or a trace may define");
            }
            blocks.push(Arc::new(block));
        }
        self.expanded += expanded;
        if (self.instructions.len() - known) as u64 != u64::from(header.a)
            || self.code_bytes - known_bytes != u64::from(header.b)
        {
            return Err("its code is not as long as its header says");
        }
        cursor.end()
    }
}
