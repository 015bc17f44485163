//! Blocks that QEMU translates: the collector gets the definition of each once, and QEMU is asked to
//! call back when one of them runs.

use std::ffi::{c_uint, c_void};
use std::ops::Range;
use std::sync::Arc;

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpKind};
use rustc_hash::FxHashMap;

use crate::channel::control::CONTROL_DEFINE;
use crate::channel::word::access_word;
use crate::plugin::connection::send;
use crate::plugin::lock::Lock;
use crate::plugin::qemu::{
    AccessCallback, ExecuteCallback, LOADS_AND_STORES, NO_REGISTERS, Qemu, TranslatedInstruction,
    TranslationBlock,
};
use crate::x86;

/// Blocks that were translated, by their code: QEMU translates the same code many times over.
#[derive(Default)]
struct Definitions {
    numbers: FxHashMap<Arc<[u8]>, u32>,
    codes: Vec<Arc<[u8]>>,
}

static DEFINITIONS: Lock<Option<Definitions>> = Lock::new(None);

impl Definitions {
    /// The number of the block with this code, which the collector knows by then.
    fn number_of(&mut self, code: &[u8]) -> u32 {
        if let Some(&number) = self.numbers.get(code) {
            return number;
        }
        let number = self.codes.len() as u32;
        let code: Arc<[u8]> = code.into();
        send(CONTROL_DEFINE, &code);
        self.codes.push(code.clone());
        self.numbers.insert(code, number);
        number
    }
}

/// Sends a forked child's collector all definitions: QEMU's translations live on in the child, and so
/// must their numbers.
pub fn define_all() {
    DEFINITIONS.with(|definitions| {
        for code in &definitions.get_or_insert_default().codes {
            send(CONTROL_DEFINE, code);
        }
    });
}

/// The number of the block with this code, which the collector knows by then.
pub fn number_of(code: &[u8]) -> u32 {
    DEFINITIONS.with(|definitions| definitions.get_or_insert_default().number_of(code))
}

/// Whether QEMU can report an access by this instruction. Leaving the others alone spares helper
/// calls (floating point) the set-up that QEMU makes for instrumented ones.
fn may_access(factory: &mut InstructionInfoFactory, code: &[u8], pc: u64) -> bool {
    let instruction = Decoder::with_ip(64, code, pc, DecoderOptions::NONE).decode();
    instruction.is_invalid()
        || !factory.info(&instruction).used_memory().is_empty()
        || (0..instruction.op_count()).any(|i| instruction.op_kind(i) == OpKind::Memory)
}

/// Whether QEMU carries out an access of this instruction in a helper of its own, rather than in
/// the code that it generates. It does for atomic updates, the x87 unit's and other state, masks
/// and gathers, and may for what is not known here.
fn accesses_in_helper(code: &[u8], pc: u64) -> bool {
    use iced_x86::{CpuidFeature, FlowControl, Mnemonic};
    let instruction = Decoder::with_ip(64, code, pc, DecoderOptions::NONE).decode();
    let in_generated_code = |feature: &CpuidFeature| {
        matches!(
            feature,
            CpuidFeature::INTEL8086
                | CpuidFeature::INTEL186
                | CpuidFeature::INTEL286
                | CpuidFeature::INTEL386
                | CpuidFeature::INTEL486
                | CpuidFeature::X64
                | CpuidFeature::CMOV
                | CpuidFeature::MMX
                | CpuidFeature::SSE
                | CpuidFeature::SSE2
                | CpuidFeature::SSE3
                | CpuidFeature::SSSE3
                | CpuidFeature::SSE4_1
                | CpuidFeature::SSE4_2
                | CpuidFeature::AVX
                | CpuidFeature::AVX2
                | CpuidFeature::BMI1
                | CpuidFeature::BMI2
                | CpuidFeature::POPCNT
                | CpuidFeature::LZCNT
                | CpuidFeature::MOVBE
                | CpuidFeature::FMA
        )
    };
    let is_far = instruction.is_jmp_far_indirect()
        || instruction.is_call_far_indirect()
        || matches!(instruction.flow_control(), FlowControl::Interrupt | FlowControl::Exception)
        || matches!(
            instruction.mnemonic(),
            Mnemonic::Retf | Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq | Mnemonic::Enter
        );
    instruction.is_invalid()
        || is_far
        || instruction.has_lock_prefix()
        || instruction.mnemonic() == Mnemonic::Xchg
        || instruction.is_save_restore_instruction()
        || instruction.memory_index().is_vector_register()
        || matches!(
            instruction.mnemonic(),
            Mnemonic::Maskmovq
                | Mnemonic::Maskmovdqu
                | Mnemonic::Vmaskmovdqu
                | Mnemonic::Vmaskmovps
                | Mnemonic::Vmaskmovpd
                | Mnemonic::Vpmaskmovd
                | Mnemonic::Vpmaskmovq
        )
        || !instruction.cpuid_features().iter().all(in_generated_code)
}

