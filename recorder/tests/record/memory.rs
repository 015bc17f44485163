//! The address space and its events.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

use flatwalk_recorder::plugin::process::elf::Image;
use flatwalk_recorder::plugin::space::Space;
use flatwalk_trace::{Advice, Backing, Event, Protection};

use crate::support::{BARE, STATIC, Scratch, Trace, compile, path, record, symbol};

/// Bytes of a page.
const P: u64 = 4096;

#[test]
fn the_address_space_is_the_one_the_program_sees() {
    for flags in [&["-static-pie"][..], STATIC, &[]] {
        let scratch = Scratch::new();
        let program = compile(&scratch, "maps", flags);
        let recorded = record(&scratch, "", &[path(&program)]);
        let mut space = Space::default();
        Trace::read(&recorded.output).events.iter().for_each(|event| space.apply(event));
        let ours = pages(space.as_events().iter().filter_map(|event| match *event {
            Event::Map { address, length, protection: p, .. } => {
                Some((address, address + length, [p.read, p.write]))
            }
            Event::Name { .. } => None,
            _ => unreachable!(),
        }));
        let text = String::from_utf8(recorded.stdout).unwrap();
        let theirs = pages(text.lines().filter(|line| !line.contains("[vsyscall]")).map(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let (end, rest) = rest.split_once(' ').unwrap();
            let number = |digits| u64::from_str_radix(digits, 16).unwrap();
            // QEMU shows the kernel's rights, which never include execution.
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
    let [heap, first, moved, shared, again, stack, mixed] = recorded.words();
    let rw = Protection { read: true, write: true, execute: false };
    let events = Trace::read(&recorded.output).events;
    let begin = events.iter().position(|event| matches!(event, Event::Break { .. })).unwrap();
    assert_eq!(
        events[begin..],
        [
            Event::Break { from: heap, to: heap + 3 * P },
            Event::Break { from: heap + 3 * P, to: heap + P },
            Event::Map {
                address: first,
                length: 8 * P,
                protection: rw,
                backing: Backing::Anonymous,
                shared: false
            },
            Event::Unmap { address: first + 2 * P, length: P },
            Event::Protect {
                address: first,
                length: P,
                protection: Protection { read: true, write: false, execute: false }
            },
            Event::Remap { from: first + 4 * P, from_length: 4 * P, to: moved, to_length: 16 * P },
            Event::Advise { address: moved, length: 2 * P, advice: Advice::DontNeed },
            Event::Remap { from: moved, from_length: 16 * P, to: moved, to_length: 4 * P },
            Event::Advise { address: moved, length: P, advice: Advice::HugePage },
            Event::Advise { address: moved, length: P, advice: Advice::NoHugePage },
            Event::Advise { address: moved, length: P, advice: Advice::DontNeed },
            Event::Advise { address: moved, length: 2 * P, advice: Advice::Populate },
            Event::Map {
                address: shared,
                length: 2 * P,
                protection: Protection { read: true, write: false, execute: false },
                backing: Backing::Anonymous,
                shared: true
            },
            // The pages move, and what they were mapped to stays, empty.
            Event::Remap { from: moved, from_length: 4 * P, to: again, to_length: 4 * P },
            Event::Map {
                address: moved,
                length: 4 * P,
                protection: rw,
                backing: Backing::Anonymous,
                shared: false
            },
            Event::Protect {
                address: again,
                length: P,
                protection: Protection { read: false, write: false, execute: false }
            },
            Event::Map {
                address: stack,
                length: P,
                protection: rw,
                backing: Backing::Stack,
                shared: false
            },
            Event::Map {
                address: mixed,
                length: 2 * P,
                protection: rw,
                backing: Backing::Anonymous,
                shared: false
            },
            Event::Map {
                address: mixed + P,
                length: P,
                protection: rw,
                backing: Backing::Anonymous,
                shared: true
            },
            Event::Advise { address: mixed, length: P, advice: Advice::DontNeed },
            Event::Advise { address: mixed + P, length: P, advice: Advice::DontNeed },
        ]
    );
}

#[test]
fn what_the_kernel_brings_in_is_in_the_trace() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "locks", BARE);
    let recorded = record(&scratch, "", &[path(&program)]);
    let [populated, alone, locked, part, later, heap, last] = recorded.words();
    let map = |address| Event::Map {
        address,
        length: 4 * P,
        protection: Protection { read: true, write: true, execute: false },
        backing: Backing::Anonymous,
        shared: false,
    };
    let brought_in =
        |address, pages| Event::Advise { address, length: pages * P, advice: Advice::Populate };
    let events = Trace::read(&recorded.output).events;
    let begin = events.iter().position(|event| *event == map(populated)).unwrap();
    assert_eq!(
        events[begin..],
        [
            map(populated),
            brought_in(populated, 4),
            map(alone),
            map(locked),
            brought_in(locked, 4),
            map(part),
            brought_in(part + P, 2),
            map(later),
            brought_in(later, 4),
            Event::Break { from: heap, to: heap + 2 * P },
            brought_in(heap, 2),
            map(last),
        ]
    );
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
fn a_file_is_read_for_its_name_once() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "plugs", STATIC);
    let plug = scratch.0.join("plug");
    let recorded = record(&scratch, "", &[path(&program), path(&plug)]);
    assert_eq!(recorded.status.code(), Some(0));
    let events = Trace::read(&recorded.output).events;
    let found: Vec<&str> = events
        .iter()
        .filter_map(|event| match event {
            Event::Name { name, build_id, .. }
                if name.contains("plug") && !name.ends_with("plugs") =>
            {
                Some(build_id.as_str())
            }
            _ => None,
        })
        .collect();
    let [first, same, changed, memory, gone] = found[..] else { panic!("{found:?}") };
    assert!(first.starts_with("xxh3-"), "{first}");
    assert_eq!(same, first);
    assert!(changed.starts_with("xxh3-") && changed != first, "{changed}");
    // Nobody will find these.
    assert_eq!([memory, gone], ["", ""]);
}

#[test]
fn what_is_not_a_file_is_not_read_as_a_program() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "endless", BARE);
    assert!(Image::read(&program).is_some());
    let (reader, mut writer) = std::io::pipe().unwrap();
    // It fits into the pipe.
    writer.write_all(&std::fs::read(&program).unwrap()).unwrap();
    drop(writer);
    assert!(Image::read(Path::new(&format!("/proc/self/fd/{}", reader.as_raw_fd()))).is_none());
    assert!(Image::read(&scratch.0).is_none());
}
