//! DynamoRIO's synthetic instruction set `DR_ISA_REGDEPS`, which public traces have in place of machine code:
//! registers and kinds of instructions, but no opcodes.
//!
//! A header, `u32`, little-endian; if there are any operands, a byte with their size, then a byte
//! for each register, written ones first; padding to 4 bytes. The header has the number of
//! registers written in bits 0–3, of those read in 4–7, whether flags are written in bit 8 and read
//! in bit 9, and the instruction's categories above. What memory it accesses is in the trace's
//! records alone, and its length in the record that fetches it: that of the original instruction,
//! not of this encoding.
//!
//! Categories and sizes have no place in the trace model.

use crate::import::champsim::{FLAGS, INSTRUCTION_POINTER, STACK_POINTER};
use crate::model::{Branch, Operands};

/// Most registers of an instruction, read and written.
const MOST_REGISTERS: usize = 8;
/// Number that the encoding leaves out, like 0 and 1: DynamoRIO's `DR_REG_INVALID` on x86.
const INVALID: u8 = 187;

/// Operands of an instruction that branches as its record says.
///
/// # Errors
/// What is impossible in the encoding.
pub(super) fn operands(code: &[u8], branch: Branch) -> Result<Operands, &'static str> {
    let Some((&header, rest)) = code.split_first_chunk() else {
        return Err("a synthetic instruction is shorter than its header");
    };
    let header = u32::from_le_bytes(header);
    let [written, read] = [header & 0xf, header >> 4 & 0xf].map(|count| count as usize);
    let registers = written + read;
    if registers > MOST_REGISTERS {
        return Err("a synthetic instruction has more than eight registers");
    }
    let bytes = if registers == 0 { 0 } else { (1 + registers).next_multiple_of(4) };
    if rest.len() != bytes {
        return Err("a synthetic instruction is not as long as its registers say");
    }
    let names = rest.get(1..=registers).unwrap_or_default();
    if names.iter().any(|&name| matches!(name, 0 | 1 | INVALID | 254..)) {
        return Err("a synthetic instruction names a register that there is not");
    }
    let flags = |bit: u32| (header >> bit & 1 == 1).then_some(FLAGS);
    Ok(Operands::Registers {
        writes: slots(flags(8), &names[..written]),
        reads: slots(flags(9), &names[written..]),
        branch,
    })
}

/// The first four.
fn slots(flags: Option<u8>, names: &[u8]) -> [u8; 4] {
    let mut slots = [0; 4];
    let numbers = flags.into_iter().chain(names.iter().copied().map(number));
    slots.iter_mut().zip(numbers).for_each(|(slot, number)| *slot = number);
    slots
}

/// Our number of a virtual register: the same, but for the numbers that mean something to `ChampSim`. Those
/// become numbers that no virtual register has.
fn number(name: u8) -> u8 {
    match name {
        STACK_POINTER => 1,
        FLAGS => INVALID,
        INSTRUCTION_POINTER => 254,
        other => other,
    }
}
