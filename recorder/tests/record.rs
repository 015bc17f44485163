//! Records real programs under the installed `qemu-x86_64` and checks what comes out against what
//! the programs do, what they say of themselves, and what Valgrind counts.

mod support;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use flatwalk_recorder::space::Space;
use flatwalk_trace::{Advice, Backing, Event, Operands, Protection};
use support::{BARE, STATIC, Scratch, Trace, compile, record, start, symbol};

/// Bytes of a page.
const P: u64 = 4096;

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Valgrind's counts: instructions, loads, stores.
fn lackey(program: &Path) -> [u64; 3] {
    let output = Command::new("valgrind")
        .args(["--tool=lackey", "--basic-counts=yes"])
        .arg(program)
        .output()
        .expect("valgrind");
    let text = String::from_utf8_lossy(&output.stderr).replace(',', "");
    let number = |line: &str| {
        let tail = text.split_once(line).unwrap_or_else(|| panic!("no `{line}` in {text}")).1;
        tail.trim_start_matches([':', ' '])
            .split_whitespace()
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let detailed = Command::new("valgrind")
        .args(["--tool=lackey", "--basic-counts=no", "--trace-mem=yes"])
        .arg(program)
        .output()
        .unwrap();
    let (mut loads, mut stores) = (0, 0);
    for line in String::from_utf8_lossy(&detailed.stderr).lines() {
        match line.as_bytes().get(..3) {
            Some(b" L ") => loads += 1,
            Some(b" S ") => stores += 1,
            Some(b" M ") => {
                loads += 1;
                stores += 1;
            }
            _ => {}
        }
    }
    [number("guest instrs"), loads, stores]
}

fn assert_close(ours: u64, theirs: u64, what: &str) {
    let difference = ours.abs_diff(theirs) as f64 / theirs as f64;
    assert!(difference < 0.01, "{what}: {ours} recorded, {theirs} counted by valgrind");
}

#[test]
fn counts_agree_with_valgrind() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "loops", BARE);
    let recorded = record(&scratch, "", &[path(&program)]);
    let trace = Trace::read(&recorded.output);
    let [instructions, loads, stores] = lackey(&program);
    let (our_loads, our_stores) = trace.accesses();
    assert_close(trace.instructions(), instructions, "instructions");
    assert_close(our_loads, loads, "loads");
    assert_close(our_stores, stores, "stores");
    assert_eq!(recorded.ends[0]["instructions"], trace.instructions());
}

#[test]
fn vector_accesses_are_whole_and_updates_are_two() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "vectors", BARE);
    let trace = Trace::read(&record(&scratch, "", &[path(&program)]).output);
    let marked = symbol(&program, "marked")..symbol(&program, "marked_end");
    let memory = symbol(&program, "memory");
    let seen: Vec<_> = trace
        .references()
        .into_iter()
        .filter(|(pc, ..)| marked.contains(pc))
        .map(|(_, address, size, store)| (address - memory, size, store))
        .collect();
    assert_eq!(
        seen,
        [
            (1, 16, false),
            (64, 16, true),
            (0, 32, false),
            (128, 32, true),
            (0, 4, false),
            (0, 4, true),
            (8, 8, false),
            (8, 8, true)
        ]
    );
}

#[test]
fn the_address_space_is_the_one_the_program_sees() {
    for flags in [&["-static-pie"][..], STATIC, &[]] {
        let scratch = Scratch::new();
        let program = compile(&scratch, "maps", flags);
        let recorded = record(&scratch, "", &[path(&program)]);
        let mut space = Space::default();
        Trace::read(&recorded.output).events.iter().for_each(|event| space.apply(event));
        let ours = pages(space.as_events().iter().map(|event| match *event {
            Event::Map { address, length, protection: p, .. } => {
                (address, address + length, [p.read, p.write])
            }
            _ => unreachable!(),
        }));
        let text = String::from_utf8(recorded.stdout).unwrap();
        let theirs = pages(text.lines().filter(|line| !line.contains("[vsyscall]")).map(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let (end, rest) = rest.split_once(' ').unwrap();
            let number = |digits| u64::from_str_radix(digits, 16).unwrap();
            // QEMU shows the host's rights, which never include execution.
            let rights = rest.as_bytes();
            (number(start), number(end), [rights[0] == b'r', rights[1] == b'w'])
        }));
        let mut only_theirs = Vec::new();
        for (page, rights) in &theirs {
            match ours.get(page) {
                Some(found) => assert_eq!(found, rights, "{page:x} {flags:?}\n{text}"),
                None => only_theirs.push(*page),
            }
        }
        // QEMU's emulation of the processor's descriptor tables, one page each.
        assert!(
            only_theirs.len() == 2 && only_theirs[1] == only_theirs[0] + 4096,
            "{only_theirs:x?} {flags:?}\n{text}"
        );
        for page in ours.keys() {
            assert!(theirs.contains_key(page), "{page:x} {flags:?}\n{text}");
        }
        assert!(text.contains("[stack]"), "{text}");
    }
}

