//! Regions of interest: where recording starts, pauses and ends, by the program's own markers
//! (`flatwalk.h`) or at a place that the user names.

use std::ffi::{c_uint, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flatwalk_trace::Event;

use crate::capture;
use crate::channel::region::STATE_LIMIT;
use crate::elf::Image;
use crate::options::{Options, Place};
use crate::process::{Mode, emit, mode, populate, read_string, region, set_mode, with_state};
use crate::qemu::{ExecuteCallback, NO_REGISTERS, Qemu, TranslatedInstruction, TranslationBlock};
use crate::space::PAGE;
use crate::sys;

/// Whether the program's markers start and stop anything: not before the place to start at.
static MARKERS_COUNT: AtomicBool = AtomicBool::new(true);
static START: AtomicU64 = AtomicU64::new(u64::MAX);
static STOP: AtomicU64 = AtomicU64::new(u64::MAX);

/// Symbols to start and to stop at that no file loaded so far has.
#[derive(Clone, Default)]
pub struct Wanted {
    start: Option<String>,
    stop: Option<String>,
}

impl Wanted {
    /// Looks in a file loaded at `bias`.
    fn look_in(&mut self, image: &Image, bias: u64) {
        for (wanted, address) in [(&mut self.start, &START), (&mut self.stop, &STOP)] {
            if let Some(found) = wanted.as_deref().and_then(|name| image.symbol(name)) {
                address.store(found.wrapping_add(bias), Ordering::Relaxed);
                *wanted = None;
            }
        }
    }

    /// Looks in a library of which code was just mapped.
    pub fn look_in_library(&mut self, fd: u64, offset: u64, mapped_at: u64) {
        if self.start.is_none() && self.stop.is_none() {
            return;
        }
        let Some(image) = Image::read(&PathBuf::from(format!("/proc/self/fd/{fd}"))) else {
            return;
        };
        let is_mapped = |offset_in_file: u64| offset_in_file & !(PAGE - 1) == offset;
        let code = image.segments.iter().find(|s| s.protection.execute && is_mapped(s.offset));
        if let Some(segment) = code {
            self.look_in(&image, mapped_at.wrapping_sub(segment.address & !(PAGE - 1)));
        }
    }
}

/// Before the program starts: what it does at first, given the instructions to skip.
pub fn first_mode(options: &Options) -> Mode {
    let place_first = matches!(options.start_at, Some(Place::Address(_) | Place::Symbol(_)));
    MARKERS_COUNT.store(!place_first, Ordering::Release);
    match (&options.start_at, options.skip) {
        (Some(_), _) => Mode::Wait,
        (None, 0) => Mode::Record,
        (None, _) => Mode::Skip,
    }
}

/// Finds the user's places in the program, given with what its addresses are relative to.
pub fn find(options: &Options, program: Option<&(Image, u64)>) -> Wanted {
    let mut wanted = Wanted::default();
    for (place, address, symbol) in [
        (&options.start_at, &START, &mut wanted.start),
        (&options.stop_at, &STOP, &mut wanted.stop),
    ] {
        match place {
            Some(Place::Address(given)) => address.store(*given, Ordering::Relaxed),
            Some(Place::Symbol(name)) => *symbol = Some(name.clone()),
            Some(Place::Marker) | None => {}
        }
    }
    if let Some((image, bias)) = program {
        wanted.look_in(image, *bias);
    }
    wanted
}

/// Recording begins after a part that was not recorded: tells which pages that part populated.
pub fn start_recording() {
    with_state(|state| {
        if mode() == Mode::Record {
            return;
        }
        populate(state);
        set_mode(Mode::Record);
        emit(state, &Event::Marker { name: "start".into() });
    });
}

/// Has QEMU call when a block begins that has a place in it, if it has.
///
/// # Safety
/// `block` is being translated.
pub unsafe fn watch_places(qemu: &Qemu, block: *mut TranslationBlock, has: impl Fn(u64) -> bool) {
    let places: [(&AtomicU64, ExecuteCallback); 2] = [(&START, on_place), (&STOP, on_stop)];
    for (place, callback) in places {
        if has(place.load(Ordering::Relaxed)) {
            // SAFETY: the caller's promise; the callbacks have QEMU's signature.
            unsafe { (qemu.on_block)(block, callback, NO_REGISTERS, std::ptr::null_mut()) };
        }
    }
}

/// Has QEMU call when the instruction is one of the program's markers. `next` is the address and the
/// code of the instruction that follows, if it is in the same block.
///
/// # Safety
/// `instruction` is being translated.
pub unsafe fn watch_marker(
    qemu: &Qemu,
    instruction: *mut TranslatedInstruction,
    code: &[u8],
    next: Option<(u64, &[u8])>,
) {
    let (callback, data): (ExecuteCallback, *mut c_void) = match marker_of(code) {
        Some(1) => (on_start, std::ptr::null_mut()),
        Some(2) => (on_pause, std::ptr::null_mut()),
        Some(3) => match next.and_then(|(address, code)| name_of(address, code)) {
            // Kept for ever, as is the translation.
            Some(name) => (on_name, Box::into_raw(Box::new(name)).cast()),
            None => return,
        },
        _ => return,
    };
    // SAFETY: the caller's promise; the callbacks have QEMU's signature.
    unsafe { (qemu.on_instruction)(instruction, callback, NO_REGISTERS, data) };
}

/// `nopl 0x464c57NN(%rax,%rax,1)`: the markers of `flatwalk.h`.
const MARKER: [u8; 4] = [0x0f, 0x1f, 0x84, 0x00];
const MARKER_NUMBER: u32 = 0x464c_5700;
/// `nopl disp32(%rip)`: follows a named marker and points at the name.
const POINTER: [u8; 3] = [0x0f, 0x1f, 0x05];

/// The number of the marker that an instruction is, if it is one.
pub fn marker_of(code: &[u8]) -> Option<u8> {
    let rest = code.strip_prefix(&MARKER)?;
    let number = u32::from_le_bytes(rest.try_into().ok()?);
    (number & 0xffff_ff00 == MARKER_NUMBER).then_some(number as u8)
}

/// The string that a named marker's second instruction points at.
fn name_of(address: u64, code: &[u8]) -> Option<String> {
    let offset = i32::from_le_bytes(code.strip_prefix(&POINTER)?.try_into().ok()?);
    let guest = (address + code.len() as u64).wrapping_add_signed(i64::from(offset));
    read_string(guest).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The place was reached at which the user wants the recording to start.
unsafe extern "C" fn on_place(vcpu: c_uint, data: *mut c_void) {
    if !MARKERS_COUNT.swap(true, Ordering::AcqRel) {
        // SAFETY: it uses neither argument.
        unsafe { on_start(vcpu, data) };
    }
}

/// The program's own start of a region.
unsafe extern "C" fn on_start(_: c_uint, _: *mut c_void) {
    if mode() == Mode::Wait && MARKERS_COUNT.load(Ordering::Acquire) {
        if capture::has_to_skip() {
            set_mode(Mode::Skip);
            with_state(|state| emit(state, &Event::Marker { name: "skip".into() }));
        } else {
            start_recording();
        }
    }
}

/// The program's own end of a region: recording pauses.
unsafe extern "C" fn on_pause(_: c_uint, _: *mut c_void) {
    if mode() == Mode::Record {
        with_state(|state| {
            set_mode(Mode::Wait);
            emit(state, &Event::Marker { name: "stop".into() });
        });
    }
}

/// The place was reached at which the user wants the recording to end.
unsafe extern "C" fn on_stop(_: c_uint, _: *mut c_void) {
    if mode() == Mode::Record {
        region().state.store(STATE_LIMIT, Ordering::Release);
        sys::exit_now(0);
    }
}

/// The program passes a named place.
unsafe extern "C" fn on_name(_: c_uint, data: *mut c_void) {
    // SAFETY: `watch_marker` leaked this string.
    let name = unsafe { &*data.cast::<String>() };
    if mode() == Mode::Record {
        with_state(|state| emit(state, &Event::Marker { name: name.clone() }));
    }
}
