//! From a block's instructions to what the core needs of them: registers, latencies, control flow.
//!
//! x86-64 code is decoded with iced-x86, once per block. Latencies are those of Intel's Skylake as
//! measured by A. Fog ("Instruction tables", 2022), by class of instruction; division takes the
//! figure for 64-bit operands of moderate size.

use flatwalk_trace::{Access, Block, Branch, Instruction, Operands};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic, OpAccess, Register,
};

use crate::memory::line::LINE_SHIFT;

/// A register number that is always ready.
pub const NO_READ: u8 = 0;
/// A register number that nobody reads.
pub const NO_WRITE: u8 = 255;

/// Registers that an operation of few operands reads at most, for its addresses or otherwise.
pub const FEW_READS: usize = 3;
/// Registers that it writes at most.
pub const FEW_WRITES: usize = 2;

/// How an instruction transfers control, as the branch predictors see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// It does not.
    None,
    /// Taken or not.
    Conditional,
    /// Always to the same place.
    Jump,
    /// The same, and a return address is pushed.
    Call,
    /// To a place computed.
    IndirectJump,
    /// The same, and a return address is pushed.
    IndirectCall,
    /// To the return address.
    Return,
}

/// Operations by the way they take through the core. Most take a short one: they make one access or
/// none, and their operands are among the first [`FEW_READS`] of those that they read, and the first
/// [`FEW_WRITES`] of those that they write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No access; and no operands but `reads`.
    Plain,
    /// One load.
    Load,
    /// One store.
    Store,
    /// Any other.
    General,
}

/// One instruction as the core sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Registers that its addresses depend on; [`NO_READ`] for empty.
    pub address_reads: [u8; 3],
    /// Registers that its result depends on otherwise.
    pub reads: [u8; 4],
    /// Registers that it writes; [`NO_WRITE`] for empty.
    pub writes: [u8; 3],
    /// Cycles from operands to result, loads excluded.
    pub latency: u8,
    /// Number of data accesses that it makes.
    pub accesses: u16,
    /// Loads among them.
    pub loads: u16,
    /// Its first byte lies in another line of code than its predecessor's in the block.
    pub new_line: bool,
    /// Which way it takes through the core.
    pub kind: Kind,
    /// Virtual address.
    pub pc: u64,
}

impl Op {
    /// Finds out which way the operation takes. One that computes an address and accesses nothing
    /// waits for its registers as for any others.
    fn settle(&mut self) {
        let few_written = self.writes[FEW_WRITES..].iter().all(|&w| w == NO_WRITE);
        let few_read = self.reads[FEW_READS..].iter().all(|&r| r == NO_READ);
        self.kind = match (self.accesses, self.loads) {
            (0, _) if few_written => self.settle_plain(),
            (1, 0) if few_written && few_read => Kind::Store,
            (1, 1) if few_written && few_read => Kind::Load,
            _ => Kind::General,
        };
    }

    /// Puts all that an operation without accesses reads into `reads`, if that is few enough.
    fn settle_plain(&mut self) -> Kind {
        let mut reads = [NO_READ; 7];
        let mut slots = Slots::new(&mut reads);
        for register in self.reads.into_iter().chain(self.address_reads) {
            slots.add((register != NO_READ).then_some(register));
        }
        if slots.used > FEW_READS {
            return Kind::General;
        }
        self.reads.copy_from_slice(&reads[..4]);
        self.address_reads = [NO_READ; 3];
        Kind::Plain
    }
}

/// A block as the core sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedBlock {
    /// Its instructions.
    pub ops: Box<[Op]>,
    /// Addresses of the operations with [`Op::new_line`].
    pub lines: Box<[u64]>,
    /// All accesses of all instructions, in order.
    pub accesses: Box<[Access]>,
    /// Loads among them.
    pub loads: u32,
    /// What its last instruction does.
    pub control: Control,
    /// Address after its last instruction; `None` where lengths are unknown.
    pub fall_through: Option<u64>,
}