/// The rights of every page; those without any are of no interest (the stack's guard page).
fn pages(
    ranges: impl Iterator<Item = (u64, u64, [bool; 2])>,
) -> std::collections::BTreeMap<u64, [bool; 2]> {
    ranges
        .filter(|(_, _, rights)| rights.contains(&true))
        .flat_map(|(start, end, rights)| (start..end).step_by(4096).map(move |page| (page, rights)))
        .collect()
}

#[test]
fn memory_calls_are_events_with_their_results() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "events", BARE);
    let recorded = record(&scratch, "", &[path(&program)]);
    let word =
        |index: usize| u64::from_le_bytes(recorded.stdout[8 * index..][..8].try_into().unwrap());
    let (heap, a, b) = (word(0), word(1), word(2));
    let rw = Protection { read: true, write: true, execute: false };
    let events = Trace::read(&recorded.output).events;
    let first = events.iter().position(|event| matches!(event, Event::Break { .. })).unwrap();
    assert_eq!(
        events[first..],
        [
            Event::Break { from: heap, to: heap + 3 * P },
            Event::Break { from: heap + 3 * P, to: heap + P },
            Event::Map {
                address: a,
                length: 8 * P,
                protection: rw,
                backing: Backing::Anonymous,
                shared: false
            },
            Event::Unmap { address: a + 2 * P, length: P },
            Event::Protect {
                address: a,
                length: P,
                protection: Protection { read: true, write: false, execute: false }
            },
            Event::Remap { from: a + 4 * P, from_length: 4 * P, to: b, to_length: 16 * P },
            Event::Advise { address: b, length: 2 * P, advice: Advice::DontNeed },
        ]
    );
}

#[test]
fn every_thread_has_its_own_run() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "threads", STATIC);
    let recorded = record(&scratch, "", &[path(&program)]);
    assert_eq!(recorded.stdout, b"120000\n");
    let trace = Trace::read(&recorded.output);
    let step = symbol(&program, "step");
    let mut steps = std::collections::BTreeMap::<u32, u64>::new();
    for (thread, block) in trace.executions() {
        if block.instructions[0].pc == step {
            *steps.entry(thread).or_default() += 1;
        }
    }
    assert_eq!(
        steps.into_iter().collect::<Vec<_>>(),
        (1..=6).map(|thread| (thread, 20000)).collect::<Vec<_>>()
    );
    for thread in 1..=6 {
        assert_eq!(trace.events.iter().filter(|e| **e == Event::ThreadStart { thread }).count(), 1);
        assert_eq!(trace.events.iter().filter(|e| **e == Event::ThreadExit { thread }).count(), 1);
    }
    // A thread does nothing before it starts, and (but for its very end) nothing after it exits.
    let at = |wanted: &Event| trace.events.iter().position(|event| event == wanted).unwrap();
    for (slice, &epoch) in trace.slices.iter().zip(&trace.epochs) {
        assert!(epoch > at(&Event::ThreadStart { thread: slice.thread }));
        if slice.thread > 0 {
            assert!(epoch <= at(&Event::ThreadExit { thread: slice.thread }));
        }
    }
    // A mapping is there before any access to it.
    let mut space = Space::default();
    let mut events = trace.events.iter();
    let mut applied = 0;
    for (slice, &epoch) in trace.slices.iter().zip(&trace.epochs) {
        events.by_ref().take(epoch - applied).for_each(|event| space.apply(event));
        applied = epoch;
        for &address in &slice.addresses {
            assert!(
                space.contains(address),
                "thread {} accesses {address:x} in epoch {epoch}",
                slice.thread
            );
        }
    }
}

