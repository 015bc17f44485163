//! What the code of a translated block says of its execution, for the few times that this is asked:
//! when the block's accesses are not as they were before.

use flatwalk_recorder::channel::word::{
    ADDRESS_MASK, meta, meta_instruction, meta_size, meta_store,
};
use flatwalk_recorder::x86::is_repeated;
use flatwalk_trace::{Access, Instruction, Operands};
use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic, OpAccess};

/// The widest register.
const WIDEST_BYTES: u16 = 64;

/// A translated block's code.
pub struct Code {
    instructions: Box<[Expected]>,
    /// Addresses where execution can go on; `None`: anywhere.
    successors: Option<[u64; 2]>,
}

/// What an instruction says of its accesses.
#[derive(Clone, Copy, Default)]
struct Expected {
    /// Loads and stores that it makes at least if it completes; a string instruction that repeats itself,
    /// if its count is not 0.
    loads: u32,
    stores: u32,
    /// Where it is.
    address: u64,
    /// How long its memory operand is.
    operand_bytes: u16,
    /// Each element is an access of its own: it is a string instruction, or gathers.
    elements: bool,
    /// It stores the floating-point unit's state.
    saves_state: bool,
}

impl Code {
    /// Reads the code of a block.
    pub fn of(instructions: &[Instruction]) -> Code {
        let mut factory = InstructionInfoFactory::new();
        let mut successors = None;
        let instructions = instructions
            .iter()
            .map(|instruction| {
                let Operands::X86(code) = &instruction.operands else { return Expected::default() };
                let code = &code[..usize::from(instruction.length)];
                let decoded =
                    Decoder::with_ip(64, code, instruction.pc, DecoderOptions::NONE).decode();
                successors = successors_of(&decoded);
                Expected::of(&decoded, &mut factory)
            })
            .collect();
        Code { instructions, successors }
    }

    fn expected(&self, access: u64) -> Expected {
        let index = usize::from(meta_instruction(meta(access)));
        self.instructions.get(index).copied().unwrap_or_default()
    }

    /// Those of the reported accesses that the block itself made.
    ///
    /// When a signal is delivered, QEMU 7.2 saves the floating-point unit's state with the same code
    /// that carries out `fxsave`, and may report that as accesses of whatever came before. The
    /// kernel's stores they stand for are not the program's. They are recognised by how they begin.
    pub fn own<'a>(&self, accesses: &'a [u64]) -> &'a [u64] {
        const BEGINNING: [(u64, u16); 5] = [(0, 2), (2, 2), (4, 2), (8, 8), (16, 8)];
        let is_beginning = |window: &[u64]| {
            !self.expected(window[0]).saves_state
                && window.iter().zip(BEGINNING).all(|(&word, (offset, size))| {
                    meta_store(meta(word))
                        && meta_size(meta(word)) == size
                        && word & ADDRESS_MASK == (window[0] & ADDRESS_MASK) + offset
                })
        };
        let end = accesses.windows(BEGINNING.len()).position(is_beginning);
        &accesses[..end.unwrap_or(accesses.len())]
    }

    /// How many of the reported `accesses`, from the first, are one: QEMU reports those of vectors,
    /// and others that it carries out by itself, in adjacent pieces.
    pub fn pieces(&self, accesses: &[u64]) -> usize {
        let first = meta(accesses[0]);
        let expected = self.expected(accesses[0]);
        if expected.elements {
            return 1;
        }
        let mut bytes = meta_size(first);
        let mut count = 1;
        for &word in &accesses[1..] {
            let next = meta(word);
            if meta_instruction(next) != meta_instruction(first)
                || meta_store(next) != meta_store(first)
                || word & ADDRESS_MASK != (accesses[0] & ADDRESS_MASK) + u64::from(bytes)
                || bytes + meta_size(next) > WIDEST_BYTES
            {
                break;
            }
            bytes += meta_size(next);
            count += 1;
        }
        count
    }

    /// The access that the reported `pieces` are. No longer than the instruction's operand: QEMU 7.2
    /// loads 16 bytes where a fused multiply-add of scalars wants 8.
    pub fn access(&self, pieces: &[u64]) -> Access {
        let first = meta(pieces[0]);
        let bytes: u16 = pieces.iter().map(|&word| meta_size(meta(word))).sum();
        Access {
            instruction: meta_instruction(first),
            size: bytes.min(self.expected(pieces[0]).operand_bytes),
            store: meta_store(first),
        }
    }

    /// Whether the accesses are by instructions of this block, in their order.
    pub fn could_make(&self, accesses: &[u64]) -> bool {
        let instruction = |&word: &u64| usize::from(meta_instruction(meta(word)));
        accesses.is_sorted_by_key(instruction)
            && accesses.last().is_none_or(|last| instruction(last) < self.instructions.len())
    }

    /// How many instructions completed, given the accesses made and where execution went on; and whether
    /// the accesses alone say so.
    ///
    /// All of them, unless an instruction that must access memory did not make all its accesses, nor did
    /// any after it make one, and execution went on with it again, or not where the block leads: then a
    /// fault (or QEMU itself, to repeat the instruction alone) left the block there.
    pub fn completed(&self, accesses: &[u64], following: Option<u64>) -> (usize, bool) {
        let all = self.instructions.len();
        let reached = accesses.last().map_or(0, |&word| usize::from(meta_instruction(meta(word))));
        let undone =
            (reached..all).find(|&index| !self.instructions[index].is_done(index, accesses));
        let Some(undone) = undone else { return (all, true) };
        let goes_on = match (self.successors, following) {
            (Some(successors), Some(following)) => successors.contains(&following),
            _ => false,
        };
        let comes_again = following == Some(self.instructions[undone].address);
        (if goes_on && !comes_again { all } else { undone }, false)
    }
}

