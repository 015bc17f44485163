//! Parts of a program: skip, limit, places and markers.

use std::path::Path;

use flatwalk_trace::{Event, Reader, Source};

use crate::support::{BARE, STATIC, Scratch, Trace, compile, path, record, symbol};

#[test]
fn skip_and_limit_cut_exactly() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "loops", BARE);
    let whole = Trace::read(&record(&scratch, "", &[path(&program)]).output).pcs();
    let recorded = record(&scratch, ",skip=1000000,limit=500000", &[path(&program)]);
    assert_eq!(recorded.ends[0]["reason"], "limit");
    assert_eq!(recorded.status.code(), Some(0));
    let part = Trace::read(&recorded.output).pcs();
    // Blocks are not divided: each end may be off by one.
    assert!((499_900..=500_000).contains(&part.len()), "{}", part.len());
    let at = (999_900..=1_000_100).find(|&at| whole[at..][..part.len()] == part);
    assert!(at.is_some());
}

#[test]
fn threads_leave_what_they_did_not_skip() {
    let scratch = Scratch::new();
    // Of one, threads end; of the other, they sleep.
    for name in ["chain", "sleepers"] {
        let program = compile(&scratch, name, STATIC);
        let recorded = |options: &str| {
            let recorded = record(&scratch, options, &[path(&program), "2000"]);
            assert_eq!(recorded.status.code(), Some(7), "{options}");
            Reader::open(&recorded.output).unwrap().info().instructions.unwrap()
        };
        let whole = recorded("");
        // Each has a grant of 65,536 instructions, and spends a fiftieth.
        let skipped = whole - recorded(&format!(",skip={}", whole / 2));
        // While a thread is ending, what was to be skipped cannot be over, and the others run on
        // for as long as that thread waits for a processor.
        let expected = whole / 2 - (1 << 16)..whole / 2 + whole / 4;
        assert!(expected.contains(&skipped), "{skipped} of {} of {name}", whole / 2);
    }
}

#[test]
fn a_child_skips_what_its_parent_has_left() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "child", BARE);
    let both = |options: &str| {
        let recorded = record(&scratch, options, &[path(&program)]);
        assert_eq!(recorded.status.code(), Some(0));
        assert_eq!(recorded.ends.len(), 2);
        let files = recorded.ends.iter().map(|end| Path::new(end["file"].as_str().unwrap()));
        let child = files.clone().find(|&file| file != recorded.output).unwrap();
        [&recorded.output, child].map(|file| Trace::read(file).pcs())
    };
    let [parent, child] = both("");
    // It goes on where the fork returns.
    let until_fork = parent.iter().position(|&pc| pc == child[0]).unwrap();
    for more in [1000, child.len() / 2] {
        let [nothing, rest] = both(&format!(",skip={}", until_fork + more));
        assert_eq!(nothing, [0; 0]);
        let skipped = child.len() - rest.len();
        assert!(skipped.abs_diff(more) < 20, "{skipped} of {more}");
        assert_eq!(rest, child[skipped..]);
    }
}

#[test]
fn a_stop_while_instructions_are_skipped_counts_after_them() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "region", BARE);
    let [inside, outside] = ["inside", "outside"].map(|name| symbol(&program, name));
    let whole = Trace::read(&record(&scratch, "", &[path(&program)]).output);
    let is_stop = |event: &Event| *event == Event::Marker { name: "stop".into() };
    let stop = whole.events.iter().position(is_stop).unwrap();
    let before: usize = whole
        .slices
        .iter()
        .zip(&whole.epochs)
        .filter(|&(_, &epoch)| epoch <= stop)
        .flat_map(|(slice, _)| &slice.blocks)
        .map(|&id| whole.blocks[id as usize].instructions.len())
        .sum();
    let place = whole.pcs().iter().position(|&pc| pc == outside).unwrap();
    for (start, before) in [("", before), (",start-at=outside", before - place)] {
        let counts = |skip: usize| {
            let options = format!(",skip={skip}{start}");
            let trace = Trace::read(&record(&scratch, &options, &[path(&program)]).output);
            (trace.count(outside), trace.count(inside))
        };
        // What is left to skip ends behind the stop.
        assert_eq!(counts(before + 1000), (0, 1), "{start}");
        // Behind the next start; before the first stop.
        assert_eq!(counts(1 << 20), (0, 0), "{start}");
        let (none, some) = counts(before - 200);
        assert!(none == 0 && some > 1, "{none} and {some}, {start}");
    }
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
    // In a library, which is mapped later.
    let dynamic = compile(&scratch, "touches", &["-no-pie"]);
    let whole = Trace::read(&record(&scratch, "", &[path(&dynamic)]).output);
    let late = Trace::read(&record(&scratch, ",start-at=printf", &[path(&dynamic)]).output);
    let touch = symbol(&dynamic, "touch");
    assert_eq!((whole.count(touch), late.count(touch)), (1000, 0));
    assert!(late.instructions() > 100_000);
    // A place that is never reached.
    assert_eq!(counts(",start-at=nowhere").0, (0, 0));
}
