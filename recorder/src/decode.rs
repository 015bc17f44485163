//! From recorded words to blocks and slices.
//!
//! A block of the trace is what was really executed: the instructions, and exactly the accesses
//! that they made. One translated block of QEMU's thus becomes several of the trace's if its
//! accesses vary: a string instruction that does or does not reach its last iteration, or a block
//! that a fault left early.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use flatwalk_trace::{Block, Instruction, Operands, Slice, ThreadId, TraceError, Writer};

use crate::channel::{ADDRESS_MASK, Word, decode, is_access, meta, meta_size};
use crate::code::Code;

const NONE: u32 = u32::MAX;

/// What went wrong.
#[derive(Debug)]
pub enum DecodeError {
    /// The words are not what the recorder writes: the program overwrote them.
    Corrupt(&'static str),
    /// The trace could not be written.
    Trace(TraceError),
}

impl From<TraceError> for DecodeError {
    fn from(error: TraceError) -> DecodeError {
        DecodeError::Trace(error)
    }
}

/// A translated block.
struct Translated {
    instructions: Box<[Instruction]>,
    /// Its first variant, the latest used.
    first: u32,
    /// Ends in a system call: nothing more comes of it once the call is made.
    ends_in_call: bool,
    /// What only matters when its accesses are not as seen before.
    code: OnceCell<Box<Code>>,
}

impl Translated {
    fn code(&self) -> &Code {
        self.code.get_or_init(|| Box::new(Code::of(&self.instructions)))
    }
}

/// A way in which a translated block was executed.
struct Variant {
    /// The reported accesses: [`meta`] of each.
    metas: Box<[u32]>,
    /// How many reported accesses each access is joined of; `None`: one each.
    joined: Option<Box<[u8]>>,
    /// The trace's block; `NONE` if no instruction completed.
    id: u32,
    instructions: u32,
    next: u32,
}

/// A thread's words that are not yet decoded, and its slice under construction.
#[derive(Default)]
struct Thread {
    words: Vec<u64>,
    epoch: u64,
    slice: Slice,
}

/// Turns one process's words into the items of its trace.
#[derive(Default)]
pub struct Recording {
    translated: Vec<Translated>,
    variants: Vec<Variant>,
    threads: BTreeMap<ThreadId, Thread>,
    /// Finished slices by epoch, until all threads are known to have reached it.
    slices: BTreeMap<u64, Vec<Slice>>,
    /// Instructions decoded.
    pub instructions: u64,
}

impl Recording {
    /// Adds a translated block: the payload of a definition record.
    ///
    /// # Errors
    /// When the record is malformed.
    pub fn define(&mut self, record: &[u8]) -> Result<(), DecodeError> {
        let malformed = DecodeError::Corrupt("a definition of code is malformed");
        let Some((pc, mut rest)) = record.split_first_chunk::<8>() else { return Err(malformed) };
        let mut pc = u64::from_le_bytes(*pc);
        let mut instructions = Vec::new();
        while let Some((&length, tail)) = rest.split_first() {
            if length > 15 || tail.len() < usize::from(length) {
                return Err(malformed);
            }
            let (code, tail) = tail.split_at(usize::from(length));
            let operands = if code.is_empty() {
                Operands::Unknown
            } else {
                let mut bytes = [0; 15];
                bytes[..code.len()].copy_from_slice(code);
                Operands::X86(bytes)
            };
            instructions.push(Instruction { pc, length, operands });
            pc = pc.wrapping_add(u64::from(length));
            rest = tail;
        }
        let Some(last) = instructions.last() else { return Err(malformed) };
        let ends_in_call =
            matches!(last.operands, Operands::X86(code) if code.starts_with(&[0x0f, 0x05]));
        self.translated.push(Translated {
            instructions: instructions.into(),
            first: NONE,
            ends_in_call,
            code: OnceCell::new(),
        });
        Ok(())
    }

    /// Adds words of a thread, which follow those added before.
    ///
    /// # Errors
    /// When the words are malformed or the trace cannot be written.
    pub fn add(
        &mut self,
        thread: ThreadId,
        words: impl Iterator<Item = u64>,
        writer: &mut Writer,
    ) -> Result<(), DecodeError> {
        let mut state = self.threads.remove(&thread).unwrap_or_default();
        state.words.extend(words);
        let result = self.consume(thread, &mut state, writer, false);
        self.threads.insert(thread, state);
        result
    }

    /// Decodes what is left: no more words will come.
    ///
    /// # Errors
    /// As [`Recording::add`].
    pub fn end(&mut self, writer: &mut Writer) -> Result<(), DecodeError> {
        for (thread, mut state) in std::mem::take(&mut self.threads) {
            self.consume(thread, &mut state, writer, true)?;
            self.close(thread, &mut state);
        }
        Ok(())
    }

