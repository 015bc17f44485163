//! Samples of whole runs, compared with recordings of everything.

use std::collections::BTreeSet;
use std::path::Path;

use flatwalk_recorder::channel::sample::chosen;
use flatwalk_recorder::pages::Pages;
use flatwalk_trace::{Backing, Block, Event, Item, Reader, Source};

use crate::support::{BARE, Recorded, STATIC, Scratch, Trace, compile, path, record};

/// A block executed, with where in the run and with what addresses.
#[derive(Clone, Debug, PartialEq)]
struct Executed {
    at: u64,
    block: Block,
    addresses: Vec<u64>,
}

/// A trace, replayed.
#[derive(Default)]
struct Replay {
    executed: Vec<Executed>,
    /// The pages of anonymous memory that are there before each block that follows a gap, and the first.
    present: Vec<(u64, BTreeSet<u64>)>,
    /// Instructions in the trace, and in its gaps.
    recorded: u64,
    passed: u64,
    hash: String,
    /// Instructions of each stretch between gaps.
    stretches: Vec<u64>,
    /// Pages of anonymous memory that came so far, and those of them in pauses: where gaps begin,
    /// and where they end. Of a whole run, behind and in front of blocks.
    fresh: [Vec<(u64, [u64; 2])>; 2],
    /// Whether the last that there is is a gap.
    ends_in_gap: bool,
    /// What happened to the address space, behind how many instructions, and whether in a gap.
    events: Vec<(Event, u64, bool)>,
}

/// Which anonymous pages are there.
#[derive(Default)]
struct Memory {
    anonymous: Pages,
    present: BTreeSet<u64>,
    /// Pages that came, and those of them in a pause.
    fresh: [u64; 2],
    pauses: bool,
}

impl Memory {
    fn touch(&mut self, address: u64, bytes: u64) {
        for page in address >> 12..=(address + bytes - 1) >> 12 {
            if self.anonymous.contains(page) && self.present.insert(page) {
                self.fresh[0] += 1;
                self.fresh[1] += u64::from(self.pauses);
            }
        }
    }

    fn follow(&mut self, event: &Event) {
        // As the kernel does it, a moved mapping takes its pages along.
        let mut moved = Vec::new();
        if let Event::Remap { from, from_length, to, to_length } = *event {
            moved.extend(
                (0..from_length.min(to_length) >> 12)
                    .filter(|page| self.present.contains(&((from >> 12) + page)))
                    .map(|page| (to >> 12) + page),
            );
        }
        let mut gone = Pages::new();
        for &page in &self.present {
            gone.insert(page);
        }
        gone.follow(event);
        self.present.retain(|&page| gone.contains(page));
        match *event {
            Event::Map { address, length, backing: Backing::Anonymous, .. } => {
                self.anonymous.insert_range(address, length);
            }
            Event::Remap { to, to_length, .. } => self.anonymous.insert_range(to, to_length),
            Event::Break { from, to } if to > from => self.anonymous.insert_range(from, to - from),
            Event::Marker { ref name } => self.pauses = name == "stop",
            _ => {}
        }
        self.present.extend(moved);
        if let Event::Populate { address, length, .. } = *event {
            for page in address >> 12..(address + length) >> 12 {
                self.touch(page << 12, 1);
            }
        }
    }
}

