//! Threads, children, and programs started by others.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use flatwalk_recorder::channel::region::SLOTS;
use flatwalk_recorder::plugin::space::Space;
use flatwalk_trace::{Event, Reader};

use crate::support::{
    BARE, Running, STATIC, Scratch, Trace, compile, path, qemu, record, start, start_guest,
    start_with, symbol,
};

#[test]
fn a_thread_that_slept_goes_on_behind_what_woke_it() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "pings", STATIC);
    let recorded = record(&scratch, "", &[path(&program)]);
    assert_eq!(recorded.stdout, b"1200\n");
    let trace = Trace::read(&recorded.output);
    let step = symbol(&program, "step");
    // Threads 1 and 2 use pipes, 3 and 4 a futex; whoever is second of two has its turn first, or last.
    let mut steps = [0; 6];
    let mut slices = trace.slices.iter().zip(&trace.epochs).peekable();
    let (mut wakes, mut sleeps) = (BTreeMap::new(), [0; 6]);
    for (number, event) in trace.events.iter().enumerate() {
        while let Some((slice, _)) = slices.next_if(|&(_, &before)| before <= number) {
            let of_slice = slice.blocks.iter().map(|&id| &trace.blocks[id as usize]);
            steps[slice.thread as usize] +=
                of_slice.filter(|block| block.instructions[0].pc == step).count();
        }
        match *event {
            Event::Wake { thread, number } => {
                assert_eq!(wakes.insert(number, thread), None);
            }
            Event::Woken { thread, number } => {
                let by = wakes[&number];
                sleeps[thread as usize] += 1;
                let (own, other) = (steps[thread as usize], steps[by as usize]);
                match (thread, by) {
                    // Joins what has ended.
                    (0, 1..=5) => {}
                    (1, 2) | (4, 3) => {
                        assert!(other > own, "{thread} after {own}, {by} after {other}");
                    }
                    (2, 1) | (3, 4) => {
                        assert!(other >= own, "{thread} after {own}, {by} after {other}");
                    }
                    _ => panic!("thread {thread} was not woken by {by}"),
                }
            }
            _ => {}
        }
    }
    // Each that reads waits for what was written, asleep or not. At the futex one of two sleeps in
    // each round.
    let [_, first, second, third, fourth, alone] = sleeps;
    assert_eq!([first, second], [300; 2]);
    assert!(third + fourth >= 150, "{sleeps:?}");
    assert_eq!(alone, 0);
}

#[test]
fn every_thread_has_its_own_run() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "threads", STATIC);
    let recorded = record(&scratch, "", &[path(&program)]);
    assert_eq!(recorded.stdout, b"120000\n");
    let trace = Trace::read(&recorded.output);
    let step = symbol(&program, "step");
    let mut steps = BTreeMap::<u32, u64>::new();
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
    // Each does what its code says, in this order.
    let sums = symbol(&program, "sums");
    for (thread, seen) in trace.loads_at(step) {
        let wanted = (0..20000).map(|i| sums + u64::from(thread - 1) * 512 + i % 64 * 8);
        assert!(seen.into_iter().eq(wanted), "thread {thread}");
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
fn a_child_has_the_mappings_that_other_threads_have_just_made() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "maps_and_forks", STATIC);
    let recorded = record(&scratch, "", &[path(&program)]);
    assert_eq!(recorded.status.code(), Some(7));
    assert_eq!(recorded.ends.len(), 101);
    for end in &recorded.ends {
        let file = Path::new(end["file"].as_str().unwrap());
        if file == recorded.output {
            continue;
        }
        let trace = Trace::read(file);
        let mut space = Space::default();
        let mut applied = 0;
        for (slice, &epoch) in trace.slices.iter().zip(&trace.epochs) {
            trace.events[applied..epoch].iter().for_each(|event| space.apply(event));
            applied = epoch;
            for &address in &slice.addresses {
                assert!(space.contains(address), "{address:x} in {}", file.display());
            }
        }
    }
}

#[test]
fn what_a_child_allocates_is_not_where_its_region_comes() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "many_maps", STATIC);
    // Where a child allocates depends on where the kernel has put things.
    for _ in 0..8 {
        let recorded = record(&scratch, "", &[path(&program)]);
        assert_eq!(recorded.status.code(), Some(7));
        assert_eq!(recorded.ends.len(), 2);
    }
}

