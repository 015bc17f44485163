//! Foreign traces give exactly what their formats' descriptions say.

mod common;

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use common::foreign::champsim::{LINES, short};
use common::{Executed, Expected, read};
use flatwalk_trace::format::{MAX_ACCESS_BYTES, MAX_ADDRESS};
use flatwalk_trace::{
    Branch, Event, Format, Instruction, Operands, Reader, TraceError, import_to_file, info, open,
    open_bytes,
};

/// In two frames with checksums.
fn lz4(bytes: &[u8]) -> Vec<u8> {
    let info = lz4_flex::frame::FrameInfo::new().content_checksum(true).block_checksums(true);
    let (first, second) = bytes.split_at(bytes.len() / 3);
    let mut out = Vec::new();
    for part in [first, second] {
        let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info.clone(), &mut out);
        encoder.write_all(part).expect("compressed");
        encoder.finish().expect("compressed");
    }
    out
}

/// One executed instruction: what it is, and its accesses as (address, size, store).
type Ran = (Instruction, Vec<(u64, u16, bool)>);

/// Block structure is the importer's choice: instruction by instruction it must be the same.
fn ran(found: &Expected) -> Vec<(u32, Ran)> {
    let mut all = Vec::new();
    for executed in &found.execution {
        let Executed::Block { thread, id, addresses } = executed else { continue };
        let block = &found.blocks[*id as usize];
        let first = all.len();
        all.extend(
            block
                .instructions
                .iter()
                .map(|instruction| (*thread, (instruction.clone(), Vec::new()))),
        );
        for (access, &address) in block.accesses.iter().zip(addresses) {
            let (_, (_, accesses)) = &mut all[first + usize::from(access.instruction)];
            accesses.push((address, access.size, access.store));
        }
    }
    all
}

fn import(format: Format, bytes: &[u8]) -> Result<Expected, TraceError> {
    read(&mut *open_bytes(Path::new("foreign"), Some(format), bytes.to_vec())?)
}

fn fails(format: Format, bytes: &[u8], offset: u64, what: &str) {
    let error = import(format, bytes).expect_err(what);
    let message = error.to_string();
    assert!(message.starts_with("foreign: "), "{message}");
    assert!(message.contains(what), "{message}");
    assert!(message.contains(&format!("byte {offset}")), "{message}");
}

fn unknown(pc: u64, length: u8) -> Instruction {
    Instruction { pc, length, operands: Operands::Unknown }
}

mod champsim {
    use super::common::foreign::champsim::{LINES, Line, long, short};
    use super::*;

    fn expected() -> Vec<(u32, Ran)> {
        let kinds = [
            Branch::None,
            Branch::None,
            Branch::Conditional,
            Branch::DirectCall,
            Branch::Return,
            Branch::Indirect,
        ];
        // From what follows; 5 bytes are the usual call, and its return comes too late to change that.
        let lengths = [3, 2, 0, 5, 0, 0];
        let ran = |((line, branch), length): ((&Line, Branch), u8)| {
            let (pc, _, _, writes, reads, stores, loads) = *line;
            let operands =
                Operands::Registers { reads, writes: [writes[0], writes[1], 0, 0], branch };
            let used = |slots: &[u64], store| {
                let used = slots.iter().filter(|&&address| address != 0);
                used.map(|&address| (address, 1, store)).collect::<Vec<_>>()
            };
            (
                0,
                (
                    Instruction { pc, length, operands },
                    [used(&loads, false), used(&stores, true)].concat(),
                ),
            )
        };
        LINES.iter().zip(kinds).zip(lengths).map(ran).collect()
    }

    #[test]
    fn both_records() {
        assert_eq!(ran(&import(Format::ChampSim, &short(&LINES)).expect("short")), expected());
        assert_eq!(ran(&import(Format::CloudSuite, &long(&LINES)).expect("long")), expected());
    }

