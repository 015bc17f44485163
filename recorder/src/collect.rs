//! Takes what recorded processes produce and writes it as traces, one per process.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use flatwalk_trace::{Event, Header, Summary, TraceError, Writer};
use serde::Serialize;

use crate::channel::{
    self, BUFFER_WORDS, BUFFERS, COMMAND_DETACH, COMMAND_END, CONTROL_CHECKED, CONTROL_DEFINE,
    CONTROL_EVENT, CONTROL_FAILURE, CONTROL_WARNING, Hello, Origin, REGION_BYTES, Region, SLOTS,
    STATE_EXECUTING, STATE_LIMIT,
};
use crate::decode::{DecodeError, Recording};
use crate::sys;

/// How long to sleep when a process produces nothing.
const IDLE: Duration = Duration::from_millis(50);
/// How often to tell of progress.
const PROGRESS: Duration = Duration::from_millis(100);
/// Longest introduction of a process in bytes.
const MAX_HELLO: u32 = 16 << 20;

/// What the collector tells its parent, as lines of JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Report {
    /// The socket is there: programs can be started.
    Ready,
    /// A process is being recorded.
    Start {
        /// Its number.
        pid: i32,
        /// How it came to be.
        origin: Origin,
        /// What it runs.
        command: Vec<String>,
        /// Where its trace will be.
        file: PathBuf,
    },
    /// A process has executed more.
    Progress {
        /// Its number.
        pid: i32,
        /// The file of its trace, which tells programs apart that ran in one process.
        file: PathBuf,
        /// Instructions recorded so far.
        instructions: u64,
    },
    /// Something to tell the user.
    Warning {
        /// Whose.
        pid: i32,
        /// What.
        message: String,
    },
    /// The engine's walker and a machine that is recorded agreed.
    Checked {
        /// Whose.
        pid: i32,
        /// On so many of the machine's walks.
        walks: u64,
        /// On so many of the program's accesses, which were sampled.
        accesses: u64,
        /// Instructions that the machine's kernel executed for the program while it was recorded …
        kernel: u64,
        /// … and repetitions of string instructions among them.
        repeated: u64,
    },
    /// A trace is complete.
    End {
        /// Its process.
        pid: i32,
        /// Where it is; nothing if nothing could be written.
        file: Option<PathBuf>,
        /// Why recording ended.
        reason: Reason,
        /// Instructions in it.
        instructions: u64,
        /// Bytes of the file.
        bytes: u64,
        /// What went wrong, if anything.
        error: Option<String>,
    },
}

/// Why recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The process ended, in whatever way.
    Exit,
    /// The process replaced itself by another program.
    Exec,
    /// The limit, or the place to stop at, was reached.
    Limit,
    /// The user wanted no more.
    Detached,
    /// The trace could not be written, or the program destroyed what was recorded.
    Failed,
}

/// Writes a report on standard output.
pub fn report(report: &Report) {
    if let Ok(mut line) = serde_json::to_vec(report) {
        line.push(b'\n');
        // The parent may be gone; there is nobody else to tell.
        let _ = std::io::stdout().lock().write_all(&line);
    }
}

/// A process that introduced itself.
pub struct Guest {
    hello: Hello,
    region: Mapped,
    ended: OwnedFd,
}

struct Mapped(*mut c_void);

// SAFETY: the region is shared memory of atomics.
unsafe impl Send for Mapped {}

impl std::ops::Deref for Mapped {
    type Target = Region;

    fn deref(&self) -> &Region {
        // SAFETY: as long as a region, mapped until drop; any content is a valid one.
        unsafe { &*self.0.cast::<Region>() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        unsafe { sys::unmap(self.0, REGION_BYTES) };
    }
}

impl Guest {
    /// Listens to an introduction and answers it.
    ///
    /// # Errors
    /// A message, which the other side was told too if possible.
    pub fn welcome(mut stream: UnixStream) -> Result<Guest, String> {
        let result = Guest::listen(&mut stream);
        let answer = result.as_ref().err().map_or("ready", String::as_str);
        stream.write_all(answer.as_bytes()).map_err(|error| error.to_string())?;
        result
    }

