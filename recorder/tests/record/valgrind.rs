//! Valgrind as a witness: it runs the same programs by other means.

use std::path::Path;
use std::process::Command;

use crate::support::{BARE, Reference, Scratch, Trace, compile, path, record};

/// What lackey (Valgrind) saw: instructions with what they accessed, in order. Nothing, with a word
/// on why, where Valgrind is not installed.
fn lackey(program: &Path) -> Option<Vec<(u64, Vec<Reference>)>> {
    let output = Command::new("valgrind")
        .args(["--tool=lackey", "--basic-counts=no", "--trace-mem=yes"])
        .arg(program)
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("SKIPPED: valgrind is not installed (as root: apt-get install valgrind)");
            return None;
        }
        Err(error) => panic!("valgrind: {error}"),
    };
    let mut seen: Vec<(u64, Vec<Reference>)> = Vec::new();
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        let Some((kind @ ("I " | " L" | " S" | " M"), rest)) = line.split_at_checked(2) else {
            continue;
        };
        let (address, size) = rest.trim().split_once(',').expect("ADDRESS,SIZE");
        let address = u64::from_str_radix(address, 16).unwrap();
        let size = size.parse().unwrap();
        if kind == "I " {
            seen.push((address, Vec::new()));
            continue;
        }
        let (_, accesses) = seen.last_mut().expect("accesses follow their instruction");
        // M: modified, loaded and then stored. An atomic update is a load and a modification there.
        let load = Reference { address, size, store: false };
        if kind == " L" || kind == " M" && accesses.last() != Some(&load) {
            accesses.push(load);
        }
        if kind != " L" {
            accesses.push(Reference { address, size, store: true });
        }
    }
    assert!(!seen.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(seen)
}

#[test]
fn instructions_and_addresses_are_those_that_valgrind_sees() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "accesses", BARE);
    let Some(theirs) = lackey(&program) else { return };
    let recorded = record(&scratch, "", &[path(&program)]);
    let ours = Trace::read(&recorded.output).by_instruction();
    for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "instruction {index}");
    }
    assert_eq!(ours.len(), theirs.len());
}
