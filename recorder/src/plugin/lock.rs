//! A lock that can be held from one callback to another and made anew in a forked child, which a
//! standard mutex cannot.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::sys;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A value that one thread at a time may use.
pub struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only while the lock is held, by one thread.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// An unlocked value.
    pub const fn new(value: T) -> Lock<T> {
        Lock { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock and keeps it until [`Lock::release`].
    pub fn acquire(&self) {
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            sys::futex_wait(&self.state, CONTENDED, Duration::from_secs(1));
        }
    }

    /// Gives the lock back.
    pub fn release(&self) {
        if self.state.swap(FREE, Ordering::Release) == CONTENDED {
            sys::futex_wake(&self.state);
        }
    }

    /// Runs `work` on the value with the lock held.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        self.acquire();
        // SAFETY: the lock is held, and `release` follows the last use of the reference.
        let result = work(unsafe { &mut *self.value.get() });
        self.release();
        result
    }

    /// In a forked child: puts `value` in place, free, whatever state the lock and the old value
    /// were in when the other threads vanished. The old value is leaked.
    pub fn renew(&self, value: T) {
        // SAFETY: the child has one thread, so nobody else uses the value.
        unsafe { self.value.get().write(value) };
        self.state.store(FREE, Ordering::Release);
    }
}
