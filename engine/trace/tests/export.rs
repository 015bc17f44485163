//! What is exported to ChampSim, read as ChampSim reads it.

mod common;

use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;

use common::{header, read};
use flatwalk_trace::{
    Access, Block, Branch, Event, Exported, Format, Instruction, Operands, Reader, Slice, Writer,
    export_to_file, import_to_file, info,
};

fn x86(pc: u64, bytes: &[u8]) -> Instruction {
    let mut code = [0; 15];
    code[..bytes.len()].copy_from_slice(bytes);
    Instruction { pc, length: bytes.len() as u8, operands: Operands::X86(code) }
}

fn access(instruction: u16, store: bool) -> Access {
    Access { instruction, size: 8, store }
}

/// Writes blocks that run once each in order with these addresses.
fn write(path: &Path, blocks: &[(Block, &[u64])]) {
    let mut writer = Writer::create(path, header()).expect("created");
    for (block, addresses) in blocks {
        let id = writer.define(block.clone()).expect("defined");
        let slice = Slice { thread: 3, blocks: vec![id], addresses: addresses.to_vec() };
        writer.slice(0, &slice).expect("written");
    }
    writer.finish().expect("finished");
}

fn export(source: &Path, target: &Path) -> Exported {
    export_to_file(source, target, Format::ChampSim, &mut |_, _| ControlFlow::Continue(()))
        .expect("exported")
}

fn block(instructions: &[Instruction], accesses: &[Access]) -> Block {
    Block { instructions: instructions.into(), accesses: accesses.into() }
}

#[test]
fn a_branch_that_writes_more_registers_than_there_are_places_stays_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    let operands = Operands::Registers {
        reads: [6, 26, 0, 0],
        writes: [10, 6, 26, 0],
        branch: Branch::DirectCall,
    };
    write(&source, &[(block(&[Instruction { pc: 0x1000, length: 5, operands }], &[]), &[])]);
    export(&source, &target);
    let bytes = std::fs::read(&target).expect("read");
    assert_eq!((&bytes[8..12], &bytes[12..16]), (&[1, 1, 6, 26][..], &[6, 26, 0, 0][..]));
    // A short trace's architecture is known, too.
    let found = info(&target, false, &mut |_, _| ControlFlow::Continue(())).expect("read");
    assert_eq!(found.architecture, "x86_64");
}

