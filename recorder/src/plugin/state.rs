//! The recorded program's address space, and the events that change it: each is sent to the collector
//! and starts a new epoch.

use std::sync::atomic::{AtomicBool, Ordering};

use flatwalk_trace::Event;

use crate::channel::control::CONTROL_EVENT;
use crate::plugin::connection::{region, send, warn};
use crate::plugin::lock::Lock;
use crate::plugin::phase::{Phase, phase, set_phase};
use crate::plugin::setup::setup;
use crate::plugin::space::Space;

static SPACE: Lock<Space> = Lock::new(Space::new());
/// Events only change the address space: whose they are is not yet known.
static HELD: AtomicBool = AtomicBool::new(false);

/// Runs `work` on the address space, which nobody else uses meanwhile.
pub fn with_space<R>(work: impl FnOnce(&mut Space) -> R) -> R {
    SPACE.with(work)
}

/// In a forked child: puts its parent's address space in place.
pub fn renew(space: Space) {
    SPACE.renew(space);
}

/// Keeps events back from here on: nothing but the address space changes with them.
pub fn hold_events() {
    HELD.store(true, Ordering::Relaxed);
}

/// Sends events again; false if none were kept back.
pub fn release_events() -> bool {
    HELD.swap(false, Ordering::Relaxed)
}

/// Whether events are kept back.
pub fn are_events_held() -> bool {
    HELD.load(Ordering::Relaxed)
}

/// Notes an event and makes it the start of a new epoch, unless events are kept back.
pub fn emit(space: &mut Space, event: &Event) {
    space.apply(event);
    if are_events_held() {
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

/// Emits what a mapping call did that succeeded with `result`.
pub fn emit_mapping_call(space: &mut Space, number: i64, arguments: &[u64; 6], result: u64) {
    let left_behind = space.left_behind(number, arguments);
    let event = space.event_of(number, arguments, result);
    for event in event.iter().chain(&left_behind) {
        emit(space, event);
    }
}

/// Adds to `events` that the pages from `address` on are in memory; `stored` to or only loaded from.
pub fn push_populate(events: &mut Vec<Event>, address: u64, length: u64, stored: bool) {
    match events.last_mut() {
        Some(Event::Populate { address: first, length: so_far, store })
            if *first + *so_far == address && *store == stored =>
        {
            *so_far += length;
        }
        _ => events.push(Event::Populate { address, length, store: stored }),
    }
}

/// Recording begins after a part that was not recorded: emits which pages that part populated.
pub fn start_recording() {
    with_space(|space| {
        if phase() == Phase::Record {
            return;
        }
        (setup().hooks.populate)(space);
        set_phase(Phase::Record);
        emit(space, &Event::Marker { name: "start".into() });
    });
}
