//! However a program ends, its trace is valid up to that point.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use crate::support::{BARE, STATIC, Scratch, Trace, compile, path, record, start, symbol};

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
        assert!(steps(&program, &Trace::read(&recorded.output)) >= 200_000);
    }
}

/// How many steps of the endless walk were recorded: each follows the one before.
fn steps(program: &Path, trace: &Trace) -> usize {
    let trail = symbol(program, "trail");
    let stores = trace
        .references()
        .into_iter()
        .filter(|(_, access)| access.store && (trail..trail + (8 << 16)).contains(&access.address));
    let mut count = 0;
    for (_, access) in stores {
        assert_eq!(access.address, trail + (count as u64 & 0xffff) * 8, "step {count}");
        count += 1;
    }
    count
}

#[test]
fn a_program_may_run_on_unrecorded() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "endless", BARE);
    let mut running = start(&scratch, "", &[path(&program)]);
    // By then the collector is far behind: what it has not got is lost, but nothing in between.
    let mut word = [0; 6];
    running.guest.stdout.as_mut().unwrap().read_exact(&mut word).unwrap();
    running.detach();
    let end = running.wait_for("end");
    assert_eq!(end["reason"], "detached");
    assert_eq!(end["error"], serde_json::Value::Null);
    assert!(running.guest.try_wait().unwrap().is_none());
    running.guest.kill().unwrap();
    let recorded = running.end();
    assert_eq!(recorded.status.signal(), Some(libc::SIGKILL));
    let trace = Trace::read(&recorded.output);
    assert_eq!(trace.instructions(), end["instructions"]);
    assert!(steps(&program, &trace) > 0);
}