#[test]
fn records_are_as_champsim_wants_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    let blocks: Vec<(Block, &[u64])> = vec![
        (
            block(
                &[
                    x86(0x1000, &[0x48, 0x03, 0x07]), // add rax, [rdi]
                    x86(0x1003, &[0x53]),             // push rbx
                    x86(0x1004, &[0x75, 0xfa]),       // jne 0x1000
                ],
                &[access(0, false), access(1, true)],
            ),
            &[0x7000, 0x8000],
        ),
        (block(&[x86(0x1000, &[0xeb, 0x0e])], &[]), &[]), // jmp 0x1010
        (block(&[x86(0x1010, &[0xe8, 0xeb, 0, 0, 0])], &[access(0, true)]), &[0x8008]), // call 0x1100
        (block(&[x86(0x1100, &[0xc3])], &[access(0, false)]), &[0x8008]),               // ret
        (block(&[x86(0x1015, &[0xff, 0xd0])], &[access(0, true)]), &[0x8008]),          // call rax
        (block(&[x86(0x1200, &[0xff, 0x25, 0, 0, 0, 0])], &[access(0, false)]), &[0x1206]), // jmp [rip]
        (block(&[x86(0x1300, &[0x74, 0x02])], &[]), &[]), // je, not taken
        (
            block(
                &[
                    x86(0x1302, &[0xf3, 0x48, 0xa5]), // rep movsq, three times
                    x86(0x1305, &[0x0f, 0x05]),       // syscall
                ],
                &[0, 1, 2, 3, 4, 5].map(|n| access(0, n % 2 == 1)),
            ),
            &[0x10, 0x20, 0x18, 0x28, 0x20, 0x30],
        ),
    ];
    write(&source, &blocks);
    let done = export(&source, &target);
    assert_eq!(done.instructions, 11);
    assert_eq!((done.loads, done.stores), (6, 5));
    assert_eq!((done.dropped_loads, done.dropped_stores), (0, 1));
    let bytes = std::fs::read(&target).expect("read");
    let records = bytes.as_chunks::<64>().0;
    let word = |record: &[u8; 64], at: usize| {
        u64::from_le_bytes(record[at..at + 8].try_into().expect("eight"))
    };
    let pcs: Vec<u64> = records.iter().map(|record| word(record, 0)).collect();
    assert_eq!(
        pcs,
        [0x1000, 0x1003, 0x1004, 0x1000, 0x1010, 0x1100, 0x1015, 0x1200, 0x1300, 0x1302, 0x1305]
    );
    // (branch, taken, writes, reads) by ChampSim's numbers: SP 6, FLAGS 25, IP 26, RDI 3, RBX 7, RAX 10.
    let registers: Vec<_> = records
        .iter()
        .map(|r| (r[8], r[9], [r[10], r[11]], [r[12], r[13], r[14], r[15]]))
        .collect();
    let sorted = |mut registers: [u8; 4]| {
        registers.sort_unstable_by(|a, b| b.cmp(a));
        registers
    };
    let expected: [(u8, u8, [u8; 2], [u8; 4]); 9] = [
        (0, 0, [10, 25], [10, 3, 0, 0]),
        (0, 0, [6, 0], [7, 6, 0, 0]),
        (1, 1, [26, 0], [26, 25, 0, 0]),
        (1, 1, [26, 0], [26, 0, 0, 0]),
        (1, 1, [6, 26], [26, 6, 0, 0]),
        (1, 1, [6, 26], [6, 0, 0, 0]),
        (1, 1, [6, 26], [26, 10, 6, 0]),
        (1, 1, [26, 0], [1, 0, 0, 0]),
        (1, 0, [26, 0], [26, 25, 0, 0]),
    ];
    for (number, (found, expected)) in registers.iter().zip(expected).enumerate() {
        assert_eq!((found.0, found.1, found.2, sorted(found.3)), expected, "record {number}");
    }
    assert_eq!((registers[10].0, registers[10].1), (0, 0), "a system call is not a branch");
    assert_eq!([word(&records[0], 32), word(&records[1], 16)], [0x7000, 0x8000]);
    assert_eq!([32, 40, 48, 56].map(|at| word(&records[9], at)), [0x10, 0x18, 0x20, 0]);
    assert_eq!([16, 24].map(|at| word(&records[9], at)), [0x20, 0x28]);

    // ChampSim's rules make the same branches of it.
    let imported = directory.path().join("imported");
    import_to_file(&target, &imported, Some(Format::ChampSim), &mut |_, _| {
        ControlFlow::Continue(())
    })
    .expect("imported");
    let found = read(&mut Reader::open(&imported).expect("open")).expect("read");
    let kinds: Vec<Branch> = found
        .blocks
        .iter()
        .flat_map(|block| &block.instructions)
        .filter_map(|instruction| match &instruction.operands {
            Operands::Registers { branch, .. } if *branch != Branch::None => Some(*branch),
            _ => None,
        })
        .collect();
    let expected = [
        Branch::Conditional,
        Branch::Direct,
        Branch::DirectCall,
        Branch::Return,
        Branch::IndirectCall,
        Branch::Indirect,
        Branch::Conditional,
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn a_round_trip_changes_nothing_whatever_the_compression() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = |name: &str| directory.path().join(name);
    // Instructions of ChampSim's own: what was imported can be exported unchanged.
    let mut bytes = Vec::new();
    for number in 0..3000_u64 {
        let taken = u8::from(number % 7 == 6);
        let mut record = [0; 64];
        record[0..8].copy_from_slice(&(0x40_0000 + number % 7 * 4).to_le_bytes());
        record[8..16].copy_from_slice(&if taken == 1 {
            [1, 1, 26, 0, 26, 25, 0, 0]
        } else {
            [0, 0, 10, 25, 10, 3, 0, 0]
        });
        if number % 3 == 0 {
            record[16..24].copy_from_slice(&(number * 64 + 8).to_le_bytes());
            record[32..40].copy_from_slice(&(number << 20 | 8).to_le_bytes());
        }
        bytes.extend(record);
    }
    // The last branch goes nowhere, so it is unknown whether it is taken.
    bytes.truncate(2999 * 64);
    std::fs::write(place("original"), &bytes).expect("written");
    let go_on = &mut |_: u64, _: u64| ControlFlow::Continue(());
    import_to_file(&place("original"), &place("own"), None, go_on).expect("imported");
    for (name, compressed) in [("raw.trace", false), ("a.gz", true), ("b.xz", true)] {
        let done = export(&place("own"), &place(name));
        assert_eq!((done.instructions, done.loads, done.stores), (2999, 1000, 1000));
        let file = std::fs::read(place(name)).expect("read");
        let mut found = Vec::new();
        match name {
            "a.gz" => flate2::read::GzDecoder::new(&file[..])
                .read_to_end(&mut found)
                .expect("decompressed"),
            "b.xz" => liblzma::read::XzDecoder::new(&file[..])
                .read_to_end(&mut found)
                .expect("decompressed"),
            _ => (&file[..]).read_to_end(&mut found).expect("copied"),
        };
        assert!(found == bytes, "{name}");
        assert_eq!(file.len() < bytes.len(), compressed);
        let again = info(&place(name), true, go_on).expect("known");
        let own = info(&place("own"), true, go_on).expect("known");
        assert_eq!(again.summary, own.summary);
    }
    // Straight from a foreign trace.
    export(&place("original"), &place("direct"));
    assert!(std::fs::read(place("direct")).expect("read") == bytes);
    let error = export_to_file(&place("own"), &place("c.bz2"), Format::ChampSim, go_on)
        .expect_err("not written");
    assert!(error.to_string().contains(".xz"), "{error}");
    export_to_file(&place("own"), &place("d"), Format::Lackey, go_on).expect_err("not written");
    assert!(!place("c.bz2").exists() && !place("d").exists());
}