    /// Decodes all of a thread's words but its last block, which may still be executing; that too
    /// if it is `last` or can be seen to be complete.
    fn consume(
        &mut self,
        thread: ThreadId,
        state: &mut Thread,
        writer: &mut Writer,
        last: bool,
    ) -> Result<(), DecodeError> {
        let words = std::mem::take(&mut state.words);
        let mut at = 0;
        while let Some(&word) = words.get(at) {
            match decode(word) {
                Word::Epoch(epoch) => {
                    if epoch != state.epoch {
                        self.close(thread, state);
                        state.epoch = epoch;
                    }
                    at += 1;
                }
                Word::Block(number) => {
                    let Some(translated) = self.translated.get(number as usize) else {
                        return Err(DecodeError::Corrupt(
                            "a block was executed that was not defined",
                        ));
                    };
                    let rest = &words[at + 1..];
                    // The usual case first: just as the time before.
                    if let Some(variant) = self.variants.get(translated.first as usize)
                        && let Some(accesses) = rest.get(..variant.metas.len())
                        && accesses
                            .iter()
                            .zip(&variant.metas)
                            .all(|(&word, &wanted)| meta(word) == wanted)
                        && match rest.get(accesses.len()) {
                            Some(&next) => !is_access(next),
                            None => last || translated.ends_in_call,
                        }
                        && variant.append(accesses, &mut state.slice)
                    {
                        self.instructions += u64::from(variant.instructions);
                        at += 1 + accesses.len();
                        continue;
                    }
                    let length = rest.iter().position(|&word| !is_access(word));
                    if length.is_none() && !last {
                        break;
                    }
                    let reported = &rest[..length.unwrap_or(rest.len())];
                    let accesses = translated.code().own(reported);
                    let following =
                        rest[reported.len()..].iter().find_map(|&word| match decode(word) {
                            Word::Block(number) => self
                                .translated
                                .get(number as usize)?
                                .instructions
                                .first()
                                .map(|i| i.pc),
                            _ => None,
                        });
                    let variant = self.variant(number, accesses, following, writer)?;
                    let variant = &self.variants[variant as usize];
                    variant.append(accesses, &mut state.slice);
                    self.instructions += u64::from(variant.instructions);
                    at += 1 + reported.len();
                }
                Word::Access(..) | Word::Invalid => {
                    return Err(DecodeError::Corrupt("an access belongs to no block"));
                }
            }
        }
        state.words = words;
        state.words.drain(..at);
        Ok(())
    }

    /// Ends the slice under construction.
    fn close(&mut self, thread: ThreadId, state: &mut Thread) {
        if !state.slice.blocks.is_empty() {
            let slice = Slice { thread, ..std::mem::take(&mut state.slice) };
            self.slices.entry(state.epoch).or_default().push(slice);
        }
    }

    /// Takes the slices decoded so far, of all threads, by epoch.
    pub fn take_slices(&mut self) -> BTreeMap<u64, Vec<Slice>> {
        let mut threads = std::mem::take(&mut self.threads);
        for (&thread, state) in &mut threads {
            self.close(thread, state);
        }
        self.threads = threads;
        std::mem::take(&mut self.slices)
    }

    /// Gives back slices that are not yet to be written.
    pub fn put_back(&mut self, slices: BTreeMap<u64, Vec<Slice>>) {
        for (epoch, slices) in slices {
            self.slices.entry(epoch).or_default().splice(0..0, slices);
        }
    }

    /// The variant of translated block `number` that made `accesses`, before the block at
    /// `following`; a new one is defined. It becomes the block's first.
    fn variant(
        &mut self,
        number: u32,
        accesses: &[u64],
        following: Option<u64>,
        writer: &mut Writer,
    ) -> Result<u32, DecodeError> {
        let translated = &mut self.translated[number as usize];
        let joined = join(accesses, translated.code());
        let (mut previous, mut current) = (NONE, translated.first);
        while let Some(variant) = self.variants.get(current as usize) {
            let next = variant.next;
            if variant.is(accesses, joined.as_deref()) {
                if previous != NONE {
                    self.variants[previous as usize].next = next;
                    self.variants[current as usize].next = translated.first;
                    translated.first = current;
                }
                return Ok(current);
            }
            (previous, current) = (current, next);
        }
        let code = translated.code();
        let count = code.completed(accesses, following);
        let id = if count == 0 {
            NONE
        } else {
            let mut rest = accesses;
            let mut take = |pieces: usize| {
                let (access, tail) = rest.split_at(pieces);
                rest = tail;
                code.access(access)
            };
            let list = match &joined {
                None => accesses.iter().map(|_| take(1)).collect(),
                Some(joined) => joined.iter().map(|&pieces| take(pieces.into())).collect(),
            };
            writer.define(Block {
                instructions: translated.instructions[..count].into(),
                accesses: list,
            })?
        };
        let variant = Variant {
            metas: accesses.iter().map(|&word| meta(word)).collect(),
            joined,
            id,
            instructions: count as u32,
            next: translated.first,
        };
        translated.first = self.variants.len() as u32;
        self.variants.push(variant);
        Ok(translated.first)
    }
}

/// How many reported accesses each access is made of. `None` if each is one.
fn join(accesses: &[u64], code: &Code) -> Option<Box<[u8]>> {
    let mut joined: Vec<u8> = Vec::new();
    let mut rest = accesses;
    while !rest.is_empty() {
        let pieces = code.pieces(rest);
        joined.push(pieces as u8);
        rest = &rest[pieces..];
    }
    (joined.len() < accesses.len()).then(|| joined.into())
}

impl Variant {
    /// Whether these accesses are this variant's.
    fn is(&self, accesses: &[u64], joined: Option<&[u8]>) -> bool {
        accesses.len() == self.metas.len()
            && accesses.iter().zip(&self.metas).all(|(&word, &wanted)| meta(word) == wanted)
            && joined == self.joined.as_deref()
    }

    /// Appends an execution to `slice`. The accesses are this variant's, except that their pieces
    /// may not be adjacent: then nothing is done, and false returned.
    #[inline]
    fn append(&self, accesses: &[u64], slice: &mut Slice) -> bool {
        if self.id == NONE {
            return true;
        }
        match &self.joined {
            None => slice.addresses.extend(accesses.iter().map(|&word| word & ADDRESS_MASK)),
            Some(joined) => {
                let before = slice.addresses.len();
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
            }
        }
        slice.blocks.push(self.id);
        true
    }
}
