//! Parts of a program: skip, limit, places and markers.

use flatwalk_trace::Event;

use crate::support::{BARE, Scratch, Trace, compile, path, record, symbol};

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
