//! The recorded program's address space, and the events that change it: each is sent to the collector
//! and starts a new epoch.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flatwalk_trace::{Advice, Event};

use crate::channel::control::{CONTROL_EVENT, CONTROL_MARK, MARK_BEGIN, MARK_END, MARK_THIN};
use crate::plugin::budget::{self, Next};
use crate::plugin::connection::{region, send, warn};
use crate::plugin::lock::Lock;
use crate::plugin::phase::{Phase, phase, set_phase};
use crate::plugin::setup::setup;
use crate::plugin::space::Space;

static SPACE: Lock<Space> = Lock::new(Space::new());
/// The program paused recording while instructions were skipped: what follows these is not to be recorded.
static IS_PAUSED: AtomicBool = AtomicBool::new(false);
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
    let populated = space.populated_by(number, arguments, result);
    let event = space.event_of(number, arguments, result);
    for event in event.iter().chain(&left_behind) {
        emit(space, event);
    }
    emit_advice(space, populated, Advice::Populate);
}

/// Emits that the kernel was given `advice` for each of these ranges.
pub fn emit_advice(space: &mut Space, ranges: Vec<Range<u64>>, advice: Advice) {
    for Range { start, end } in ranges {
        emit(space, &Event::Advise { address: start, length: end - start, advice });
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

/// Sends the collector a mark of the sample, in an epoch of its own.
fn mark(mark: u64, first: u64, second: u64) {
    let counter = &region().epoch.0;
    let epoch = counter.load(Ordering::Relaxed) + 1;
    let words = [epoch, mark, first, second].map(u64::to_le_bytes);
    send(CONTROL_MARK, words.as_flattened());
    counter.store(epoch, Ordering::Release);
}

/// What passes from here on is a gap in the recording. Of a sample, a segment begins.
pub fn begin_sample(_: &mut Space) {
    region().gaps_count.store(1, Ordering::Relaxed);
    if let Some(segment) = budget::segment() {
        mark(MARK_BEGIN, segment, 0);
    }
}

/// Recording begins, after a part that was not to be recorded: emits which pages that part populated, so that
/// they are in no gap. Of a sample, what begins may also be the rest of a gap.
pub fn start_recording() {
    with_space(|space| {
        if !matches!(phase(), Phase::Skip | Phase::Wait) || waits_after_skip() {
            return;
        }
        budget::end_skip();
        let region = region();
        let gaps = GAPS.load(Ordering::Relaxed);
        region.discarded.store(region.passed().wrapping_sub(gaps), Ordering::Relaxed);
        (setup().hooks.populate)(space);
        let is_in_gap = budget::is_in_gap();
        if !is_in_gap {
            (setup().hooks.watch)();
            set_phase(Phase::Record);
        }
        emit(space, &Event::Marker { name: "start".into() });
        if is_in_gap {
            region.gaps_count.store(1, Ordering::Relaxed);
            set_phase(Phase::Gap);
            // Pages that are named from here on were touched in it.
            emit(space, &Event::Gap { instructions: 0 });
        } else {
            begin_sample(space);
        }
    });
}

/// All that was to be skipped has been: whether the program paused recording meanwhile, so that it
/// waits for the next start. The address space is in hand.
fn waits_after_skip() -> bool {
    let waits = phase() == Phase::Skip && IS_PAUSED.load(Ordering::Relaxed);
    if waits {
        budget::end_skip();
        set_phase(Phase::Wait);
    }
    waits
}

/// All that was to be skipped has been. False if recording begins.
pub fn end_paused_skip() -> bool {
    with_space(|_| waits_after_skip())
}

/// The program starts a region: if instructions are still skipped, recording begins after them.
pub fn unpause() {
    with_space(|_| IS_PAUSED.store(false, Ordering::Relaxed));
}

/// Recording pauses.
pub fn pause_recording() {
    with_space(|space| {
        if phase() == Phase::Skip {
            IS_PAUSED.store(true, Ordering::Relaxed);
        }
        if matches!(phase(), Phase::Record | Phase::Gap) {
            let was_gap = phase() == Phase::Gap;
            set_phase(Phase::Wait);
            emit_gap(space);
            if was_gap {
                (setup().hooks.populate)(space);
            }
            region().gaps_count.store(0, Ordering::Relaxed);
            emit(space, &Event::Marker { name: "stop".into() });
        }
    });
}

/// Instructions of all gaps so far.
static GAPS: AtomicU64 = AtomicU64::new(0);

/// In a forked child, with a new region: there were no gaps.
pub fn forget_gaps() {
    GAPS.store(0, Ordering::Relaxed);
}

/// Emits how many instructions have passed that are not recorded, if any.
fn emit_gap(space: &mut Space) {
    let region = region();
    let before = GAPS.load(Ordering::Relaxed);
    let passed = region.passed().wrapping_sub(region.discarded.load(Ordering::Relaxed));
    if passed > before {
        GAPS.store(passed, Ordering::Relaxed);
        emit(space, &Event::Gap { instructions: passed - before });
    }
}

/// Emits how long the gap was, and which pages came into memory in it.
fn close_gap(space: &mut Space) {
    emit_gap(space);
    (setup().hooks.populate)(space);
}

/// If this is a gap, it may end here with the program.
pub fn end_gap() {
    with_space(|space| {
        if phase() == Phase::Gap {
            close_gap(space);
        }
    });
}

/// Of what is recorded, all is granted: turns to what comes next. False if nothing does.
pub fn end_segment() -> bool {
    with_space(|space| {
        if phase() != Phase::Record {
            return true;
        }
        let thin = |thinned| {
            if let Some((stride, seed)) = thinned {
                mark(MARK_THIN, stride, seed);
            }
        };
        match budget::end_segment() {
            Next::End => return false,
            Next::Same => {}
            Next::Segment(thinned, segment) => {
                thin(thinned);
                mark(MARK_BEGIN, segment, 0);
            }
            Next::Gap(thinned) => {
                mark(MARK_END, 0, 0);
                thin(thinned);
                // What happens from here on is not of the segment; how long the gap is comes at its end.
                emit(space, &Event::Gap { instructions: 0 });
                set_phase(Phase::Gap);
                (setup().hooks.count)();
            }
        }
        true
    })
}

/// A gap is at its end. False if the limit is, too.
pub fn begin_segment() -> bool {
    with_space(|space| {
        if phase() != Phase::Gap {
            return true;
        }
        let goes_on = budget::begin_segment();
        close_gap(space);
        if goes_on {
            set_phase(Phase::Record);
            begin_sample(space);
        }
        goes_on
    })
}
