//! Export to ChampSim's `input_instr`; `import/champsim.rs` has the layout.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, InstructionInfo, InstructionInfoFactory, Mnemonic,
    OpAccess, Register,
};
use serde::{Deserialize, Serialize};

use crate::disk::Target;
use crate::error::TraceError;
use crate::files::{Opened, Progress};
use crate::import::Format;
use crate::import::champsim::{FLAGS, INSTRUCTION_POINTER, STACK_POINTER};
use crate::model::{Block, Branch, Event, Instruction, Item, Operands, ThreadId};

/// Stands for a register that ChampSim's rules for indirect branches want read, where the program
/// reads memory only.
const OTHER: u8 = 1;
const LOAD_SLOTS: usize = 4;
const STORE_SLOTS: usize = 2;
const RECORD_BYTES: usize = 64;

/// What an export wrote, and what it left out for want of room in ChampSim's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// Instructions written.
    pub instructions: u64,
    /// Loads written.
    pub loads: u64,
    /// Stores written.
    pub stores: u64,
    /// Loads left out: beyond the four that an instruction may have, or of address 0.
    pub dropped_loads: u64,
    /// Stores left out: beyond the two that an instruction may have, or to address 0.
    pub dropped_stores: u64,
    /// Executed instructions of which some registers were left out: beyond four read or two written.
    pub dropped_registers: u64,
    /// Instructions of threads other than the first that runs: a ChampSim trace has one thread.
    pub other_threads: u64,
    /// Instructions that are not in the trace: what is before and what is behind such a gap follow each
    /// other without a mark, which ChampSim's records have no room for.
    pub gap_instructions: u64,
    /// The end of the trace was missing; the rest was exported.
    pub ended_early: bool,
}

/// Exports a trace of any known format; `target` is compressed if its name ends in `.gz` or `.xz`, and
/// appears only when it is complete, and not for a trace without instructions.
///
/// # Errors
/// When the source cannot be read or is damaged; when the target cannot be written, or is to be of a
/// format that is not written; or `progress` asks to stop.
pub fn export_to_file(
    source: &Path,
    target: &Path,
    format: Format,
    progress: Progress<'_>,
) -> Result<Exported, TraceError> {
    let rejected = |what: &str| TraceError::Rejected { path: target.to_owned(), what: what.into() };
    if format != Format::ChampSim {
        return Err(rejected("only the format `champsim` can be exported to"));
    }
    let extension = target.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let extension = extension.to_ascii_lowercase();
    if matches!(extension.as_str(), "bz2" | "zst" | "zip" | "lz4") {
        return Err(rejected("give it a name that ends in .gz or .xz to compress it"));
    }
    let io = |error| TraceError::io(target, error);
    let mut source_trace = Opened::open(source)?;
    let (target_file, file) = Target::create(target)?;
    let file = BufWriter::new(file);
    let mut output = match extension.as_str() {
        "gz" => Output::Gzip(flate2::write::GzEncoder::new(file, flate2::Compression::fast())),
        "xz" => Output::Xz(liblzma::write::XzEncoder::new(file, 2)),
        _ => Output::Raw(file),
    };
    let mut exporter = Exporter::default();
    let mut records = Vec::new();
    while let Some(item) = source_trace.next_item()? {
        match item {
            Item::Define { block, .. } => {
                let template = exporter.template(&block);
                exporter.templates.push(template);
            }
            Item::Slice(slice) => {
                exporter.slice(slice.thread, &slice.blocks, &slice.addresses, &mut records);
                output.write(&records).map_err(io)?;
                records.clear();
                let (done, total) = source_trace.progress();
                if progress(done, total).is_break() {
                    return Err(TraceError::stopped(source));
                }
            }
            Item::Event(Event::Gap { instructions }) => {
                // Where the program went from here is not known.
                exporter.finish(&mut records);
                let total = &mut exporter.done.gap_instructions;
                *total = total.saturating_add(instructions);
            }
            Item::Event(_) => {}
        }
    }
    exporter.finish(&mut records);
    output.write(&records).and_then(|()| output.finish()).map_err(io)?;
    // Of nothing, no file is left: dropped, the target goes.
    if exporter.done.instructions > 0 {
        target_file.complete()?;
    }
    Ok(Exported { ended_early: source_trace.ended_early(), ..exporter.done })
}