    #[test]
    fn an_address_like_the_mark_of_a_compressed_file_is_an_address() {
        // As the marks of gzip, zip and bzip2 begin.
        for pc in [0x40_8b1f, 0x40_4b50, 0x7f00_0101_4b50, 0x5555_3168_5a42] {
            let bytes = short(&[plain(pc), plain(pc + 4)]);
            let found = ran(&import(Format::ChampSim, &bytes).expect("not compressed"));
            let pcs: Vec<_> = found.iter().map(|(_, (instruction, _))| instruction.pc).collect();
            assert_eq!(pcs, [pc, pc + 4]);
        }
    }

    /// The lengths and kinds that these instructions are taken to have, in order of execution.
    fn learnt(lines: &[Line]) -> Vec<(u64, u8, Branch)> {
        let found = import(Format::ChampSim, &short(lines)).expect("read");
        let seen = |(_, (instruction, _)): (u32, Ran)| {
            let Operands::Registers { branch, .. } = instruction.operands else { unreachable!() };
            (instruction.pc, instruction.length, branch)
        };
        ran(&found).into_iter().map(seen).collect()
    }

    const NONE: [u64; 2] = [0; 2];

    fn plain(pc: u64) -> Line {
        (pc, 0, 0, [10, 0], [7, 0, 0, 0], NONE, [0; 4])
    }

    fn branch(pc: u64, taken: bool) -> Line {
        (pc, 1, u8::from(taken), [26, 0], [26, 25, 0, 0], NONE, [0; 4])
    }

    fn call(pc: u64, through: u8) -> Line {
        (pc, 1, 1, [6, 26], [26, 6, through, 0], [0x7000, 0], [0; 4])
    }

    fn ret(pc: u64) -> Line {
        (pc, 1, 1, [6, 26], [6, 0, 0, 0], NONE, [0x7000, 0, 0, 0])
    }

    #[test]
    fn what_lies_where_nothing_can_be_is_refused() {
        let mut operand = plain(0x100);
        operand.5[1] = u64::MAX;
        fails(Format::ChampSim, &short(&[plain(0x80), operand]), 128, "last 4 MiB");
        fails(Format::ChampSim, &short(&[plain(u64::MAX - 5)]), 64, "last 4 MiB");
    }

    #[test]
    fn a_load_where_nothing_can_be_was_a_prefetch() {
        let mut operand = plain(0x100);
        operand.6 = [u64::MAX, MAX_ADDRESS, MAX_ADDRESS + 1, 0];
        let found = ran(&import(Format::ChampSim, &short(&[operand])).expect("read"));
        assert_eq!(found[0].1.1, [(MAX_ADDRESS, 1, false)]);
    }

    #[test]
    fn a_conditional_branch_is_as_long_as_when_it_was_not_taken() {
        let taken_first = [branch(0x100, true), plain(0x200), branch(0x100, false), plain(0x106)];
        let lines = [&taken_first[..], &[branch(0x100, true), plain(0x200)]].concat();
        let lengths: Vec<_> =
            learnt(&lines).into_iter().map(|(pc, length, _)| (pc, length)).collect();
        let expected = [(0x100, 0), (0x200, 0), (0x100, 6), (0x106, 0), (0x100, 6), (0x200, 0)];
        assert_eq!(lengths, expected);
    }

    #[test]
    fn a_taken_branch_does_not_end_where_it_goes() {
        // Over one instruction of 3 bytes: it is known to be taken, so it is not 5 bytes long.
        let near = learnt(&[branch(0x100, true), plain(0x105), plain(0x108)]);
        assert_eq!(near[0], (0x100, 2, Branch::Conditional));
        let nearest = learnt(&[branch(0x100, true), plain(0x102)]);
        assert_eq!(nearest[0], (0x100, 6, Branch::Conditional));
        // Nor where it once ended: the code has changed.
        let changed = [branch(0x100, false), plain(0x105), branch(0x100, true), plain(0x105)];
        assert_eq!(learnt(&changed)[2], (0x100, 2, Branch::Conditional));
        // One that is not taken and goes elsewhere was interrupted.
        let interrupted = learnt(&[branch(0x100, false), plain(0x9000), plain(0x9002)]);
        assert_eq!(interrupted[0], (0x100, 0, Branch::None));
    }

