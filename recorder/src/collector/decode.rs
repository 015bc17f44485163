//! From recorded words to slices of the trace.

use std::collections::BTreeMap;

use flatwalk_recorder::channel::word::{Word, decode, epoch_word, is_access};
use flatwalk_trace::{Slice, ThreadId};

use crate::error::RecordError;
use crate::output::Output;
use crate::translated::{Blocks, Translated};

/// More accesses than a translated block makes: 512 instructions that each store 512 bytes.
const MOST_ACCESSES: usize = 1 << 16;

/// A thread's words that are not yet decoded, and its slice under construction.
#[derive(Default)]
struct Thread {
    words: Vec<u64>,
    epoch: u64,
    slice: Slice,
}

/// Turns one process's words into the items of its trace.
#[derive(Default)]
pub struct Decoder {
    blocks: Blocks,
    threads: BTreeMap<ThreadId, Thread>,
    /// Finished slices by epoch, until all threads are known to have reached it.
    slices: BTreeMap<u64, Vec<Slice>>,
    /// Instructions decoded.
    pub instructions: u64,
}

impl Decoder {
    /// Adds a translated block: the payload of a definition record.
    ///
    /// # Errors
    /// When the record is malformed.
    pub fn define(&mut self, record: &[u8]) -> Result<(), RecordError> {
        self.blocks.define(record)
    }

    /// Adds words of a thread, which follow those added before. They make slices of their own, so
    /// that those of several threads stay in the order in which they came.
    ///
    /// # Errors
    /// When the words are malformed or the trace cannot be written.
    pub fn add(
        &mut self,
        thread: ThreadId,
        words: impl Iterator<Item = u64>,
        output: &mut Output,
    ) -> Result<(), RecordError> {
        let mut state = self.threads.remove(&thread).unwrap_or_default();
        for word in words {
            if let Word::Joins(epoch) = decode(word) {
                // The latest block is still there, since its accesses may not all have come.
                let block = state.words.iter().rposition(|&w| matches!(decode(w), Word::Block(_)));
                let block = block.ok_or(RecordError::Corrupt("no block is under way"))?;
                state.words.insert(block, epoch_word(epoch));
            } else {
                state.words.push(word);
            }
        }
        let result = self.consume(thread, &mut state, output, false);
        self.close(thread, &mut state);
        self.threads.insert(thread, state);
        result
    }