enum Output {
    Raw(BufWriter<File>),
    Gzip(flate2::write::GzEncoder<BufWriter<File>>),
    Xz(liblzma::write::XzEncoder<BufWriter<File>>),
}

impl Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Raw(output) => output.write_all(bytes),
            Self::Gzip(output) => output.write_all(bytes),
            Self::Xz(output) => output.write_all(bytes),
        }
    }

    fn finish(self) -> std::io::Result<()> {
        match self {
            Self::Raw(mut output) => output.flush(),
            Self::Gzip(output) => output.finish()?.flush(),
            Self::Xz(output) => output.finish()?.flush(),
        }
    }
}

/// A block's records, but for the addresses and whether its branch is taken.
struct Template {
    records: Vec<[u8; RECORD_BYTES]>,
    /// Where in the records each access goes, if anywhere.
    slots: Vec<Option<usize>>,
    stores: Vec<bool>,
    dropped_registers: u64,
    branch: Branch,
    /// Where the block ends, if the last instruction's length is known.
    end: Option<u64>,
}

#[derive(Default)]
struct Exporter {
    templates: Vec<Template>,
    decoder: X86,
    thread: Option<ThreadId>,
    /// The last block's last record, which waits until it is known where the program goes.
    pending: Option<Pending>,
    done: Exported,
}

struct Pending {
    record: [u8; RECORD_BYTES],
    branch: Branch,
    end: Option<u64>,
}

impl Exporter {
    fn template(&mut self, block: &Block) -> Template {
        let mut template = Template {
            records: Vec::with_capacity(block.instructions.len()),
            slots: Vec::with_capacity(block.accesses.len()),
            stores: block.accesses.iter().map(|access| access.store).collect(),
            dropped_registers: 0,
            branch: Branch::None,
            end: None,
        };
        for instruction in &block.instructions {
            let registers = self.decoder.registers(instruction);
            let mut record = [0; RECORD_BYTES];
            record[0..8].copy_from_slice(&instruction.pc.to_le_bytes());
            record[8] = u8::from(registers.branch != Branch::None);
            record[10..12].copy_from_slice(&registers.writes.slots);
            record[12..16].copy_from_slice(&registers.reads.slots);
            template.records.push(record);
            template.dropped_registers +=
                u64::from(registers.reads.dropped || registers.writes.dropped);
            template.branch = registers.branch;
            template.end = (instruction.length > 0)
                .then(|| instruction.pc.wrapping_add(u64::from(instruction.length)));
        }
        let mut used = vec![[0_usize; 2]; block.instructions.len()];
        for access in &block.accesses {
            let index = usize::from(access.instruction);
            let (first, limit) = if access.store { (16, STORE_SLOTS) } else { (32, LOAD_SLOTS) };
            let count = &mut used[index][usize::from(access.store)];
            template
                .slots
                .push((*count < limit).then(|| index * RECORD_BYTES + first + 8 * *count));
            *count += 1;
        }
        template
    }

