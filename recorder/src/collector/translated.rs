//! Translated blocks, and the ways in which they were executed.
//!
//! A block of the trace is what was really executed: the instructions, and exactly the accesses
//! that they made. One translated block of QEMU's thus becomes several of the trace's if its
//! accesses vary: a string instruction that does or does not reach its last iteration, or a block
//! that a fault left early.

use std::cell::OnceCell;

use flatwalk_recorder::channel::word::{ADDRESS_MASK, is_access, meta, meta_size};
use flatwalk_trace::{Access, Block, Instruction, Operands, Slice};

use crate::code::Code;
use crate::error::RecordError;
use crate::output::Output;

const NONE: u32 = u32::MAX;

/// A translated block.
pub struct Translated {
    instructions: Box<[Instruction]>,
    /// Its first variant, the latest used.
    first: u32,
    /// Ends in a system call: nothing more comes of it once the call is made.
    ends_in_call: bool,
    /// What only matters when its accesses are not as seen before.
    code: OnceCell<Box<Code>>,
}

impl Translated {
    /// Reads the payload of a definition record; `None` if it is malformed.
    fn parse(record: &[u8]) -> Option<Translated> {
        let (pc, mut rest) = record.split_first_chunk::<8>()?;
        let mut pc = u64::from_le_bytes(*pc);
        let mut instructions = Vec::new();
        while let Some((&length, tail)) = rest.split_first() {
            let (code, tail) = tail.split_at_checked(usize::from(length))?;
            let operands = if code.is_empty() {
                Operands::Unknown
            } else {
                let mut bytes = [0; 15];
                bytes.get_mut(..code.len())?.copy_from_slice(code);
                Operands::X86(bytes)
            };
            instructions.push(Instruction { pc, length, operands });
            pc = pc.wrapping_add(u64::from(length));
            rest = tail;
        }
        let last = instructions.last()?;
        let ends_in_call =
            matches!(last.operands, Operands::X86(code) if code.starts_with(&[0x0f, 0x05]));
        Some(Translated {
            instructions: instructions.into(),
            first: NONE,
            ends_in_call,
            code: OnceCell::new(),
        })
    }

    /// Where it begins.
    pub fn address(&self) -> u64 {
        self.instructions[0].pc
    }

    /// What its code says of its execution.
    pub fn code(&self) -> &Code {
        self.code.get_or_init(|| Box::new(Code::of(&self.instructions)))
    }
}

/// A way in which a translated block was executed.
pub struct Variant {
    /// The reported accesses: [`meta`] of each.
    metas: Box<[u32]>,
    /// How many reported accesses each access is joined of; `None`: one each.
    joined: Option<Box<[u8]>>,
    /// The trace's block; `NONE` if no instruction completed.
    id: u32,
    /// Instructions that completed.
    pub instructions: u32,
    /// Accesses of the instructions that completed.
    accesses: u32,
    /// The reported accesses alone say that this is how the block was executed.
    certain: bool,
    next: u32,
}

/// All translated blocks, by number, and their variants.
#[derive(Default)]
pub struct Blocks {
    translated: Vec<Translated>,
    variants: Vec<Variant>,
}

impl Blocks {
    /// Adds a translated block: the payload of a definition record.
    ///
    /// # Errors
    /// When the record is malformed.
    pub fn define(&mut self, record: &[u8]) -> Result<(), RecordError> {
        let block = Translated::parse(record)
            .ok_or(RecordError::Corrupt("a definition of code is malformed"))?;
        self.translated.push(block);
        Ok(())
    }

    /// The translated block of this number.
    pub fn get(&self, number: u32) -> Option<&Translated> {
        self.translated.get(number as usize)
    }