    fn listen(stream: &mut UnixStream) -> Result<Guest, String> {
        let told = |error: std::io::Error| format!("the introduction of a process failed: {error}");
        stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(told)?;
        let mut length = [0; 4];
        let (got, memory) = sys::receive_with_descriptor(stream, &mut length).map_err(told)?;
        let memory =
            memory.filter(|_| got == 4).ok_or("a process introduced itself without its memory")?;
        let length = u32::from_le_bytes(length);
        if length > MAX_HELLO {
            return Err("the introduction of a process is too long".into());
        }
        let mut hello = vec![0; length as usize];
        stream.read_exact(&mut hello).map_err(told)?;
        let hello: Hello = serde_json::from_slice(&hello).map_err(|error| error.to_string())?;
        if hello.version != channel::VERSION {
            return Err(format!(
                "the plugin is of version {}, the collector of {}: build both again",
                hello.version,
                channel::VERSION
            ));
        }
        let length =
            fs::File::from(memory.try_clone().map_err(told)?).metadata().map_err(told)?.len();
        if length != REGION_BYTES as u64 {
            return Err("the memory of a process is not as long as it should be".into());
        }
        // SAFETY: a new mapping.
        let region = Mapped(
            unsafe { sys::map_shared(&memory, REGION_BYTES, std::ptr::null_mut()) }
                .map_err(told)?,
        );
        region.collector.store(std::process::id() as i32, Ordering::Release);
        let ended = sys::process_descriptor(hello.pid).map_err(told)?;
        Ok(Guest { hello, region, ended })
    }

    /// Its process number.
    pub fn pid(&self) -> i32 {
        self.hello.pid
    }

    /// Records it until its end, to `target`, by way of a file beside it that is renamed at the end.
    /// `replaced` is set when the same process introduced itself anew; `detach` when the user wants
    /// no more.
    pub fn record(self, target: &Path, replaced: &AtomicBool, detach: &AtomicBool) {
        let partial = partial_name(target);
        report(&Report::Start {
            pid: self.hello.pid,
            origin: self.hello.origin,
            command: self.hello.command.clone(),
            file: target.into(),
        });
        let mut instructions = 0;
        let result = self.write(&partial, target, replaced, detach, &mut instructions);
        let (reason, error) = match result {
            Ok(reason) => (reason, None),
            Err(error) => {
                self.region.command.store(COMMAND_END, Ordering::Release);
                self.region.ring_drained();
                (Reason::Failed, Some(error))
            }
        };
        let renamed = fs::rename(&partial, target);
        let file = renamed.is_ok().then(|| target.to_owned());
        let bytes = fs::metadata(target).map_or(0, |about| about.len());
        report(&Report::End { pid: self.hello.pid, file, reason, instructions, bytes, error });
    }

    fn write(
        &self,
        partial: &Path,
        target: &Path,
        replaced: &AtomicBool,
        detach: &AtomicBool,
        instructions: &mut u64,
    ) -> Result<Reason, String> {
        let header = Header {
            name: self.hello.command.join(" "),
            origin: match self.hello.origin {
                Origin::Start | Origin::Fork => "qemu-user".into(),
                Origin::Guest => "qemu-system".into(),
            },
            architecture: "x86_64".into(),
        };
        let mut session = Session {
            guest: self,
            writer: Writer::create(partial, header).map_err(|error| explain(&error))?,
            recording: Recording::default(),
            events: VecDeque::new(),
            taken: vec![(0, 0); SLOTS],
            control: Vec::new(),
        };
        let mut told = Instant::now();
        let outcome = loop {
            // Before looking, so that what it left is found after.
            let reason = self.ended(replaced, detach);
            let step = session.step();
            *instructions = session.recording.instructions;
            match (step, reason) {
                (Err(error), _) => break Err(error),
                (Ok(_), Some(reason)) => {
                    let last = session.last();
                    *instructions = session.recording.instructions;
                    break last.map(|()| reason);
                }
                (Ok(true), None) => {}
                (Ok(false), None) => {
                    let seen = self.region.submitted.load(Ordering::Acquire);
                    if self.region.is_idle() {
                        sys::futex_wait(&self.region.submitted, seen, IDLE);
                    }
                }
            }
            if told.elapsed() >= PROGRESS {
                told = Instant::now();
                report(&Report::Progress {
                    pid: self.hello.pid,
                    file: target.into(),
                    instructions: *instructions,
                });
            }
        };
        match outcome {
            Ok(reason) => session.finish().map(|_| reason).map_err(|error| explain(&error)),
            Err(error) => {
                // What was understood so far is good; that a disk fails again is no news.
                let _ = session.emit(u64::MAX - 1);
                let _ = session.finish();
                Err(match error {
                    DecodeError::Trace(error) => explain(&error),
                    DecodeError::Wrong(why) => why,
                    DecodeError::Corrupt(what) => format!(
                        "the program destroyed the recorder's memory ({what}); the trace ends there. \
                         Check the program for stray stores, e.g. with valgrind"
                    ),
                })
            }
        }
    }