    fn slice(&mut self, thread: ThreadId, blocks: &[u32], addresses: &[u64], out: &mut Vec<u8>) {
        let exported = *self.thread.get_or_insert(thread) == thread;
        let mut addresses = addresses.iter();
        for &id in blocks {
            let template = &self.templates[id as usize];
            if !exported {
                self.done.other_threads += template.records.len() as u64;
                continue;
            }
            if let (Some(pending), Some(first)) = (self.pending.take(), template.records.first()) {
                put(out, &pending, Some(first));
            }
            let start = out.len();
            out.extend_from_slice(template.records.as_flattened());
            for ((&slot, &store), &address) in
                template.slots.iter().zip(&template.stores).zip(&mut addresses)
            {
                let done = &mut self.done;
                let (written, dropped) = if store {
                    (&mut done.stores, &mut done.dropped_stores)
                } else {
                    (&mut done.loads, &mut done.dropped_loads)
                };
                match slot {
                    // Address 0 is an empty slot to ChampSim.
                    Some(at) if address != 0 => {
                        out[start + at..start + at + 8].copy_from_slice(&address.to_le_bytes());
                        *written += 1;
                    }
                    _ => *dropped += 1,
                }
            }
            self.done.dropped_registers += template.dropped_registers;
            self.done.instructions += template.records.len() as u64;
            if let Some(&record) = out.last_chunk() {
                out.truncate(out.len() - RECORD_BYTES);
                self.pending = Some(Pending { record, branch: template.branch, end: template.end });
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if let Some(pending) = self.pending.take() {
            put(out, &pending, None);
        }
    }
}

/// Writes the last record of a block, now that the next block is known, unless the trace ends.
fn put(out: &mut Vec<u8>, pending: &Pending, next: Option<&[u8; RECORD_BYTES]>) {
    let mut record = pending.record;
    let taken = match (pending.branch, next) {
        (Branch::None, _) | (Branch::Conditional, None) => false,
        (Branch::Conditional, Some(next)) => {
            let [from, to] = [&record, next]
                .map(|record| record.first_chunk().copied().map_or(0, u64::from_le_bytes));
            // Of unknown length: it falls through to within the longest that there is.
            pending.end.map_or(!(1..=15).contains(&to.wrapping_sub(from)), |end| to != end)
        }
        _ => true,
    };
    record[9] = u8::from(taken);
    out.extend_from_slice(&record);
}

/// Registers as ChampSim numbers them, as many as there is room for.
#[derive(Clone, Copy)]
struct Slots<const N: usize> {
    slots: [u8; N],
    dropped: bool,
}

impl<const N: usize> Slots<N> {
    const NONE: Self = Self { slots: [0; N], dropped: false };

    fn add(&mut self, register: u8) {
        if register == 0 || self.slots.contains(&register) {
            return;
        }
        match self.slots.iter_mut().find(|slot| **slot == 0) {
            Some(slot) => *slot = register,
            None => self.dropped = true,
        }
    }
}

#[derive(Clone, Copy)]
struct Registers {
    reads: Slots<4>,
    writes: Slots<2>,
    branch: Branch,
}

impl Registers {
    /// The registers by which ChampSim recognises a branch of this kind, without those of its target.
    fn of(branch: Branch) -> Self {
        let mut registers = Self { reads: Slots::NONE, writes: Slots::NONE, branch };
        let (reads, writes): (&[u8], &[u8]) = match branch {
            Branch::None => (&[], &[]),
            Branch::Conditional => (&[INSTRUCTION_POINTER, FLAGS], &[INSTRUCTION_POINTER]),
            Branch::Direct => (&[INSTRUCTION_POINTER], &[INSTRUCTION_POINTER]),
            Branch::Indirect => (&[], &[INSTRUCTION_POINTER]),
            Branch::Return => (&[STACK_POINTER], &[STACK_POINTER, INSTRUCTION_POINTER]),
            Branch::DirectCall | Branch::IndirectCall => {
                (&[INSTRUCTION_POINTER, STACK_POINTER], &[STACK_POINTER, INSTRUCTION_POINTER])
            }
        };
        for &register in reads {
            registers.reads.add(register);
        }
        for &register in writes {
            registers.writes.add(register);
        }
        registers
    }
}

/// Decodes machine code.
struct X86(InstructionInfoFactory);

impl Default for X86 {
    fn default() -> Self {
        Self(InstructionInfoFactory::new())
    }
}

impl X86 {
    fn registers(&mut self, instruction: &Instruction) -> Registers {
        match &instruction.operands {
            Operands::Unknown => Registers::of(Branch::None),
            Operands::Registers { reads, writes, branch } => {
                // Where only the kind is known, ChampSim needs registers to see it.
                let known = *branch == Branch::None || writes.contains(&INSTRUCTION_POINTER);
                let mut registers = Registers::of(if known { Branch::None } else { *branch });
                registers.branch = *branch;
                let through = !known && matches!(branch, Branch::Indirect | Branch::IndirectCall);
                if through && *reads == [0; 4] {
                    registers.reads.add(OTHER);
                }
                // Any further register would make these something else to ChampSim.
                let fixed = matches!(branch, Branch::Direct | Branch::DirectCall | Branch::Return);
                if known || !fixed {
                    for &register in reads {
                        registers.reads.add(register);
                    }
                    // ChampSim knows branches by these, and there are two places.
                    let tells =
                        |register: &u8| [INSTRUCTION_POINTER, STACK_POINTER].contains(register);
                    if writes.contains(&INSTRUCTION_POINTER) {
                        for &register in writes.iter().filter(|register| tells(register)) {
                            registers.writes.add(register);
                        }
                    }
                    for &register in writes {
                        registers.writes.add(register);
                    }
                }
                registers
            }
            Operands::X86(code) => {
                let code = &code[..usize::from(instruction.length)];
                let decoded =
                    Decoder::with_ip(64, code, instruction.pc, DecoderOptions::NONE).decode();
                self.decoded(&decoded)
            }
        }
    }

    fn decoded(&mut self, instruction: &iced_x86::Instruction) -> Registers {
        let call = instruction.mnemonic() == Mnemonic::Call;
        let branch = match instruction.flow_control() {
            FlowControl::ConditionalBranch => Branch::Conditional,
            FlowControl::UnconditionalBranch => Branch::Direct,
            FlowControl::Call if call => Branch::DirectCall,
            FlowControl::IndirectBranch => Branch::Indirect,
            FlowControl::IndirectCall if call => Branch::IndirectCall,
            FlowControl::Return if instruction.mnemonic() == Mnemonic::Ret => Branch::Return,
            _ => Branch::None,
        };
        let mut registers = Registers::of(branch);
        let info = self.0.info(instruction);
        match branch {
            Branch::None => {
                add_used(info, &mut registers, |_| true);
                if instruction.rflags_read() != 0 {
                    registers.reads.add(FLAGS);
                }
                if instruction.rflags_modified() != 0 {
                    registers.writes.add(FLAGS);
                }
            }
            // Its target's registers; the stack pointer would make it something else to ChampSim.
            Branch::Indirect | Branch::IndirectCall => {
                let before = registers.reads.slots;
                add_used(info, &mut registers, |register| register != STACK_POINTER);
                if registers.reads.slots == before {
                    registers.reads.add(OTHER);
                }
            }
            // Any further register would make it something else to ChampSim.
            Branch::Conditional | Branch::Direct | Branch::DirectCall | Branch::Return => {}
        }
        registers
    }
}

fn add_used(info: &InstructionInfo, registers: &mut Registers, wanted: impl Fn(u8) -> bool) {
    for used in info.used_registers() {
        let number = number(used.register());
        if number == 0 || !wanted(number) {
            continue;
        }
        let (reads, writes) = match used.access() {
            OpAccess::Read | OpAccess::CondRead => (true, false),
            OpAccess::Write => (false, true),
            OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
            OpAccess::None | OpAccess::NoMemAccess => (false, false),
        };
        if reads {
            registers.reads.add(number);
        }
        if writes {
            registers.writes.add(number);
        }
    }
}

/// A register's number: those that ChampSim knows of have its numbers, and no other has. 0 for
/// registers that are not followed (segments, control, debug).
fn number(register: Register) -> u8 {
    let full = register.full_register();
    match full {
        Register::RDI => 3,
        Register::RSI => 4,
        Register::RBP => 5,
        Register::RSP => STACK_POINTER,
        Register::RBX => 7,
        Register::RDX => 8,
        Register::RCX => 9,
        Register::RAX => 10,
        Register::R8 => 11,
        Register::R9 => 12,
        Register::R10 => 13,
        Register::R11 => 14,
        Register::R12 => 15,
        Register::R13 => 16,
        Register::R14 => 17,
        Register::R15 => 18,
        _ if full.is_zmm() => 64 + full.number() as u8,
        _ if full.is_st() || full.is_mm() => 96 + full.number() as u8,
        _ if full.is_k() => 112 + full.number() as u8,
        _ => 0,
    }
}