impl DecodedBlock {
    /// Virtual address of the first instruction.
    #[inline]
    pub fn pc(&self) -> u64 {
        self.ops[0].pc
    }

    /// Virtual address of the instruction that makes `access`, which is one of this block's.
    pub fn instruction(&self, access: &Access) -> u64 {
        self.ops[usize::from(access.instruction)].pc
    }
}

/// Decodes blocks.
pub struct BlockDecoder {
    factory: InstructionInfoFactory,
}

impl Default for BlockDecoder {
    fn default() -> Self {
        Self { factory: InstructionInfoFactory::new() }
    }
}

impl std::fmt::Debug for BlockDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockDecoder").finish_non_exhaustive()
    }
}

impl BlockDecoder {
    /// Decodes one block. Bytes that are not an instruction become an operation without operands: the
    /// program executed them, so a decoder that lags behind must not stop the run.
    pub fn decode(&mut self, block: &Block) -> DecodedBlock {
        let mut accesses = block.accesses.iter().peekable();
        let mut ops: Vec<Op> = Vec::with_capacity(block.instructions.len());
        let mut control = Control::None;
        for (index, instruction) in block.instructions.iter().enumerate() {
            let mut op = Op {
                address_reads: [NO_READ; 3],
                reads: [NO_READ; 4],
                writes: [NO_WRITE; 3],
                latency: 1,
                accesses: 0,
                loads: 0,
                new_line: ops.last().is_none_or(|previous| {
                    previous.pc >> LINE_SHIFT != instruction.pc >> LINE_SHIFT
                }),
                kind: Kind::General,
                pc: instruction.pc,
            };
            while let Some(access) = accesses.next_if(|a| usize::from(a.instruction) == index) {
                op.accesses += 1;
                op.loads += u16::from(!access.store);
            }
            control = match &instruction.operands {
                Operands::X86(bytes) => self.x86(instruction, bytes, &mut op),
                Operands::Registers { reads, writes, branch } => {
                    // Numbers of other origins use the whole range; ours are 0 and 255.
                    let number = |r: u8, none: u8| if r == 0 { none } else { r.min(254) };
                    op.reads = reads.map(|r| number(r, NO_READ));
                    for (to, &from) in op.writes.iter_mut().zip(writes.iter().filter(|&&w| w != 0))
                    {
                        *to = number(from, NO_WRITE);
                    }
                    if op.accesses > 0 {
                        // Which of them address memory is not said; waiting for all is safe.
                        op.address_reads.copy_from_slice(&op.reads[..3]);
                    }
                    match branch {
                        Branch::None => Control::None,
                        Branch::Conditional => Control::Conditional,
                        Branch::Direct => Control::Jump,
                        Branch::Indirect => Control::IndirectJump,
                        Branch::Return => Control::Return,
                        Branch::DirectCall => Control::Call,
                        Branch::IndirectCall => Control::IndirectCall,
                    }
                }
                Operands::Unknown => Control::None,
            };
            op.settle();
            ops.push(op);
        }
        let last = block.instructions.last();
        let fall_through =
            last.filter(|i| i.length > 0).map(|i| i.pc.wrapping_add(u64::from(i.length)));
        DecodedBlock {
            lines: ops.iter().filter(|op| op.new_line).map(|op| op.pc).collect(),
            ops: ops.into(),
            loads: block.accesses.iter().filter(|a| !a.store).count() as u32,
            accesses: block.accesses.clone(),
            control,
            fall_through,
        }
    }

