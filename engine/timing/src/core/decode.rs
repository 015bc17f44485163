//! From a block's instructions to what the core needs of them: registers, latencies, control flow.
//!
//! x86-64 code is decoded with iced-x86, once per block. Latencies are those of Intel's Skylake as
//! measured by A. Fog ("Instruction tables", 2022), by class of instruction; division takes the
//! figure for 64-bit operands of moderate size.

use flatwalk_trace::{Access, Block, Branch, Instruction, Operands};
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic, OpAccess, Register,
    RflagsBits,
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
    /// Pointers and the count of a string instruction, which it moves on whatever it loads: they
    /// are among those that its addresses depend on. [`NO_WRITE`] for empty.
    pub pointers: [u8; 3],
    /// Cycles from operands to result, loads excluded. What only moves what it loads needs none.
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
    /// All registers that it writes, and [`NO_WRITE`].
    pub fn written(&self) -> impl Iterator<Item = u8> {
        self.writes.into_iter().chain(self.pointers)
    }

    /// Finds out which way the operation takes. One that computes an address and accesses nothing
    /// waits for its registers as for any others.
    fn settle(&mut self) {
        let few_written = self.writes[FEW_WRITES..].iter().all(|&w| w == NO_WRITE)
            && self.pointers == [NO_WRITE; 3];
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
                pointers: [NO_WRITE; 3],
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
            let only_loads = op.loads > 0 && op.loads == op.accesses;
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
                    // What it does is not said. Most loads are moves, and arithmetic changes flags.
                    if only_loads && *branch == Branch::None && !writes.contains(&FOREIGN_FLAGS) {
                        op.latency = 0;
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
                Operands::Unknown => {
                    op.latency = u8::from(!only_loads);
                    Control::None
                }
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
        let string = decoded.is_string_instruction();
        let mut reads = Slots::new(&mut op.reads);
        let mut writes = Slots::new(&mut op.writes);
        let mut pointers = Slots::new(&mut op.pointers);
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
            let count = used.register().full_register() == Register::RCX;
            if string && write && (count || addresses.contains(register)) {
                addresses.add(register);
                pointers.add(register);
                continue;
            }
            if read && !addresses.contains(register) {
                reads.add(register);
            }
            if write {
                writes.add(register);
            }
        }
        // The direction of string instructions is none of the flags that arithmetic writes.
        if decoded.rflags_read() & !RflagsBits::DF != 0 {
            reads.add(Some(FLAGS));
        }
        if decoded.rflags_modified() & !RflagsBits::DF != 0 {
            writes.add(Some(FLAGS));
        }
        let only_moves = op.loads > 0 && only_moves(decoded.mnemonic());
        op.latency = if only_moves { 0 } else { latency(decoded.mnemonic()) };
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
/// The flags' number where registers come by numbers: `ChampSim`'s, which all that we import have,
/// and our workloads.
const FOREIGN_FLAGS: u8 = 25;

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

/// An instruction's name, without the V of those for vectors.
fn name(mnemonic: Mnemonic) -> String {
    let name = format!("{mnemonic:?}");
    name.strip_prefix('V').unwrap_or(&name).to_ascii_lowercase()
}

/// Whether an instruction that loads puts what it loads somewhere and does nothing else with it.
/// The load's own latency has that: it is measured by moves, and load ports extend signs and fill
/// vectors themselves.
fn only_moves(mnemonic: Mnemonic) -> bool {
    let name = name(mnemonic);
    let starts = |prefixes: &[&str]| prefixes.iter().any(|p| name.starts_with(p));
    // Others swap bytes, or put half a vector next to the other half.
    starts(&["mov"]) && !starts(&["movbe", "movh", "movl"])
        || starts(&["lods", "broadcast", "pbroadcastd", "pbroadcastq"])
        || ["pop", "push", "leave", "lddqu", "fld"].contains(&name.as_str())
}

/// Latency by class of instruction, in cycles.
fn latency(mnemonic: Mnemonic) -> u8 {
    let name = name(mnemonic);
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
    fn string_instructions_move_pointers_whatever_they_load() {
        /// Code, its accesses, and the registers that are its pointers, read, and written.
        type Case<'a> = (&'a [u8], &'a [Access], &'a [u8], &'a [u8], &'a [u8]);
        let [rax, rcx, rsi, rdi] = [Register::RAX, Register::RCX, Register::RSI, Register::RDI]
            .map(|r| number(r).unwrap());
        let load = Access { instruction: 0, size: 1, store: false };
        let store = Access { store: true, ..load };
        let sorted = |mut registers: Vec<u8>| {
            registers.retain(|&register| register != NO_READ && register != NO_WRITE);
            registers.sort_unstable();
            registers
        };
        let codes: [Case<'_>; 6] = [
            (&[0xf3, 0xa4], &[load, store], &[rcx, rsi, rdi], &[], &[]), // rep movsb
            (&[0xaa], &[store], &[rdi], &[rax], &[]),                    // stosb
            (&[0xf3, 0xaa], &[store], &[rcx, rdi], &[rax], &[]),         // rep stosb
            (&[0x48, 0xad], &[load], &[rsi], &[], &[rax]),               // lodsq
            (&[0xf3, 0xa6], &[load, load], &[rcx, rsi, rdi], &[], &[FLAGS]), // repe cmpsb
            (&[0xf2, 0xae], &[load], &[rcx, rdi], &[rax], &[FLAGS]),     // repne scasb
        ];
        for (code, accesses, pointers, reads, writes) in codes {
            let op = decode(code, accesses).ops[0];
            assert_eq!(sorted(op.pointers.to_vec()), pointers, "{code:x?}");
            assert_eq!(sorted(op.address_reads.to_vec()), pointers, "{code:x?}");
            assert_eq!(sorted(op.reads.to_vec()), reads, "{code:x?}");
            assert_eq!(sorted(op.writes.to_vec()), writes, "{code:x?}");
            assert_eq!(op.kind, Kind::General);
        }
    }

    #[test]
    fn the_stacks_pointer_is_read_for_addresses_and_forms_no_chain() {
        /// Code, its accesses, and the register of its address, read, and written.
        type Case<'a> = (&'a [u8], &'a [Access], u8, u8, u8);
        let [rax, rbx, rsp, rbp] = [Register::RAX, Register::RBX, Register::RSP, Register::RBP]
            .map(|r| number(r).unwrap());
        let load = Access { instruction: 0, size: 8, store: false };
        let store = Access { store: true, ..load };
        let codes: [Case<'_>; 5] = [
            (&[0x53], &[store], rsp, rbx, NO_WRITE),       // push rbx
            (&[0x58], &[load], rsp, NO_READ, rax),         // pop rax
            (&[0xff, 0xd3], &[store], rsp, rbx, NO_WRITE), // call rbx
            (&[0xc3], &[load], rsp, NO_READ, NO_WRITE),    // ret
            (&[0xc9], &[load], rbp, NO_READ, rbp),         // leave
        ];
        for (code, accesses, address, read, written) in codes {
            let op = decode(code, accesses).ops[0];
            assert_eq!(op.address_reads, [address, NO_READ, NO_READ], "{code:x?}");
            assert_eq!(op.reads, [read, NO_READ, NO_READ, NO_READ], "{code:x?}");
            assert_eq!(op.writes, [written, NO_WRITE, NO_WRITE], "{code:x?}");
            assert_eq!(op.pointers, [NO_WRITE; 3]);
        }
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
    fn what_only_moves_what_it_loads_takes_no_time_of_its_own() {
        let latency = |code: &[u8], loads: bool| {
            let load = Access { instruction: 0, size: 8, store: false };
            decode(code, if loads { std::slice::from_ref(&load) } else { &[] }).ops[0].latency
        };
        let moves: [&[u8]; 9] = [
            &[0x48, 0x8b, 0x00],             // mov rax, [rax]
            &[0x0f, 0xb7, 0x00],             // movzx eax, word [rax]
            &[0x48, 0x0f, 0xbe, 0x00],       // movsx rax, byte [rax]
            &[0x58],                         // pop rax
            &[0xc9],                         // leave
            &[0xf3, 0x0f, 0x7e, 0x00],       // movq xmm0, [rax]
            &[0xc5, 0xfc, 0x10, 0x00],       // vmovups ymm0, [rax]
            &[0xc4, 0xe2, 0x7d, 0x18, 0x00], // vbroadcastss ymm0, [rax]
            &[0xdd, 0x00],                   // fld qword [rax]
        ];
        for code in moves {
            assert_eq!(latency(code, true), 0, "{code:x?}");
        }
        let others: [(&[u8], u8); 7] = [
            (&[0x48, 0x03, 0x00], 1),             // add rax, [rax]
            (&[0x48, 0x3b, 0x00], 1),             // cmp rax, [rax]
            (&[0x0f, 0x16, 0x00], 1),             // movhps xmm0, [rax]
            (&[0xc3], 1),                         // ret
            (&[0xf2, 0x0f, 0x58, 0x00], 4),       // addsd xmm0, [rax]
            (&[0xf3, 0x48, 0x0f, 0xb8, 0x00], 3), // popcnt rax, [rax]
            (&[0x48, 0xf7, 0x38], 26),            // idiv qword [rax]
        ];
        for (code, own) in others {
            assert_eq!(latency(code, true), own, "{code:x?}");
        }
        assert_eq!(latency(&[0x48, 0x89, 0x03], false), 1); // mov [rbx], rax
        assert_eq!(latency(&[0x66, 0x48, 0x0f, 0x6e, 0xc0], false), 2); // movq xmm0, rax
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