#[test]
fn only_threads_at_once_are_limited() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "chain", STATIC);
    // QEMU's number of each is one above the one before.
    let threads = SLOTS + 200;
    let recorded = record(&scratch, "", &[path(&program), &threads.to_string()]);
    assert_eq!(recorded.status.code(), Some(7), "{:?}", recorded.warnings);
    assert_eq!(recorded.warnings, [""; 0]);
    let mut reader = Reader::open(&recorded.output).unwrap();
    assert_eq!(reader.summary().events["thread_start"], threads as u64 + 1);
    reader.verify(&mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
}

#[test]
fn programs_run_on_whose_processes_the_collector_has_no_files_for() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "crowd", STATIC);
    let run = |files| start_with(&scratch, "", &[path(&program)], Some(files)).end();
    // It asks for more.
    let recorded = run((64, 256));
    assert_eq!(recorded.stdout, b"30\n");
    assert_eq!(recorded.ends.len(), 31);
    assert!(recorded.ends.iter().all(|end| end["reason"] == "exit"), "{:?}", recorded.ends);
    // There are no more, and each needs one while it runs.
    for options in ["", ",segment=1000"] {
        let recorded = start_with(&scratch, options, &[path(&program)], Some((32, 32))).end();
        assert_eq!(recorded.stdout, b"30\n");
        let well = recorded.ends.iter().filter(|end| end["reason"] == "exit").count();
        assert!(well < 31, "{:?}", recorded.ends);
        assert!(recorded.ends.iter().all(|end| end["error"].is_null()), "{:?}", recorded.ends);
        let is_note = |warning: &String| {
            warning.contains("a process is not recorded") && warning.contains("ulimit")
        };
        assert_eq!(recorded.warnings.iter().filter(|&warning| is_note(warning)).count(), 31 - well);
    }
}

#[test]
fn a_process_is_recorded_once_there_are_files_for_it_again() {
    let scratch = Scratch::new();
    let mut running = start_with(&scratch, "", &["/bin/true"], Some((64, 64)));
    assert_eq!(running.wait_for("end")["reason"], "exit");
    let last = Instant::now() + Duration::from_secs(60);
    while running.files().values().any(|file| file.to_string_lossy().contains("pidfd")) {
        assert!(Instant::now() < last, "{:?}", running.files());
        thread::sleep(Duration::from_millis(1));
    }
    // The one below it is what the collector has for those that it refuses.
    let files = running.files();
    let none = (0..64).find(|number| !files.contains_key(number)).unwrap();
    let runs = |files| {
        running.limit_files(files, 64);
        let done = start_guest(&scratch, "", &["/bin/true"]).wait_with_output().unwrap();
        assert!(done.status.success());
        String::from_utf8(done.stderr).unwrap()
    };
    let said = runs(none);
    assert!(said.contains("is not recorded") && said.contains("ulimit"), "{said}");
    assert_eq!(runs(64), "");
    let recorded = running.end();
    assert_eq!(recorded.ends.len(), 1, "{:?}", recorded.ends);
    assert_eq!(recorded.ends[0]["reason"], "exit");
    assert_eq!(recorded.warnings.len(), 1, "{:?}", recorded.warnings);
}

#[test]
fn processes_whose_files_are_limited_in_length_are_recorded_too() {
    let scratch = Scratch::new();
    let command = "ulimit -f 1; (exit 3); /bin/true && exec /bin/sh -c 'exit 5'";
    let recorded = record(&scratch, "", &["/bin/sh", "-c", command]);
    assert_eq!(recorded.status.code(), Some(5));
    assert_eq!(recorded.warnings, [""; 0]);
    let mut reasons: Vec<_> = recorded.ends.iter().map(|end| end["reason"].as_str()).collect();
    reasons.sort_unstable();
    // Two shells, their two children, and what one of these became.
    assert_eq!(reasons, ["exec", "exec", "exit", "exit", "exit"].map(Some));
}

/// A pipe with a name.
fn fifo(scratch: &Scratch, name: &str) -> PathBuf {
    let fifo = scratch.0.join(name);
    let name = CString::new(fifo.as_os_str().as_bytes()).unwrap();
    // SAFETY: a NUL-terminated path.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    fifo
}

#[test]
fn a_child_that_takes_long_to_begin_is_waited_for() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "leaves", BARE);
    let library = compile(&scratch, "gate", &["-shared", "-fPIC"]);
    let gate = fifo(&scratch, "pipe");
    let mut running = start(&scratch, "", &["/bin/true"]);
    assert_eq!(running.wait_for("end")["reason"], "exit");
    let mut late = qemu(&scratch, "", &[path(&program)]);
    let mut parent = late.env("LD_PRELOAD", &library).env("GATE", &gate).spawn().unwrap();
    assert_eq!(parent.wait().unwrap().code(), Some(3));
    running.close();
    assert_eq!(running.wait_for("end")["reason"], "exit");
    let goes_on = running.goes_on();
    // Whether the child is there or not.
    let _gate = File::options().read(true).write(true).open(&gate).unwrap();
    assert!(goes_on, "the collector ended while a child was about to introduce itself");
    let recorded = running.end();
    assert_eq!(recorded.ends.len(), 1, "{:?}", recorded.ends);
    let trace = Trace::read(Path::new(recorded.ends[0]["file"].as_str().unwrap()));
    assert_eq!(trace.count(symbol(&program, "in_child")), 1);
}

