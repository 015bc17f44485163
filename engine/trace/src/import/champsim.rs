//! ChampSim's traces: `input_instr` (64 bytes an instruction) and `cloudsuite_instr` (96 bytes),
//! little-endian records without a header. An empty slot is 0.
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
//! Neither records how long instructions are. One that is not a branch, or a branch that is not taken, ends
//! where its successor begins; a call, where its return goes ([`Code`]). Elsewhere the length is 0, unknown.
//! Nor do they record how wide accesses are ([`ACCESS_BYTES`] here).

use rustc_hash::FxHashMap;

use super::Parser;
use super::builder::Builder;
use super::input::Input;
use crate::error::TraceError;
use crate::format::MAX_ADDRESS;
use crate::model::{Branch, Instruction, Operands};

/// Number of the stack pointer.
pub(crate) const STACK_POINTER: u8 = 6;
/// Number of the flags.
pub(crate) const FLAGS: u8 = 25;
/// Number of the instruction pointer.
pub(crate) const INSTRUCTION_POINTER: u8 = 26;
/// Width of every access, in bytes: all that is known is its first byte. `ChampSim` takes an access
/// to be to the line of that byte, too.
const ACCESS_BYTES: u16 = 1;
/// Most bytes of an instruction.
const MAX_LENGTH: u64 = 15;
/// Bytes of a direct call, E8 with a displacement of 32 bits, until a return shows them.
const DIRECT_CALL_LENGTH: u8 = 5;
/// Instructions that one file's thread runs before the next one's, where there are several.
const TURN: u64 = 1 << 12;
/// Calls whose returns are awaited at most; the oldest is forgotten.
const MAX_CALLS: usize = 64;

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
        (false, _, _, false, false) => Branch::Direct,
        (false, _, false, false, true) => Branch::Indirect,
        (true, true, true, false, false) => Branch::DirectCall,
        (true, true, true, false, true) => Branch::IndirectCall,
        (true, true, false, _, _) => Branch::Return,
        // Conditional branches, and ChampSim's "other", which may go either way, to anywhere.
        _ => Branch::Conditional,
    }
}

/// What successors say about code.
#[derive(Default)]
struct Code {
    /// Lengths of conditional branches and calls, by address.
    lengths: FxHashMap<u64, u8>,
    /// Addresses of the calls that have not returned.
    calls: Vec<u64>,
    /// Instructions so far.
    count: u64,
}

impl Code {
    /// The length, as far as it is known, and the kind of an instruction at `pc` whose registers make it a
    /// `branch`, if what follows is at `next`.
    fn learn(&mut self, pc: u64, branch: Branch, taken: bool, next: Option<u64>) -> (u8, Branch) {
        let step = next.and_then(|next| length_to(pc, next));
        if branch == Branch::None {
            return (step.unwrap_or(0), branch);
        }
        let known = self.lengths.get(&pc).copied();
        match (branch, taken) {
            (Branch::Conditional, false) => match (step, next) {
                (Some(length), _) => {
                    self.lengths.insert(pc, length);
                    (length, branch)
                }
                // Something came in between, a signal's handler for one: this is not where the branch goes.
                (None, Some(_)) => (known.unwrap_or(0), Branch::None),
                (None, None) => (known.unwrap_or(0), branch),
            },
            (Branch::Conditional, true) => {
                // It goes where it would end: then it is longer or shorter. Few bytes lead to a near place.
                let near = step.map(|step| if step == 2 { 6 } else { 2 });
                (known.filter(|_| known != step).or(near).unwrap_or(0), branch)
            }
            (Branch::DirectCall | Branch::IndirectCall, _) => {
                if self.calls.len() == MAX_CALLS {
                    self.calls.remove(0);
                }
                self.calls.push(pc);
                let usual = if branch == Branch::DirectCall { DIRECT_CALL_LENGTH } else { 0 };
                (known.unwrap_or(usual), branch)
            }
            (Branch::Return, _) => {
                if let (Some(call), Some(next)) = (self.calls.pop(), next)
                    && let Some(length) = length_to(call, next)
                {
                    self.lengths.insert(call, length);
                }
                (0, branch)
            }
            (Branch::None | Branch::Direct | Branch::Indirect, _) => (0, branch),
        }
    }

    fn push(
        &mut self,
        record: &Record<'_>,
        input: &mut Input,
        out: &mut Builder,
    ) -> Result<(), TraceError> {
        self.count += 1;
        let [is_branch, taken] = record.branch;
        if is_branch > 1 || taken > 1 {
            return Err(input.damaged(
                "the record before it has a branch flag that is neither 0 nor 1, so this is not such a trace (if it is of \
                 another format, say which with `--format`)",
            ));
        }
        let next = input.peek(8)?.first_chunk().map(|&pc| u64::from_le_bytes(pc));
        let branch = classify(record.reads, record.writes, is_branch == 1);
        let (length, branch) = self.learn(record.pc, branch, taken == 1, next);
        let operands = Operands::Registers { reads: record.reads, writes: record.writes, branch };
        let damaged = |what| input.damaged(format!("in the record before it, {what}"));
        out.instruction(Instruction { pc: record.pc, length, operands }).map_err(damaged)?;
        for (slots, store) in [(record.loads, false), (record.stores, true)] {
            for slot in slots.as_chunks::<8>().0 {
                let address = u64::from_le_bytes(*slot);
                // Prefetches are among the loads, and may name a place where nothing can be.
                if address != 0 && (store || address <= MAX_ADDRESS) {
                    out.access(address, ACCESS_BYTES, store).map_err(damaged)?;
                }
            }
        }
        if branch != Branch::None || next.is_none_or(|next| length_to(record.pc, next).is_none()) {
            out.end_block();
        }
        Ok(())
    }
}

/// How many bytes an instruction at `pc` has that ends at `next`, if there are such.
fn length_to(pc: u64, next: u64) -> Option<u8> {
    let step = next.wrapping_sub(pc);
    (1..=MAX_LENGTH).contains(&step).then_some(step as u8)
}

/// Reads `input_instr`.
#[derive(Default)]
pub(crate) struct ChampSim(Code);

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

    fn clock(&self) -> u64 {
        self.0.count / TURN
    }
}

/// Reads `cloudsuite_instr`.
#[derive(Default)]
pub(crate) struct CloudSuite(Code);

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

    fn clock(&self) -> u64 {
        self.0.count / TURN
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
