//! What both programs ask about x86-64 instructions.

use iced_x86::Instruction;

/// Whether it is a string instruction that repeats itself: QEMU executes each repetition on its own.
pub fn is_repeated(instruction: &Instruction) -> bool {
    instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    #[test]
    fn repeated_string_instructions_are_distinguished_from_others() {
        // rep stosb, rep movsq, repne scasb; stosb alone; pause and endbr64, which have the same prefix.
        let repeated: [&[u8]; 3] = [&[0xf3, 0xaa], &[0xf3, 0x48, 0xa5], &[0xf2, 0xae]];
        let others: [&[u8]; 3] = [&[0xaa], &[0xf3, 0x90], &[0xf3, 0x0f, 0x1e, 0xfa]];
        let is_repeated =
            |code: &[u8]| is_repeated(&Decoder::new(64, code, DecoderOptions::NONE).decode());
        assert!(repeated.iter().all(|code| is_repeated(code)));
        assert!(!others.iter().any(|code| is_repeated(code)));
    }
}
