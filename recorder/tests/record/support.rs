//! Compiles guests, records them and reads what was recorded.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use flatwalk_recorder::plugin::process::elf::Image;
use flatwalk_trace::{Access, Block, Event, Item, Reader, Slice, Source};
use serde_json::Value;

const COLLECTOR: &str = env!("CARGO_BIN_EXE_flatwalk-collect");

/// A directory that goes with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("flatwalk-recorder-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The plugin of this build. (Cargo copies libraries next to the programs for `build`, not for `test`.)
pub fn plugin() -> PathBuf {
    Path::new(COLLECTOR).with_file_name("deps").join("libflatwalk_recorder.so")
}

/// Compiles `tests/guests/NAME.c`.
pub fn compile(scratch: &Scratch, name: &str, flags: &[&str]) -> PathBuf {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests").join(name).with_extension("c");
    let program = scratch.0.join(name);
    let status = Command::new("gcc")
        .args(["-O1", "-g0"])
        .arg(source)
        .args(flags)
        .arg("-o")
        .arg(&program)
        .status();
    assert!(status.unwrap().success(), "gcc failed on {name}.c");
    program
}

/// Flags for guests without a C library.
pub const BARE: &[&str] = &[
    "-static",
    "-nostdlib",
    "-ffreestanding",
    "-fno-stack-protector",
    "-fno-pic",
    "-no-pie",
    "-fno-tree-vectorize",
];
/// Flags for statically linked guests with addresses known beforehand.
pub const STATIC: &[&str] = &["-static", "-no-pie", "-pthread"];

/// A recording under way.
pub struct Running {
    pub guest: Child,
    collector: Child,
    /// Lines of the collector's, read as they come: it must never have to wait for the test.
    reports: Receiver<String>,
    closing: Option<ChildStdin>,
    output: PathBuf,
}

pub fn start(scratch: &Scratch, options: &str, command: &[&str]) -> Running {
    start_with(scratch, options, command, None)
}

/// The same; the collector may have so many files open, and so many if it asks for more.
pub fn start_with(
    scratch: &Scratch,
    options: &str,
    command: &[&str],
    files: Option<(u64, u64)>,
) -> Running {
    let output = scratch.0.join("out.fwt");
    let socket = scratch.0.join("socket");
    let _ = fs::remove_file(&socket);
    let mut collector = Command::new(COLLECTOR);
    if let Some((rlim_cur, rlim_max)) = files {
        // SAFETY: `setrlimit` may be called between fork and exec.
        unsafe {
            collector.pre_exec(move || {
                let limit = libc::rlimit { rlim_cur, rlim_max };
                match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
    }
    let mut collector = collector
        .arg("--socket")
        .arg(&socket)
        .arg("--output")
        .arg(&output)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(collector.stdout.take().unwrap()).lines();
    let (sender, reports) = mpsc::channel();
    thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    assert!(reports.recv().unwrap().contains("ready"));
    let closing = collector.stdin.take();
    let guest = start_guest(scratch, options, command);
    Running { guest, collector, reports, closing, output }
}

/// Starts a program under QEMU that introduces itself to a collector that runs.
pub fn start_guest(scratch: &Scratch, options: &str, command: &[&str]) -> Child {
    qemu(scratch, options, command).spawn().expect("qemu-user is installed")
}

/// The command that does.
pub fn qemu(scratch: &Scratch, options: &str, command: &[&str]) -> Command {
    let socket = scratch.0.join("socket");
    let mut guest = Command::new("qemu-x86_64");
    // Shells start what runs in their background with SIGINT ignored; the guest must die of it.
    // SAFETY: `signal` may be called between fork and exec.
    unsafe {
        guest.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        });
    }
    guest
        .arg("-plugin")
        .arg(format!("{},socket={}{options}", plugin().display(), socket.display()))
        .arg("-plugin")
        // Another path to the same file: the plugin's second registration.
        .arg(plugin().to_str().unwrap().replace("/deps/", "/deps/./"))
        .arg("--")
        .args(command)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    guest
}

/// What came of a recording.
pub struct Recorded {
    pub stdout: Vec<u8>,
    pub status: std::process::ExitStatus,
    pub ends: Vec<Value>,
    pub warnings: Vec<String>,
    pub output: PathBuf,
}

impl Recorded {
    /// What the program wrote first, as words.
    pub fn words<const N: usize>(&self) -> [u64; N] {
        let words = self.stdout.as_chunks::<8>().0;
        std::array::from_fn(|number| u64::from_le_bytes(words[number]))
    }
}

impl Running {
    /// Says to the collector that the user wants no more.
    pub fn detach(&mut self) {
        self.closing.as_mut().unwrap().write_all(b"detach\n").unwrap();
    }

    /// Waits for a report of this kind.
    pub fn wait_for(&mut self, kind: &str) -> Value {
        for line in &self.reports {
            let report: Value = serde_json::from_str(&line).unwrap();
            if report["type"] == kind {
                return report;
            }
        }
        panic!("no {kind} came");
    }

    /// Says to the collector that no more programs will be started.
    pub fn close(&mut self) {
        self.closing.as_mut().unwrap().write_all(b"close\n").unwrap();
    }

    /// Ends the collector's input, as when who started it has ended.
    pub fn leave(&mut self) {
        self.closing = None;
    }

    /// Waits for the collector's end.
    pub fn wait_for_end(&mut self) {
        let why = loop {
            if let Err(why) = self.reports.recv_timeout(Duration::from_secs(60)) {
                break why;
            }
        };
        assert_eq!(why, RecvTimeoutError::Disconnected, "the collector goes on");
        assert!(self.collector.wait().unwrap().success());
    }

    /// What the collector has open, by descriptor.
    pub fn files(&self) -> BTreeMap<u64, PathBuf> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.collector.id())).unwrap();
        let links = entries.map_while(Result::ok).filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, fs::read_link(entry.path()).ok()?))
        });
        links.collect()
    }

    /// From here on the collector may have so many files open.
    pub fn limit_files(&self, rlim_cur: u64, rlim_max: u64) {
        let limit = libc::rlimit { rlim_cur, rlim_max };
        let pid = self.collector.id() as i32;
        // SAFETY: `limit` outlives the call, which returns no old one.
        let result = unsafe {
            libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut())
        };
        assert_eq!(result, 0, "{rlim_cur} files: {}", std::io::Error::last_os_error());
    }

    /// Whether the collector is still there after a moment in which it had nothing to report.
    pub fn goes_on(&self) -> bool {
        loop {
            match self.reports.recv_timeout(Duration::from_millis(500)) {
                Ok(_) => {}
                Err(why) => return why == RecvTimeoutError::Timeout,
            }
        }
    }

    pub fn end(mut self) -> Recorded {
        let mut stdout = Vec::new();
        self.guest.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        let status = self.guest.wait().unwrap();
        self.close();
        let (mut ends, mut warnings) = (Vec::new(), Vec::new());
        for line in &self.reports {
            let report: Value = serde_json::from_str(&line).unwrap();
            match report["type"].as_str() {
                Some("end") => ends.push(report),
                Some("warning") => warnings.push(report["message"].to_string()),
                _ => {}
            }
        }
        assert!(self.collector.wait().unwrap().success());
        Recorded { stdout, status, ends, warnings, output: self.output.clone() }
    }
}