    /// Decodes what is left: no more words will come.
    ///
    /// # Errors
    /// As [`Decoder::add`].
    pub fn end(&mut self, output: &mut Output) -> Result<(), RecordError> {
        for (thread, mut state) in std::mem::take(&mut self.threads) {
            self.consume(thread, &mut state, output, true)?;
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
        output: &mut Output,
        last: bool,
    ) -> Result<(), RecordError> {
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
                    let Some(block) = self.blocks.get(number) else {
                        return Err(RecordError::Corrupt(
                            "a block was executed that was not defined",
                        ));
                    };
                    let rest = &words[at + 1..];
                    if let Some((variant, accesses)) = self.blocks.as_before(block, rest, last)
                        && variant.append(accesses, &mut state.slice)
                    {
                        self.instructions += u64::from(variant.instructions);
                        at += 1 + accesses.len();
                        continue;
                    }
                    let length = rest.iter().position(|&word| !is_access(word));
                    if length.unwrap_or(rest.len()) > MOST_ACCESSES {
                        return Err(RecordError::Corrupt("a block makes too many accesses"));
                    }
                    if length.is_none() && !last {
                        break;
                    }
                    let reported = &rest[..length.unwrap_or(rest.len())];
                    let accesses = block.code().own(reported);
                    let following =
                        rest[reported.len()..].iter().find_map(|&word| match decode(word) {
                            Word::Block(number) => self.blocks.get(number).map(Translated::address),
                            _ => None,
                        });
                    let variant = self.blocks.variant(number, accesses, following, output)?;
                    variant.append(accesses, &mut state.slice);
                    self.instructions += u64::from(variant.instructions);
                    at += 1 + reported.len();
                }
                Word::Access(..) | Word::Joins(_) | Word::Invalid => {
                    return Err(RecordError::Corrupt("an access belongs to no block"));
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

    /// Takes the slices decoded so far, of all threads, by epoch, and each epoch's in the order in
    /// which their words came.
    pub fn take_slices(&mut self) -> BTreeMap<u64, Vec<Slice>> {
        std::mem::take(&mut self.slices)
    }

    /// Gives back slices that are not yet to be written.
    pub fn put_back(&mut self, slices: BTreeMap<u64, Vec<Slice>>) {
        for (epoch, slices) in slices {
            self.slices.entry(epoch).or_default().splice(0..0, slices);
        }
    }
}

#[cfg(test)]
mod tests {
    use flatwalk_recorder::channel::word::{
        SIZE_POSITION, STORE_POSITION, access_word, block_word, joins_word,
    };
    use flatwalk_trace::Header;
    use proptest::prelude::*;

    use super::*;

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

    fn output(name: &str) -> Output {
        let file = format!("flatwalk-decode-{}-{name}.fwt", std::process::id());
        let path = std::env::temp_dir().join(file);
        let output = Output::create(&path, Header::default()).unwrap();
        // It is written on all the same.
        std::fs::remove_file(path).unwrap();
        output
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
        let mut output = output("one-by-one");
        let mut slices: Vec<Vec<(ThreadId, Vec<u64>)>> = Vec::new();
        for chunk in 1..=words.len() {
            let mut decoder = Decoder::default();
            decoder.define(&block()).unwrap();
            for words in words.chunks(chunk) {
                decoder.add(5, words.iter().copied(), &mut output).unwrap();
            }
            let taken = decoder.take_slices();
            slices.push(taken.into_values().flatten().map(|s| (s.thread, s.addresses)).collect());
        }
        assert_eq!(slices, vec![vec![(5, vec![0x1000, 0x2000, 0x3000])]; words.len()]);
    }

    #[test]
    fn slices_of_threads_stay_in_the_order_in_which_they_came() {
        let mut output = output("order");
        let mut decoder = Decoder::default();
        decoder.define(&block()).unwrap();
        let words = [block_word(0), load(0, 3, 0x1000), load(1, 3, 0x2000), block_word(0)];
        for thread in [7, 2, 7, 7, 3] {
            decoder.add(thread, words.iter().copied(), &mut output).unwrap();
        }
        let slices: Vec<_> = decoder.take_slices().into_values().flatten().collect();
        let order: Vec<_> = slices.iter().map(|slice| slice.thread).collect();
        assert_eq!(order, [7, 2, 7, 7, 3]);
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
        let mut output = output("joins");
        for chunk in 1..=words.len() {
            let mut decoder = Decoder::default();
            decoder.define(&block()).unwrap();
            for words in words.chunks(chunk) {
                decoder.add(5, words.iter().copied(), &mut output).unwrap();
            }
            let taken = decoder.take_slices().into_iter();
            let firsts = |slices: Vec<Slice>| -> Vec<u64> {
                slices.iter().flat_map(|slice| slice.addresses.iter().step_by(3)).copied().collect()
            };
            let taken: Vec<_> = taken.map(|(epoch, slices)| (epoch, firsts(slices))).collect();
            assert_eq!(taken, [(0, vec![0x10_0000]), (3, vec![0x20_0000, 0x30_0000])]);
        }
        let mut decoder = Decoder::default();
        let nowhere = decoder.add(0, [joins_word(1)].into_iter(), &mut output);
        assert!(matches!(nowhere, Err(RecordError::Corrupt(_))));
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
        let mut decoder = Decoder::default();
        for code in [&definition(&[mov, add]), &alone, &repeated, &rest] {
            decoder.define(code).unwrap();
        }
        decoder.add(0, words.into_iter(), &mut output("again")).unwrap();
        let slices: Vec<_> = decoder.take_slices().into_values().flatten().collect();
        assert_eq!(slices[0].addresses, [0x1000, 0x2000, 0x2000, 0x3000, 0x3001]);
        // mov; add; stosb; rep stosb; rep stosb without anything to do.
        assert_eq!(decoder.instructions, 5);
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
            let mut decoder = Decoder::default();
            let mut output = output("harm");
            decoder.define(&block()).unwrap();
            let _ = decoder.define(&record);
            let understood = decoder.add(0, words.into_iter(), &mut output);
            prop_assert!(!matches!(understood, Err(RecordError::Trace(_))));
            let ended = decoder.end(&mut output);
            prop_assert!(!matches!(ended, Err(RecordError::Trace(_))));
            for slice in decoder.take_slices().into_values().flatten() {
                prop_assert!(output.slice(0, &slice).is_ok());
            }
        }
    }
}
