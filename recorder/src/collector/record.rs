//! Records one process, from its introduction until nothing more can come.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flatwalk_recorder::channel::region::{
    COMMAND_DETACH, COMMAND_END, STATE_EXECUTING, STATE_LIMIT,
};
use flatwalk_recorder::sys;

use crate::client::Client;
use crate::error::RecordError;
use crate::names::partial_name;
use crate::report::{Reason, Report, report};
use crate::session::Session;

/// Recordings go on.
pub const WANTED: u8 = 0;
/// Recordings end; what is recorded runs on.
pub const WANTED_NO_MORE: u8 = 1;
/// Who wanted them is gone: what is recorded ends.
pub const WANTED_BY_NONE: u8 = 2;

/// How long to sleep when a process produces nothing.
const IDLE: Duration = Duration::from_millis(50);
/// How often to report progress.
const PROGRESS: Duration = Duration::from_millis(100);

/// Records a process until its end, to `target`, by way of a file next to it that is renamed at the
/// end. `replaced` is set when the same process introduced itself anew; `wanted` says how much longer the
/// user wants it.
pub fn record(client: &Client, target: &Path, replaced: &AtomicBool, wanted: &AtomicU8) {
    let partial = partial_name(target);
    let pid = client.pid();
    report(&Report::Start {
        pid,
        origin: client.hello().origin,
        command: client.hello().command.clone(),
        file: target.into(),
    });
    let mut totals = Totals::default();
    let session = {
        let _alone = opening();
        Session::create(client, &partial)
    };
    let result = match session {
        Ok(session) => write(session, client, target, replaced, wanted, &mut totals),
        Err(error) => match RecordError::from(error) {
            // The program cannot help that, and runs on.
            error if error.is_out_of_descriptors() => {
                command(client, COMMAND_DETACH);
                report_unrecorded(pid, &error.explain());
                // What there may be of it holds nothing.
                let _ = fs::remove_file(&partial);
                Ok(Reason::Detached)
            }
            error => Err(error),
        },
    };
    let Totals { instructions, gap_instructions, segments } = totals;
    let (reason, error, disk_full) = match result {
        Ok(reason) => (reason, None, false),
        Err(error) => {
            command(client, COMMAND_END);
            (Reason::Failed, Some(error.explain()), error.is_disk_full())
        }
    };
    let renamed = fs::rename(&partial, target);
    let file = renamed.is_ok().then(|| target.to_owned());
    let bytes = fs::metadata(target).map_or(0, |about| about.len());
    report(&Report::End {
        pid,
        file,
        reason,
        instructions,
        gap_instructions,
        segments,
        bytes,
        error,
        disk_full,
    });
}

/// Says to the user that a process is not recorded. Not which one: for many processes it is one note.
pub fn report_unrecorded(pid: i32, why: &str) {
    report(&Report::Warning { pid, message: format!("a process is not recorded: {why}") });
}

/// Has the process end, or run on unrecorded.
fn command(client: &Client, command: u32) {
    client.region().command.store(command, Ordering::Release);
    client.region().ring_drained();
}

/// Held by whoever opens files: nobody else may take a descriptor that is given up for another use.
pub fn opening() -> MutexGuard<'static, ()> {
    static OPENING: Mutex<()> = Mutex::new(());
    OPENING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is in a trace.
#[derive(Default)]
struct Totals {
    instructions: u64,
    gap_instructions: u64,
    segments: Option<usize>,
}

fn write(
    mut session: Session<'_>,
    client: &Client,
    target: &Path,
    replaced: &AtomicBool,
    wanted: &AtomicU8,
    totals: &mut Totals,
) -> Result<Reason, RecordError> {
    let region = client.region();
    let mut reported = Instant::now();
    let outcome = loop {
        // Before looking, so that what it left is found after.
        let reason = end_reason(client, replaced, wanted);
        let step = session.step();
        match (step, reason) {
            (Err(error), _) => break Err(error),
            (Ok(_), Some(reason)) => {
                break session.take_rest().map(|()| reason);
            }
            (Ok(true), None) => {}
            (Ok(false), None) => {
                let seen = region.submitted.load(Ordering::Acquire);
                if region.is_idle() {
                    sys::futex_wait(&region.submitted, seen, IDLE);
                }
            }
        }
        if reported.elapsed() >= PROGRESS {
            reported = Instant::now();
            report(&Report::Progress {
                pid: client.pid(),
                file: target.into(),
                instructions: session.executed(),
            });
        }
    };
    if outcome.is_err() {
        // What was understood so far is good; if a disk fails again, that is not news.
        let _ = session.write_slices();
    }
    totals.instructions = session.instructions();
    totals.segments = session.segments();
    let summary = session.finish();
    if let Ok(summary) = &summary {
        totals.instructions = summary.instructions;
        totals.gap_instructions = summary.gap_instructions;
    }
    match outcome {
        Ok(reason) => summary.map(|_| reason).map_err(RecordError::from),
        Err(error) => Err(error),
    }
}

/// Why nothing more will come, if so.
fn end_reason(client: &Client, replaced: &AtomicBool, wanted: &AtomicU8) -> Option<Reason> {
    let region = client.region();
    let state = region.state.load(Ordering::Acquire);
    if client.has_ended() {
        return Some(match state {
            STATE_LIMIT => Reason::Limit,
            STATE_EXECUTING => Reason::Exec,
            _ => Reason::Exit,
        });
    }
    if replaced.load(Ordering::Acquire) || state == STATE_EXECUTING && !client.is_mapped() {
        return Some(Reason::Exec);
    }
    match wanted.load(Ordering::Acquire) {
        WANTED_NO_MORE => {
            command(client, COMMAND_DETACH);
            Some(Reason::Detached)
        }
        WANTED_BY_NONE => {
            client.kill();
            // What it left is taken once it has ended.
            None
        }
        _ => None,
    }
}