    #[test]
    fn a_call_is_as_long_as_its_return_shows() {
        let once = |through| {
            // call 0x100, which calls 0x200 and returns; ret; back behind the first.
            [call(0x10, through), call(0x100, 0), ret(0x200), ret(0x105), plain(0x13)]
        };
        let indirect = learnt(&[once(9), once(9)].concat());
        assert_eq!(indirect[0], (0x10, 0, Branch::IndirectCall));
        assert_eq!(indirect[5], (0x10, 3, Branch::IndirectCall));
        assert_eq!((indirect[1], indirect[6]), ((0x100, 5, Branch::DirectCall), indirect[1]));
        assert_eq!(indirect[2], (0x200, 0, Branch::Return));
        let direct = learnt(&[once(0), once(0)].concat());
        assert_eq!([direct[0].1, direct[5].1], [5, 3]);
        // Returns without calls, and calls without end, say nothing.
        learnt(&[ret(0x10); 100]);
        learnt(&(0..1000).map(|n| call(n * 0x100, 0)).collect::<Vec<_>>());
    }

    #[test]
    fn damage() {
        let bytes = short(&LINES);
        fails(
            Format::ChampSim,
            &bytes[..100],
            64,
            "an instruction of 64 bytes at byte 64 is incomplete",
        );
        fails(
            Format::CloudSuite,
            &long(&LINES)[..100],
            96,
            "an instruction of 96 bytes at byte 96 is incomplete",
        );
        let mut flag = bytes;
        flag[64 + 8] = 2;
        fails(Format::ChampSim, &flag, 128, "branch flag");
    }

    #[test]
    fn is_recognised_compressed_or_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = |name: &str| directory.path().join(name);
        let repeated: Vec<_> = LINES.iter().cycle().take(6000).copied().collect();
        for (bytes, format) in
            [(short(&repeated), Format::ChampSim), (long(&repeated), Format::CloudSuite)]
        {
            let mut files = vec![place("raw")];
            std::fs::write(&files[0], &bytes).expect("written");
            let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gz.write_all(&bytes).expect("compressed");
            let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
            xz.write_all(&bytes).expect("compressed");
            let mut bz = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
            bz.write_all(&bytes).expect("compressed");
            let zst = zstd::encode_all(&bytes[..], 1).expect("compressed");
            let compressed = [gz.finish(), xz.finish(), bz.finish(), Ok(lz4(&bytes)), Ok(zst)];
            for (number, compressed) in compressed.into_iter().enumerate() {
                let compressed = compressed.expect("compressed");
                // Two files after each other are one, for all of them.
                files.push(place(&number.to_string()));
                std::fs::write(files.last().expect("pushed"), &compressed).expect("written");
                // Cut off and damaged, they are noticed.
                for end in [compressed.len() - 1, compressed.len() / 2] {
                    let error = import(format, &compressed[..end]).expect_err("it is cut off");
                    assert!(
                        matches!(error, TraceError::Truncated { .. } | TraceError::Damaged { .. }),
                        "{error}"
                    );
                }
                let mut damaged = compressed.clone();
                let middle = damaged.len() / 2;
                damaged[middle] ^= 0x10;
                // The zstd command adds checksums only when asked to.
                if number < 4 {
                    import(format, &damaged).expect_err("it is damaged");
                }
            }
            let mut hashes = Vec::new();
            for file in files {
                let found =
                    info(&file, false, &mut |_, _| ControlFlow::Continue(())).expect("it is known");
                assert_eq!(found.format, format);
                assert_eq!(
                    (found.summary.instructions, found.summary.loads, found.summary.stores),
                    (6000, 3000, 3000)
                );
                hashes.push(found.summary.hash.clone());
                let target = place("imported");
                let imported =
                    import_to_file(&file, &target, None, &mut |_, _| ControlFlow::Continue(()));
                assert_eq!(imported.expect("imported").summary, found.summary);
                let direct = read(&mut *open(&file).expect("open")).expect("read");
                let again = read(&mut Reader::open(&target).expect("open")).expect("read");
                assert_eq!(direct, again);
                assert_eq!(open(&file).expect("open").info().hash, found.summary.hash);
            }
            assert!(hashes.iter().all(|hash| *hash == hashes[0]));
        }
    }
}

