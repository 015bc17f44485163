//! Items come by epoch, whenever they were written.

mod common;

use common::{Executed, header, read};
use flatwalk_trace::{Block, Event, Instruction, Operands, Reader, Slice, Writer};

#[test]
fn late_slices_and_events_come_in_their_epoch() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("trace");
    let mut writer = Writer::create(&path, header()).expect("created");
    let instruction = Instruction { pc: 1, length: 1, operands: Operands::Unknown };
    let block = Block { instructions: [instruction].into(), accesses: [].into() };
    writer.define(block.clone()).expect("defined");
    let marker = |name: &str| Event::Marker { name: name.into() };
    let mut slice = |epoch, thread| {
        writer
            .slice(epoch, &Slice { thread, blocks: vec![0], addresses: vec![] })
            .expect("written");
    };
    slice(0, 0);
    slice(3, 0);
    slice(1, 1); // A thread that was blocked for two events.
    slice(3, 2);
    slice(0, 2); // Another, for three.
    slice(4, 0);
    for (epoch, name) in [(1, "one"), (4, "four"), (3, "three"), (2, "two"), (3, "three again")] {
        writer.event(epoch, &marker(name)).expect("written");
    }
    writer.finish().expect("finished");
    let mut reader = Reader::open(&path).expect("opened");
    let found = read(&mut reader).expect("read");
    let ran = |thread| Executed::Block { thread, id: 0, addresses: vec![] };
    let happened = |name| Executed::Event(marker(name));
    assert_eq!(
        found.execution,
        [
            ran(0),
            ran(2),
            happened("one"),
            ran(1),
            happened("two"),
            happened("three"),
            happened("three again"),
            ran(0),
            ran(2),
            happened("four"),
            ran(0),
        ]
    );
}

#[test]
fn a_long_trace_is_read_with_little_memory_in_the_same_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("trace");
    let mut writer = Writer::create(&path, header()).expect("created");
    let instruction = Instruction { pc: 1, length: 1, operands: Operands::Unknown };
    let access = flatwalk_trace::Access { instruction: 0, size: 8, store: false };
    let block = Block { instructions: [instruction].into(), accesses: [access].into() };
    writer.define(block).expect("defined");
    // Three payloads' worth of addresses that nothing can predict, in one slice.
    let count = 400_000_u64;
    let address = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let slice = Slice {
        thread: 7,
        blocks: vec![0; count as usize],
        addresses: (0..count).map(address).collect(),
    };
    writer.slice(0, &slice).expect("written");
    writer.finish().expect("finished");
    let mut reader = Reader::open(&path).expect("opened");
    let found = read(&mut reader).expect("read");
    assert_eq!(found.execution.len(), count as usize);
    for (number, executed) in found.execution.iter().enumerate() {
        let addresses = vec![address(number as u64)];
        assert_eq!(*executed, Executed::Block { thread: 7, id: 0, addresses });
    }
    reader.seek(399_999);
    assert_eq!(read(&mut reader).expect("read").execution.len(), 1);
}
