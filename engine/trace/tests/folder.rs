//! Traces of several files: threads go on in the order of their timestamps, and pages are where the map says.

mod common;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use common::foreign::champsim::{LINES, Line, long, short};
use common::foreign::drmemtrace::{code, record, synthetic, thread, v2p, zip};
use common::{Executed, Expected, read};
use flatwalk_trace::{Event, Format, Info, Reader, TraceError, import_to_file};

const SYNTHETIC: u64 = 0x2_0200;
const CORE: u64 = 0x1_0040;
const PAGE: u64 = 1 << 21;

struct Folder(tempfile::TempDir, Option<Format>);

impl Folder {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        for (name, bytes) in files {
            let path = folder.path().join("in").join(name);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            std::fs::write(path, bytes).expect("written");
        }
        Self(folder, None)
    }

    fn target(&self) -> PathBuf {
        self.0.path().join("out.fwt")
    }

    fn import(&self) -> Result<Info, TraceError> {
        import_to_file(&self.0.path().join("in"), &self.target(), self.1, &mut |done, total| {
            assert!(done <= total);
            ControlFlow::Continue(())
        })
    }

    fn read(&self) -> Expected {
        self.import().expect("imported");
        read(&mut Reader::open(&self.target()).expect("opened")).expect("read")
    }

    fn fails(&self, what: &str) {
        let message = self.import().expect_err(what).to_string();
        assert!(message.contains(what) && message.contains(';'), "{message}");
        assert!(!self.target().exists());
    }
}

/// Thread and address of each instruction, in order.
fn order(found: &Expected) -> Vec<(u32, u64)> {
    let mut all = Vec::new();
    for executed in &found.execution {
        let Executed::Block { thread, id, .. } = executed else { continue };
        let block = &found.blocks[*id as usize];
        all.extend(block.instructions.iter().map(|instruction| (*thread, instruction.pc)));
    }
    all
}

fn plain(pcs: &[u64]) -> Vec<[u8; 12]> {
    pcs.iter().flat_map(|&pc| [record(10, 4, pc), record(0, 8, pc + PAGE)]).collect()
}

#[test]
fn threads_go_on_by_their_timestamps() {
    let first = [(10, plain(&[0x100, 0x104])), (30, plain(&[0x108])), (50, plain(&[0x10c]))];
    let second = [(20, plain(&[0x204])), (30, plain(&[0x208])), (40, plain(&[0x20c, 0x210]))];
    let third = [(5, plain(&[0x304])), (5, plain(&[0x308]))];
    let [first, second, third] =
        [(4711, &first[..]), (4712, &second[..]), (4713, &third[..])].map(|(id, stretches)| {
            let parts: Vec<_> = stretches.iter().map(|(time, body)| (*time, &body[..])).collect();
            thread(0x40, id, &parts)
        });
    let zipped = zip(&[("chunk.0000", &second)], true);
    let zst = zstd::encode_all(&third[..], 1).expect("compressed");
    let files: &[(&str, &[u8])] = &[
        ("a.4711.memtrace", &first),
        ("a.4712.memtrace.zip", &zipped),
        ("a.4713.memtrace.zst", &zst),
    ];
    // Stretches of the same time come in order of names. Numbers are given when a thread is first seen.
    let expected = [
        [(2, 0x304), (2, 0x308), (0, 0x100), (0, 0x104), (1, 0x204), (0, 0x108), (1, 0x208)]
            .as_slice(),
        &[(1, 0x20c), (1, 0x210), (0, 0x10c)],
    ]
    .concat();
    assert_eq!(order(&Folder::new(files).read()), expected);
    // As the folder `trace`, with other files next to them.
    let inner: Vec<_> =
        files.iter().map(|(name, bytes)| (format!("trace/{name}"), *bytes)).collect();
    let mut inner: Vec<(&str, &[u8])> =
        inner.iter().map(|(name, bytes)| (&**name, *bytes)).collect();
    inner.extend([
        ("trace/serial_schedule.bin.gz", &b"x"[..]),
        ("trace/cpu_schedule.bin.zip", b"x"),
        ("aux/info.textproto", b"x"),
        ("trace/.hidden", b"x"),
        ("README.txt", b"x"),
    ]);
    let folder = Folder::new(&inner);
    assert_eq!(order(&folder.read()), expected);
    assert_eq!(folder.import().expect("imported").summary.threads, 3);
}