fn replay(file: &Path, starts: Option<&[u64]>) -> Replay {
    let mut reader = Reader::open(file).unwrap();
    assert!(!reader.ended_early());
    reader.verify(&mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
    let mut replay = Replay { hash: reader.summary().hash.clone(), ..Replay::default() };
    let (mut memory, mut blocks) = (Memory::default(), Vec::new());
    let mut after_gap = true;
    let (mut at, mut stretch) = (0, 0);
    while let Some(item) = reader.next_item().unwrap() {
        match item {
            Item::Define { block, .. } => blocks.push(block),
            Item::Event(Event::Gap { instructions }) => {
                if !after_gap {
                    replay.fresh[0].push((at, memory.fresh));
                }
                replay.passed += instructions;
                at += instructions;
                after_gap = true;
            }
            Item::Event(event) => {
                memory.follow(&event);
                replay.events.push((event, at, after_gap));
            }
            Item::Slice(slice) => {
                let mut addresses = slice.addresses.iter().copied();
                for id in slice.blocks {
                    let block = &blocks[id as usize];
                    let wanted = starts.map_or(after_gap, |starts| starts.contains(&at));
                    if wanted {
                        replay.present.push((at, memory.present.clone()));
                    }
                    if after_gap && stretch > 0 {
                        replay.stretches.push(std::mem::take(&mut stretch));
                    }
                    if after_gap || starts.is_some() {
                        replay.fresh[1].push((at, memory.fresh));
                    }
                    after_gap = false;
                    let made: Vec<u64> = addresses.by_ref().take(block.accesses.len()).collect();
                    for (access, &address) in block.accesses.iter().zip(&made) {
                        memory.touch(address, u64::from(access.size));
                    }
                    let count = block.instructions.len() as u64;
                    if starts.is_some() {
                        replay.fresh[0].push((at + count, memory.fresh));
                    }
                    replay.executed.push(Executed {
                        at,
                        block: (**block).clone(),
                        addresses: made,
                    });
                    (at, stretch, replay.recorded) =
                        (at + count, stretch + count, replay.recorded + count);
                }
            }
        }
    }
    replay.stretches.push(stretch);
    replay.fresh[0].push((at, memory.fresh));
    replay.ends_in_gap = after_gap;
    assert_eq!(reader.info().gap_instructions, replay.passed);
    replay
}

fn sampled(scratch: &Scratch, program: &Path, options: &str) -> Recorded {
    let recorded = record(scratch, options, &[path(program)]);
    assert_eq!(recorded.status.code(), Some(0), "{:?}", recorded.ends);
    assert_eq!(recorded.warnings, [""; 0]);
    recorded
}

#[test]
fn a_sample_is_a_part_of_the_whole() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "grows", BARE);
    let whole = replay(&sampled(&scratch, &program, "").output, Some(&[]));
    assert_eq!(whole.passed, 0);
    let mut hashes = BTreeSet::new();
    // Of the long one, one of each two segments is dropped once.
    let long = whole.recorded / 11;
    assert!(long > 20_000);
    for (segment, seed) in [(10_000, 0), (10_000, 1), (long, 2), (long, 3), (long, 4)] {
        let options = format!(",segment={segment},windows=4,seed={seed}");
        let recorded = sampled(&scratch, &program, &options);
        let part = replay(&recorded.output, None);
        let end = &recorded.ends[0];
        // Nothing is lost …
        assert_eq!(part.recorded + part.passed, whole.recorded);
        assert_eq!(end["instructions"], part.recorded);
        assert_eq!(end["gap_instructions"], part.passed);
        // … there are as many segments as there should be, of the length that they should have …
        let segments = end["segments"].as_u64().unwrap();
        assert!((4..=8).contains(&segments), "{segments}");
        // (two of them may adjoin)
        let (&last, before) = part.stretches.split_last().unwrap();
        let mut count = last.saturating_sub(50).div_ceil(segment);
        for &length in before {
            let adjoining = (length + segment / 2) / segment;
            assert!(matches!(adjoining, 1 | 2), "{:?}", part.stretches);
            assert!(length.abs_diff(adjoining * segment) < 50, "{:?}", part.stretches);
            count += adjoining;
        }
        assert_eq!(count, segments, "{:?}", part.stretches);
        // … what is in them is what was executed there …
        let mut rest = &whole.executed[..];
        for executed in &part.executed {
            rest = &rest[rest.partition_point(|other| other.at < executed.at)..];
            assert_eq!(Some(executed), rest.first());
        }
        // … no event of a gap looks as if it were of the segment before …
        for (event, at, _) in part.events.iter().filter(|(.., is_in_gap)| !is_in_gap) {
            assert!(
                whole.events.iter().any(|(other, then, _)| (other, then) == (event, at)),
                "{event:?} at {at}"
            );
        }
        // … and the pages that were there then are known to be there.
        let starts: Vec<u64> = part.present.iter().map(|(at, _)| *at).collect();
        let expected = replay(&sampled(&scratch, &program, "").output, Some(&starts));
        assert!(expected.present.iter().any(|(_, pages)| pages.len() > 1000));
        assert_eq!(part.present, expected.present);
        hashes.insert(part.hash.clone());
        assert_eq!(replay(&sampled(&scratch, &program, &options).output, None).hash, part.hash);
    }
    assert!(hashes.len() > 1);
}