mod drmemtrace {
    use super::common::foreign::drmemtrace::{
        LONG_CODE, code, plain, record, synthetic, trace, with_code, with_synthetic, zip,
    };
    use super::*;

    #[test]
    fn without_machine_code() {
        let found = import(Format::DrMemTrace, &trace(0x40, &plain())).expect("read");
        let branch = |pc, length, branch| Instruction {
            pc,
            length,
            operands: Operands::Registers { reads: [0; 4], writes: [0; 4], branch },
        };
        let copies =
            [0, 1].map(|n| [(0x7100_0000 + n, 1, false), (0x7200_0000 + n, 1, true)]).concat();
        assert_eq!(
            ran(&found),
            [
                (0, (unknown(0x1000, 3), vec![(0x7000_0000, 8, false)])),
                (0, (unknown(0x1003, 4), vec![(0x7000_0008, 4, false), (0x7000_0008, 4, true)])),
                (0, (branch(0x1007, 2, Branch::Conditional), vec![])),
                (0, (unknown(0x2000, 2), copies)),
                (0, (branch(0x2002, 5, Branch::DirectCall), vec![(0x7fff_fff8, 8, true)])),
                (1, (unknown(0x3000, 1), vec![])),
                (0, (branch(0x5000, 1, Branch::Return), vec![(0x7fff_fff8, 8, false)])),
            ]
        );
        assert_eq!(found.execution.last(), Some(&Executed::Event(Event::ThreadExit { thread: 0 })));
    }

    #[test]
    fn with_machine_code() {
        let x86 = |pc, bytes: &[u8]| {
            let mut code = [0; 15];
            code[..bytes.len()].copy_from_slice(bytes);
            Instruction { pc, length: bytes.len() as u8, operands: Operands::X86(code) }
        };
        let expected = [
            x86(0x1000, &LONG_CODE),
            x86(0x100a, &[0xeb, 0xf4]),
            x86(0x1000, &LONG_CODE),
            x86(0x1000, &[0x90]),
        ];
        let found = import(Format::DrMemTrace, &trace(0x240, &with_code())).expect("read");
        let instructions: Vec<_> =
            ran(&found).into_iter().map(|(_, (instruction, _))| instruction).collect();
        assert_eq!(instructions, expected);
        // Machine code of other architectures is not decoded.
        let found = import(Format::DrMemTrace, &trace(0x208, &with_code())).expect("read");
        assert!(
            ran(&found)
                .iter()
                .all(|(_, (instruction, _))| !matches!(instruction.operands, Operands::X86(_)))
        );
    }

    const SYNTHETIC: u64 = 0x2_0200;

    #[test]
    fn with_synthetic_instructions() {
        let made = |pc, length, writes, reads, branch| Instruction {
            pc,
            length,
            operands: Operands::Registers { reads, writes, branch },
        };
        // The flags are 25 as in ChampSim; what has the numbers of its flags, stack and instruction
        // pointers has others. Four registers are kept, and lengths are those of the original
        // instructions.
        let first = || made(0x1000, 5, [10, 0, 0, 0], [12, 8, 0, 0], Branch::None);
        let found = import(Format::DrMemTrace, &trace(SYNTHETIC, &with_synthetic())).expect("read");
        assert_eq!(
            ran(&found),
            [
                (0, (first(), vec![(0x7000_0000, 8, false)])),
                (0, (made(0x1005, 3, [25, 3, 1, 0], [25, 187, 254, 4], Branch::None), vec![])),
                (0, (made(0x1008, 2, [0; 4], [25, 0, 0, 0], Branch::Conditional), vec![])),
                (
                    0,
                    (
                        made(0x100a, 2, [20, 0, 0, 0], [20, 0, 0, 0], Branch::IndirectCall),
                        vec![(0x7fff_fff8, 8, true)]
                    )
                ),
                (0, (first(), vec![(0x7000_0008, 8, false)])),
            ]
        );
    }