#[test]
fn forked_children_have_traces_of_their_own() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "forks", STATIC);
    let recorded = record(&scratch, "", &[path(&program)]);
    assert_eq!(recorded.status.code(), Some(5));
    assert_eq!(recorded.ends.len(), 3, "{:?}", recorded.ends);
    let pc = |name| symbol(&program, name);
    let counts =
        |trace: &Trace| ["before", "in_parent", "in_child"].map(|name| trace.count(pc(name)));
    let parent = Trace::read(&recorded.output);
    assert_eq!(counts(&parent), [100, 30, 0]);
    let mut children = Vec::new();
    for end in &recorded.ends {
        let file = Path::new(end["file"].as_str().unwrap());
        if file != recorded.output {
            assert_eq!(
                file.file_name().unwrap().to_str().unwrap(),
                format!("out.{}.fwt", end["pid"])
            );
            children.push(Trace::read(file));
        }
    }
    let mut seen: Vec<_> = children.iter().map(counts).collect();
    seen.sort_unstable();
    assert_eq!(seen, [[0, 0, 0], [0, 0, 50]]);
    // The children know the address space they were born with, and that its pages are there.
    for child in &children {
        let mut space = Space::default();
        child.events.iter().for_each(|event| space.apply(event));
        assert!(child.references().iter().all(|&(_, address, ..)| space.contains(address)));
        let populated: u64 = child
            .events
            .iter()
            .map(|event| if let Event::Populate { length, .. } = event { *length } else { 0 })
            .sum();
        assert!(populated >= 1 << 20, "{populated} bytes populated");
    }
}

#[test]
fn rewritten_code_is_new_code() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "modify", STATIC);
    let recorded = record(&scratch, "", &[path(&program)]);
    assert_eq!(recorded.stdout, b"7045\n");
    let trace = Trace::read(&recorded.output);
    let run: Vec<u8> = trace
        .executions()
        .filter(|(_, block)| block.instructions[0].pc == 0x1000_0000)
        .map(|(_, block)| match block.instructions[0].operands {
            Operands::X86(code) => code[1],
            _ => unreachable!(),
        })
        .collect();
    assert_eq!(run, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    // The code that changes itself: each instruction counts once, and the last form was executed.
    for offset in [0, 7, 12] {
        assert_eq!(trace.count(0x1000_0100 + offset), 1, "instruction at +{offset}");
    }
    let changed = trace
        .executions()
        .flat_map(|(_, block)| block.instructions.iter())
        .find(|i| i.pc == 0x1000_0107);
    assert!(matches!(changed.unwrap().operands, Operands::X86(code) if code[1] == 7));
}

#[test]
fn a_crash_leaves_everything_up_to_it() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "crash", BARE);
    let recorded = record(&scratch, "", &[path(&program)]);
    assert_eq!(recorded.status.signal(), Some(libc::SIGSEGV));
    let trace = Trace::read(&recorded.output);
    assert_eq!(trace.count(symbol(&program, "tick")), 1000);
    // The instruction that faulted did not complete; the one before it did.
    let last = *trace.pcs().last().unwrap();
    assert_eq!(trace.count(symbol(&program, "good")), 1);
    assert_eq!(trace.count(symbol(&program, "bad")), 0);
    assert_eq!(trace.count(symbol(&program, "after")), 0);
    assert_eq!(last, symbol(&program, "good") + 2);
}

#[test]
fn a_handled_fault_counts_each_instruction_once() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "handled", STATIC);
    let recorded = record(&scratch, "", &[path(&program)]);
    assert_eq!(recorded.stdout, b"5\n");
    let trace = Trace::read(&recorded.output);
    for name in ["touch", "t0", "t1", "t2"] {
        assert_eq!(trace.count(symbol(&program, name)), 5, "{name}");
    }
}

#[test]
fn a_killed_program_leaves_everything_up_to_that_point() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        let scratch = Scratch::new();
        let program = compile(&scratch, "endless", BARE);
        let mut running = start(&scratch, "", &[path(&program)]);
        let mut word = [0; 3];
        running.guest.stdout.as_mut().unwrap().read_exact(&mut word).unwrap();
        // SAFETY: our own child.
        unsafe { libc::kill(running.guest.id() as i32, signal) };
        let recorded = running.end();
        assert_eq!(recorded.status.signal(), Some(signal));
        let trace = Trace::read(&recorded.output);
        let counter = symbol(&program, "counter");
        let stores = trace.references().iter().filter(|r| r.1 == counter && r.3).count();
        assert!(stores >= 3_000_000, "{stores}");
    }
}

