//! Damaged files: an error that says what, where and how to fix it, or exactly what was written;
//! never a panic, never anything else.

mod common;

use std::path::Path;

use common::parsers::{seal, unseal};
use common::{Executed, Expected, header, read, simple_block, small};
use flatwalk_trace::{Block, Event, Options, Reader, TraceError, Writer};

/// Opens, verifies, reads and seeks.
fn attempt(bytes: Vec<u8>) -> Result<(Expected, bool), TraceError> {
    let mut reader = Reader::from_bytes(Path::new("small.trace"), bytes)?;
    reader.verify(&mut |_, _| std::ops::ControlFlow::Continue(()))?;
    let found = read(&mut reader)?;
    reader.seek(0);
    assert_eq!(read(&mut reader)?, found);
    Ok((found, reader.ended_early()))
}

fn assert_message(error: &TraceError) {
    let message = error.to_string();
    assert!(message.starts_with("small.trace: "), "{message}");
    assert!(
        message.contains("byte")
            || matches!(error, TraceError::Foreign { .. } | TraceError::Empty { .. }),
        "{message}"
    );
}

#[test]
fn every_flipped_bit_is_noticed_or_harmless() {
    let (bytes, expected) = small();
    assert_eq!(attempt(bytes.clone()).expect("undamaged"), (expected, false));
    let expected = attempt(bytes.clone()).expect("undamaged").0;
    let mut harmless = 0;
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            match attempt(damaged) {
                Ok((found, ended_early)) => {
                    // Only the trailer, which is needed for nothing but finding the index.
                    assert!(ended_early && at >= bytes.len() - 32, "byte {at}");
                    assert_eq!(found, expected);
                    harmless += 1;
                }
                Err(error) => assert_message(&error),
            }
        }
    }
    assert_eq!(harmless, 32 * 8);
}

#[test]
fn every_truncation_gives_a_prefix_or_an_error() {
    let (bytes, expected) = small();
    let mut longest = 0;
    for length in 0..bytes.len() {
        match attempt(bytes[..length].to_vec()) {
            Ok((found, ended_early)) => {
                assert!(ended_early, "{length}");
                assert_eq!(found.blocks[..], expected.blocks[..found.blocks.len()]);
                // A late slice or event may be missing although what was written before it is present.
                let mut rest = expected.execution.iter();
                assert!(
                    found.execution.iter().all(|one| rest.any(|other| other == one)),
                    "{length}"
                );
                assert!(found.execution.len() >= longest, "{length}");
                longest = found.execution.len();
            }
            Err(error) => assert_message(&error),
        }
    }
    assert_eq!(longest, expected.execution.len());
}

#[test]
fn every_chunk_may_be_missing_doubled_or_swapped() {
    let (bytes, _) = small();
    let starts: Vec<usize> =
        (0..bytes.len() - 4).filter(|&at| &bytes[at..at + 4] == b"FWck").collect();
    assert!(starts.len() > 10);
    let chunks: Vec<&[u8]> = starts
        .iter()
        .zip(starts.iter().skip(1).chain([&(bytes.len() - 32)]))
        .map(|(&from, &to)| &bytes[from..to])
        .collect();
    let (head, tail) = (&bytes[..starts[0]], &bytes[bytes.len() - 32..]);
    let build = |chunks: &[&[u8]]| [head, &chunks.concat(), tail].concat();
    assert_eq!(build(&chunks), bytes);
    for at in 0..chunks.len() {
        let mut fewer = chunks.clone();
        fewer.remove(at);
        let mut more = chunks.clone();
        more.insert(at, chunks[at]);
        for changed in [fewer, more] {
            // Without the index the file is scanned as one that ended early, but every gap is noticed.
            if let Ok((_, ended_early)) = attempt(build(&changed)) {
                assert!(ended_early && at >= chunks.len() - 2, "chunk {at}");
            }
        }
        if at > 0 {
            let mut swapped = chunks.clone();
            swapped.swap(at, at - 1);
            let _ = attempt(build(&swapped)).map_err(|error| assert_message(&error));
        }
    }
}

#[test]
fn forged_lengths_allocate_nothing() {
    let (bytes, _) = small();
    for at in 0..bytes.len().min(400) {
        for value in [u32::MAX, i32::MAX as u32] {
            let mut forged = bytes.clone();
            if let Some(place) = forged.get_mut(at..at + 4) {
                place.copy_from_slice(&value.to_le_bytes());
            }
            let _ = attempt(forged);
        }
    }
}