    /// Why nothing more will come, if so.
    fn ended(&self, replaced: &AtomicBool, detach: &AtomicBool) -> Option<Reason> {
        let state = self.region.state.load(Ordering::Acquire);
        if sys::is_readable(&self.ended) {
            return Some(match state {
                STATE_LIMIT => Reason::Limit,
                STATE_EXECUTING => Reason::Exec,
                _ => Reason::Exit,
            });
        }
        if replaced.load(Ordering::Acquire) || state == STATE_EXECUTING && !self.is_mapped() {
            return Some(Reason::Exec);
        }
        if detach.load(Ordering::Acquire) {
            self.region.command.store(COMMAND_DETACH, Ordering::Release);
            self.region.ring_drained();
            return Some(Reason::Detached);
        }
        None
    }

    /// Whether the process still has the region: an exec takes it away.
    fn is_mapped(&self) -> bool {
        let base = self.region.base.load(Ordering::Relaxed);
        let start = format!("{base:x}-");
        match fs::read_to_string(format!("/proc/{}/maps", self.hello.pid)) {
            Ok(maps) => {
                maps.lines().any(|line| line.starts_with(&start) && line.contains("memfd:flatwalk"))
            }
            // Not ours to look at (privileged by exec), or just gone: then the other sign comes.
            Err(error) => error.kind() != std::io::ErrorKind::PermissionDenied,
        }
    }
}

/// The name that a trace has while it grows.
pub fn partial_name(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn explain(error: &TraceError) -> String {
    if let TraceError::Io { path, source } = error
        && matches!(
            source.kind(),
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
        )
    {
        return format!(
            "{}: {source}; free some space, record elsewhere with --output, or record less with --limit",
            path.display()
        );
    }
    error.to_string()
}

/// One process's trace under construction.
struct Session<'a> {
    guest: &'a Guest,
    writer: Writer,
    recording: Recording,
    /// Events that were taken but not yet written, with the epochs that they start.
    events: VecDeque<(u64, Event)>,
    /// Of each slot: the sequence number of a buffer, and how many of its words were taken.
    taken: Vec<(u64, usize)>,
    control: Vec<u8>,
}

impl Session<'_> {
    /// Takes the full buffers, then looks at those being filled, and writes what is
    /// complete. False if there was nothing.
    fn step(&mut self) -> Result<bool, DecodeError> {
        let region = &*self.guest.region;
        let before = self.recording.instructions;
        let epoch = region.epoch.0.load(Ordering::Acquire);
        for _ in 0..region.submissions().map_err(DecodeError::Corrupt)? {
            let submission = region.next_submission();
            let slot = submission.slot.load(Ordering::Relaxed) as usize;
            let buffer = submission.buffer.load(Ordering::Relaxed);
            let thread = submission.thread.load(Ordering::Relaxed);
            let words = submission.words.load(Ordering::Relaxed) as usize;
            let sequence = submission.sequence.load(Ordering::Relaxed);
            if slot >= SLOTS || buffer as usize >= BUFFERS || words > BUFFER_WORDS {
                return Err(DecodeError::Corrupt("a submission names what does not exist"));
            }
            self.take_control()?;
            let skip = if self.taken[slot].0 == sequence { self.taken[slot].1 } else { 0 };
            let words =
                region.buffers[buffer as usize].get(skip.min(words)..words).unwrap_or_default();
            self.recording.add(
                thread,
                words.iter().map(|word| word.load(Ordering::Relaxed)),
                &mut self.writer,
            )?;
            self.taken[slot] = (sequence, usize::MAX);
            region.submission_done(buffer);
        }
        // Threads that do not fill their buffers must not hold their slices back for ever: a slice
        // of an old epoch would stand in the file far from where it belongs.
        self.sweep()?;
        self.take_control()?;
        self.emit(epoch)?;
        Ok(self.recording.instructions > before)
    }

