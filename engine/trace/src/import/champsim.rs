//! ChampSim's traces: `input_instr` (64 bytes an instruction) and `cloudsuite_instr` (96 bytes), little-endian
//! records without a header. An empty slot is 0.
//!
//! | field     | `input_instr` | `cloudsuite_instr` |
//! |-----------|---------------|--------------------|
//! | pc        | u64 @0        | u64 @0             |
//! | is branch | u8 @8         | u8 @8              |
//! | taken     | u8 @9         | u8 @9              |
//! | writes    | u8\[2\] @10   | u8\[4\] @10        |
//! | reads     | u8\[4\] @12   | u8\[4\] @14        |
//! | stores    | u64\[2\] @16  | u64\[4\] @24       |
//! | loads     | u64\[4\] @32  | u64\[4\] @56       |
//! | asid      |               | u8\[2\] @88        |
//!
//! Neither records how long instructions are (0 here) nor how wide accesses are ([`ACCESS_BYTES`] here).

use super::Parser;
use super::builder::Builder;
use super::input::Input;
use crate::error::TraceError;
use crate::model::{Branch, Instruction, Operands};

/// Number of the stack pointer.
pub(crate) const STACK_POINTER: u8 = 6;
/// Number of the flags.
pub(crate) const FLAGS: u8 = 25;
/// Number of the instruction pointer.
pub(crate) const INSTRUCTION_POINTER: u8 = 26;
/// Assumed width of every access, in bytes: the most common one in x86-64 programs.
pub(crate) const ACCESS_BYTES: u16 = 8;

/// One instruction, whichever record it comes from.
struct Record<'a> {
    pc: u64,
    branch: [u8; 2],
    writes: [u8; 4],
    reads: [u8; 4],
    /// Bytes of the memory operands' slots.
    stores: &'a [u8],
    loads: &'a [u8],
}

/// How ChampSim classifies a branch by the registers that it reads and writes.
pub(crate) fn classify(reads: [u8; 4], writes: [u8; 4], is_branch: bool) -> Branch {
    let special = [0, STACK_POINTER, FLAGS, INSTRUCTION_POINTER];
    let [sp, flags, ip] =
        [STACK_POINTER, FLAGS, INSTRUCTION_POINTER].map(|register| reads.contains(&register));
    let other = reads.iter().any(|register| !special.contains(register));
    let writes_sp = writes.contains(&STACK_POINTER);
    if !writes.contains(&INSTRUCTION_POINTER) {
        // ChampSim looks at the registers alone. Where they do not make it a branch but the tracer says
        // that it is one, it is conditional, as only such a branch may go either way.
        return if is_branch { Branch::Conditional } else { Branch::None };
    }
    match (sp, writes_sp, ip, flags, other) {
        // Jumps, then calls.
        (false, _, _, false, false) | (true, true, true, false, false) => Branch::Direct,
        (false, _, false, false, true) | (true, true, true, false, true) => Branch::Indirect,
        (true, true, false, _, _) => Branch::Return,
        // Conditional branches, and ChampSim's "other", which may go either way, to anywhere.
        _ => Branch::Conditional,
    }
}

/// State between records.
#[derive(Default)]
struct Run {
    previous: Option<u64>,
}

impl Run {
    fn push(
        &mut self,
        record: &Record<'_>,
        input: &Input,
        out: &mut Builder,
    ) -> Result<(), TraceError> {
        let [is_branch, taken] = record.branch;
        if is_branch > 1 || taken > 1 {
            return Err(input.damaged(
                "the record before it has a branch flag that is neither 0 nor 1, so this is not such a trace (if it is of \
                 another format, say which with `--format`)",
            ));
        }
        // Instructions of unknown length follow each other within the longest that there are.
        if !self
            .previous
            .is_some_and(|previous| (1..=15).contains(&record.pc.wrapping_sub(previous)))
        {
            out.end_block();
        }
        let branch = classify(record.reads, record.writes, is_branch == 1);
        out.instruction(Instruction {
            pc: record.pc,
            length: 0,
            operands: Operands::Registers { reads: record.reads, writes: record.writes, branch },
        });
        for (slots, store) in [(record.loads, false), (record.stores, true)] {
            for slot in slots.as_chunks::<8>().0 {
                let address = u64::from_le_bytes(*slot);
                if address != 0 {
                    out.access(address, ACCESS_BYTES, store);
                }
            }
        }
        self.previous = Some(record.pc);
        if branch != Branch::None {
            out.end_block();
            self.previous = None;
        }
        Ok(())
    }
}

/// Reads `input_instr`.
#[derive(Default)]
pub(crate) struct ChampSim(Run);

impl Parser for ChampSim {
    fn step(&mut self, input: &mut Input, out: &mut Builder) -> Result<bool, TraceError> {
        let Some(bytes) = input.record::<64>("an instruction of 64 bytes")? else {
            return Ok(false);
        };
        let record = Record {
            pc: word(&bytes, 0),
            branch: [bytes[8], bytes[9]],
            writes: [bytes[10], bytes[11], 0, 0],
            reads: [bytes[12], bytes[13], bytes[14], bytes[15]],
            stores: &bytes[16..32],
            loads: &bytes[32..64],
        };
        self.0.push(&record, input, out).map(|()| true)
    }
}

/// Reads `cloudsuite_instr`.
#[derive(Default)]
pub(crate) struct CloudSuite(Run);

impl Parser for CloudSuite {
    fn step(&mut self, input: &mut Input, out: &mut Builder) -> Result<bool, TraceError> {
        let Some(bytes) = input.record::<96>("an instruction of 96 bytes")? else {
            return Ok(false);
        };
        let record = Record {
            pc: word(&bytes, 0),
            branch: [bytes[8], bytes[9]],
            writes: [bytes[10], bytes[11], bytes[12], bytes[13]],
            reads: [bytes[14], bytes[15], bytes[16], bytes[17]],
            stores: &bytes[24..56],
            loads: &bytes[56..88],
        };
        self.0.push(&record, input, out).map(|()| true)
    }
}

fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Whether all the records of `N` bytes in the first bytes of a file could be instructions.
pub(crate) fn sniff<const N: usize>(start: &[u8]) -> bool {
    let (records, rest) = start.as_chunks::<N>();
    // A file longer than the window may be cut anywhere; a shorter one must be made of whole records.
    let whole = start.len() >= 96 * 64 || rest.is_empty();
    whole
        && !records.is_empty()
        && records.iter().all(|record| {
            let pc = word(record, 0);
            // Canonical addresses with five levels; there is no code at 0.
            let canonical = pc != 0 && (pc >> 56 == 0 || pc >> 56 == 0xff);
            // Nothing but padding between asid and the end, and after the registers, in the long record.
            let padding = if N == 96 { &record[90..96] } else { &[] };
            let flags = record[8] <= 1 && record[9] <= record[8];
            canonical && flags && padding.iter().all(|&byte| byte == 0)
        })
}