#[test]
fn every_page_that_a_gap_touches_is_in_the_trace() {
    let scratch = Scratch::new();
    let mut ended_in_gaps = Vec::new();
    for end in ["ENDS", "ABORTS", "RAISES", "QUEUES", "EXECUTES", "LEAVES", "FORKS", "PAUSES"] {
        let define = format!("-D{end}");
        let program = compile(&scratch, "gives", &[BARE, &[&define]].concat());
        let replayed = |options: &str, starts| {
            let recorded = record(&scratch, options, &[path(&program)]);
            assert_eq!(recorded.warnings, [""; 0]);
            let files = recorded.ends.iter().map(|ending| ending["file"].as_str().unwrap());
            // Of the two that fork, the child.
            let file =
                files.map(Path::new).find(|&file| (file != recorded.output) == (end == "FORKS"));
            let file = file.unwrap();
            let info = Reader::open(file).unwrap().info().clone();
            assert_eq!(info.gap_pages, options.contains("segment"));
            replay(file, starts)
        };
        let whole = replayed(",follow-exec=off", Some(&[]));
        assert_eq!(whole.passed, 0);
        let &(instructions, [all, paused]) = whole.fresh[0].last().unwrap();
        assert!(all > 5000 && (paused > 500) == (end == "PAUSES"), "{all} {paused}");
        for seed in 0..4 {
            let segment = if seed % 2 == 0 { 10_000 } else { instructions / 11 };
            let options = format!(",follow-exec=off,segment={segment},windows=4,seed={seed}");
            let part = replayed(&options, None);
            assert_eq!(part.recorded + part.passed, instructions);
            assert!(part.passed > instructions / 3);
            for (found, expected) in part.fresh.iter().zip(&whole.fresh) {
                for &(at, fresh) in found {
                    let until = expected.partition_point(|&(then, _)| then <= at);
                    let what = format!("at {at} of {instructions} of {end}, {options}");
                    assert_eq!((at, fresh), expected[until - 1], "{what}");
                }
            }
            if part.ends_in_gap {
                ended_in_gaps.push(end);
            }
        }
    }
    for end in ["ENDS", "ABORTS", "RAISES", "QUEUES", "EXECUTES"] {
        assert!(ended_in_gaps.contains(&end), "{end}: {ended_in_gaps:?}");
    }
}

#[test]
fn a_short_program_is_recorded_whole() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "loops", BARE);
    let whole = Trace::read(&record(&scratch, "", &[path(&program)]).output).pcs();
    let length = whole.len() / 7;
    let options = format!(",segment={length},windows=4");
    let recorded = record(&scratch, &options, &[path(&program)]);
    let part = Trace::read(&recorded.output);
    assert_eq!(part.pcs(), whole);
    assert!(!part.events.iter().any(|event| matches!(event, Event::Gap { .. })));
    assert_eq!(recorded.ends[0]["gap_instructions"], 0);
    let info = Reader::open(&recorded.output).unwrap().info().clone();
    assert_eq!(info.segment_instructions, Some(length as u64));
    // A limit is one of the run, not of what is in the trace.
    let options = format!(",segment={},windows=2,limit={}", length / 4, 3 * length);
    let limited = replay(&record(&scratch, &options, &[path(&program)]).output, None);
    assert!(limited.passed > length as u64);
    let total = limited.passed + limited.recorded;
    assert!((3 * length as u64).abs_diff(total) < 200, "{total} of {length}");
}

