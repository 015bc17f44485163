//! DynamoRIO's drmemtrace: packed records of 12 bytes, type u16, size u16, address u64, raw, compressed or in
//! the members of a zip archive.
//!
//! Data accesses belong to the instruction before them. What changes nothing for virtual memory
//! (processors, prefetches, cache flushes …) is skipped. A string instruction's further
//! iterations (`NO_FETCH`) add accesses to it and are not counted as instructions. What the kernel ran in a
//! system call or between threads is not the program's, and is skipped.
//!
//! Of several files, the one with the earliest timestamp goes on. A file is left in front of an instruction.

mod markers;
mod regdeps;
pub(super) mod v2p;

use super::Parser;
use super::builder::Builder;
use super::input::Input;
use crate::error::TraceError;
use crate::model::{Branch, Event, Instruction, Operands};

const READ: u16 = 0;
const WRITE: u16 = 1;
const INSTRUCTION: u16 = 10;
const DIRECT_JUMP: u16 = 11;
const INDIRECT_JUMP: u16 = 12;
const CONDITIONAL_JUMP: u16 = 13;
const DIRECT_CALL: u16 = 14;
const INDIRECT_CALL: u16 = 15;
const RETURN: u16 = 16;
const BUNDLE: u16 = 17;
const THREAD: u16 = 22;
const THREAD_EXIT: u16 = 23;
const PROCESS: u16 = 24;
const HEADER: u16 = 25;
const FOOTER: u16 = 26;
const MARKER: u16 = 28;
const NO_FETCH: u16 = 29;
const MAYBE_FETCH: u16 = 30;
const SYSENTER: u16 = 31;
const ENCODING: u16 = 47;
const TAKEN_JUMP: u16 = 48;
const UNTAKEN_JUMP: u16 = 49;

/// The thread of a core that has none.
const IDLE: u64 = u64::MAX;
/// Longest encoding of an instruction in any architecture, in bytes.
const MAX_ENCODING_BYTES: usize = 17;

/// What the machine code of a file is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Code {
    X86,
    /// Synthetic instructions ([`regdeps`]).
    Synthetic,
    #[default]
    Other,
}

#[derive(Default)]
pub(crate) struct DrMemTrace {
    /// Where the last instruction ended, within a block.
    next_pc: Option<u64>,
    /// Of the next instruction. It is in the trace before an address's first execution in a chunk.
    encoding: Vec<u8>,
    code: Code,
    /// The file is a core's: threads come and go, and with them headers and footers.
    core: bool,
    /// What comes is the kernel's.
    kernel: bool,
    clock: u64,
    /// The last timestamp, which the clock has from the next instruction on.
    timestamp: u64,
    part: Part,
}

/// Where in a file we are.
#[derive(Default, PartialEq, Eq)]
enum Part {
    #[default]
    Header,
    Body,
    /// The last record was a footer.
    End,
}

/// Whether a file that starts so is drmemtrace's, by its header record.
pub(crate) fn sniff(start: &[u8]) -> bool {
    let Some((record, rest)) = start.split_first_chunk::<12>() else {
        return false;
    };
    let (kind, size, version) = fields(*record);
    // Not the first instruction of a ChampSim trace at an address like that.
    let second = rest.first_chunk().is_none_or(|&second| fields(second).0 <= UNTAKEN_JUMP);
    kind == HEADER && size == 0 && (1..=0xffff).contains(&version) && second
}

fn fields(record: [u8; 12]) -> (u16, u16, u64) {
    let [t0, t1, s0, s1, address @ ..] = record;
    (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([s0, s1]), u64::from_le_bytes(address))
}

impl Parser for DrMemTrace {
    fn step(&mut self, input: &mut Input, out: &mut Builder) -> Result<bool, TraceError> {
        let Some(&record) = input.peek(12)?.first_chunk() else {
            if !input.peek(1)?.is_empty() {
                return Err(input.truncated("a record of 12 bytes"));
            }
            return if self.part == Part::End {
                Ok(false)
            } else {
                Err(input.truncated("the trace, whose footer is missing,"))
            };
        };
        let (kind, size, address) = fields(record);
        if self.part == Part::End && !self.core {
            return Err(input.damaged("a record follows the footer"));
        }
        if self.part == Part::Header && kind != HEADER {
            return Err(input.damaged("the trace does not start with a header"));
        }
        if !self.encoding.is_empty() && !fetches(kind) && !matches!(kind, ENCODING | MARKER) {
            return Err(
                input.damaged("machine code is followed by something other than its instruction")
            );
        }
        // A string instruction that goes on is not left, either.
        let begins = fetches(kind) && !matches!(kind, NO_FETCH | MAYBE_FETCH);
        if begins && self.timestamp > self.clock {
            self.clock = self.timestamp;
            return Ok(true);
        }
        self.record(kind, size, address, input, out)?;
        self.part = if kind == FOOTER { Part::End } else { Part::Body };
        input.consume(12);
        Ok(true)
    }

    fn clock(&self) -> u64 {
        self.clock
    }

    fn architecture(&self) -> &'static str {
        if self.code == Code::X86 { "x86_64" } else { "unknown" }
    }
}