    #[test]
    fn damaged_synthetic_instructions() {
        let one = |bytes: &[u8], what| {
            let records = code(bytes);
            let at = 96 + 12 * records.len() as u64;
            let body = [records, vec![record(10, 4, 0x1000)]].concat();
            fails(Format::DrMemTrace, &trace(SYNTHETIC, &body), at, what);
        };
        let sound = synthetic(0, [false; 2], &[2], &[3, 4, 5]);
        assert_eq!(sound.len(), 12);
        let body = [code(&synthetic(0, [false; 2], &[], &[185])), vec![record(10, 4, 0x1000)]];
        assert!(import(Format::DrMemTrace, &trace(SYNTHETIC, &body.concat())).is_ok());
        one(&sound[..3], "shorter than its header");
        one(&sound[..8], "not as long as its registers say");
        one(&[&sound[..], &[0; 4]].concat(), "not as long as its registers say");
        one(&synthetic(0, [false; 2], &[2; 5], &[3; 4]), "more than eight registers");
        for register in [0, 1, 187, 254, 255] {
            one(&synthetic(0, [false; 2], &[], &[register]), "a register that there is not");
        }
        let long = trace(SYNTHETIC, &code(&[0; 18]));
        fails(Format::DrMemTrace, &long, 96 + 24, "longer than 17 bytes");
    }

    #[test]
    fn an_access_of_unknown_size_has_a_byte() {
        let body = [record(10, 5, 0x1000), record(1, 0, 0x42)];
        let found = import(Format::DrMemTrace, &trace(0x40, &body)).expect("read");
        assert_eq!(ran(&found), [(0, (unknown(0x1000, 5), vec![(0x42, 1, true)]))]);
    }

    #[test]
    fn what_the_kernel_ran_is_left_out() {
        for (start, end) in [(27, 28), (34, 35)] {
            let mut body = vec![record(10, 2, 0x1000), record(28, start, 0)];
            body.extend(code(&[0x90]));
            body.extend([
                record(10, 1, u64::MAX - 0x7f00_0000),
                record(0, 8, u64::MAX - 0x7e00_0000),
            ]);
            body.extend([record(28, end, 0), record(10, 3, 0x1002), record(0, 8, 0x42)]);
            let found = import(Format::DrMemTrace, &trace(0x240, &body)).expect("read");
            let expected = [
                (0, (unknown(0x1000, 2), vec![])),
                (0, (unknown(0x1002, 3), vec![(0x42, 8, false)])),
            ];
            assert_eq!(ran(&found), expected);
        }
    }

    #[test]
    fn bundles() {
        let body = [record(10, 2, 0x1000), record(17, 3, 0x03_02_04), record(0, 8, 0x42)];
        let found = import(Format::DrMemTrace, &trace(0x40, &body)).expect("read");
        let expected = [(0x1000, 2), (0x1002, 4), (0x1006, 2), (0x1008, 3)]
            .map(|(pc, length)| unknown(pc, length));
        let instructions: Vec<_> =
            ran(&found).into_iter().map(|(_, (instruction, _))| instruction).collect();
        assert_eq!(instructions, expected);
        assert_eq!(ran(&found)[3].1.1, [(0x42, 8, false)]);
    }

