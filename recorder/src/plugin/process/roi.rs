//! Regions of interest: where recording starts, pauses and ends, by the program's own markers
//! (`flatwalk.h`) or at a place that the user names.

use std::ffi::{c_uint, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flatwalk_trace::Event;

use crate::channel::region::STATE_LIMIT;
use crate::plugin::budget::has_to_skip;
use crate::plugin::capture::ask_again;
use crate::plugin::connection::region;
use crate::plugin::lock::Lock;
use crate::plugin::markers::{Marker, name_address};
use crate::plugin::options::{Options, Place};
use crate::plugin::phase::{Phase, phase, set_phase};
use crate::plugin::process::elf::Image;
use crate::plugin::process::memory::read_string;
use crate::plugin::qemu::{
    ExecuteCallback, NO_REGISTERS, Qemu, TranslatedInstruction, TranslationBlock,
};
use crate::plugin::setup::setup;
use crate::plugin::space::PAGE;
use crate::plugin::state::{emit, end_gap, pause_recording, start_recording, unpause, with_space};
use crate::{sys, text};

/// Whether the program's markers start and stop anything: not before the place to start at.
static MARKERS_COUNT: AtomicBool = AtomicBool::new(true);
static START: AtomicU64 = AtomicU64::new(u64::MAX);
static STOP: AtomicU64 = AtomicU64::new(u64::MAX);
static UNRESOLVED: Lock<Unresolved> = Lock::new(Unresolved { start: None, stop: None });

/// Symbols to start and to stop at that no file loaded so far has.
#[derive(Clone, Default)]
pub struct Unresolved {
    start: Option<String>,
    stop: Option<String>,
}

impl Unresolved {
    /// Looks in a file loaded at `bias`.
    fn look_in(&mut self, image: &Image, bias: u64) {
        for (wanted, address) in [(&mut self.start, &START), (&mut self.stop, &STOP)] {
            if let Some(found) = wanted.as_deref().and_then(|name| image.symbol(name)) {
                address.store(found.wrapping_add(bias), Ordering::Relaxed);
                *wanted = None;
            }
        }
    }
}

/// Before the program starts: the phase that the recording begins in.
pub fn first_phase(options: &Options) -> Phase {
    let place_first = matches!(options.start_at, Some(Place::Address(_) | Place::Symbol(_)));
    MARKERS_COUNT.store(!place_first, Ordering::Release);
    match (&options.start_at, options.skip) {
        (Some(_), _) => Phase::Wait,
        (None, 0) => Phase::Record,
        (None, _) => Phase::Skip,
    }
}

/// Finds the user's places in the program, given with what its addresses are relative to.
pub fn find(options: &Options, program: Option<&(Image, u64)>) {
    UNRESOLVED.with(|unresolved| {
        for (place, address, symbol) in [
            (&options.start_at, &START, &mut unresolved.start),
            (&options.stop_at, &STOP, &mut unresolved.stop),
        ] {
            match place {
                Some(Place::Address(given)) => address.store(*given, Ordering::Relaxed),
                Some(Place::Symbol(name)) => *symbol = Some(name.clone()),
                Some(Place::Marker) | None => {}
            }
        }
        if let Some((image, bias)) = program {
            unresolved.look_in(image, *bias);
        }
    });
}

/// Looks for the user's places in a library of which code was just mapped.
pub fn look_in_library(fd: u64, offset: u64, mapped_at: u64) {
    UNRESOLVED.with(|unresolved| {
        if unresolved.start.is_none() && unresolved.stop.is_none() {
            return;
        }
        let Some(image) = Image::read(&PathBuf::from(format!("/proc/self/fd/{fd}"))) else {
            return;
        };
        let is_mapped = |offset_in_file: u64| offset_in_file & !(PAGE - 1) == offset;
        let code = image.segments.iter().find(|s| s.protection.execute && is_mapped(s.offset));
        if let Some(segment) = code {
            unresolved.look_in(&image, mapped_at.wrapping_sub(segment.address & !(PAGE - 1)));
        }
    });
}

/// What is still looked for.
pub fn unresolved() -> Unresolved {
    UNRESOLVED.with(|unresolved| unresolved.clone())
}

/// In a forked child: looks for what its parent looked for.
pub fn renew(unresolved: Unresolved) {
    UNRESOLVED.renew(unresolved);
}

/// Whether recording waits for a place that is in a block.
pub fn starts_in(has: impl Fn(u64) -> bool) -> bool {
    phase() == Phase::Wait && has(START.load(Ordering::Relaxed))
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
    let (callback, data): (ExecuteCallback, *mut c_void) = match Marker::of(code) {
        Some(Marker::Start) => (on_start, std::ptr::null_mut()),
        Some(Marker::Stop) => (on_pause, std::ptr::null_mut()),
        Some(Marker::Named) => match next.and_then(|(address, code)| name_of(address, code)) {
            // Kept for ever, as is the translation.
            Some(name) => (on_name, Box::into_raw(Box::new(name)).cast()),
            None => return,
        },
        None => return,
    };
    // SAFETY: the caller's promise; the callbacks have QEMU's signature.
    unsafe { (qemu.on_instruction)(instruction, callback, NO_REGISTERS, data) };
}

/// Of a marker's name; a trace has 65,536 bytes for one.
const LONGEST_NAME_BYTES: usize = 4096;

/// The string that a named marker's second instruction points at.
fn name_of(address: u64, code: &[u8]) -> Option<String> {
    let name = read_string(name_address(address, code)?)?;
    let mut name = String::from_utf8_lossy(&name).into_owned();
    text::cut(&mut name, LONGEST_NAME_BYTES);
    Some(name)
}

/// The place was reached at which the user wants the recording to start.
unsafe extern "C" fn on_place(vcpu: c_uint, data: *mut c_void) {
    if !MARKERS_COUNT.swap(true, Ordering::AcqRel) {
        // SAFETY: it uses neither argument.
        unsafe { on_start(vcpu, data) };
    }
}

/// The program's own start of a region.
unsafe extern "C" fn on_start(vcpu: c_uint, _: *mut c_void) {
    if !MARKERS_COUNT.load(Ordering::Acquire) {
        return;
    }
    // First, so that whoever has skipped the last instruction meanwhile leaves it to what follows.
    unpause();
    if phase() == Phase::Wait {
        if has_to_skip() {
            set_phase(Phase::Skip);
            with_space(|space| emit(space, &Event::Marker { name: "skip".into() }));
        } else {
            start_recording();
        }
        // What it may still execute was not counted.
        ask_again(vcpu);
    }
}

/// The program's own end of a region: recording pauses, or ends if the user wants that.
unsafe extern "C" fn on_pause(vcpu: c_uint, data: *mut c_void) {
    if setup().options.stop_at == Some(Place::Marker) {
        // SAFETY: it uses neither argument.
        unsafe { on_stop(vcpu, data) };
    }
    pause_recording();
    if phase() == Phase::Wait {
        // What follows is not of the gap, or of the segment, that this thread has a grant of.
        ask_again(vcpu);
    }
}

/// The place was reached at which the user wants the recording to end.
unsafe extern "C" fn on_stop(_: c_uint, _: *mut c_void) {
    if matches!(phase(), Phase::Record | Phase::Gap) {
        end_gap();
        region().state.store(STATE_LIMIT, Ordering::Release);
        sys::exit_now(0);
    }
}

/// The program passes a named place.
unsafe extern "C" fn on_name(_: c_uint, data: *mut c_void) {
    // SAFETY: `watch_marker` leaked this string.
    let name = unsafe { &*data.cast::<String>() };
    if phase() == Phase::Record {
        with_space(|space| emit(space, &Event::Marker { name: name.clone() }));
    }
}