impl DrMemTrace {
    fn record(
        &mut self,
        kind: u16,
        size: u16,
        address: u64,
        input: &Input,
        out: &mut Builder,
    ) -> Result<(), TraceError> {
        match kind {
            HEADER => markers::version(address, input)?,
            MARKER => self.marker(size, address, input, out)?,
            THREAD if address == IDLE => {}
            THREAD => {
                let thread = out.numbered(address);
                out.thread(thread);
                self.next_pc = None;
            }
            THREAD_EXIT => {
                let thread = out.numbered(address);
                out.event(Event::ThreadExit { thread });
                self.next_pc = None;
            }
            FOOTER => out.end_block(),
            ENCODING => self.machine_code(size, address, input)?,
            _ if self.kernel && (fetches(kind) || matches!(kind, READ | WRITE | BUNDLE)) => {
                self.encoding.clear();
            }
            READ | WRITE => {
                // DynamoRIO does not know how much XSAVE and its like access, and says 0.
                let access = out.access(address, size.max(1), kind == WRITE);
                access.map_err(|what| input.damaged(what))?;
            }
            // A repeated fetch that may be an instruction (raw traces only) is one where the address is new.
            NO_FETCH | MAYBE_FETCH => {
                self.encoding.clear();
                // The same instruction continues. If it is another one (the trace was cut there), it counts.
                if out.last().is_none_or(|last| last.pc != address) {
                    self.fetch(INSTRUCTION, size, address, input, out)?;
                }
            }
            BUNDLE => self.bundle(size, address, input, out)?,
            _ if fetches(kind) => self.fetch(kind, size, address, input, out)?,
            PROCESS | 2..=9 | 18..=21 | 27 | 32..=46 => {}
            _ => return Err(input.damaged(format!("a record is of an unknown type ({kind})"))),
        }
        Ok(())
    }

    /// A part of the next instruction's machine code, in the bytes of the address.
    fn machine_code(&mut self, size: u16, address: u64, input: &Input) -> Result<(), TraceError> {
        let bytes = address.to_le_bytes();
        let code = bytes.get(..usize::from(size)).filter(|code| !code.is_empty());
        let code =
            code.ok_or_else(|| input.damaged("a record of machine code has an impossible length"))?;
        self.encoding.extend_from_slice(code);
        if self.encoding.len() > MAX_ENCODING_BYTES {
            return Err(input.damaged("an instruction's machine code is longer than 17 bytes"));
        }
        Ok(())
    }
}

/// Whether a record of this type executes an instruction.
fn fetches(kind: u16) -> bool {
    matches!(kind, INSTRUCTION..=RETURN | NO_FETCH..=SYSENTER | TAKEN_JUMP | UNTAKEN_JUMP)
}

impl DrMemTrace {
    fn fetch(
        &mut self,
        kind: u16,
        size: u16,
        pc: u64,
        input: &Input,
        out: &mut Builder,
    ) -> Result<(), TraceError> {
        let length = u8::try_from(size)
            .ok()
            .filter(|length| (1..=15).contains(length))
            .ok_or_else(|| input.damaged(format!("an instruction is {size} bytes long")))?;
        let branch = match kind {
            DIRECT_JUMP => Branch::Direct,
            INDIRECT_JUMP => Branch::Indirect,
            DIRECT_CALL => Branch::DirectCall,
            INDIRECT_CALL => Branch::IndirectCall,
            CONDITIONAL_JUMP | TAKEN_JUMP | UNTAKEN_JUMP => Branch::Conditional,
            RETURN => Branch::Return,
            _ => Branch::None,
        };
        if !self.encoding.is_empty() {
            if let Some(operands) =
                self.operands(length, branch).map_err(|what| input.damaged(what))?
            {
                out.learn(pc, length, operands).map_err(|what| input.damaged(what))?;
            }
            self.encoding.clear();
        }
        if self.next_pc != Some(pc) {
            out.end_block();
        }
        self.next_pc = Some(pc.wrapping_add(u64::from(length)));
        let operands = match out.known(pc, length) {
            Some(&Operands::Registers { reads, writes, .. }) => {
                Operands::Registers { reads, writes, branch }
            }
            Some(known) => known.clone(),
            // All that is known is that it branches.
            None if branch != Branch::None => {
                Operands::Registers { reads: [0; 4], writes: [0; 4], branch }
            }
            None => Operands::Unknown,
        };
        let instruction = Instruction { pc, length, operands };
        out.instruction(instruction).map_err(|what| input.damaged(what))?;
        if branch != Branch::None {
            // Its accesses may still follow; what comes after it starts a block.
            self.next_pc = None;
        }
        Ok(())
    }

    /// What the machine code says.
    fn operands(&self, length: u8, branch: Branch) -> Result<Option<Operands>, &'static str> {
        Ok(match self.code {
            Code::Synthetic => Some(regdeps::operands(&self.encoding, branch)?),
            Code::X86 if self.encoding.len() != usize::from(length) => {
                return Err("an instruction is not as long as its machine code");
            }
            Code::X86 => {
                let mut bytes = [0; 15];
                bytes[..usize::from(length)].copy_from_slice(&self.encoding);
                Some(Operands::X86(bytes))
            }
            Code::Other => None,
        })
    }

    /// Consecutive instructions, up to eight, of which only the lengths are given.
    fn bundle(
        &mut self,
        count: u16,
        lengths: u64,
        input: &Input,
        out: &mut Builder,
    ) -> Result<(), TraceError> {
        let lengths = lengths.to_le_bytes();
        let lengths = lengths
            .get(..usize::from(count))
            .ok_or_else(|| input.damaged("a bundle has more than eight instructions"))?;
        for &length in lengths {
            let pc = self
                .next_pc
                .ok_or_else(|| input.damaged("a bundle does not follow an instruction"))?;
            self.fetch(INSTRUCTION, u16::from(length), pc, input, out)?;
        }
        Ok(())
    }
}