/// Where recording goes on behind each gap, how long that gap was, and how long it all is; in instructions.
fn gaps(file: &Path) -> (Vec<(u64, u64)>, u64) {
    let mut reader = Reader::open(file).unwrap();
    let (mut at, mut passed) = (0, 0);
    let (mut found, mut lengths) = (Vec::new(), Vec::new());
    while let Some(item) = reader.next_item().unwrap() {
        match item {
            Item::Define { block, .. } => lengths.push(block.instructions.len() as u64),
            Item::Event(Event::Gap { instructions }) => passed += instructions,
            Item::Event(_) => {}
            Item::Slice(slice) => {
                if passed > 0 {
                    at += passed;
                    found.push((at, std::mem::take(&mut passed)));
                }
                at += slice.blocks.iter().map(|&id| lengths[id as usize]).sum::<u64>();
            }
        }
    }
    (found, at + passed)
}

#[test]
fn a_pause_takes_nothing_off_a_gap() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "pauses", BARE);
    let (_, whole) = gaps(&sampled(&scratch, &program, "").output);
    for (length, more) in [(10_000, "windows=2"), (3000, "windows=8,seed=1")] {
        let options = format!(",segment={length},{more}");
        let (gaps, total) = gaps(&sampled(&scratch, &program, &options).output);
        assert!(total.abs_diff(whole) < whole / 100, "{total} of {whole}");
        assert!(gaps.len() > 1, "{gaps:?}");
        // Segments begin where they would without pauses: each is off by a block or two more.
        for (before, (start, _)) in gaps.iter().enumerate() {
            let off = (start + length / 2) % length;
            let allowed = 100 * (before as u64 + 1);
            assert!(off.abs_diff(length / 2) < allowed, "{gaps:?}, {options}");
        }
    }
}

#[test]
fn threads_that_end_in_a_gap_leave_what_they_did_not_pass() {
    const GRANT: u64 = 1 << 16;
    const LENGTH: u64 = 4 * GRANT;
    let scratch = Scratch::new();
    let program = compile(&scratch, "chain", STATIC);
    // After eight segments, of each two stretches the second is recorded: all gaps are one stretch long.
    let is_second = |seed| (0..8).all(|pair| chosen(seed, 2, pair) == 2 * pair + 1);
    let seed = (0..1 << 16).find(|&seed| is_second(seed)).unwrap();
    let options = format!(",segment={LENGTH},windows=4,seed={seed}");
    let recorded = record(&scratch, &options, &[path(&program), "1300"]);
    assert_eq!(recorded.status.code(), Some(7));
    let (gaps, total) = gaps(&recorded.output);
    // The first four are what is left of segments.
    assert!(gaps.len() > 4 && total < 16 * LENGTH, "{gaps:?} of {total}");
    // While a thread is ending, a gap cannot end, and the others run on for as long as that thread
    // waits for a processor. That is not so in each.
    let shortest = gaps[4..].iter().map(|&(_, gap)| gap).min().unwrap();
    assert!(shortest.abs_diff(LENGTH) < GRANT, "{gaps:?}");
}

#[test]
fn threads_that_sleep_take_nothing_off_a_segment() {
    const LENGTH: u64 = 1 << 20;
    let scratch = Scratch::new();
    let program = compile(&scratch, "ring", STATIC);
    let run = |options: &str| {
        let recorded = record(&scratch, options, &[path(&program), "500"]);
        assert_eq!(recorded.status.code(), Some(0), "{options}");
        recorded.output
    };
    let (gaps, total) = gaps(&run(&format!(",segment={LENGTH},windows=2")));
    assert!(gaps.len() > 1 && total > 12 * LENGTH, "{gaps:?} of {total}");
    for pair in gaps.windows(2) {
        let [(start, _), (next, gap)] = [pair[0], pair[1]];
        let length = next - gap - start;
        let asked = (length + LENGTH / 2) / LENGTH * LENGTH;
        // All that get no processor just then hold so much together.
        let held = LENGTH / 64 + 1000;
        assert!(asked > 0 && length.abs_diff(asked) < held, "{length} of {asked}: {gaps:?}");
    }
    let limited = Trace::read(&run(&format!(",limit={LENGTH}"))).instructions();
    assert!(limited <= LENGTH && LENGTH - limited < LENGTH / 64 + 1000, "{limited}");
}

