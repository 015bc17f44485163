//! What QEMU's translations watch: all accesses while recording, and between recorded parts only how many
//! instructions each block has, which costs next to nothing.
//!
//! QEMU calls for what was registered as a block was translated. To watch something else, it is asked to
//! reset a plugin: it stops all threads between two blocks, gives up all translations, and calls back. That
//! would lose the callbacks for system calls and threads, some of which may be under way; therefore the
//! plugin is loaded twice, and only the second registration, which is for translations alone, is ever reset.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::channel::region::STATE_LIMIT;
use crate::plugin::budget::{self, Part};
use crate::plugin::capture::all_ask_again;
use crate::plugin::connection::region;
use crate::plugin::lock::Lock;
use crate::plugin::phase::{Phase, phase};
use crate::plugin::process::translate::on_translate;
use crate::plugin::process::watched::{is_watched, set_watched};
use crate::plugin::qemu::PluginId;
use crate::plugin::setup::setup;
use crate::plugin::state::{begin_segment, start_recording};
use crate::sys;

/// The registration that is reset; QEMU numbers none of them 0.
static SECOND: AtomicU64 = AtomicU64::new(0);
static CHANGE: Lock<Change> = Lock::new(NONE);
const NONE: Change =
    Change { under_way: false, watches: true, begins: false, held: 0, leaving: Vec::new() };
/// How long an ending thread may take to be gone. Another one may have its number by then.
const LEAVING: Duration = Duration::from_secs(10);

/// A reset that was asked for.
struct Change {
    under_way: bool,
    /// What translations are to watch then.
    watches: bool,
    /// What is recorded begins there.
    begins: bool,
    /// Threads that make another process or thread. A child process has none of the others, and so not
    /// what they asked for.
    held: u32,
    /// Threads that end, and since when: QEMU frees what it has of them while a reset, which is about all
    /// of them, may be under way.
    leaving: Vec<(i32, Instant)>,
}

impl Change {
    /// Whether no reset may begin now.
    fn is_held(&mut self) -> bool {
        self.leaving
            .retain(|&(thread, since)| since.elapsed() < LEAVING && sys::thread_exists(thread));
        self.held > 0 || !self.leaving.is_empty()
    }
}

/// Notes the second registration, and has QEMU call for translations.
///
/// # Safety
/// `id` is this plugin's, and QEMU is at its installation or has just reset it.
pub unsafe fn install(id: PluginId) {
    SECOND.store(id, Ordering::Relaxed);
    // SAFETY: the caller's promise; the callback has QEMU's signature.
    unsafe { (setup().qemu.on_translate)(id, on_translate) };
}

/// Whether there is a second registration.
pub fn is_installed() -> bool {
    SECOND.load(Ordering::Relaxed) != 0
}

/// Before the first block: recording begins later.
pub fn count_first() {
    set_watched(false);
}

/// Blocks are to be watched with all accesses from the next one on.
pub fn watch() {
    if !is_watched() {
        change(true, false);
    }
}

/// Blocks are only to be counted from the next one on.
pub fn count() {
    if is_watched() {
        change(false, false);
    }
}

/// The part that is passed over is at its end: recording begins with the next block, unless that cannot
/// be now (see [`hold`]).
pub fn begin() {
    change(true, true);
}

/// Asks QEMU for a reset, unless that cannot be now.
fn change(watches: bool, begins: bool) {
    CHANGE.with(|change| {
        if change.is_held() {
            return;
        }
        change.watches = watches;
        change.begins |= begins;
        if !change.under_way {
            change.under_way = true;
            // SAFETY: on a vCPU's thread, outside of translation; QEMU calls back with this signature.
            unsafe { (setup().qemu.reset)(SECOND.load(Ordering::Relaxed), on_reset) };
        }
    });
}

/// No thread executes anything, and QEMU has no translations any more.
///
/// # Safety
/// Called by QEMU.
unsafe extern "C" fn on_reset(id: PluginId) {
    // SAFETY: this is the reset.
    unsafe { install(id) };
    let begins = CHANGE.with(|change| {
        change.under_way = false;
        set_watched(change.watches);
        std::mem::take(&mut change.begins)
    });
    // What they were granted was of what is over; or it is not over yet, and is there for all.
    all_ask_again();
    if !begins {
        return;
    }
    match phase() {
        Phase::Skip if budget::remains(Part::Skip) => set_watched(false),
        Phase::Gap if budget::remains(Part::Gap) => set_watched(false),
        Phase::Skip => start_recording(),
        Phase::Gap if !begin_segment() => {
            region().state.store(STATE_LIMIT, Ordering::Release);
            sys::exit_now(0);
        }
        _ => {}
    }
}

/// A thread is about to make a process or a thread: waits until nothing is under way, and lets nothing be
/// until [`release`].
pub fn hold() {
    CHANGE.with(|change| change.held += 1);
    wait();
}

/// It has made it, or failed to.
pub fn release() {
    CHANGE.with(|change| change.held -= 1);
}

/// This thread is about to end: the same until it is gone.
pub fn leave() {
    CHANGE.with(|change| change.leaving.push((sys::thread_number(), Instant::now())));
    wait();
}

/// QEMU regards this thread as stopped, so that what others asked for goes on.
fn wait() {
    while CHANGE.with(|change| change.under_way) {
        thread::sleep(Duration::from_micros(50));
    }
}

/// In a forked child: nothing is under way.
pub fn renew() {
    CHANGE.renew(NONE);
}
