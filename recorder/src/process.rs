//! What the plugin knows of the process that it runs in, and how it speaks to the collector.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use flatwalk_trace::Event;

use crate::channel::control::{CONTROL_EVENT, CONTROL_WARNING};
use crate::channel::hello::{Hello, Origin, VERSION};
use crate::channel::region::{REGION_BYTES, Region, Stopped};
use crate::interest::{self, Wanted};
use crate::lock::Lock;
use crate::options::Options;
use crate::qemu::{Qemu, System};
use crate::space::Space;
use crate::{elf, guest, sys};

/// What the process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Passing over `skip` instructions.
    Skip,
    /// Waiting for the start of a region of interest.
    Wait,
    /// Recording.
    Record,
    /// Nothing is recorded any more: the collector wants no more, or is not there.
    Detached,
}

/// Everything that is fixed at installation.
pub struct Setup {
    /// QEMU's functions.
    pub qemu: Qemu,
    /// What the user asked for.
    pub options: Options,
    /// The program as the user sees it, with its arguments.
    pub command: Vec<String>,
    /// More of QEMU's functions, if it emulates a whole machine.
    pub system: Option<System>,
}

/// The address space, and where regions of interest begin and end.
#[derive(Clone, Default)]
pub struct State {
    begun: bool,
    /// The mappings.
    pub space: Space,
    /// Difference between host and guest addresses.
    guest_base: u64,
    /// Symbols that were not yet found.
    pub wanted: Wanted,
}

static SETUP: OnceLock<Setup> = OnceLock::new();
static REGION: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());
static MODE: AtomicU32 = AtomicU32::new(Mode::Wait as u32);
static CONTROL: Lock<()> = Lock::new(());
static STATE: Lock<Option<State>> = Lock::new(None);

/// Fixes what is fixed; the first call counts.
pub fn set_up(setup: Setup) {
    let _ = SETUP.set(setup);
}

/// What is fixed.
pub fn setup() -> &'static Setup {
    // `install` fills it before it registers the first callback.
    SETUP.get().expect("the plugin is installed")
}

/// The memory shared with the collector.
#[inline]
pub fn region() -> &'static Region {
    // SAFETY: `install` maps the region for the process's lifetime before the first callback.
    unsafe { &*REGION.load(Ordering::Relaxed) }
}

/// What the process is doing.
pub fn mode() -> Mode {
    match MODE.load(Ordering::Acquire) {
        0 => Mode::Skip,
        1 => Mode::Wait,
        2 => Mode::Record,
        _ => Mode::Detached,
    }
}

/// Changes what the process is doing.
pub fn set_mode(mode: Mode) {
    MODE.store(mode as u32, Ordering::Release);
}

/// The collector failed, or wants no more.
#[cold]
pub fn stop(why: Stopped) {
    match why {
        Stopped::End => sys::exit_now(1),
        Stopped::Detach => MODE.store(Mode::Detached as u32, Ordering::Release),
    }
}

/// Sends the collector a record, if it wants any.
pub fn send(kind: u64, payload: &[u8]) {
    if mode() != Mode::Detached
        && let Err(why) = CONTROL.with(|()| region().push_control(kind, payload))
    {
        stop(why);
    }
}

/// Tells the collector something that the user should read.
pub fn warn(text: &str) {
    send(CONTROL_WARNING, text.as_bytes());
}

/// Notes an event and makes it the start of a new epoch. In a guest whose program is still to be told from
/// others by its marker, nothing but the address space takes note.
pub fn emit(state: &mut State, event: &Event) {
    state.space.apply(event);
    if guest::is_held() {
        return;
    }
    let counter = &region().epoch.0;
    let epoch = counter.load(Ordering::Relaxed) + 1;
    let mut payload = epoch.to_le_bytes().to_vec();
    if let Err(error) = serde_json::to_writer(&mut payload, event) {
        warn(&format!("an event could not be written down: {error}"));
        return;
    }
    send(CONTROL_EVENT, &payload);
    counter.store(epoch, Ordering::Release);
}

/// Runs `work` on the state of the process, which nobody else uses meanwhile.
pub fn with_state<R>(work: impl FnOnce(&mut State) -> R) -> R {
    STATE.with(|state| work(state.get_or_insert_default()))
}