#[test]
fn other_threads_are_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    let mut writer = Writer::create(&source, header()).expect("created");
    writer.define(block(&[x86(0x1000, &[0x90]), x86(0x1001, &[0x90])], &[])).expect("defined");
    for thread in [5, 1, 5, 2] {
        writer.slice(0, &Slice { thread, blocks: vec![0], addresses: vec![] }).expect("written");
    }
    writer.finish().expect("finished");
    let done = export(&source, &target);
    assert_eq!((done.instructions, done.other_threads), (4, 4));
    assert!(!done.ended_early);
    // One byte less, and the end is missing.
    let whole = std::fs::read(&source).expect("read");
    std::fs::write(&source, &whole[..whole.len() - 1]).expect("written");
    assert!(export(&source, &target).ended_early);
}

#[test]
fn a_gap_is_counted_and_no_branch_is_judged_across_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    let mut writer = Writer::create(&source, header()).expect("created");
    // jne 0x1000, and a block that does not follow it.
    writer.define(block(&[x86(0x1004, &[0x75, 0xfa])], &[])).expect("defined");
    writer.define(block(&[x86(0x9000, &[0x90])], &[])).expect("defined");
    let slice = |blocks| Slice { thread: 0, blocks, addresses: vec![] };
    writer.slice(0, &slice(vec![0, 1, 0])).expect("written");
    writer.event(1, &Event::Gap { instructions: 1000 }).expect("written");
    writer.event(2, &Event::Gap { instructions: 1 }).expect("written");
    writer.slice(2, &slice(vec![1])).expect("written");
    writer.finish().expect("finished");
    let done = export(&source, &target);
    assert_eq!((done.instructions, done.gap_instructions), (4, 1001));
    let records = std::fs::read(&target).expect("read");
    let taken: Vec<u8> = records.chunks(64).map(|record| record[9]).collect();
    assert_eq!(taken, [1, 0, 0, 0]);
}