#[test]
fn threads_lose_nothing_between_segments() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "threads", STATIC);
    let total = |recorded: &Recorded| {
        let reader = Reader::open(&recorded.output).unwrap();
        let info = reader.info();
        let threads = reader.summary().events["thread_start"];
        assert_eq!(recorded.stdout, b"120000\n");
        (info.instructions.unwrap() + info.gap_instructions, threads, info.gap_instructions)
    };
    let (whole, threads, _) = total(&sampled(&scratch, &program, ""));
    for seed in 0..4 {
        let recorded =
            sampled(&scratch, &program, &format!(",segment=20000,windows=4,seed={seed}"));
        let (sum, started, passed) = total(&recorded);
        assert_eq!(started, threads);
        assert!(passed > whole / 2, "{passed} of {whole}");
        // How often locks are tried depends on the moment.
        assert!(sum.abs_diff(whole) < whole / 50, "{sum} and {whole}");
        let trace = Trace::read(&recorded.output);
        let ran: BTreeSet<u32> = trace.slices.iter().map(|slice| slice.thread).collect();
        assert!(ran.len() > 1, "{ran:?}");
        let mut reader = Reader::open(&recorded.output).unwrap();
        reader.verify(&mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
    }
}

#[test]
fn each_process_has_its_own_sample() {
    let scratch = Scratch::new();
    for (name, status) in [("forks", 5), ("families", 3)] {
        let program = compile(&scratch, name, STATIC);
        let totals = |options: &str| {
            let recorded = record(&scratch, options, &[path(&program)]);
            assert_eq!(recorded.status.code(), Some(status));
            let mut totals: Vec<(String, u64)> = recorded
                .ends
                .iter()
                .map(|end| {
                    let file = Path::new(end["file"].as_str().unwrap());
                    let mut reader = Reader::open(file).unwrap();
                    reader.verify(&mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
                    let info = reader.info();
                    let sum = info.instructions.unwrap() + info.gap_instructions;
                    (end["reason"].as_str().unwrap().to_owned(), sum)
                })
                .collect();
            totals.sort_unstable();
            if name == "families" {
                // How often it asks for the ends of its children depends on the moment.
                totals.pop();
            }
            totals
        };
        let whole = totals("");
        for options in
            [",segment=100000", ",segment=1000,windows=2", ",segment=300,windows=1,seed=1"]
        {
            assert_eq!(totals(options), whole, "{name} {options}");
        }
    }
}

#[test]
fn threads_that_end_leave_what_they_did_not_spend() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "workers", STATIC);
    let run = |options: &str| {
        let recorded = record(&scratch, options, &[path(&program)]);
        assert_eq!(recorded.stdout, b"done\n", "{options}");
        assert_eq!(recorded.status.code(), Some(7), "{options}");
        let info = Reader::open(&recorded.output).unwrap().info().clone();
        (info.instructions.unwrap(), info.gap_instructions)
    };
    let (whole, _) = run("");
    // Two hundred threads, each with a grant of 65,536 instructions, of which it spends few.
    let limited = run(&format!(",limit={}", 3 * whole));
    assert!(limited.0.abs_diff(whole) < whole / 20, "{} of {whole}", limited.0);
    let (sampled, passed) = run(&format!(",segment={},windows=2", 2 * whole));
    assert_eq!(passed, 0, "a run shorter than a segment is there whole");
    assert!(sampled.abs_diff(whole) < whole / 20, "{sampled} of {whole}");
}
