//! Forks: a child process gets a region and a trace of its own.

use std::cell::RefCell;
use std::ffi::c_uint;

use flatwalk_trace::Event;

use crate::pages::Pages;
use crate::plugin::budget::{self, Budget};
use crate::plugin::connection::region;
use crate::plugin::phase::{Phase, phase, set_phase};
use crate::plugin::process::pagemap::{self, populate};
use crate::plugin::process::roi::{self, Unresolved};
use crate::plugin::process::{threads, waking, watching};
use crate::plugin::setup::{Setup, setup};
use crate::plugin::space::Space;
use crate::plugin::state::{self, begin_sample, emit, with_space};
use crate::plugin::{block, buffers, connection};

/// What a child process will need, taken before the fork: afterwards, locks may be held by threads that
/// the child does not have.
pub struct BeforeFork {
    parent: u32,
    space: Space,
    unresolved: Unresolved,
    budget: Budget,
}

thread_local! {
    static BEFORE_FORK: RefCell<Option<BeforeFork>> = const { RefCell::new(None) };
}

/// True for system calls that make a process (QEMU carries out vfork as fork, too).
pub fn is_fork(number: i64, flags: u64) -> bool {
    match number {
        libc::SYS_fork | libc::SYS_vfork => true,
        libc::SYS_clone => flags & libc::CLONE_THREAD as u64 == 0,
        _ => false,
    }
}

/// A process is about to fork.
pub fn prepare() {
    pagemap::close();
    BEFORE_FORK.set(Some(BeforeFork {
        parent: std::process::id(),
        space: with_space(|space| space.clone()),
        unresolved: roi::unresolved(),
        budget: budget::left(region().used_slots()),
    }));
}

/// A fork's system call returned: in the child, what was taken before.
pub fn take_in_child() -> Option<BeforeFork> {
    BEFORE_FORK.take().filter(|before| before.parent != std::process::id())
}

/// In a forked child, before it executes anything: a region and a trace of its own. `vcpu` runs its only
/// thread.
pub fn become_child(vcpu: c_uint, before: BeforeFork) {
    connection::keep_place();
    let Setup { options, command, .. } = setup();
    let mappings = before.space.as_events();
    state::renew(before.space);
    roi::renew(before.unresolved);
    connection::renew(&options.socket, command, options.segment, pagemap::is_readable());
    buffers::renew();
    pagemap::renew();
    budget::renew(options, before.budget);
    threads::renew(vcpu);
    waking::renew();
    watching::renew();
    state::forget_gaps();
    block::define_all();
    if phase() == Phase::Gap {
        // Its sample is its own, and begins here.
        set_phase(Phase::Record);
    }
    with_space(|space| {
        space.known = Pages::new();
        space.locks_new = false;
        emit(space, &Event::ThreadStart { thread: 0 });
        for event in &mappings {
            emit(space, event);
        }
        populate(space);
        if phase() == Phase::Record {
            begin_sample(space);
            watching::watch();
        }
    });
}
