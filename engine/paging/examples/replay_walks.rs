//! Walks again, by the engine's walker, what a processor with flat page tables has walked.
//!
//! `cargo run -p flatwalk-paging --example replay_walks < WALKS` reads the lines that
//! `tests/plugin/page_walks.c` writes. It feeds the walker the words that the machine has read, and
//! compares where it looks for each and what it arrives at. It says how many walks it has compared,
//! and fails at the first that differs. Of a two-dimensional walk it compares the walks of the
//! guest's tables and of the nested ones, each as one of its own.

use std::io::BufRead;
use std::process::ExitCode;

use flatwalk_paging::hardware::{Outcome, Paging};
use flatwalk_paging::{Address, Gva};

/// A line of the file.
struct Walked {
    root: u64,
    paging: Paging,
    address: u64,
    /// None if the guest was left before the walk's end.
    outcome: Option<Outcome>,
    /// Physical address and value of each entry read, in order.
    entries: Vec<(u64, u64)>,
}

/// Why the engine does not walk to the end.
enum Stopped {
    /// Nor did the machine, and no entry is left that it has read.
    Abandoned,
    Differs(String),
}

/// MAXPHYADDR of QEMU's processors, unless they are asked for another.
const PHYSICAL_BITS: u8 = 40;

fn parse(line: &str) -> Option<Walked> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |field: &str| u64::from_str_radix(field, 16).ok();
    let [_cpu, root, control, address, _kind, _mode, _stage, ref rest @ ..] = fields[..] else {
        return None;
    };
    let paging = Paging::new(number(control)?, PHYSICAL_BITS);
    let (outcome, rest) = match rest {
        ["page", physical, bytes, rest @ ..] => {
            (Some(Outcome::Page { physical: number(physical)?, bytes: number(bytes)? }), rest)
        }
        ["fault", code, rest @ ..] => (Some(Outcome::Fault(number(code)?)), rest),
        ["abandoned", rest @ ..] => (None, rest),
        _ => return None,
    };
    let numbers = rest.iter().map(|field| number(field)).collect::<Option<Vec<_>>>()?;
    let pairs = numbers.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    let entries = pairs.map(|pair| (pair[0], pair[1])).collect();
    Some(Walked { root: number(root)?, paging, address: number(address)?, outcome, entries })
}

/// Walks again; says where it differs.
fn replay(walked: &Walked) -> Result<(), String> {
    let paging = walked.paging;
    let address = Gva::new(walked.address);
    let mut entries = walked.entries.iter();
    let found = paging.translate(walked.root, address, |wanted, _| match entries.next() {
        None if walked.outcome.is_none() => Err(Stopped::Abandoned),
        None => Err(Stopped::Differs("the machine had ended, the engine goes on".to_owned())),
        Some(&(at, _)) if at != wanted.raw() => {
            Err(Stopped::Differs(format!("the machine read {at:#x}, the engine {wanted:#x}")))
        }
        Some(&(_, word)) => Ok(word),
    });
    let found = match found {
        Ok(found) => found,
        Err(Stopped::Abandoned) => return Ok(()),
        Err(Stopped::Differs(what)) => return Err(what),
    };
    if let Some((at, _)) = entries.next() {
        return Err(format!("the machine went on to {at:#x}, the engine had ended"));
    }
    match walked.outcome {
        Some(outcome) => paging.compare(address, found, outcome),
        None => Err("the machine abandoned the walk, the engine had ended".to_owned()),
    }
}

fn main() -> ExitCode {
    let mut walks = 0_u64;
    for line in std::io::stdin().lock().lines() {
        let checked = line.map_err(|error| error.to_string()).and_then(|line| {
            let walked = parse(&line).ok_or_else(|| format!("not a walk: {line}"))?;
            replay(&walked).map_err(|what| format!("{what}: {line}"))
        });
        if let Err(what) = checked {
            eprintln!("after {walks} walks: {what}");
            return ExitCode::FAILURE;
        }
        walks += 1;
    }
    println!("{walks} walks agree");
    ExitCode::SUCCESS
}