#[test]
fn a_string_instruction_is_not_interrupted() {
    let copy = |kind| [record(kind, 2, 0x100), record(0, 1, 0x7000), record(1, 1, 0x8000)];
    let first = thread(0x40, 1, &[(10, &copy(10)), (30, &copy(29)), (31, &plain(&[0x102]))]);
    let second = thread(0x40, 2, &[(20, &plain(&[0x200]))]);
    let found = Folder::new(&[("a", &first), ("b", &second)]).read();
    assert_eq!(order(&found), [(0, 0x100), (1, 0x200), (0, 0x102)]);
    assert_eq!(found.blocks[0].accesses.len(), 4);
}

#[test]
fn cores_hand_threads_to_each_other() {
    // A thread's machine code is where it began; the other core only executes it.
    let begin = |id, body: &[[u8; 12]]| {
        [&[record(25, 0, 7), record(28, 9, CORE | 0x200), record(22, 4, id)], body].concat()
    };
    let mut zero = begin(1, &[record(28, 2, 10)]);
    zero.extend(code(&[0x90]));
    zero.extend([record(10, 1, 0x100), record(22, 4, u64::MAX), record(28, 33, 0)]);
    zero.extend([
        record(28, 2, 30),
        record(22, 4, 2),
        record(10, 1, 0x200),
        record(23, 4, 2),
        record(26, 0, 0),
    ]);
    let mut one = begin(2, &[record(28, 2, 20)]);
    one.extend(code(&[0x90]));
    one.extend([
        record(10, 1, 0x200),
        record(22, 4, 1),
        record(10, 1, 0x100),
        record(23, 4, 1),
        record(26, 0, 0),
    ]);
    // After a footer, another thread goes on without a header, and ends.
    one.extend([record(22, 4, 3), record(10, 1, 0x300), record(23, 4, 3), record(26, 0, 0)]);
    let folder = Folder::new(&[("core.0.trace", &zero.concat()), ("core.1.trace", &one.concat())]);
    let found = folder.read();
    assert_eq!(order(&found), [(0, 0x100), (1, 0x200), (0, 0x100), (2, 0x300), (1, 0x200)]);
    assert!(found.blocks.iter().filter(|block| block.instructions[0].pc != 0x300).all(|block| {
        matches!(block.instructions[0].operands, flatwalk_trace::Operands::X86(_))
    }));
    one.pop();
    Folder::new(&[("core.1.trace", &one.concat())]).fails("footer is missing");
}

#[test]
fn pages_are_where_the_map_says() {
    let body = [code(&synthetic(2, [false; 2], &[3], &[4])), plain(&[0x100])].concat();
    let bytes = thread(SYNTHETIC, 7, &[(1, &body)]);
    let high = 0x7fff_fe00_0000;
    let map = v2p(&[
        (PAGE, &[(0, 7 * PAGE), (high, 0), (PAGE, 2 * PAGE)]),
        (4096, &[(3 * PAGE, 0x5000)]),
    ]);
    let files =
        |map: &str, place| Folder::new(&[("trace/a.7.memtrace", &bytes), (place, map.as_bytes())]);
    // The tables follow the last page; entries are present, writable, a user's, accessed and dirty (0x67).
    let end = 8 * PAGE;
    let table = |number: u64| end + 4096 * number;
    let entry = |address, level, value| Event::Entry { address, level, value };
    let expected = [
        Event::Root { cr3: table(0), cr4: 0 },
        entry(table(0), 4, table(1) | 0x67),
        entry(table(1), 3, table(2) | 0x67),
        entry(table(2), 2, (7 * PAGE) | 0xe7),
        entry(table(2) + 8, 2, (2 * PAGE) | 0xe7),
        entry(table(2) + 24, 2, table(3) | 0x67),
        entry(table(3), 1, 0x5067),
        entry(table(0) + 8 * 255, 4, table(4) | 0x67),
        entry(table(4) + 8 * 511, 3, table(5) | 0x67),
        entry(table(5) + 8 * 496, 2, 0xe7),
    ];
    for place in
        ["aux/v2p.textproto", "v2p.textproto", "trace/v2p.textproto", "trace/aux/v2p.textproto"]
    {
        let found = files(&map, place).read();
        let events: Vec<_> = found
            .execution
            .iter()
            .filter_map(|executed| match executed {
                Executed::Event(event) => Some(event.clone()),
                Executed::Block { .. } => None,
            })
            .collect();
        let (exit, events) = events.split_last().expect("there are some");
        assert_eq!((events, exit), (&expected[..], &Event::ThreadExit { thread: 0 }));
        assert!(matches!(found.execution[0], Executed::Event(Event::Root { .. })));
    }
    let fails = |map: &str, what: &str| files(map, "aux/v2p.textproto").fails(what);
    fails("", "maps no page");
    fails(&v2p(&[(1 << 14, &[(0, 0)])]), "none of x86-64's");
    fails(&v2p(&[(PAGE, &[(4096, 0)])]), "not a multiple");
    fails(&v2p(&[(PAGE, &[(0, 4096)])]), "not a multiple");
    fails(&v2p(&[(PAGE, &[(PAGE, 0), (PAGE, PAGE)])]), "mapped twice");
    fails(&v2p(&[(PAGE, &[(PAGE, 0)]), (4096, &[(2 * PAGE - 4096, 0)])]), "mapped twice");
    fails(&v2p(&[(4096, &[(2 * PAGE - 4096, 0)]), (PAGE, &[(PAGE, 0)])]), "mapped twice");
    // Four levels are for the lower half of 48 bits, which is what user space has of them.
    let root = |address| {
        let found = files(&v2p(&[(4096, &[(address, 0)])]), "aux/v2p.textproto").read();
        found.execution.iter().find_map(|executed| match executed {
            Executed::Event(Event::Root { cr4, .. }) => Some(*cr4),
            _ => None,
        })
    };
    assert_eq!([root((1 << 47) - 4096), root(1 << 47)], [Some(0), Some(1 << 12)]);
    fails(&v2p(&[(4096, &[(1 << 56, 0)])]), "more bits");
    fails(&v2p(&[(PAGE, &[(0, 1 << 52)])]), "more bits");
    fails(&v2p(&[(PAGE, &[(0, (1 << 52) - PAGE)])]), "no place for page tables");
    fails(&map[..map.len() - 3], "ends within");
    fails("address_mapping_group { address_mapping { physical_address: 0 } }", "no page size");
    fails("page_size: much", "not a number");
    fails("a: 'b", "no end");
    fails("}", "not the text");
    fails("\u{7f}", "not the text");
    fails(&"a {".repeat(100), "too deeply");
}