#[test]
fn what_is_no_trace_is_told_apart() {
    let open = |bytes: &[u8]| {
        Reader::from_bytes(Path::new("small.trace"), bytes.to_vec()).expect_err("no trace")
    };
    assert!(matches!(open(b""), TraceError::Empty { .. }));
    assert!(matches!(open(b"\x89FWTR"), TraceError::Truncated { offset: 0, .. }));
    assert!(matches!(open(b"I  04001000,3\n"), TraceError::Foreign { .. }));
    let (mut future, _) = small();
    future[8] = 2;
    let error = open(&future);
    assert!(matches!(error, TraceError::Future { version: 2, supported: 1, .. }));
    assert!(error.to_string().contains("update flatwalk"));
}

#[test]
fn what_a_later_version_adds_is_not_damage() {
    let (bytes, _) = small();
    let unsealed = unseal(&bytes, &[1, 2, 3, 4, 5]);
    let events = (0..unsealed.len())
        .find(|&at| unsealed[at..].starts_with(b"FWck") && unsealed[at + 4] == 2)
        .expect("there are events");
    // The chunk's kind; and that of its first event, behind the header and the event's epoch.
    for (at, what) in [(events + 4, "a chunk"), (events + 81, "an event")] {
        let mut later = unsealed.clone();
        later[at] = 99;
        let error = attempt(seal(&later)).expect_err(what);
        assert!(matches!(error, TraceError::Later { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(what) && text.ends_with("update flatwalk"), "{text}");
        assert_message(&error);
    }
}

#[test]
fn a_writer_that_dies_leaves_what_it_flushed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("trace");
    let mut writer = Writer::create(&path, header()).expect("created");
    let id = writer.define(simple_block(0x1000, 2)).expect("defined");
    let slice = flatwalk_trace::Slice { thread: 0, blocks: vec![id], addresses: vec![8, 1 << 21] };
    writer.event(1, &Event::Marker { name: "here".into() }).expect("written");
    writer.slice(1, &slice).expect("written");
    writer.flush().expect("flushed");
    writer.slice(1, &slice).expect("written");
    drop(writer);
    let mut reader = Reader::open(&path).expect("it opens");
    assert!(reader.ended_early());
    let summary = reader.summary().clone();
    assert_eq!(
        (summary.instructions, summary.loads, summary.stores, summary.threads),
        (1, 1, 1, 1)
    );
    assert_eq!((summary.blocks, summary.code_bytes, summary.footprint_bytes), (1, 3, 3 << 12));
    assert_eq!(summary.touched, [(0, 4 << 20)]);
    assert_eq!(summary.events["marker"], 1);
    assert!(summary.hash.starts_with("partial-"));
    reader.verify(&mut |_, _| std::ops::ControlFlow::Continue(())).expect("it is sound");
    let found = read(&mut reader).expect("it is read");
    assert_eq!(
        found.execution,
        [
            Executed::Event(Event::Marker { name: "here".into() }),
            Executed::Block { thread: 0, id: 0, addresses: vec![8, 1 << 21] }
        ]
    );
}

#[test]
fn the_writer_refuses_what_no_trace_can_hold() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("trace");
    let mut writer = Writer::create(&path, header()).expect("created");
    let mut refuse = |block: Block, what: &str| {
        let error = writer.define(block).expect_err(what);
        assert!(error.to_string().contains(what), "{error}");
    };
    refuse(Block { instructions: [].into(), accesses: [].into() }, "no instructions");
    let mut bad = simple_block(0, 1);
    bad.accesses[0].instruction = 1;
    refuse(bad, "belongs to no instruction");
    let mut bad = simple_block(0, 1);
    bad.accesses[0].size = 0;
    refuse(bad, "size 0");
    let mut bad = simple_block(0, 0);
    bad.instructions[0].length = 2;
    refuse(bad, "longer than its length");
    let slice = |blocks, addresses| flatwalk_trace::Slice { thread: 0, blocks, addresses };
    writer.define(simple_block(0, 2)).expect("defined");
    let error = writer.slice(0, &slice(vec![1], vec![])).expect_err("undefined");
    assert!(error.to_string().contains("block 1"), "{error}");
    let error = writer.slice(0, &slice(vec![0], vec![1])).expect_err("an address is missing");
    assert!(error.to_string().contains("1 addresses"), "{error}");
    assert!(Writer::with_options(&path, header(), Options { level: 0 }).is_err());
}
