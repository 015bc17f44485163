//! Translation: what a block consists of is told to the collector once, and QEMU is told what to
//! call when the block runs.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpKind};
use rustc_hash::FxHashMap;

use crate::capture::{on_access, on_block};
use crate::channel::control::CONTROL_DEFINE;
use crate::channel::word::access_word;
use crate::interest;
use crate::lock::Lock;
use crate::process::{begin, send, setup};
use crate::qemu::{
    AccessCallback, ExecuteCallback, LOADS_AND_STORES, NO_REGISTERS, PluginId, Qemu,
    TranslatedInstruction, TranslationBlock,
};

/// Blocks that were translated, by their code: QEMU translates the same code many times over.
#[derive(Default)]
struct Translations {
    numbers: FxHashMap<Arc<[u8]>, u32>,
    codes: Vec<Arc<[u8]>>,
}

static TRANSLATIONS: Lock<Option<Translations>> = Lock::new(None);

impl Translations {
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

/// Tells a forked child's collector of all blocks: QEMU's translations live on in the child, and so
/// must their numbers.
pub fn define_all() {
    TRANSLATIONS.with(|translations| {
        for code in &translations.get_or_insert_default().codes {
            send(CONTROL_DEFINE, code);
        }
    });
}

/// Whether QEMU can report an access by this instruction. Leaving the others alone spares helper
/// calls (floating point) the set-up that QEMU makes for instrumented ones.
fn may_access(factory: &mut InstructionInfoFactory, code: &[u8], pc: u64) -> bool {
    let mut decoder = Decoder::with_ip(64, code, pc, DecoderOptions::NONE);
    let instruction = decoder.decode();
    instruction.is_invalid()
        || !factory.info(&instruction).used_memory().is_empty()
        || (0..instruction.op_count()).any(|i| instruction.op_kind(i) == OpKind::Memory)
}

/// Whether an instruction is a string instruction that repeats itself: QEMU executes each repetition on its
/// own.
pub fn is_repeated(code: &[u8]) -> bool {
    let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
    instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

/// A block that is being translated.
pub struct Fresh {
    block: *mut TranslationBlock,
    /// Its address, then length and bytes of each instruction: what the collector is told.
    pub code: Vec<u8>,
    /// QEMU's handle of each instruction, its address, and where its bytes are in `code`.
    handles: Vec<(*mut TranslatedInstruction, u64, Range<usize>)>,
}

impl Fresh {
    /// Reads the block.
    ///
    /// # Safety
    /// QEMU is translating `block`.
    pub unsafe fn read(qemu: &Qemu, block: *mut TranslationBlock) -> Fresh {
        // SAFETY: the caller's promise.
        let length = unsafe { (qemu.block_length)(block) };
        let mut code = Vec::with_capacity(length * 6 + 8);
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
                    code.extend_from_slice(&address.to_le_bytes());
                }
                code.push(size as u8);
                code.extend_from_slice(bytes);
                handles.push((handle, address, code.len() - size..code.len()));
            }
        }
        Fresh { block, code, handles }
    }

    /// Instructions.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// Of each instruction: QEMU's handle, its address, its bytes.
    pub fn instructions(&self) -> impl Iterator<Item = (*mut TranslatedInstruction, u64, &[u8])> {
        self.handles
            .iter()
            .map(|(handle, address, bytes)| (*handle, *address, &self.code[bytes.clone()]))
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

/// The number of the block with this code, which the collector is told of.
pub fn number_of(code: &[u8]) -> u32 {
    TRANSLATIONS.with(|translations| translations.get_or_insert_default().number_of(code))
}

/// QEMU translates a block.
///
/// # Safety
/// Called by QEMU with a block that it is translating.
pub unsafe extern "C" fn on_translate(_: PluginId, block: *mut TranslationBlock) {
    let qemu = &setup().qemu;
    begin();
    // SAFETY: QEMU keeps `block` valid during this callback, and calls back with the signature of each
    // function.
    unsafe {
        let fresh = Fresh::read(qemu, block);
        let number = number_of(&fresh.code);
        // Callbacks run in the order of registration: a start counts for the block that it is in.
        interest::watch_places(qemu, block, |place| {
            fresh.instructions().any(|(_, address, _)| address == place)
        });
        let data = u64::from(number) | (fresh.len() as u64) << 32;
        fresh.watch(qemu, on_block, data as *mut c_void, on_access);
        let mut instructions = fresh.instructions().peekable();
        while let Some((handle, _, bytes)) = instructions.next() {
            let next = instructions.peek().map(|&(_, address, bytes)| (address, bytes));
            interest::watch_marker(qemu, handle, bytes, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_string_instructions_are_told_from_others() {
        // rep stosb, rep movsq, repne scasb; stosb alone; pause and endbr64, which have the same prefix.
        let repeated: [&[u8]; 3] = [&[0xf3, 0xaa], &[0xf3, 0x48, 0xa5], &[0xf2, 0xae]];
        let others: [&[u8]; 3] = [&[0xaa], &[0xf3, 0x90], &[0xf3, 0x0f, 0x1e, 0xfa]];
        assert!(repeated.iter().all(|code| is_repeated(code)));
        assert!(!others.iter().any(|code| is_repeated(code)));
    }
}