    fn x86(&mut self, instruction: &Instruction, bytes: &[u8; 15], op: &mut Op) -> Control {
        let code = &bytes[..usize::from(instruction.length.min(15))];
        let decoded = Decoder::with_ip(64, code, instruction.pc, DecoderOptions::NONE).decode();
        if decoded.is_invalid() {
            return Control::None;
        }
        let info = self.factory.info(&decoded);
        let mut addresses = Slots::new(&mut op.address_reads);
        for memory in info.used_memory() {
            addresses.add(number(memory.base()));
            addresses.add(number(memory.index()));
        }
        let stack = decoded.is_stack_instruction();
        let mut reads = Slots::new(&mut op.reads);
        let mut writes = Slots::new(&mut op.writes);
        for used in info.used_registers() {
            let register = number(used.register());
            // A stack engine renames the implicit updates of RSP away (Intel optimisation manual,
            // section 2.3.2.5), so they form no chain.
            if stack && used.register().full_register() == Register::RSP {
                continue;
            }
            let (read, write) = match used.access() {
                OpAccess::Read | OpAccess::CondRead => (true, false),
                OpAccess::Write | OpAccess::CondWrite => (false, true),
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
                OpAccess::None | OpAccess::NoMemAccess => (false, false),
            };
            if read && !addresses.contains(register) {
                reads.add(register);
            }
            if write {
                writes.add(register);
            }
        }
        if decoded.rflags_read() != 0 {
            reads.add(Some(FLAGS));
        }
        if decoded.rflags_modified() != 0 {
            writes.add(Some(FLAGS));
        }
        op.latency = latency(decoded.mnemonic());
        match decoded.flow_control() {
            FlowControl::ConditionalBranch => Control::Conditional,
            FlowControl::UnconditionalBranch => Control::Jump,
            FlowControl::IndirectBranch => Control::IndirectJump,
            FlowControl::Return => Control::Return,
            FlowControl::Call if decoded.mnemonic() == Mnemonic::Call => Control::Call,
            FlowControl::IndirectCall => Control::IndirectCall,
            _ => Control::None,
        }
    }
}

/// A fixed number of register slots, filled without repetition; what does not fit is left out.
struct Slots<'a> {
    slots: &'a mut [u8],
    used: usize,
}

impl<'a> Slots<'a> {
    fn new(slots: &'a mut [u8]) -> Self {
        Self { slots, used: 0 }
    }

    fn contains(&self, register: Option<u8>) -> bool {
        register.is_some_and(|r| self.slots[..self.used].contains(&r))
    }

    fn add(&mut self, register: Option<u8>) {
        if let Some(register) = register
            && !self.contains(Some(register))
            && self.used < self.slots.len()
        {
            self.slots[self.used] = register;
            self.used += 1;
        }
    }
}

const FLAGS: u8 = 73;

/// Our number of an x86 register: general 1–16, vector 17–48, x87/MMX 49–64, mask 65–72, flags 73.
fn number(register: Register) -> Option<u8> {
    let full = register.full_register();
    let within = |first: Register| (full as usize - first as usize) as u8;
    if (Register::RAX..=Register::R15).contains(&full) {
        Some(1 + within(Register::RAX))
    } else if (Register::ZMM0..=Register::ZMM31).contains(&full) {
        Some(17 + within(Register::ZMM0))
    } else if (Register::ST0..=Register::ST7).contains(&full) {
        Some(49 + within(Register::ST0))
    } else if (Register::MM0..=Register::MM7).contains(&full) {
        Some(57 + within(Register::MM0))
    } else if (Register::K0..=Register::K7).contains(&full) {
        Some(65 + within(Register::K0))
    } else {
        None
    }
}

