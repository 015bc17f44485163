//! DynamoRIO's drmemtrace: packed records of 12 bytes, type u16, size u16, address u64, raw, compressed or in
//! the members of a zip archive.
//!
//! Data accesses belong to the instruction before them. What changes nothing for virtual memory
//! (timestamps, processors, prefetches, cache flushes …) is skipped. A string instruction's further
//! iterations (`NO_FETCH`) add accesses to it and are not counted as instructions.

use rustc_hash::FxHashMap;

use super::Parser;
use super::builder::Builder;
use super::input::Input;
use crate::error::TraceError;
use crate::model::{Branch, Event, Instruction, Operands, ThreadId};

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

const MARKER_KERNEL_EVENT: u16 = 0;
const MARKER_KERNEL_TRANSFER: u16 = 1;
const MARKER_FILE_TYPE: u16 = 9;
const MARKER_VERSION: u16 = 12;
const MARKER_WINDOW: u16 = 14;

const FILE_FILTERED: u64 = 0x01 | 0x80 | 0x100;
const FILE_INSTRUCTIONS_ONLY: u64 = 0x04;
const FILE_X86_64: u64 = 0x40;

/// The newest version whose records are as described here.
const NEWEST_VERSION: u64 = 9;
/// Longest encoding of an instruction in any architecture, in bytes.
const MAX_ENCODING_BYTES: usize = 17;

#[derive(Default)]
pub(crate) struct DrMemTrace {
    /// Where the last instruction ended, within a block.
    next_pc: Option<u64>,
    threads: FxHashMap<u64, ThreadId>,
    /// Machine code by address: it is in the trace before an address's first execution in a chunk.
    code: FxHashMap<u64, (u8, [u8; 15])>,
    encoding: Vec<u8>,
    x86_64: bool,
    header: bool,
    footer: bool,
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
            return if self.footer {
                Ok(false)
            } else {
                Err(input.truncated("the trace, whose footer is missing,"))
            };
        };
        let (kind, size, address) = fields(record);
        if self.footer {
            return Err(input.damaged("a record follows the footer"));
        }
        if !self.header && kind != HEADER {
            return Err(input.damaged("the trace does not start with a header"));
        }
        if !self.encoding.is_empty() && !fetches(kind) && !matches!(kind, ENCODING | MARKER) {
            return Err(
                input.damaged("machine code is followed by something other than its instruction")
            );
        }
        self.record(kind, size, address, input, out)?;
        input.consume(12);
        Ok(true)
    }

    fn architecture(&self) -> &'static str {
        if self.x86_64 { "x86_64" } else { "unknown" }
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
            HEADER => {
                self.header = true;
                version(address, input)?;
            }
            MARKER => self.marker(size, address, input, out)?,
            THREAD => {
                out.thread(self.thread(address));
                self.next_pc = None;
            }
            THREAD_EXIT => {
                let thread = self.thread(address);
                out.event(Event::ThreadExit { thread });
                self.next_pc = None;
            }
            FOOTER => {
                self.footer = true;
                out.end_block();
            }
            ENCODING => self.machine_code(size, address, input)?,
            READ | WRITE => {
                let access = out.access(address, size, kind == WRITE);
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

    /// This trace's number of the thread with the identifier `id`.
    fn thread(&mut self, id: u64) -> ThreadId {
        let next = self.threads.len() as ThreadId;
        *self.threads.entry(id).or_insert(next)
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

fn version(version: u64, input: &Input) -> Result<(), TraceError> {
    if version > NEWEST_VERSION {
        return Err(TraceError::Foreign {
            path: input.path().to_owned(),
            what: format!(
                "a drmemtrace of version {version} at byte {}, but versions up to {NEWEST_VERSION} are known",
                input.offset()
            ),
            remedy: "update flatwalk, or record with an earlier DynamoRIO".into(),
        });
    }
    Ok(())
}

impl DrMemTrace {
    fn marker(
        &mut self,
        kind: u16,
        value: u64,
        input: &Input,
        out: &mut Builder,
    ) -> Result<(), TraceError> {
        let refuse = |what: &str, remedy: &str| TraceError::Foreign {
            path: input.path().to_owned(),
            what: format!("{what}, according to byte {}", input.offset()),
            remedy: remedy.into(),
        };
        match kind {
            MARKER_VERSION => version(value, input)?,
            MARKER_FILE_TYPE => {
                if value & FILE_FILTERED != 0 {
                    return Err(refuse(
                        "accesses were filtered out of this drmemtrace while it was recorded",
                        "record it without `-L0_filter`, `-L0I_filter` and `-L0D_filter`",
                    ));
                }
                if value & FILE_INSTRUCTIONS_ONLY != 0 {
                    return Err(refuse(
                        "this drmemtrace has instructions but no data accesses",
                        "record it without `-instr_only_trace`",
                    ));
                }
                self.x86_64 = value & FILE_X86_64 != 0;
            }
            // The program continues elsewhere, or after a gap.
            MARKER_KERNEL_EVENT | MARKER_KERNEL_TRANSFER | MARKER_WINDOW
                if self.encoding.is_empty() =>
            {
                out.end_block();
                self.next_pc = None;
            }
            _ => {}
        }
        Ok(())
    }

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
        if !self.encoding.is_empty() {
            if self.x86_64 {
                if self.encoding.len() != usize::from(length) {
                    return Err(input.damaged("an instruction is not as long as its machine code"));
                }
                let mut bytes = [0; 15];
                bytes[..usize::from(length)].copy_from_slice(&self.encoding);
                self.code.insert(pc, (length, bytes));
            }
            self.encoding.clear();
        }
        if self.next_pc != Some(pc) {
            out.end_block();
        }
        self.next_pc = Some(pc.wrapping_add(u64::from(length)));
        let branch = match kind {
            DIRECT_JUMP => Branch::Direct,
            INDIRECT_JUMP => Branch::Indirect,
            DIRECT_CALL => Branch::DirectCall,
            INDIRECT_CALL => Branch::IndirectCall,
            CONDITIONAL_JUMP | TAKEN_JUMP | UNTAKEN_JUMP => Branch::Conditional,
            RETURN => Branch::Return,
            _ => Branch::None,
        };
        let operands = match self.code.get(&pc) {
            Some(&(known, code)) if known == length => Operands::X86(code),
            // All that is known is that it branches.
            _ if branch != Branch::None => {
                Operands::Registers { reads: [0; 4], writes: [0; 4], branch }
            }
            _ => Operands::Unknown,
        };
        let instruction = Instruction { pc, length, operands };
        out.instruction(instruction).map_err(|what| input.damaged(what))?;
        if branch != Branch::None {
            // Its accesses may still follow; what comes after it starts a block.
            self.next_pc = None;
        }
        Ok(())
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