/// Before the first instruction: notes the mappings that QEMU made, and where the user's places are.
pub fn begin() {
    with_state(|state| {
        if std::mem::replace(&mut state.begun, true) {
            return;
        }
        let Setup { qemu, options, .. } = setup();
        let path = qemu.path_to_program();
        // SAFETY: on a vCPU's thread, with the program loaded.
        let (code_start, entry) = unsafe { ((qemu.program_code_start)(), (qemu.program_entry)()) };
        let start = elf::start(&path, code_start, entry);
        state.guest_base = start.guest_base;
        start.events.iter().for_each(|event| emit(state, event));
        populate(state);
        state.wanted = interest::find(options, start.program.as_ref());
    });
}

/// Tells which pages are in memory.
pub fn populate(state: &mut State) {
    if setup().system.is_some() {
        guest::populate(state);
        return;
    }
    match state.space.populated(state.guest_base) {
        Ok(events) => events.iter().for_each(|event| emit(state, event)),
        Err(error) => warn(&format!(
            "which pages were in memory before the recorded part could not be read from \
             /proc/self/pagemap ({error}); their first touches will look like page faults"
        )),
    }
}

/// The NUL-terminated string at guest address `address`, at most 128 KiB long (the kernel's limit
/// for one argument); `None` if it is not all mapped.
pub fn read_string(address: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let mut at = address.wrapping_add(with_state(|state| state.guest_base));
    while text.len() < 128 << 10 {
        let mut part = [0; 4096];
        // Up to the end of the page, since the next may not be mapped.
        let part = &mut part[..4096 - (at as usize & 4095)];
        let got = sys::read_memory(at, part);
        if let Some(end) = part[..got].iter().position(|&byte| byte == 0) {
            text.extend_from_slice(&part[..end]);
            return Some(text);
        }
        if got < part.len() {
            return None;
        }
        text.extend_from_slice(part);
        at += part.len() as u64;
    }
    None
}

/// The 8-byte word at guest address `address`, `None` if it is not mapped.
pub fn read_word(address: u64) -> Option<u64> {
    let mut word = [0; 8];
    let at = address.wrapping_add(with_state(|state| state.guest_base));
    (sys::read_memory(at, &mut word) == 8).then(|| u64::from_le_bytes(word))
}

/// Makes a region, at the place of the old one if there is one, and introduces this process to the
/// collector.
///
/// # Errors
/// A message for the user.
pub fn attach(origin: Origin, socket: &std::path::Path, command: &[String]) -> Result<(), String> {
    let describe = |what: &str, error: io::Error| format!("{what}: {error}");
    let memory = sys::shared_memory(REGION_BYTES).map_err(|e| describe("no shared memory", e))?;
    let old = REGION.load(Ordering::Relaxed);
    // SAFETY: `old` is null or the start of the region this process's parent had.
    let address = unsafe { sys::map_shared(&memory, REGION_BYTES, old.cast()) }
        .map_err(|e| describe("shared memory cannot be mapped", e))?;
    // SAFETY: as long as a region and zero-filled, which is a valid one.
    let region = unsafe { &*address.cast::<Region>() };
    region.base.store(address as u64, Ordering::Relaxed);
    REGION.store(address.cast(), Ordering::Relaxed);
    let hello = Hello {
        version: VERSION.into(),
        pid: std::process::id() as i32,
        origin,
        command: command.to_vec(),
    };
    let hello = serde_json::to_vec(&hello).map_err(|e| e.to_string())?;
    let mut stream =
        UnixStream::connect(socket).map_err(|e| describe("the collector does not answer", e))?;
    let mut message = (hello.len() as u32).to_le_bytes().to_vec();
    message.extend_from_slice(&hello);
    sys::send_with_descriptor(&stream, &message, &memory)
        .map_err(|e| describe("the collector does not listen", e))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|e| describe("the collector does not answer", e))?;
    if answer == "ready" { Ok(()) } else { Err(answer) }
}

/// In a forked child: what its parent knew is `state`. The parent's region is not mapped here, so
/// nothing of the parent's can be written or sent twice. Without a collector the child has memory of
/// its own to write to, and goes on unrecorded.
pub fn renew(state: State) {
    let Setup { options, command, .. } = setup();
    CONTROL.renew(());
    STATE.renew(Some(state));
    let is_wanted = mode() != Mode::Detached;
    let attached = is_wanted
        && match attach(Origin::Fork, &options.socket, command) {
            Ok(()) => true,
            Err(error) => {
                eprintln!("flatwalk: process {} is not recorded: {error}", std::process::id());
                false
            }
        };
    if !attached {
        if sys::map_private(REGION.load(Ordering::Relaxed) as usize, REGION_BYTES).is_err() {
            sys::exit_now(1);
        }
        set_mode(Mode::Detached);
    }
}