/// A shell that has ended, and the program that it left, which has not yet introduced itself: QEMU
/// opens its log before it loads plugins, which takes until somebody reads that.
fn start_late(scratch: &Scratch, target: &Path) -> (Running, PathBuf) {
    let log = fifo(scratch, "log");
    let (log_name, target_name) = (path(&log), path(target));
    let command = format!(
        "QEMU_LOG=unimp QEMU_LOG_FILENAME={log_name} {target_name} </dev/null >/dev/null 2>&1 & exit 3"
    );
    let mut running = start(scratch, "", &["/bin/sh", "-c", &command]);
    assert_eq!(running.guest.wait().unwrap().code(), Some(3));
    running.close();
    let mut reasons = [(); 2].map(|()| running.wait_for("end")["reason"].to_string());
    reasons.sort_unstable();
    assert_eq!(reasons, [r#""exec""#, r#""exit""#]);
    (running, log)
}

#[test]
fn a_program_that_is_about_to_start_ends_with_who_started_it() {
    let scratch = Scratch::new();
    let target = compile(&scratch, "loops", BARE);
    let (mut running, log) = start_late(&scratch, &target);
    running.leave();
    running.wait_for_end();
    // Nobody is there who would write it.
    let opened = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&log);
    assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::ENXIO));
    let processes = fs::read_dir("/proc").unwrap().map_while(Result::ok);
    let mut lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let name = target.as_os_str().as_bytes();
    assert!(!lines.any(|line| line.windows(name.len()).any(|part| part == name)));
}

#[test]
fn after_a_detach_a_program_is_waited_for_only_so_long() {
    let scratch = Scratch::new();
    let target = compile(&scratch, "loops", BARE);
    let (mut running, log) = start_late(&scratch, &target);
    running.detach();
    running.wait_for_end();
    // The program ends, too: nobody answers it.
    let _log = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&log).unwrap();
}

#[test]
fn a_program_that_takes_long_to_start_is_waited_for() {
    let scratch = Scratch::new();
    let target = compile(&scratch, "loops", BARE);
    let (running, log) = start_late(&scratch, &target);
    let goes_on = running.goes_on();
    // Whether QEMU is there or not.
    let _log = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&log).unwrap();
    assert!(goes_on, "the collector ended while a program was about to start");
    let recorded = running.end();
    assert_eq!(recorded.ends.len(), 1, "{:?}", recorded.ends);
    assert_eq!(recorded.ends[0]["reason"], "exit");
    let trace = Trace::read(Path::new(recorded.ends[0]["file"].as_str().unwrap()));
    assert_eq!(trace.count(symbol(&target, "main")), 1);
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
        assert!(child.references().iter().all(|(_, access)| space.contains(access.address)));
        let populated: u64 = child
            .events
            .iter()
            .map(|event| if let Event::Populate { length, .. } = event { *length } else { 0 })
            .sum();
        assert!(populated >= 1 << 20, "{populated} bytes populated");
    }
}

#[test]
fn children_of_children_and_spawned_programs_are_recorded() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "families", STATIC);
    let recorded = record(&scratch, "", &[path(&program)]);
    assert_eq!(recorded.status.code(), Some(3));
    assert_eq!(recorded.warnings, [""; 0]);
    let mut seen: Vec<_> = recorded
        .ends
        .iter()
        .map(|end| {
            let trace = Trace::read(Path::new(end["file"].as_str().unwrap()));
            assert_eq!(end["instructions"], trace.instructions());
            let names = ["in_parent", "in_child", "in_grandchild", "in_spawned"];
            (end["reason"].as_str().unwrap(), names.map(|name| trace.count(symbol(&program, name))))
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(
        seen,
        [
            // What posix_spawn forked to start the program.
            ("exec", [0, 0, 0, 0]),
            ("exit", [0, 0, 0, 30]),
            ("exit", [0, 0, 20, 0]),
            ("exit", [0, 10, 0, 0]),
            ("exit", [5, 0, 0, 0]),
        ]
    );
    // A limit is each process's own.
    let limited = record(&scratch, ",limit=20000", &[path(&program)]);
    assert!(limited.ends.iter().any(|end| end["reason"] == "limit"));
    for end in &limited.ends {
        let trace = Trace::read(Path::new(end["file"].as_str().unwrap()));
        assert!(trace.instructions() <= 20000);
    }
}

#[test]
fn programs_started_by_exec_are_recorded_too() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "execs", &[]);
    let target = compile(&scratch, "loops", BARE);
    let script = scratch.0.join("script");
    executable(&script, format!("#!{} -x\n", path(&target)).as_bytes());
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