/// Addresses where execution can go on after an instruction; `None`: anywhere.
fn successors_of(decoded: &iced_x86::Instruction) -> Option<[u64; 2]> {
    let next = decoded.next_ip();
    match decoded.flow_control() {
        FlowControl::Next if is_repeated(decoded) => Some([decoded.ip(), next]),
        FlowControl::Next => Some([next, next]),
        FlowControl::ConditionalBranch => Some([decoded.near_branch_target(), next]),
        FlowControl::UnconditionalBranch | FlowControl::Call => {
            let target = decoded.near_branch_target();
            Some([target, target])
        }
        _ => None,
    }
}

impl Expected {
    /// Whether it made all the accesses that it must, as instruction `index` of its block.
    fn is_done(&self, index: usize, accesses: &[u64]) -> bool {
        let own =
            accesses.iter().filter(|&&word| usize::from(meta_instruction(meta(word))) == index);
        let (mut loads, mut stores) = (0, 0);
        for &word in own {
            *(if meta_store(meta(word)) { &mut stores } else { &mut loads }) += 1;
        }
        loads >= self.loads && stores >= self.stores
    }

    fn of(decoded: &iced_x86::Instruction, factory: &mut InstructionInfoFactory) -> Expected {
        use Mnemonic::{
            Cldemote, Clflush, Clflushopt, Clwb, Fxsave, Fxsave64, Prefetchnta, Prefetcht0,
            Prefetcht1, Prefetcht2, Prefetchw, Prefetchwt1, Xsave, Xsave64, Xsavec, Xsavec64,
            Xsaveopt, Xsaveopt64,
        };
        let info = factory.info(decoded);
        let repeated = u32::from(is_repeated(decoded));
        let (mut loads, mut stores) = (0, 0);
        for memory in info.used_memory() {
            use OpAccess::{CondRead, CondWrite, Read, ReadCondWrite, ReadWrite, Write};
            let (load, store) = match memory.access() {
                Read => (1, 0),
                Write => (0, 1),
                ReadWrite | ReadCondWrite => (1, 1),
                CondRead => (repeated, 0),
                CondWrite => (0, repeated),
                _ => (0, 0),
            };
            loads += load;
            stores += store;
        }
        let mnemonic = decoded.mnemonic();
        let hint = matches!(
            mnemonic,
            Prefetchnta
                | Prefetcht0
                | Prefetcht1
                | Prefetcht2
                | Prefetchw
                | Prefetchwt1
                | Clflush
                | Clflushopt
                | Clwb
                | Cldemote
        );
        let operand_bytes = decoded.memory_size().size() as u16;
        Expected {
            loads: if hint { 0 } else { loads },
            stores: if hint { 0 } else { stores },
            address: decoded.ip(),
            // Of implied operands (a push's) nothing is said; they are not in pieces.
            operand_bytes: if operand_bytes == 0 { u16::MAX } else { operand_bytes },
            elements: decoded.is_string_instruction() || decoded.is_vsib(),
            saves_state: matches!(
                mnemonic,
                Fxsave | Fxsave64 | Xsave | Xsave64 | Xsavec | Xsavec64 | Xsaveopt | Xsaveopt64
            ),
        }
    }
}
