//! From recorded words to blocks and slices.
//!
//! A block of the trace is what was really executed: the instructions, and exactly the accesses
//! that they made. One translated block of QEMU's thus becomes several of the trace's if its
//! accesses vary: a string instruction that does or does not reach its last iteration, or a block
//! that a fault left early.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use flatwalk_trace::{Block, Instruction, Operands, Slice, ThreadId, TraceError, Writer};

use crate::channel::{ADDRESS_MASK, Word, decode, epoch_word, is_access, meta, meta_size};
use crate::code::Code;

const NONE: u32 = u32::MAX;
/// More accesses than a translated block makes: 512 instructions that each store 512 bytes.
const MOST_ACCESSES: usize = 1 << 16;

/// What went wrong.
#[derive(Debug)]
pub enum DecodeError {
    /// The words are not what the recorder writes: the program overwrote them.
    Corrupt(&'static str),
    /// The trace could not be written.
    Trace(TraceError),
    /// The recorder found its own recording wrong.
    Wrong(String),
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
    /// Accesses of the instructions that completed.
    accesses: u32,
    /// The reported accesses alone say that this is how the block was executed.
    certain: bool,
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
        for word in words {
            if let Word::Joins(epoch) = decode(word) {
                // The latest block is still there, since its accesses may not all have come.
                let block = state.words.iter().rposition(|&w| matches!(decode(w), Word::Block(_)));
                let block = block.ok_or(DecodeError::Corrupt("no block is under way"))?;
                state.words.insert(block, epoch_word(epoch));
            } else {
                state.words.push(word);
            }
        }
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
                        && variant.certain
                        && let Some(accesses) = rest.get(..variant.metas.len())
                        && accesses
                            .iter()
                            .zip(&variant.metas)
                            .all(|(&word, &wanted)| meta(word) == wanted)
                        && match rest.get(accesses.len()) {
                            Some(&next) => !is_access(next),
                            // Not so where a fault left the block before the call.
                            None => {
                                last || translated.ends_in_call
                                    && variant.instructions as usize
                                        == translated.instructions.len()
                            }
                        }
                        && variant.append(accesses, &mut state.slice)
                    {
                        self.instructions += u64::from(variant.instructions);
                        at += 1 + accesses.len();
                        continue;
                    }
                    let length = rest.iter().position(|&word| !is_access(word));
                    if length.unwrap_or(rest.len()) > MOST_ACCESSES {
                        return Err(DecodeError::Corrupt("a block makes too many accesses"));
                    }
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
                Word::Access(..) | Word::Joins(_) | Word::Invalid => {
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
        let code = translated.code();
        let joined = join(accesses, code);
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
                return Ok(current);
            }
            (previous, current) = (current, next);
        }
        let code = translated.code();
        if !code.could_make(accesses) {
            return Err(DecodeError::Corrupt("an access is by no instruction of its block"));
        }
        let mut rest = accesses;
        let mut take = |pieces: usize| {
            let (access, tail) = rest.split_at(pieces);
            rest = tail;
            code.access(access)
        };
        let mut list: Vec<_> = match &joined {
            None => accesses.iter().map(|_| take(1)).collect(),
            Some(joined) => joined.iter().map(|&pieces| take(pieces.into())).collect(),
        };
        // What a fault left undone comes again.
        list.retain(|access| usize::from(access.instruction) < count);
        let made = list.len() as u32;
        let id = if count == 0 {
            NONE
        } else {
            writer.define(Block {
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

#[cfg(test)]
mod tests {
    use flatwalk_trace::Header;
    use proptest::prelude::*;

    use super::*;
    use crate::channel::{SIZE_POSITION, STORE_POSITION, access_word, block_word, joins_word};

    /// A block's address, and the lengths and bytes of its instructions.
    fn definition(code: &[&[u8]]) -> Vec<u8> {
        let mut record = 0x40_1000_u64.to_le_bytes().to_vec();
        for instruction in code {
            record.push(instruction.len() as u8);
            record.extend_from_slice(instruction);
        }
        record
    }

    /// `mov rax, [rdi]; movups xmm0, [rsi]; rep stosb; ret`
    fn block() -> Vec<u8> {
        definition(&[&[0x48, 0x8b, 0x07], &[0x0f, 0x10, 0x06], &[0xf3, 0xaa]])
    }

    fn writer(name: &str) -> Writer {
        let file = format!("flatwalk-decode-{}-{name}.fwt", std::process::id());
        let path = std::env::temp_dir().join(file);
        let header =
            Header { name: String::new(), origin: String::new(), architecture: String::new() };
        let writer = Writer::create(&path, header).unwrap();
        // It is written on all the same.
        std::fs::remove_file(path).unwrap();
        writer
    }

    fn load(instruction: u16, size_shift: u64, address: u64) -> u64 {
        access_word(instruction) | size_shift << SIZE_POSITION | address
    }

    #[test]
    fn words_may_come_one_by_one() {
        let words = [
            block_word(0),
            load(0, 3, 0x1000),
            load(1, 3, 0x2000),
            load(1, 3, 0x2008),
            load(2, 0, 0x3000) | 1 << STORE_POSITION,
            epoch_word(1),
            block_word(0),
        ];
        let mut writer = writer("one-by-one");
        let mut slices: Vec<Vec<(ThreadId, Vec<u64>)>> = Vec::new();
        for chunk in 1..=words.len() {
            let mut recording = Recording::default();
            recording.define(&block()).unwrap();
            for words in words.chunks(chunk) {
                recording.add(5, words.iter().copied(), &mut writer).unwrap();
            }
            let taken = recording.take_slices();
            slices.push(taken.into_values().flatten().map(|s| (s.thread, s.addresses)).collect());
        }
        assert_eq!(slices, vec![vec![(5, vec![0x1000, 0x2000, 0x3000])]; words.len()]);
    }

    #[test]
    fn a_block_joins_the_events_that_it_needed() {
        // Two blocks of epoch 0, of which the second is joined to 3 between its accesses; one of 3.
        let accesses = |at: u64| {
            [
                block_word(0),
                load(0, 3, at),
                load(1, 3, at + 0x1000),
                load(1, 3, at + 0x1008),
                load(2, 0, at + 0x2000) | 1 << STORE_POSITION,
            ]
        };
        let mut words = vec![epoch_word(0)];
        words.extend(accesses(0x10_0000));
        let mut second = accesses(0x20_0000).to_vec();
        second.insert(3, joins_word(3));
        second.insert(3, joins_word(2));
        words.extend(second);
        words.extend(accesses(0x30_0000));
        words.push(epoch_word(4));
        let mut writer = writer("joins");
        for chunk in 1..=words.len() {
            let mut recording = Recording::default();
            recording.define(&block()).unwrap();
            for words in words.chunks(chunk) {
                recording.add(5, words.iter().copied(), &mut writer).unwrap();
            }
            let taken = recording.take_slices().into_iter();
            let firsts = |slices: Vec<Slice>| -> Vec<u64> {
                slices.iter().flat_map(|slice| slice.addresses.iter().step_by(3)).copied().collect()
            };
            let taken: Vec<_> = taken.map(|(epoch, slices)| (epoch, firsts(slices))).collect();
            assert_eq!(taken, [(0, vec![0x10_0000]), (3, vec![0x20_0000, 0x30_0000])]);
        }
        let mut recording = Recording::default();
        let nowhere = recording.add(0, [joins_word(1)].into_iter(), &mut writer);
        assert!(matches!(nowhere, Err(DecodeError::Corrupt(_))));
    }

    #[test]
    fn what_a_fault_left_undone_comes_again_and_counts_once() {
        // `mov rax, [rdi]; add [rsi], rax`, of which the addition's store faults; it comes again alone.
        let (mov, add): (&[u8], &[u8]) = (&[0x48, 0x8b, 0x07], &[0x48, 0x01, 0x06]);
        let mut alone = 0x40_1003_u64.to_le_bytes().to_vec();
        alone.push(3);
        alone.extend_from_slice(add);
        // `stosb; rep stosb`, of which the repetition's first store faults.
        let repeated = definition(&[&[0xaa], &[0xf3, 0xaa]]);
        let mut rest = 0x40_1001_u64.to_le_bytes().to_vec();
        rest.extend_from_slice(&[2, 0xf3, 0xaa]);
        let store = |instruction, shift, at| load(instruction, shift, at) | 1 << STORE_POSITION;
        let words = [
            block_word(0),
            load(0, 3, 0x1000),
            load(1, 3, 0x2000),
            block_word(1),
            load(0, 3, 0x2000),
            store(0, 3, 0x2000),
            // Again, and then with a count of 0.
            block_word(2),
            store(0, 0, 0x3000),
            block_word(3),
            store(0, 0, 0x3001),
            block_word(3),
            block_word(1),
        ];
        let mut recording = Recording::default();
        for code in [&definition(&[mov, add]), &alone, &repeated, &rest] {
            recording.define(code).unwrap();
        }
        recording.add(0, words.into_iter(), &mut writer("again")).unwrap();
        let slices: Vec<_> = recording.take_slices().into_values().flatten().collect();
        assert_eq!(slices[0].addresses, [0x1000, 0x2000, 0x2000, 0x3000, 0x3001]);
        // mov; add; stosb; rep stosb; rep stosb without anything to do.
        assert_eq!(recording.instructions, 5);
    }

    proptest! {
        /// The recorded program may overwrite what was recorded.
        #[test]
        fn no_words_do_harm(
            words in prop::collection::vec(
                prop_oneof![
                    any::<u64>(),
                    (0..3_u32).prop_map(block_word),
                    (0..3_u64).prop_map(epoch_word),
                    (0..3_u64).prop_map(joins_word),
                    (0..5_u16, 0..8_u64, 0..40_u64).prop_map(|(i, size, at)| load(i, size, 8 * at)),
                ],
                0..200,
            ),
            record in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let mut recording = Recording::default();
            let mut writer = writer("harm");
            recording.define(&block()).unwrap();
            let _ = recording.define(&record);
            let understood = recording.add(0, words.into_iter(), &mut writer);
            prop_assert!(!matches!(understood, Err(DecodeError::Trace(_))));
            let ended = recording.end(&mut writer);
            prop_assert!(!matches!(ended, Err(DecodeError::Trace(_))));
            for slice in recording.take_slices().into_values().flatten() {
                prop_assert!(writer.slice(0, &slice).is_ok());
            }
        }
    }
}