#[test]
fn a_program_behind_a_descriptor_that_exec_closes_is_recorded_too() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "fexecs", &[]);
    let target = compile(&scratch, "loops", BARE);
    for more in [&[][..], &["copied"], &["copied", "named"]] {
        let command = [&[path(&program), path(&target)], more].concat();
        let recorded = record(&scratch, "", &command);
        assert_eq!(recorded.status.code(), recorded_status(&target), "{more:?}");
        assert_eq!(recorded.ends.len(), 2, "{:?}", recorded.ends);
        let second = recorded.ends.iter().find(|end| end["reason"] == "exit").unwrap();
        let trace = Trace::read(Path::new(second["file"].as_str().unwrap()));
        assert_eq!(trace.count(symbol(&target, "main")), 1);
    }
}

/// Writes a file that may be executed.
fn executable(file: &Path, content: &[u8]) {
    fs::write(file, content).unwrap();
    fs::set_permissions(file, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn programs_that_cannot_be_recorded_are_left_to_the_kernel_with_a_warning() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "execs", &[]);
    // Another architecture's: the kernel refuses it, too.
    let foreign = scratch.0.join("foreign");
    let mut bytes = fs::read(&program).unwrap();
    bytes[18..20].copy_from_slice(&183_u16.to_le_bytes());
    executable(&foreign, &bytes);
    let recorded = record(&scratch, "", &[path(&program), path(&foreign)]);
    assert_eq!(recorded.status.code(), Some(1));
    assert_eq!(recorded.ends.len(), 1);
    assert_eq!(recorded.ends[0]["reason"], "exit");
    assert!(
        recorded.warnings[0].contains("foreign is not recorded: it is not an x86-64 program"),
        "{:?}",
        recorded.warnings
    );
    // Neither missing programs nor those that may not be executed deserve one.
    fs::set_permissions(&foreign, Permissions::from_mode(0o644)).unwrap();
    let recorded = record(&scratch, "", &[path(&program), path(&foreign)]);
    assert_eq!(recorded.warnings, [""; 0]);
}

#[test]
fn a_scripts_first_line_has_blanks_and_tabs_between_words_and_nothing_else() {
    let scratch = Scratch::new();
    let script = scratch.0.join("script");
    let run = |content: &[u8]| {
        executable(&script, content);
        let command = format!("{} || exit 9", path(&script));
        record(&scratch, "", &["/bin/sh", "-c", &command]).status.code()
    };
    assert_eq!(run(b"#! \t/bin/sh \t\nexit 0\n"), Some(0));
    // Linux looks for a file whose name ends with a carriage return.
    assert_eq!(run(b"#!/bin/sh\r\nexit 0\r\n"), Some(9));
}

#[test]
fn a_command_line_may_be_longer_than_a_traces_name() {
    let scratch = Scratch::new();
    let argument = "a".repeat(110_000);
    let mut command = vec!["/bin/true"];
    command.extend([argument.as_str(); 11]);
    let recorded = record(&scratch, "", &command);
    assert_eq!(recorded.status.code(), Some(0), "{:?}", recorded.ends);
    let reader = Reader::open(&recorded.output).unwrap();
    assert!(reader.header().name.starts_with("/bin/true aaa"), "{}", reader.header().name.len());
    assert!(reader.header().name.ends_with('…'));
}

#[test]
fn programs_that_give_up_their_rights_run_on() {
    // SAFETY: always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("SKIPPED: only root has rights to give up");
        return;
    }
    let scratch = Scratch::new();
    let nobody = "--reuid=65534";
    let recorded = record(&scratch, "", &["/usr/bin/setpriv", nobody, "/usr/bin/id", "-u"]);
    assert_eq!(recorded.stdout, b"65534\n");
    assert_eq!(recorded.status.code(), Some(0));
    assert!(
        recorded.warnings[0].contains("/usr/bin/id is not recorded: flatwalk cannot follow it"),
        "{:?}",
        recorded.warnings
    );
}

fn recorded_status(program: &Path) -> Option<i32> {
    Command::new(program).status().unwrap().code()
}