    /// Takes the words of buffers that are being filled.
    fn sweep(&mut self) -> Result<(), DecodeError> {
        let region = &*self.guest.region;
        let base = region.base.load(Ordering::Relaxed);
        let mut words = Vec::new();
        let used = region.vcpus.load(Ordering::Acquire) as usize;
        for (index, slot) in region.slots.iter().enumerate().take(used) {
            let sequence = slot.sequence.load(Ordering::SeqCst);
            let thread = slot.thread.load(Ordering::SeqCst);
            if sequence % 2 == 1 || thread == 0 {
                continue;
            }
            let buffer = slot.buffer.load(Ordering::SeqCst) as usize;
            let next = slot.next.load(Ordering::SeqCst);
            let skip = if self.taken[index].0 == sequence { self.taken[index].1 } else { 0 };
            let start = base.wrapping_add(Region::buffer_offset(buffer % BUFFERS) as u64);
            let count = (next.wrapping_sub(start) / 8) as usize;
            if buffer >= BUFFERS || count > BUFFER_WORDS || count <= skip {
                continue;
            }
            words.clear();
            words.extend(
                region.buffers[buffer][skip..count].iter().map(|word| word.load(Ordering::Relaxed)),
            );
            fence(Ordering::SeqCst);
            if slot.sequence.load(Ordering::SeqCst) != sequence
                || region.has_submission_of(index).map_err(DecodeError::Corrupt)?
            {
                // It was submitted meanwhile, or an earlier one was and comes first.
                continue;
            }
            self.taken[index] = (sequence, count);
            self.take_control()?;
            self.recording.add(thread - 1, words.iter().copied(), &mut self.writer)?;
        }
        Ok(())
    }

    /// Takes definitions and events.
    fn take_control(&mut self) -> Result<(), DecodeError> {
        let region = &*self.guest.region;
        let mut took = false;
        while let Some(kind) =
            region.take_control(&mut self.control).map_err(DecodeError::Corrupt)?
        {
            took = true;
            match kind {
                CONTROL_DEFINE => self.recording.define(&self.control)?,
                CONTROL_EVENT => {
                    let event = self
                        .control
                        .split_first_chunk()
                        .and_then(|(epoch, text)| {
                            Some((u64::from_le_bytes(*epoch), serde_json::from_slice(text).ok()?))
                        })
                        .ok_or(DecodeError::Corrupt("an event is malformed"))?;
                    self.events.push_back(event);
                }
                CONTROL_WARNING => report(&Report::Warning {
                    pid: self.guest.hello.pid,
                    message: String::from_utf8_lossy(&self.control).into_owned(),
                }),
                CONTROL_FAILURE => {
                    let why = String::from_utf8_lossy(&self.control).into_owned();
                    return Err(DecodeError::Wrong(why));
                }
                CONTROL_CHECKED => {
                    let (numbers, rest) = self.control.as_chunks();
                    let (&[walks, accesses, kernel, repeated], []) = (numbers, rest) else {
                        return Err(DecodeError::Corrupt("a count of checks is malformed"));
                    };
                    report(&Report::Checked {
                        pid: self.guest.hello.pid,
                        walks: u64::from_le_bytes(walks),
                        accesses: u64::from_le_bytes(accesses),
                        kernel: u64::from_le_bytes(kernel),
                        repeated: u64::from_le_bytes(repeated),
                    });
                }
                _ => return Err(DecodeError::Corrupt("a control record is of no known kind")),
            }
        }
        if took {
            region.ring_drained();
        }
        Ok(())
    }

    /// Writes the events up to the one that started `epoch`, and the slices between them.
    fn emit(&mut self, epoch: u64) -> Result<(), DecodeError> {
        let mut slices = self.recording.take_slices();
        let later = slices.split_off(&epoch.saturating_add(1));
        for (at, slices) in slices {
            self.emit_events(at)?;
            for slice in slices {
                self.writer.slice(at, &slice)?;
            }
        }
        self.recording.put_back(later);
        Ok(())
    }

    fn emit_events(&mut self, epoch: u64) -> Result<(), DecodeError> {
        while let Some((at, _)) = self.events.front()
            && *at <= epoch
            && let Some((at, event)) = self.events.pop_front()
        {
            self.writer.event(at, &event)?;
        }
        Ok(())
    }

    /// Takes everything that an ended process left.
    fn last(&mut self) -> Result<(), DecodeError> {
        while self.guest.region.submissions().map_err(DecodeError::Corrupt)? > 0 {
            self.step()?;
        }
        self.sweep()?;
        self.take_control()?;
        self.recording.end(&mut self.writer)?;
        self.emit(u64::MAX - 1)?;
        self.emit_events(u64::MAX)
    }

    fn finish(self) -> Result<Summary, TraceError> {
        self.writer.finish()
    }
}
