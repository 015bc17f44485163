//! What is written is what is read.

mod common;

use common::{Executed, read, read_file, steps, write};
use flatwalk_trace::{Options, Reader, Source};
use proptest::prelude::*;

proptest! {
    #[test]
    fn reads_back_in_order_of_epochs(steps in steps(), flush: bool, level in 1..=4) {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("trace");
        let (summary, expected) = write(&path, &steps, Options { level }, flush)?;
        prop_assert_eq!(read_file(&path)?, expected);
        let reader = Reader::open(&path)?;
        prop_assert!(!reader.ended_early());
        prop_assert_eq!(reader.summary(), &summary);
        prop_assert_eq!(reader.header(), &common::header());
    }

    #[test]
    fn the_hash_is_of_the_content_alone(steps in steps()) {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("trace");
        let (one, _) = write(&path, &steps, Options { level: 1 }, false)?;
        let (other, _) = write(&path, &steps, Options { level: 9 }, true)?;
        prop_assert_eq!(one, other);
    }

    #[test]
    fn seeks_to_any_instruction(steps in steps(), flush: bool, instruction: prop::sample::Index) {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("trace");
        let (summary, expected) = write(&path, &steps, Options::default(), flush)?;
        let target = instruction.index(summary.instructions as usize + 2) as u64;
        let mut reader = Reader::open(&path)?;
        if flush {
            reader.next_item()?;
        }
        reader.seek(target);
        let found = read(&mut reader)?;
        let mut at = 0;
        let mut wanted = Vec::new();
        for executed in expected.execution {
            if let Executed::Block { id, .. } = executed {
                at += expected.blocks[id as usize].instructions.len() as u64;
                if at <= target {
                    continue;
                }
            }
            wanted.push(executed);
        }
        prop_assert_eq!(found.blocks, expected.blocks);
        prop_assert_eq!(found.execution, wanted);
    }
}