    #[test]
    fn in_a_zip_archive() {
        let bytes = trace(0x40, &plain());
        let expected = ran(&import(Format::DrMemTrace, &bytes).expect("read"));
        for deflate in [false, true] {
            let archive =
                zip(&[("chunk.0001", &bytes[120..]), ("chunk.0000", &bytes[..120])], deflate);
            let directory = tempfile::tempdir().expect("a directory");
            let file: PathBuf = directory.path().join("trace.zip");
            std::fs::write(&file, &archive).expect("written");
            assert_eq!(ran(&read(&mut *open(&file).expect("open")).expect("read")), expected);
            // Damage to any byte of the data is noticed, except that deflate can encode the same
            // data differently.
            let data =
                archive.windows(10).position(|name| name == b"chunk.0001").expect("it is there")
                    + 10;
            let mut noticed = 0;
            for at in data..data + 40 {
                let mut damaged = archive.clone();
                damaged[at] ^= 1;
                match import(Format::DrMemTrace, &damaged) {
                    Ok(found) => assert!(deflate && ran(&found) == expected, "byte {at}"),
                    Err(_) => noticed += 1,
                }
            }
            assert!(noticed >= if deflate { 35 } else { 40 }, "{noticed}");
            for length in (0..archive.len()).step_by(7) {
                import(Format::DrMemTrace, &archive[..length]).expect_err("cut off");
            }
        }
        let gap = zip(&[("chunk.0000", &bytes[..120]), ("chunk.0002", &bytes[120..])], false);
        fails(Format::DrMemTrace, &gap, 0, "chunk.0001");
        let other = zip(&[("readme", b"hello")], false);
        let error = import(Format::DrMemTrace, &other).expect_err("no trace");
        assert!(error.to_string().contains("`readme`"), "{error}");
    }

    #[test]
    fn damage() {
        let bytes = trace(0x40, &plain());
        fails(Format::DrMemTrace, &bytes[..100], 96, "a record of 12 bytes");
        fails(Format::DrMemTrace, &bytes[..96], 96, "footer");
        fails(Format::DrMemTrace, &bytes[12..], 0, "header");
        let after = [&bytes[..], &record(10, 1, 1)].concat();
        fails(Format::DrMemTrace, &after, bytes.len() as u64, "follows the footer");
        let body = |kind, size, value| trace(0x40, &[record(kind, size, value)]);
        fails(Format::DrMemTrace, &body(0, 8, 1), 96, "before the first instruction");
        let access = |kind, size, address| {
            trace(0x40, &[record(10, 1, 0x1000), record(kind, size, address)])
        };
        fails(Format::DrMemTrace, &access(1, MAX_ACCESS_BYTES + 1, 1), 108, "16 KiB");
        fails(Format::DrMemTrace, &access(0, 8, u64::MAX), 108, "last 4 MiB");
        fails(Format::DrMemTrace, &body(10, 1, MAX_ADDRESS + 1), 96, "last 4 MiB");
        import(Format::DrMemTrace, &access(0, MAX_ACCESS_BYTES, MAX_ADDRESS))
            .expect("both at most");
        fails(Format::DrMemTrace, &body(10, 16, 1), 96, "16 bytes long");
        fails(Format::DrMemTrace, &body(10, 0, 1), 96, "0 bytes long");
        fails(Format::DrMemTrace, &body(77, 0, 1), 96, "unknown type (77)");
        fails(Format::DrMemTrace, &body(47, 9, 1), 96, "impossible length");
        fails(Format::DrMemTrace, &body(17, 1, 1), 96, "does not follow an instruction");
        for (file_type, what) in [
            (0x41, "filtered"),
            (0xc0, "filtered"),
            (0x44, "no data accesses"),
            (0x4_0040, "whole system"),
            (0x4040, "system calls"),
        ] {
            fails(Format::DrMemTrace, &trace(file_type, &[]), 24, what);
        }
        let future = [record(25, 0, 8), record(26, 0, 0)].concat();
        fails(Format::DrMemTrace, &future, 0, "version 8");
    }
}

mod lackey {
    use super::common::foreign::lackey::TEXT;
    use super::*;

    #[test]
    fn lines() {
        let found = import(Format::Lackey, TEXT.as_bytes()).expect("read");
        assert_eq!(
            ran(&found),
            [
                (0, (unknown(0x401_ab70, 3), vec![])),
                (0, (unknown(0x401_ab73, 5), vec![(0x1f_ff00_0608, 8, true)])),
                (
                    0,
                    (
                        unknown(0x402_0000, 4),
                        vec![(0x1000, 4, false), (0x1000, 4, true), (0x2000, 16, false)]
                    )
                ),
            ]
        );
        assert_eq!(found.blocks.len(), 2);
        // The second is what Valgrind's macros for client requests are to it.
        let found = import(Format::Lackey, b"I  1000,4\nI  1004,19\nI  1017,1\n").expect("read");
        let expected = [unknown(0x1000, 4), unknown(0x1004, 0), unknown(0x1017, 1)];
        assert_eq!(ran(&found), expected.map(|instruction| (0, (instruction, vec![]))));
    }

