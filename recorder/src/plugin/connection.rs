//! The connection to the collector: the shared memory, and the records sent through it.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::channel::control::{CONTROL_FAILURE, CONTROL_WARNING};
use crate::channel::hello::{Hello, Origin, READY, UNRECORDED, VERSION};
use crate::channel::region::{REGION_BYTES, Region, Stopped};
use crate::plugin::lock::Lock;
use crate::plugin::phase::{Phase, phase, set_phase};
use crate::sys;

static REGION: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());
static CONTROL: Lock<()> = Lock::new(());

/// The memory shared with the collector.
#[inline]
pub fn region() -> &'static Region {
    // SAFETY: `attach` maps the region for the process's lifetime before the first callback.
    unsafe { &*REGION.load(Ordering::Relaxed) }
}

/// The collector failed, or wants no more.
#[cold]
pub fn stop(why: Stopped) {
    match why {
        Stopped::End => sys::exit_now(1),
        Stopped::Detach => set_phase(Phase::Detached),
    }
}

/// Sends the collector a record, if it wants any.
pub fn send(kind: u64, payload: &[u8]) {
    if phase() != Phase::Detached
        && let Err(why) = CONTROL.with(|()| region().push_control(kind, payload))
    {
        stop(why);
    }
}

/// Sends something that the user should read.
pub fn warn(text: &str) {
    send(CONTROL_WARNING, text.as_bytes());
}

/// The recording is worthless: says why, and ends QEMU.
#[cold]
pub fn fail(why: &str) -> ! {
    send(CONTROL_FAILURE, why.as_bytes());
    sys::exit_now(1);
}

/// Introduces this process to the collector, and maps the region that it gets, at the place of the old one if there
/// is one. `knows_pages` says whether it can be known which pages are in memory. Returns why the collector cannot
/// record this process, if so; the region is then nobody else's.
///
/// # Errors
/// A message for the user.
pub fn attach(
    origin: Origin,
    socket: &Path,
    command: &[String],
    segment: Option<u64>,
    knows_pages: bool,
) -> Result<Option<String>, String> {
    let describe = |what: &str, error: io::Error| format!("{what}: {error}");
    let hello = Hello {
        version: VERSION.into(),
        pid: std::process::id() as i32,
        origin,
        command: command.to_vec(),
        segment,
        gap_pages: segment.is_some() && knows_pages,
    };
    let hello = serde_json::to_vec(&hello).map_err(|e| e.to_string())?;
    let mut stream =
        sys::connect(socket).map_err(|e| describe("the collector does not answer", e))?;
    let mut message = (hello.len() as u32).to_le_bytes().to_vec();
    message.extend_from_slice(&hello);
    sys::send(&stream, &message).map_err(|e| describe("the collector does not listen", e))?;
    let (answer, memory) =
        receive(&mut stream).map_err(|e| describe("the collector does not answer", e))?;
    if answer.is_empty() {
        return Err("the collector has ended".into());
    }
    let why = answer.strip_prefix(UNRECORDED);
    if why.is_none() && answer != READY {
        return Err(answer);
    }
    let old = REGION.load(Ordering::Relaxed);
    let mapped = match (why, memory) {
        (Some(_), _) => sys::map_private(old as usize, REGION_BYTES),
        // SAFETY: `old` is null or the start of the region this process's parent had.
        (None, Some(memory)) => unsafe { sys::map_shared(&memory, REGION_BYTES, old.cast()) },
        // Without a number for it, the kernel has dropped the descriptor.
        (None, None) => Err(io::Error::from_raw_os_error(libc::EMFILE)),
    };
    let address = mapped.map_err(|e| describe("shared memory cannot be mapped", e))?;
    // SAFETY: as long as a region and zero-filled, which is a valid one.
    let region = unsafe { &*address.cast::<Region>() };
    region.base.store(address as u64, Ordering::Relaxed);
    REGION.store(address.cast(), Ordering::Relaxed);
    Ok(why.map(Into::into))
}

/// Receives the collector's answer, and the descriptor with it if there is one.
fn receive(stream: &mut UnixStream) -> io::Result<(String, Option<OwnedFd>)> {
    let mut first = [0; READY.len()];
    let (got, memory) = sys::receive_with_descriptor(stream, &mut first)?;
    let mut answer = first[..got].to_vec();
    stream.read_to_end(&mut answer)?;
    Ok((String::from_utf8_lossy(&answer).into_owned(), memory))
}

/// Writes a message for the user. `eprintln` would panic where standard error is closed, and so end
/// QEMU, which called.
pub fn say(message: &str) {
    let _ = writeln!(io::stderr(), "flatwalk: {message}");
}

/// This process runs on unrecorded, for this reason.
pub fn go_unrecorded(why: &str) {
    say(&format!("process {} is not recorded: {why}", std::process::id()));
    set_phase(Phase::Detached);
}

/// In a forked child, before it allocates anything: puts memory of its own where the parent's region is, which is not
/// mapped here. Otherwise what it allocates could lie there, and the region would be mapped over it.
pub fn keep_place() {
    let place = REGION.load(Ordering::Relaxed) as usize;
    if sys::map_private(place, REGION_BYTES).is_err() {
        sys::exit_now(1);
    }
}

/// In a forked child that has kept the region's place: makes a connection of its own. Nothing of the parent's can be
/// written or sent twice. Without a collector the child writes to its own memory, and goes on unrecorded.
pub fn renew(socket: &Path, command: &[String], segment: Option<u64>, knows_pages: bool) {
    CONTROL.renew(());
    let is_wanted = phase() != Phase::Detached;
    let is_attached = is_wanted
        && match attach(Origin::Fork, socket, command, segment, knows_pages) {
            Ok(None) => true,
            Ok(Some(why)) | Err(why) => {
                go_unrecorded(&why);
                false
            }
        };
    if !is_attached {
        set_phase(Phase::Detached);
    }
}