#[test]
fn skip_and_limit_cut_exactly() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "loops", BARE);
    let whole = Trace::read(&record(&scratch, "", &[path(&program)]).output).pcs();
    let recorded = record(&scratch, ",skip=1000000,limit=500000", &[path(&program)]);
    assert_eq!(recorded.ends[0]["reason"], "limit");
    assert_eq!(recorded.status.code(), Some(0));
    let part = Trace::read(&recorded.output).pcs();
    // Blocks are not divided: less than one is missing at each end.
    assert!((499_900..=500_000).contains(&part.len()), "{}", part.len());
    let at = (999_900..=1_000_000).find(|&at| whole[at..][..part.len()] == part);
    assert!(at.is_some());
}

#[test]
fn what_was_skipped_is_populated() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "region", BARE);
    let recorded = record(&scratch, ",start-at=inside", &[path(&program)]);
    let trace = Trace::read(&recorded.output);
    let pages = symbol(&program, "pages");
    let populated: Vec<(u64, u64)> = trace
        .events
        .iter()
        .filter_map(|event| match *event {
            Event::Populate { address, length, store: true } => Some((address, address + length)),
            _ => None,
        })
        .collect();
    for page in 0..64 {
        let address = pages + (page << 12);
        assert!(
            populated.iter().any(|&(start, end)| (start..end).contains(&address)),
            "page {page}"
        );
    }
    assert!(recorded.warnings.is_empty(), "{:?}", recorded.warnings);
}

#[test]
fn regions_of_interest() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "region", BARE);
    let [inside, outside] = ["inside", "outside"].map(|name| symbol(&program, name));
    let counts = |options: &str| {
        let recorded = record(&scratch, options, &[path(&program)]);
        let trace = Trace::read(&recorded.output);
        ((trace.count(outside), trace.count(inside)), trace, recorded)
    };
    // From the beginning: only what is between a stop and a start is missing.
    assert_eq!(counts("").0, (500, 81));
    let (marked, trace, recorded) = counts(",start-at=marker");
    assert_eq!(marked, (0, 81));
    assert_eq!(recorded.status.code(), Some(0));
    let names: Vec<&str> = trace
        .events
        .iter()
        .filter_map(
            |event| if let Event::Marker { name } = event { Some(name.as_str()) } else { None },
        )
        .collect();
    assert_eq!(names, ["start", "half way", "stop", "start", "stop"]);
    assert_eq!(counts(&format!(",start-at={inside:#x}")).0, (0, 81));
    assert_eq!(counts(",start-at=inside,limit=100").0.0, 0);
    let (upto, _, recorded) = counts(",stop-at=inside");
    assert_eq!(upto, (500, 0));
    assert_eq!(recorded.ends[0]["reason"], "limit");
    // A place that is never reached.
    assert_eq!(counts(",start-at=nowhere").0, (0, 0));
}

#[test]
fn programs_started_by_exec_are_recorded_too() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "execs", &[]);
    let target = compile(&scratch, "loops", BARE);
    let script = scratch.0.join("script");
    std::fs::write(&script, format!("#!{} -x\n", path(&target))).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for started in [&target, &script] {
        let recorded = record(&scratch, "", &[path(&program), path(started)]);
        assert_eq!(recorded.ends.len(), 2, "{:?}", recorded.ends);
        assert_eq!(recorded.ends.iter().filter(|end| end["reason"] == "exec").count(), 1);
        let second = recorded.ends.iter().find(|end| end["reason"] == "exit").unwrap();
        let trace = Trace::read(Path::new(second["file"].as_str().unwrap()));
        assert!(trace.instructions() > 5_000_000);
        assert!(trace.count(symbol(&target, "main")) == 1);
    }
    let native = record(&scratch, ",follow-exec=off", &[path(&program), path(&target)]);
    assert_eq!(native.ends.len(), 1, "{:?}", native.ends);
    assert_eq!(native.ends[0]["reason"], "exec");
    assert_eq!(native.status.code(), recorded_status(&target));
    // Variables and arguments arrive as they were given.
    let shown = record(&scratch, "", &[path(&program), "/usr/bin/env"]);
    let text = String::from_utf8(shown.stdout).unwrap();
    let mut variables: Vec<&str> = text.lines().collect();
    variables.sort_unstable();
    assert_eq!(variables, ["COLOUR=a,b", "LD_FLATWALK=1"]);
}

fn recorded_status(program: &Path) -> Option<i32> {
    Command::new(program).status().unwrap().code()
}
