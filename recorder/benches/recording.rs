//! How fast programs are recorded, and how large their traces are: `cargo bench -p flatwalk-recorder`.
//!
//! Whole processes, from start to finished file; the best of three. Next to it are the same
//! programs alone, under QEMU alone, and under QEMU with callbacks that do nothing
//! (`ceiling.c`), below which no recorder that works by these callbacks can come; and recorded as a
//! sample that is nearly all gaps.

#[allow(dead_code, reason = "the bench uses a part of it")]
#[path = "../tests/record/support.rs"]
mod support;

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::{Scratch, record};

const ROUNDS: usize = 3;
const PYTHON: &str = "\
import json
data = {f'key{i}': [i, i * 1.5, str(i), {'a': None, 'b': [True, False]}] for i in range(4000)}
for _ in range(4):
    text = json.dumps(data, indent=1)
    back = json.loads(text)
counts = {}
for word in text.split():
    counts[word] = counts.get(word, 0) + 1
print(len(back), max(counts.values()))
";

fn main() {
    let scratch = Scratch::new();
    let directory = scratch.0.clone();
    let gcc = |options: &[&str], source: &str, target: &str| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches").join(source);
        let target = directory.join(target).to_str().expect("plain text").to_owned();
        let mut gcc = Command::new("gcc");
        gcc.arg("-O2").args(options).arg(source).args(["-o", &target]);
        assert!(gcc.status().expect("gcc is installed").success());
        target
    };
    let kernel = gcc(&["-static"], "kernel.c", "kernel");
    let ceiling = gcc(&["-shared", "-fPIC"], "ceiling.c", "ceiling.so");
    let text = directory.join("text").to_str().expect("plain text").to_owned();
    std::fs::write(&text, lines()).expect("there is space");
    let programs: [(&str, &[&str]); 3] = [
        ("python3 (json, dict)", &["/usr/bin/python3", "-I", "-c", PYTHON]),
        ("sort (150 000 lines)", &["/usr/bin/sort", &text]),
        ("static C kernel", &[&kernel]),
    ];
    println!(
        "{:22}{:>8}{:>9}{:>9}{:>9}{:>10}{:>9}{:>10}{:>10}{:>10}{:>9}",
        "",
        "M instr",
        "alone s",
        "QEMU s",
        "empty s",
        "record s",
        "gaps s",
        "empty M/s",
        "rec. M/s",
        "gaps M/s",
        "B/instr"
    );
    for (name, command) in programs {
        let alone = best(|| run(command[0], &command[1..]));
        let plain = best(|| run("qemu-x86_64", command));
        let with_plugin = [&["-plugin", &ceiling, "--"], command].concat();
        let empty = best(|| run("qemu-x86_64", &with_plugin));
        let (mut instructions, mut bytes) = (0, 0);
        let recorded = best(|| {
            let recorded = record(&scratch, "", command);
            let end = &recorded.ends[0];
            instructions = end["instructions"].as_u64().expect("a count");
            bytes = end["bytes"].as_u64().expect("a length");
        });
        let gaps = best(|| {
            let recorded = record(&scratch, ",segment=100000,windows=1", command);
            assert!(recorded.ends[0]["gap_instructions"].as_u64() > Some(instructions / 10 * 9));
        });
        let count = instructions as f64;
        let millions_per_second = |time: Duration| count / 1e6 / time.as_secs_f64();
        println!(
            "{name:22}{:8.0}{:9.2}{:9.2}{:9.2}{:10.2}{:9.2}{:10.0}{:10.0}{:10.0}{:9.3}",
            count / 1e6,
            alone.as_secs_f64(),
            plain.as_secs_f64(),
            empty.as_secs_f64(),
            recorded.as_secs_f64(),
            gaps.as_secs_f64(),
            millions_per_second(empty),
            millions_per_second(recorded),
            millions_per_second(gaps),
            bytes as f64 / count
        );
    }
}

/// The shortest of several runs: everything else on the machine only ever adds.
fn best(mut work: impl FnMut()) -> Duration {
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed()
    });
    times.min().unwrap_or_default()
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).status();
    assert!(status.expect("it is installed").success(), "{program}");
}

/// Lines in no order.
fn lines() -> String {
    let mut text = String::new();
    let mut state = 1_u64;
    for number in 0..150_000 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let _ = writeln!(text, "{:x} {number}", state >> 16);
    }
    text
}
