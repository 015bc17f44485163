//! Files that cannot be read or written, and targets that appear complete or not at all.

mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;

use flatwalk_trace::{
    Format, Reader, Summary, TraceError, Writer, export_to_file, import_to_file, info,
    note_stopped, open,
};

fn go_on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn stop(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Break(())
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .expect("listed")
        .map(|entry| entry.expect("listed").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Every way to read `path`.
fn refusals(path: &Path) -> Vec<TraceError> {
    let target = path.with_extension("target");
    let refusals = vec![
        open(path).err(),
        info(path, true, &mut go_on).err(),
        import_to_file(path, &target, None, &mut go_on).err(),
        export_to_file(path, &target, Format::ChampSim, &mut go_on).err(),
        Reader::open(path).err(),
    ];
    assert!(!target.exists());
    refusals.into_iter().map(|error| error.expect("refused")).collect()
}

#[test]
fn what_is_no_file_is_refused_with_a_remedy() {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let missing = directory.path().join("missing");
    for (path, what, remedy) in [
        (directory.path(), "directory", "name one trace file"),
        (&pipe, "a pipe or a device", "save its contents"),
        (Path::new("/dev/null"), "a pipe or a device", "save its contents"),
        (&missing, "No such file", "check the path"),
    ] {
        for error in refusals(path) {
            let message = error.to_string();
            assert!(message.starts_with(&format!("{}: ", path.display())), "{message}");
            assert!(message.contains(what) && message.contains(remedy), "{message}");
        }
    }
}

#[test]
fn a_file_that_ends_within_the_mark_is_no_trace_of_our_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("short");
    for (start, what) in [(&b""[..], "the file is empty"), (b"\x89FWT", "cut off")] {
        std::fs::write(&path, start).expect("written");
        for error in refusals(&path) {
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}

#[test]
fn what_the_system_says_has_a_remedy() {
    use std::io::ErrorKind::{Other, PermissionDenied, StorageFull};
    for (kind, remedy) in
        [(PermissionDenied, "permissions"), (StorageFull, "free some space"), (Other, "disk")]
    {
        let error = TraceError::Io { path: "a.fwt".into(), source: kind.into() };
        let message = error.to_string();
        assert!(message.starts_with("a.fwt: ") && message.contains(remedy), "{message}");
    }
}

#[test]
fn a_target_appears_whole_or_not_at_all() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = |name: &str| directory.path().join(name);
    std::fs::write(place("source"), "I  1000,4\n").expect("written");
    std::fs::write(place("damaged"), "I  1000,4\n L 2000,8\nnonsense\n").expect("written");
    std::fs::write(place("target"), "old").expect("written");
    let before = names(directory.path());
    let import = |source: &str, progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>| {
        import_to_file(&place(source), &place("target"), None, progress).map(|_| ())
    };
    let export = |source: &str, progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>| {
        export_to_file(&place(source), &place("target"), Format::ChampSim, progress).map(|_| ())
    };
    for result in [import("source", &mut stop), export("source", &mut stop)] {
        assert!(matches!(result, Err(TraceError::Stopped { .. })));
    }
    for result in [import("damaged", &mut go_on), export("damaged", &mut go_on)] {
        assert!(matches!(result, Err(TraceError::Damaged { offset: 20, .. })));
    }
    assert_eq!(names(directory.path()), before);
    assert_eq!(std::fs::read_to_string(place("target")).expect("read"), "old");

    // While it is written, too, the old one stays.
    let mut seen = Vec::new();
    import("source", &mut |_, _| {
        seen = std::fs::read(place("target")).expect("read");
        ControlFlow::Continue(())
    })
    .expect("imported");
    assert_eq!(seen, b"old");
    assert_eq!(names(directory.path()), before);
    Reader::open(&place("target")).expect("a trace");
    export("source", &mut go_on).expect("exported");
    assert_eq!(std::fs::metadata(place("target")).expect("there").len(), 64);
    assert_eq!(names(directory.path()), before);
}

#[test]
fn a_target_that_is_no_file_is_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = |name: &str| directory.path().join(name);
    std::fs::write(place("source"), "I  1000,4\n").expect("written");
    std::fs::write(place("file"), "old").expect("written");
    std::fs::create_dir(place("directory")).expect("made");
    std::os::unix::fs::symlink("file", place("link")).expect("linked");
    for target in [&place("directory"), Path::new("/dev/null")] {
        let results = [
            import_to_file(&place("source"), target, None, &mut go_on).map(|_| ()),
            export_to_file(&place("source"), target, Format::ChampSim, &mut go_on).map(|_| ()),
        ];
        for result in results {
            let error = result.expect_err("refused");
            assert!(error.to_string().contains("name a file"), "{error}");
        }
        assert!(!target.is_file());
    }
    let lost = import_to_file(&place("source"), &place("none/target"), None, &mut go_on);
    let message = lost.expect_err("no directory").to_string();
    assert!(message.starts_with(&format!("{}: ", place("none/target").display())), "{message}");
    import_to_file(&place("source"), &place("link"), None, &mut go_on).expect("imported");
    assert!(place("link").is_symlink());
    Reader::open(&place("file")).expect("what the link leads to is the trace");
}

#[test]
fn a_full_disk_is_told_and_nothing_follows() {
    let error = Writer::create(Path::new("/dev/full"), common::header()).expect_err("no room");
    assert!(error.to_string().contains("free some space"), "{error}");
}

#[test]
fn what_stopped_a_program_stands_in_its_trace() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a.fwt");
    std::fs::write(&path, common::small().0).expect("written");
    let before = info(&path, true, &mut go_on).expect("it is sound");
    assert_eq!(before.summary.stopped, None);
    let content = std::fs::read(&path).expect("read");
    // The second note takes the first one's place.
    for what in
        ["the run was stopped by Ctrl-C and much more than that", "the run was stopped by --time 3"]
    {
        note_stopped(&path, what).expect("noted");
        let after = info(&path, true, &mut go_on).expect("it is sound");
        assert_eq!(after.summary.stopped.as_deref(), Some(what));
        let summary = Summary { stopped: None, ..after.summary.clone() };
        assert_eq!((&summary, after.ended_early), (&before.summary, false));
    }
    // What is noted is behind all that was recorded.
    let noted = std::fs::read(&path).expect("read");
    let same = content.iter().zip(&noted).take_while(|(old, new)| old == new).count();
    let summary = serde_json::to_vec(&before.summary).expect("written").len();
    assert!(same + summary + 600 > content.len(), "{same} of {}", content.len());
    // One that has no end says that already.
    std::fs::write(&path, &content[..content.len() - 1]).expect("written");
    note_stopped(&path, "x").expect("nothing to do");
    assert_eq!(std::fs::read(&path).expect("read"), &content[..content.len() - 1]);
    // One that is no trace stays as it is.
    std::fs::write(&path, "no trace").expect("written");
    assert!(matches!(note_stopped(&path, "x"), Err(TraceError::Foreign { .. })));
    assert_eq!(std::fs::read(&path).expect("read"), b"no trace");
}