/// Latency by class of instruction, in cycles.
fn latency(mnemonic: Mnemonic) -> u8 {
    let name = format!("{mnemonic:?}");
    let name = name.strip_prefix('V').unwrap_or(&name).to_ascii_lowercase();
    let starts = |prefixes: &[&str]| prefixes.iter().any(|p| name.starts_with(p));
    let is_float = ["ss", "sd", "ps", "pd"].iter().any(|suffix| name.ends_with(suffix));
    if starts(&["idiv", "div"]) && !is_float {
        26
    } else if starts(&["sqrt"]) {
        18
    } else if starts(&["div", "fdiv", "fsqrt"]) {
        14
    } else if starts(&["imul", "mul", "pdep", "pext", "popcnt", "lzcnt", "tzcnt", "crc32"])
        && !is_float
    {
        3
    } else if starts(&["pmul", "pmadd", "psadbw"]) {
        5
    } else if starts(&["aes", "cvt", "round", "fmadd", "fmsub", "fnmadd", "fnmsub", "fadd", "fsub"])
        || starts(&["fmul"])
        || is_float && starts(&["add", "sub", "mul", "max", "min", "cmp"])
    {
        4
    } else if starts(&["perm", "inserti128", "extracti128", "broadcast", "comis", "ucomis"]) {
        3
    } else if starts(&["movmsk", "pmovmsk", "movd", "movq"]) {
        2
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(code: &[u8], accesses: &[Access]) -> DecodedBlock {
        let mut bytes = [0; 15];
        bytes[..code.len()].copy_from_slice(code);
        let instruction =
            Instruction { pc: 0x1000, length: code.len() as u8, operands: Operands::X86(bytes) };
        let block = Block { instructions: [instruction].into(), accesses: accesses.into() };
        BlockDecoder::default().decode(&block)
    }

    #[test]
    fn operands_of_a_read_modify_write() {
        // add [rbx + rcx*8], rdx
        let accesses = [
            Access { instruction: 0, size: 8, store: false },
            Access { instruction: 0, size: 8, store: true },
        ];
        let block = decode(&[0x48, 0x01, 0x14, 0xcb], &accesses);
        let op = block.ops[0];
        let rbx = number(Register::RBX).unwrap();
        let rcx = number(Register::RCX).unwrap();
        let rdx = number(Register::RDX).unwrap();
        assert_eq!(op.address_reads, [rbx, rcx, NO_READ]);
        assert_eq!(op.reads, [rdx, NO_READ, NO_READ, NO_READ]);
        assert_eq!(op.writes, [FLAGS, NO_WRITE, NO_WRITE]);
        assert_eq!((op.accesses, op.loads, op.latency), (2, 1, 1));
        assert_eq!(block.fall_through, Some(0x1004));
    }

    #[test]
    fn zeroing_breaks_dependences_and_pushes_form_no_chain() {
        let zero = decode(&[0x31, 0xc0], &[]).ops[0]; // xor eax, eax
        assert_eq!(zero.reads, [NO_READ; 4]);
        let push = decode(&[0x53], &[Access { instruction: 0, size: 8, store: true }]).ops[0];
        assert_eq!(push.writes, [NO_WRITE; 3]); // push rbx
        assert_eq!(push.reads[0], number(Register::RBX).unwrap());
    }

    #[test]
    fn control_flow() {
        let control = |code: &[u8]| decode(code, &[]).control;
        assert_eq!(control(&[0x74, 0x10]), Control::Conditional);
        assert_eq!(control(&[0xeb, 0x10]), Control::Jump);
        assert_eq!(control(&[0xe8, 0, 0, 0, 0]), Control::Call);
        assert_eq!(control(&[0xff, 0xd0]), Control::IndirectCall);
        assert_eq!(control(&[0xff, 0xe0]), Control::IndirectJump);
        assert_eq!(control(&[0xc3]), Control::Return);
        assert_eq!(control(&[0x0f, 0x05]), Control::None); // syscall
        assert_eq!(control(&[0x06]), Control::None); // no instruction in 64-bit mode
    }

    #[test]
    fn latencies_by_class() {
        assert_eq!(latency(Mnemonic::Add), 1);
        assert_eq!(latency(Mnemonic::Imul), 3);
        assert_eq!(latency(Mnemonic::Idiv), 26);
        assert_eq!(latency(Mnemonic::Vdivsd), 14);
        assert_eq!(latency(Mnemonic::Vfmadd231sd), 4);
        assert_eq!(latency(Mnemonic::Addsd), 4);
        assert_eq!(latency(Mnemonic::Vpaddd), 1);
        assert_eq!(latency(Mnemonic::Pmuludq), 5);
    }
}
