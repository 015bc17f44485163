//! `flatwalk-collect --socket PATH --output FILE`: writes the traces of the processes that
//! introduce themselves at the socket.
//!
//! Reports are lines of JSON on standard output. On standard input, the line `close` (or its end)
//! says that no more programs will be started: the collector ends with the last recording. The line
//! `detach` ends all recordings: what is still running runs on unrecorded.

use std::collections::HashMap;
use std::io::BufRead;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;
use std::{env, fs, thread};

use flatwalk_recorder::collect::{Guest, Report, partial_name, report};

/// What happens to the collector.
enum Occurrence {
    /// A process introduced itself.
    Guest(Guest),
    /// A recording ended.
    Ended,
    /// The user wants no more.
    Detach,
    /// No more programs will be started.
    Closed,
}

/// Tells that a recording ended, however it did.
struct Ending(Sender<Occurrence>);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.send(Occurrence::Ended);
    }
}

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let (mut socket, mut output) = (None, None);
    while let Some(option) = arguments.next() {
        match option.to_str() {
            Some("--socket") => socket = arguments.next().map(PathBuf::from),
            Some("--output") => output = arguments.next().map(PathBuf::from),
            _ => {}
        }
    }
    let (Some(socket), Some(output)) = (socket, output) else {
        eprintln!(
            "usage: flatwalk-collect --socket PATH --output FILE (flatwalk record starts this program)"
        );
        return ExitCode::from(2);
    };
    let listener = match UnixListener::bind(&socket) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("{}: {error}", socket.display());
            return ExitCode::FAILURE;
        }
    };
    report(&Report::Ready);
    serve(listener, &output);
    ExitCode::SUCCESS
}

fn serve(listener: UnixListener, output: &Path) {
    let (sender, occurrences) = mpsc::channel();
    let from_socket = sender.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A process that fails is told so itself.
            if let Ok(guest) = Guest::welcome(stream)
                && from_socket.send(Occurrence::Guest(guest)).is_err()
            {
                break;
            }
        }
    });
    let from_input = sender.clone();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let occurrence = match line.as_str() {
                "close" => Occurrence::Closed,
                "detach" => Occurrence::Detach,
                _ => continue,
            };
            if from_input.send(occurrence).is_err() {
                return;
            }
        }
        let _ = from_input.send(Occurrence::Closed);
    });
    let detach = Arc::new(AtomicBool::new(false));
    let mut names = Names { output: output.into(), given: HashMap::new(), any: false };
    let mut replaced: HashMap<i32, Arc<AtomicBool>> = HashMap::new();
    let (mut active, mut closed) = (0_usize, false);
    loop {
        // After the last recording ended, an exec may be on its way to introduce itself; the socket
        // has its connection by the time that its process descriptor says anything, so a moment is
        // enough.
        let occurrence = if closed && active == 0 {
            occurrences.recv_timeout(Duration::from_millis(100))
        } else {
            occurrences.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match occurrence {
            Ok(Occurrence::Guest(guest)) => {
                let flag = Arc::new(AtomicBool::new(false));
                if let Some(old) = replaced.insert(guest.pid(), flag.clone()) {
                    old.store(true, Ordering::Release);
                }
                active += 1;
                let target = names.next(guest.pid());
                let (ending, detach) = (Ending(sender.clone()), detach.clone());
                thread::spawn(move || {
                    let _ending = ending;
                    guest.record(&target, &flag, &detach);
                });
            }
            Ok(Occurrence::Ended) => active -= 1,
            Ok(Occurrence::Detach) => {
                closed = true;
                detach.store(true, Ordering::Release);
            }
            Ok(Occurrence::Closed) => closed = true,
            Err(_) => break,
        }
    }
}

/// Gives files their names: the first process's as the user said, further ones with their process
/// number before the extension, and a count where one process runs several programs.
struct Names {
    output: PathBuf,
    given: HashMap<i32, u32>,
    any: bool,
}

impl Names {
    fn next(&mut self, pid: i32) -> PathBuf {
        if !std::mem::replace(&mut self.any, true) {
            return self.output.clone();
        }
        let count = self.given.entry(pid).or_insert(0);
        *count += 1;
        let mut name = self.output.file_stem().unwrap_or_default().to_owned();
        name.push(format!(".{pid}"));
        if *count > 1 {
            name.push(format!(".{count}"));
        }
        name.push(".");
        name.push(self.output.extension().unwrap_or("fwt".as_ref()));
        let name = self.output.with_file_name(name);
        // What an earlier recording left under these names is not this one's.
        let _ = fs::remove_file(partial_name(&name));
        name
    }
}
