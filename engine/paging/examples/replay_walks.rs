//! Walks again, by the engine's walker, what a processor with flat page tables has walked.
//!
//! `cargo run -p flatwalk-paging --example replay_walks < WALKS` reads the lines that
//! `tests/plugin/page_walks.c` writes. It feeds the walker the words that the machine has read, and compares
//! where it looks for each and what it arrives at. It says how many walks it has compared, and fails at the
//! first that differs.

use std::io::BufRead;
use std::process::ExitCode;

use flatwalk_paging::hardware::Paging;
use flatwalk_paging::{Address, Fault, Gva, Hpa, Leaf, Step, Walk};

/// What the machine made of a walk.
enum Outcome {
    /// Physical address, and size of the page.
    Page(u64, u64),
    /// Error code of the page fault.
    Fault(u64),
}

/// A line of the file.
struct Walked {
    root: u64,
    paging: Paging,
    address: u64,
    outcome: Outcome,
    /// Physical address and value of each entry read, in order.
    entries: Vec<(u64, u64)>,
}

/// Bits of a page fault's error code.
const PRESENT: u64 = 1;
const RESERVED: u64 = 1 << 3;
/// Bits of CR4.
const LA57: u64 = 1 << 12;
const FLAT: u64 = 1 << 29;
/// MAXPHYADDR of QEMU's processors, unless they are asked for another.
const PHYSICAL_BITS: u8 = 40;

fn parse(line: &str) -> Option<Walked> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |field: &str| u64::from_str_radix(field, 16).ok();
    let [_cpu, root, control, address, _kind, _mode, ref rest @ ..] = fields[..] else {
        return None;
    };
    let control = number(control)?;
    let paging = Paging {
        five_levels: control & LA57 != 0,
        flat: control & FLAT != 0,
        physical_bits: PHYSICAL_BITS,
    };
    let (outcome, rest) = match rest {
        ["page", physical, bytes, rest @ ..] => {
            (Outcome::Page(number(physical)?, number(bytes)?), rest)
        }
        ["fault", code, rest @ ..] => (Outcome::Fault(number(code)?), rest),
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
    let mut walk = Walk::from(paging.geometry(), paging.root(walked.root, address), address);
    let mut found: Option<Result<Leaf<Hpa>, Fault<Hpa>>> = None;
    for &(at, word) in &walked.entries {
        if found.is_some() {
            return Err(format!("the machine went on to {at:#x}, the engine had ended"));
        }
        let wanted = walk.entry_address();
        if wanted.raw() != at {
            return Err(format!("the machine read {at:#x}, the engine {wanted:#x}"));
        }
        match walk.feed(paging.entry(word, walk.at().bottom())) {
            Step::Table(_) => {}
            Step::Leaf(leaf) => found = Some(Ok(leaf)),
            Step::Fault(fault) => found = Some(Err(fault)),
        }
    }
    match (&walked.outcome, found) {
        (_, None) => Err("the machine had ended, the engine goes on".to_owned()),
        (&Outcome::Page(physical, bytes), Some(Ok(leaf))) => {
            let size = paging.geometry().span(leaf.level);
            let target = leaf.frame.raw() + walked.address % size;
            if (target, size) == (physical, bytes) {
                Ok(())
            } else {
                Err(format!(
                    "the machine found {physical:#x} in a page of {bytes:#x} bytes, the engine {target:#x} of {size:#x}"
                ))
            }
        }
        // A right is missing; which ones there are depends on more than the tables.
        (&Outcome::Fault(code), Some(Ok(_))) if code & (PRESENT | RESERVED) == PRESENT => Ok(()),
        (&Outcome::Fault(code), Some(Err(Fault::NotPresent { .. }))) if code & PRESENT == 0 => {
            Ok(())
        }
        (&Outcome::Fault(code), Some(Err(Fault::Reserved { .. }))) if code & RESERVED != 0 => {
            Ok(())
        }
        (Outcome::Page(..), Some(Err(fault))) => Err(format!("the engine found {fault:?}")),
        (Outcome::Fault(code), Some(other)) => Err(format!(
            "the machine raised a fault with code {code:#x}, the engine found {other:?}"
        )),
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