pub fn record(scratch: &Scratch, options: &str, command: &[&str]) -> Recorded {
    start(scratch, options, command).end()
}

/// A whole trace in memory.
#[derive(Default)]
pub struct Trace {
    pub blocks: Vec<Arc<Block>>,
    pub slices: Vec<Slice>,
    pub events: Vec<Event>,
    /// For each slice, how many events came before it.
    pub epochs: Vec<usize>,
}

impl Trace {
    pub fn read(path: &Path) -> Trace {
        let mut reader = Reader::open(path).unwrap_or_else(|error| panic!("{error}"));
        assert!(!reader.ended_early());
        let mut trace = Trace::default();
        while let Some(item) = reader.next_item().unwrap_or_else(|error| panic!("{error}")) {
            match item {
                Item::Define { id, block } => {
                    assert_eq!(id as usize, trace.blocks.len());
                    trace.blocks.push(block);
                }
                Item::Slice(slice) => {
                    trace.epochs.push(trace.events.len());
                    trace.slices.push(slice);
                }
                Item::Event(event) => trace.events.push(event),
            }
        }
        trace
    }

    pub fn executions(&self) -> impl Iterator<Item = (u32, &Block)> + Clone {
        self.slices
            .iter()
            .flat_map(|s| s.blocks.iter().map(|&id| (s.thread, &*self.blocks[id as usize])))
    }

    pub fn instructions(&self) -> u64 {
        self.executions().map(|(_, block)| block.instructions.len() as u64).sum()
    }

    /// The program counters of all instructions in order of execution.
    pub fn pcs(&self) -> Vec<u64> {
        self.executions().flat_map(|(_, block)| block.instructions.iter().map(|i| i.pc)).collect()
    }

    /// How often the instruction at `pc` was executed.
    pub fn count(&self, pc: u64) -> usize {
        self.executions()
            .map(|(_, block)| block.instructions.iter().filter(|i| i.pc == pc).count())
            .sum()
    }

    /// All instructions in order, and what each accessed.
    pub fn by_instruction(&self) -> Vec<(u64, Vec<Reference>)> {
        let mut found = Vec::new();
        for slice in &self.slices {
            let mut addresses = slice.addresses.iter();
            for &id in &slice.blocks {
                let block = &self.blocks[id as usize];
                let first = found.len();
                found.extend(block.instructions.iter().map(|i| (i.pc, Vec::new())));
                for access in &block.accesses {
                    let (address, Access { instruction, size, store }) =
                        (*addresses.next().unwrap(), *access);
                    found[first + usize::from(instruction)].1.push(Reference {
                        address,
                        size,
                        store,
                    });
                }
            }
            assert!(addresses.next().is_none());
        }
        found
    }

    /// The addresses that the instruction at `pc` loads from, in order, by thread.
    pub fn loads_at(&self, pc: u64) -> BTreeMap<u32, Vec<u64>> {
        let mut found = BTreeMap::<u32, Vec<u64>>::new();
        for slice in &self.slices {
            let mut addresses = slice.addresses.iter();
            for &id in &slice.blocks {
                let block = &self.blocks[id as usize];
                for (access, &address) in block.accesses.iter().zip(&mut addresses) {
                    if block.instructions[usize::from(access.instruction)].pc == pc && !access.store
                    {
                        found.entry(slice.thread).or_default().push(address);
                    }
                }
            }
        }
        found
    }

    /// All accesses in order, with the addresses of the instructions that made them.
    pub fn references(&self) -> Vec<(u64, Reference)> {
        let all = self.by_instruction().into_iter();
        all.flat_map(|(pc, accesses)| accesses.into_iter().map(move |access| (pc, access)))
            .collect()
    }
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    pub address: u64,
    pub size: u16,
    pub store: bool,
}

/// The path as text.
pub fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub fn symbol(program: &Path, name: &str) -> u64 {
    Image::read(program).unwrap().symbol(name).unwrap_or_else(|| panic!("no symbol {name}"))
}