    #[test]
    fn damage() {
        fails(Format::Lackey, b" L 1000,8\n", 0, "before the first instruction");
        fails(Format::Lackey, b"I  1000,4\nI  1004", 10, "a line at byte 10 is incomplete");
        for bad in [
            "I  1000,21",
            "I  1000,0",
            "I  ,4",
            "I 1000,4",
            "I  1000",
            "I  1000,4 ",
            "I  11112222333344445,4",
            "hello",
            " L 1000,99999",
            " L 1000,65535",
            " M ffffffffffffffff,1",
            "I  ffffffffffffffff,1",
        ] {
            let text = format!("I  1000,4\n{bad}\n");
            let error = import(Format::Lackey, text.as_bytes()).expect_err(bad);
            assert!(matches!(error, TraceError::Damaged { offset: 10, .. }), "{bad}: {error}");
        }
        let long = [b"==1== ", "x".repeat(70_000).as_bytes(), b"\n"].concat();
        fails(Format::Lackey, &long, 0, "longer than 32 KiB");
    }
}

#[test]
fn each_format_is_recognised_and_nothing_else() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    let sniff = |bytes: &[u8]| {
        std::fs::write(&file, bytes).expect("written");
        info(&file, true, &mut |_, _| ControlFlow::Continue(())).map(|info| info.format)
    };
    let record = common::foreign::drmemtrace::record(10, 1, 0x1000);
    let trace = common::foreign::drmemtrace::trace(0x40, &[record]);
    assert_eq!(sniff(&trace).expect("known"), Format::DrMemTrace);
    assert_eq!(sniff(b"==1== x\nI  1000,4\n L 2000,8\n").expect("known"), Format::Lackey);
    assert_eq!(sniff(&short(&LINES)).expect("known"), Format::ChampSim);
    assert!(matches!(sniff(b""), Err(TraceError::Empty { .. })));
    for foreign in
        [&b"hello, world\n"[..], b"\x7fELF\x02\x01\x01", &[0; 640], &[0xff; 640], b"I  am text\n"]
    {
        let error = sniff(foreign).expect_err("foreign");
        assert!(matches!(error, TraceError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains("--format"), "{error}");
    }
    let mut own = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    own.write_all(&common::small().0).expect("compressed");
    let error = sniff(&own.finish().expect("compressed")).expect_err("it is compressed");
    assert!(error.to_string().ends_with("decompress it first"), "{error}");
    // Its reader has no option that says which.
    let line = |n: u64| (0x10_0000 + 4 * n, 0, 0, [10, 0], [7, 0, 0, 0], [0; 2], [0x7000, 0, 0, 0]);
    let error =
        sniff(&short(&(0..192).map(line).collect::<Vec<_>>())).expect_err("of either format");
    assert!(error.to_string().contains("champsim or cloudsuite"), "{error}");
    assert!(error.to_string().contains("`flatwalk trace import --format`"), "{error}");
    let error = info(directory.path(), false, &mut |_, _| ControlFlow::Continue(()))
        .expect_err("a directory");
    assert!(error.to_string().contains("directory"), "{error}");
}

#[test]
fn xz_that_wants_too_much_memory_is_refused() {
    let mut options = liblzma::stream::LzmaOptions::new_preset(0).expect("known");
    options.dict_size(1 << 30);
    let mut filters = liblzma::stream::Filters::new();
    filters.lzma2(&options);
    let stream =
        liblzma::stream::Stream::new_stream_encoder(&filters, liblzma::stream::Check::Crc64);
    let mut xz = liblzma::write::XzEncoder::new_stream(Vec::new(), stream.expect("made"));
    xz.write_all(b"I  1000,4\n").expect("compressed");
    let error = import(Format::Lackey, &xz.finish().expect("compressed")).expect_err("refused");
    assert!(error.to_string().contains("memory"), "{error}");
}