    /// The usual case: the variant that `block` had the time before, and the accesses that it makes, if
    /// `words`, which follow the block's, say that it was executed so again. `last`: no words follow them.
    #[inline]
    pub fn as_before<'a>(
        &self,
        block: &Translated,
        words: &'a [u64],
        last: bool,
    ) -> Option<(&Variant, &'a [u64])> {
        let variant = self.variants.get(block.first as usize).filter(|variant| variant.certain)?;
        let accesses = words.get(..variant.metas.len())?;
        let is_complete = match words.get(accesses.len()) {
            Some(&next) => !is_access(next),
            // Not so where a fault left the block before the call.
            None => {
                last || block.ends_in_call
                    && variant.instructions as usize == block.instructions.len()
            }
        };
        (variant.has_metas_of(accesses) && is_complete).then_some((variant, accesses))
    }

    /// The variant of translated block `number` that made `accesses`, before the block at
    /// `following`; a new one is defined. It becomes the block's first.
    ///
    /// # Errors
    /// When no instruction of the block can have made an access, or the trace cannot be written.
    pub fn variant(
        &mut self,
        number: u32,
        accesses: &[u64],
        following: Option<u64>,
        output: &mut Output,
    ) -> Result<&Variant, RecordError> {
        let translated = &mut self.translated[number as usize];
        let code = translated.code();
        let joined = count_pieces(accesses, code);
        let (count, certain) = code.completed(accesses, following);
        let (mut previous, mut current) = (NONE, translated.first);
        while let Some(variant) = self.variants.get(current as usize) {
            let next = variant.next;
            if variant.instructions == count as u32 && variant.is(accesses, joined.as_deref()) {
                if previous != NONE {
                    self.variants[previous as usize].next = next;
                    self.variants[current as usize].next = translated.first;
                    translated.first = current;
                }
                return Ok(&self.variants[current as usize]);
            }
            (previous, current) = (current, next);
        }
        let code = translated.code();
        if !code.could_make(accesses) {
            return Err(RecordError::Corrupt("an access is by no instruction of its block"));
        }
        // What a fault left undone comes again.
        let mut list = join_pieces(code, accesses, joined.as_deref());
        list.retain(|access| usize::from(access.instruction) < count);
        let made = list.len() as u32;
        let id = if count == 0 {
            NONE
        } else {
            output.define(Block {
                instructions: translated.instructions[..count].into(),
                accesses: list.into(),
            })?
        };
        let variant = Variant {
            metas: accesses.iter().map(|&word| meta(word)).collect(),
            joined,
            id,
            instructions: count as u32,
            accesses: made,
            certain,
            next: translated.first,
        };
        translated.first = self.variants.len() as u32;
        self.variants.push(variant);
        Ok(&self.variants[translated.first as usize])
    }
}

impl Variant {
    /// Whether these accesses are this variant's.
    fn is(&self, accesses: &[u64], joined: Option<&[u8]>) -> bool {
        accesses.len() == self.metas.len()
            && self.has_metas_of(accesses)
            && joined == self.joined.as_deref()
    }

    /// Whether each of these accesses is as this variant has it.
    #[inline]
    fn has_metas_of(&self, accesses: &[u64]) -> bool {
        accesses.iter().zip(&self.metas).all(|(&word, &wanted)| meta(word) == wanted)
    }

    /// Appends an execution to `slice`. The accesses are this variant's, except that their pieces
    /// may not be adjacent: then nothing is done, and false returned.
    #[inline]
    pub fn append(&self, accesses: &[u64], slice: &mut Slice) -> bool {
        if self.id == NONE {
            return true;
        }
        match &self.joined {
            None => {
                let made = &accesses[..self.accesses as usize];
                slice.addresses.extend(made.iter().map(|&word| word & ADDRESS_MASK));
            }
            Some(joined) => {
                let before = slice.addresses.len();
                let end = before + self.accesses as usize;
                let mut rest = accesses;
                for &pieces in joined {
                    let (group, tail) = rest.split_at(usize::from(pieces));
                    let adjacent = |pair: &[u64]| {
                        pair[1] & ADDRESS_MASK
                            == (pair[0] & ADDRESS_MASK) + u64::from(meta_size(meta(pair[0])))
                    };
                    if !group.windows(2).all(adjacent) {
                        slice.addresses.truncate(before);
                        return false;
                    }
                    slice.addresses.push(group[0] & ADDRESS_MASK);
                    rest = tail;
                }
                slice.addresses.truncate(end);
            }
        }
        slice.blocks.push(self.id);
        true
    }
}

/// How many reported accesses each access is made of. `None` if each is one.
fn count_pieces(accesses: &[u64], code: &Code) -> Option<Box<[u8]>> {
    let mut joined: Vec<u8> = Vec::new();
    let mut rest = accesses;
    while !rest.is_empty() {
        let pieces = code.pieces(rest);
        joined.push(pieces as u8);
        rest = &rest[pieces..];
    }
    (joined.len() < accesses.len()).then(|| joined.into())
}

/// The accesses that the reported ones are, given how many reported ones each is made of.
fn join_pieces(code: &Code, reported: &[u64], joined: Option<&[u8]>) -> Vec<Access> {
    let Some(joined) = joined else {
        return reported.iter().map(|access| code.access(std::slice::from_ref(access))).collect();
    };
    let mut rest = reported;
    let take = |&pieces: &u8| {
        let (access, tail) = rest.split_at(usize::from(pieces));
        rest = tail;
        code.access(access)
    };
    joined.iter().map(take).collect()
}