/// An access of no interest.
unsafe extern "C" fn on_nothing(_: c_uint, _: u32, _: u64, _: *mut c_void) {}

/// Whether an instruction is a string instruction that repeats itself.
pub fn is_repeated(code: &[u8]) -> bool {
    x86::is_repeated(&Decoder::new(64, code, DecoderOptions::NONE).decode())
}

/// A block that is being translated.
pub struct NewBlock {
    block: *mut TranslationBlock,
    /// Its address, then length and bytes of each instruction: what the collector gets.
    pub definition: Vec<u8>,
    /// QEMU's handle of each instruction, its address, and where its bytes are in `definition`.
    handles: Vec<(*mut TranslatedInstruction, u64, Range<usize>)>,
}

impl NewBlock {
    /// Reads the block.
    ///
    /// # Safety
    /// QEMU is translating `block`.
    pub unsafe fn read(qemu: &Qemu, block: *mut TranslationBlock) -> NewBlock {
        // SAFETY: the caller's promise.
        let length = unsafe { (qemu.block_length)(block) };
        let mut definition = Vec::with_capacity(length * 6 + 8);
        let mut handles = Vec::with_capacity(length);
        for index in 0..length {
            // SAFETY: `index` is within the block; the data is as long as the instruction.
            unsafe {
                let handle = (qemu.block_instruction)(block, index);
                let size = (qemu.instruction_length)(handle);
                let bytes =
                    std::slice::from_raw_parts((qemu.instruction_data)(handle).cast::<u8>(), size);
                let address = (qemu.instruction_address)(handle);
                if index == 0 {
                    definition.extend_from_slice(&address.to_le_bytes());
                }
                definition.push(size as u8);
                definition.extend_from_slice(bytes);
                handles.push((handle, address, definition.len() - size..definition.len()));
            }
        }
        NewBlock { block, definition, handles }
    }

    /// Instructions.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Of each instruction: QEMU's handle, its address, its bytes.
    pub fn instructions(&self) -> impl Iterator<Item = (*mut TranslatedInstruction, u64, &[u8])> {
        self.handles
            .iter()
            .map(|(handle, address, bytes)| (*handle, *address, &self.definition[bytes.clone()]))
    }

    /// Has QEMU call `on_block` with the block's length when it begins, and for next to nothing else.
    ///
    /// QEMU 7.2 leaves in the vCPU a pointer to the callbacks for accesses of a helper that a block
    /// ended with, and frees them when it gives up its translations. So wherever a helper may look
    /// there, it has to find something.
    ///
    /// # Safety
    /// The block is still being translated, and the callback has QEMU's signature.
    pub unsafe fn count(&self, qemu: &Qemu, on_block: ExecuteCallback) {
        // SAFETY: the caller's promise; the handles are of this block.
        unsafe {
            (qemu.on_block)(self.block, on_block, NO_REGISTERS, self.len() as *mut c_void);
            let mut factory = InstructionInfoFactory::new();
            for (handle, address, bytes) in self.instructions() {
                if may_access(&mut factory, bytes, address) && accesses_in_helper(bytes, address) {
                    let nothing = std::ptr::null_mut();
                    (qemu.on_access)(handle, on_nothing, NO_REGISTERS, LOADS_AND_STORES, nothing);
                }
            }
        }
    }

    /// Has QEMU call `on_block` with `data` when the block begins, and `on_access` for each access.
    ///
    /// # Safety
    /// The block is still being translated, and the callbacks have QEMU's signatures.
    pub unsafe fn watch(
        &self,
        qemu: &Qemu,
        on_block: ExecuteCallback,
        data: *mut c_void,
        on_access: AccessCallback,
    ) {
        // SAFETY: the caller's promise; the handles are of this block.
        unsafe {
            (qemu.on_block)(self.block, on_block, NO_REGISTERS, data);
            let mut factory = InstructionInfoFactory::new();
            for (index, (handle, address, bytes)) in self.instructions().enumerate() {
                if may_access(&mut factory, bytes, address) {
                    // Both kinds at once: QEMU 7.2 sends loads to a callback that was registered for
                    // stores alone.
                    let word = access_word(index as u16) as *mut c_void;
                    (qemu.on_access)(handle, on_access, NO_REGISTERS, LOADS_AND_STORES, word);
                }
            }
        }
    }
}
