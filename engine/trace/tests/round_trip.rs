//! What is written is what is read.

mod common;

use common::{Executed, read, read_file, steps, write};
use flatwalk_trace::{Event, Header, Options, Reader, Slice, Source, Writer};
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

#[test]
fn gaps_are_added_up_whether_or_not_the_trace_has_its_end() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("trace");
    let header = Header { segment_instructions: Some(1000), gap_pages: true, ..common::header() };
    let mut writer = Writer::create(&path, header).expect("created");
    let id = writer.define(common::simple_block(0x1000, 1)).expect("defined");
    let slice = Slice { thread: 0, blocks: vec![id], addresses: vec![8] };
    writer.event(1, &Event::Gap { instructions: 30 }).expect("written");
    writer.slice(1, &slice).expect("written");
    writer.event(2, &Event::Gap { instructions: 4 }).expect("written");
    let summary = writer.finish().expect("finished");
    assert_eq!((summary.instructions, summary.gap_instructions, summary.events["gap"]), (1, 34, 2));
    let whole = std::fs::read(&path).expect("read");
    for length in [whole.len(), whole.len() - 1] {
        let mut reader = Reader::from_bytes(&path, whole[..length].to_vec()).expect("opened");
        assert_eq!(reader.ended_early(), length < whole.len());
        assert_eq!(reader.info().instructions, Some(1));
        assert_eq!(reader.info().gap_instructions, 34);
        assert_eq!(reader.info().segment_instructions, Some(1000));
        assert!(reader.info().gap_pages);
        reader.verify(&mut |_, _| std::ops::ControlFlow::Continue(())).expect("sound");
    }
}