#[test]
fn threads_of_champsim_take_turns() {
    let line = |pc: u64| -> Line { (pc, 0, 0, [10, 0], [7, 0, 0, 0], [0; 2], [0x7000, 0, 0, 0]) };
    let run = |base: u64, count: u64| (0..count).map(|n| line(base + 4 * n)).collect::<Vec<_>>();
    let mut folder = Folder::new(&[
        ("0.champsimtrace", &short(&run(0x10_0000, 6000))),
        ("1.csv-run.champsimtrace", &short(&run(0x20_0000, 5000))),
    ]);
    // Without a branch it could be of either format.
    folder.fails("champsim or cloudsuite");
    folder.1 = Some(Format::ChampSim);
    let found = order(&folder.read());
    let turns: Vec<_> =
        found.chunk_by(|a, b| a.0 == b.0).map(|part| (part[0].0, part.len())).collect();
    assert_eq!(turns, [(0, 4096), (1, 4096), (0, 1904), (1, 904)]);
    for (thread, base) in [(0, 0x10_0000), (1, 0x20_0000)] {
        let own = found.iter().filter(|step| step.0 == thread);
        assert!(own.zip(0..).all(|(&(_, pc), n)| pc == base + 4 * n));
    }
}

#[test]
fn what_is_no_trace_of_one_program_is_refused() {
    let trace = thread(0x40, 1, &[(1, &plain(&[0x100]))]);
    Folder::new(&[("a/b/c", b"x")]).fails("no files of a trace");
    Folder::new(&[("a", &trace), ("b", b"hello, world\n")]).fails("neither its first bytes");
    Folder::new(&[("a", &trace), ("b", &short(&LINES))])
        .fails("it is champsim, the files before it are drmemtrace");
    Folder::new(&[("a", &short(&LINES)), ("b", &long(&LINES))]).fails("it is cloudsuite");
    Folder::new(&[("a", b"I  1000,4\n")]).fails("format lackey");
    Folder::new(&[("a", &trace), ("b", &trace[..trace.len() - 5])]).fails("cut off");
    let many: Vec<_> = (0..4097).map(|number| number.to_string()).collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|name| (&**name, &trace[..])).collect();
    Folder::new(&many).fails("4097 files");
    let error = import_to_file(
        Path::new("/nonexistent"),
        Path::new("x"),
        Some(Format::DrMemTrace),
        &mut |_, _| ControlFlow::Continue(()),
    );
    assert!(error.expect_err("no such file").to_string().contains("check the path"));
}
